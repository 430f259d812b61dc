"""Bringing the search index up to date with the files: reads only what is new, in one transaction.

A file is recognised by its inode, so one that is moved to the archive keeps its rows; a rewritten or edited one is
indexed again; rows of a deleted one are deleted. `rows` has the texts, `words` what is searched of them.
"""

import errno
import logging
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import BinaryIO

from nanobot.messages.types import Origin, is_outside
from nanobot.security.secrets import redact_known
from nanobot.session.file_names import key_of
from nanobot.session.folder import open_packed
from nanobot.session.lines import decode, is_record
from nanobot.session.search.query import fold
from nanobot.session.search.sources import (
    IndexedFile,
    IndexSource,
    SearchableText,
    entries_in,
    message_in,
    stamp_of,
    trust_in,
)
from nanobot.utils import codec
from nanobot.utils.text import escape_surrogates

log = logging.getLogger(__name__)

_VERSION = 5
"""Version of tables and folding; an index with another one is rebuilt."""
_SCHEMA = """
DROP TABLE IF EXISTS files; DROP TABLE IF EXISTS rows; DROP TABLE IF EXISTS words;
CREATE TABLE files (id INTEGER PRIMARY KEY, data TEXT NOT NULL);
CREATE TABLE rows (
    id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER NOT NULL, time REAL NOT NULL, role TEXT NOT NULL,
    turn_id TEXT NOT NULL, trust TEXT NOT NULL, text TEXT NOT NULL);
CREATE INDEX rows_of_file ON rows (file);
CREATE VIRTUAL TABLE words USING fts5 (text, tokenize = 'trigram case_sensitive 1');
"""
_OPTIMIZE_ROWS = 20_000
"""New rows after which the index is optimised, which makes it small and fast."""
_BLOCK = 1 << 18
_TAIL = 256
_PAUSE_S = 0.0005
"""Pause between two blocks, so that other threads get the interpreter."""


class IndexUpdate:
    """One update of the tables, and the files that are in them then."""

    def __init__(
        self, db: sqlite3.Connection, opener: Callable[[str, int], int] | None, is_late: Callable[[], bool]
    ) -> None:
        """`opener` opens memory files; `is_late` tells whether to stop before the update is complete."""
        self._db = db
        self._opener = opener
        self._is_late = is_late
        self._added = 0
        self.files: dict[int, IndexedFile] = {}
        """By id, without files that are gone."""
        self.is_whole = False
        """Whether all that is in the files is in the index."""

    def run(self, sources: Iterable[IndexSource]) -> None:
        """Index what is new until `is_late`."""
        stamps = {source: stamp for source in sources if (stamp := source.stamp())}
        known = self._load_files()
        self.files = {file.id: file for file in known if file.source in stamps}
        if len(known) == len(stamps) and all(stamps.get(file.source) == file.stamp for file in known):
            self.is_whole = True
            return
        try:
            with _transaction(self._db):
                self.is_whole = self._update(stamps)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            log.info("another process updates the search index")

    def _update(self, stamps: dict[IndexSource, str]) -> bool:
        """Return whether the index is complete."""
        found = {(stamp.partition(":")[0], source.is_memory): source for source, stamp in stamps.items()}
        known = {(file.inode, file.source.is_memory): file for file in self._load_files()}  # perhaps newer by now
        for identity, file in known.items():
            if identity not in found:
                self._delete_rows(file)
                self._db.execute("DELETE FROM files WHERE id = ?", (file.id,))
        self.files = {}
        is_whole = True
        for identity, source in sorted(found.items(), key=lambda item: int(stamps[item[1]].rpartition(":")[2])):
            before = known.get(identity)
            if before is not None and (before.source, before.stamp) == (source, stamps[source]):
                self.files[before.id] = before
            else:
                is_whole = is_whole and not self._is_late() and self._index(source, before, identity[0])
        if self._added > _OPTIMIZE_ROWS:
            self._db.execute("INSERT INTO words (words) VALUES ('optimize')")
        return is_whole

    def _index(self, source: IndexSource, before: IndexedFile | None, inode: str) -> bool:
        """Index what is new in a file. Return False if time ran out. Unreadable files are tried again next time."""
        try:
            with self._open(source) as opened:
                stamp = source.member_stamp or stamp_of(os.fstat(opened.fileno()))
                if stamp.partition(":")[0] != inode:  # replaced meanwhile, perhaps by a link to another chat's memory
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                file = before or self._add_file(source)
                is_continued = (
                    _tail_of(opened, file.read_to) == file.tail and opened.seek(0, os.SEEK_END) > file.read_to
                )
                if stamp != file.stamp and not (source.only_grows and is_continued):
                    self._delete_rows(file)
                    file = IndexedFile(file.id, source, file.key)
                file.source = source
                self.files[file.id] = file
                is_whole = self._index_blocks(file, opened, stamp)
                file.stamp = stamp if is_whole else f"{inode}:0:0"
                file.tail = _tail_of(opened, file.read_to)
                self._db.execute("UPDATE files SET data = ? WHERE id = ?", (codec.to_json(file), file.id))
                return is_whole
        except OSError as error:
            log.warning("%s cannot be searched: %s", source.path, error.strerror)
            return True

    def _open(self, source: IndexSource) -> BinaryIO:
        if source.member:
            with open_packed(source.path) as packed:
                return BytesIO(packed.read(source.member))
        return open(source.path, "rb", opener=self._opener if source.is_memory else None)

    def _index_blocks(self, file: IndexedFile, opened: BinaryIO, stamp: str) -> bool:
        while data := _next_lines(opened, file):
            if file.source.is_memory:
                texts = entries_in(data, file.source.path.name, int(stamp.rpartition(":")[2]) / 1e9)
            else:
                texts = _messages_in(file, data)
            for entry in texts:
                self._add_text(file, entry)
            file.read_to += len(data)
            if self._is_late():
                return False
            time.sleep(_PAUSE_S)
        return True

    def _add_text(self, file: IndexedFile, entry: SearchableText) -> None:
        text = escape_surrogates(redact_known(entry.text))
        if not (folded := fold(text)).strip():
            return
        number = self._db.execute(
            "INSERT INTO rows (file, time, role, text, trust, turn_id) VALUES (?, ?, ?, ?, ?, ?)",
            (file.id, entry.time, entry.role, text, entry.trust, escape_surrogates(entry.turn_id)),
        ).lastrowid
        self._db.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (number, folded))
        self._added += 1

    def _delete_rows(self, file: IndexedFile) -> None:
        self._db.execute("DELETE FROM words WHERE rowid IN (SELECT id FROM rows WHERE file = ?)", (file.id,))
        self._db.execute("DELETE FROM rows WHERE file = ?", (file.id,))

    def _load_files(self) -> list[IndexedFile]:
        return [codec.from_json(IndexedFile, data) for (data,) in self._db.execute("SELECT data FROM files")]

    def _add_file(self, source: IndexSource) -> IndexedFile:
        number = self._db.execute("INSERT INTO files (data) VALUES ('')").lastrowid
        return IndexedFile(int(number or 0), source, "" if source.is_memory else key_of(source.stem))


def make_tables(db: sqlite3.Connection) -> None:
    """Prepare a connection, and create the tables if they are missing or of another version."""
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("PRAGMA secure_delete = ON")
    if _version(db) != _VERSION:
        db.execute("PRAGMA journal_mode = WAL")
        with _transaction(db):
            if _version(db) != _VERSION:  # no other process made them meanwhile
                for statement in _SCHEMA.split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {_VERSION}")


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit what is done inside, or roll it back. Waits for other processes."""
    db.execute("BEGIN IMMEDIATE")
    with db:
        yield


def _messages_in(file: IndexedFile, data: bytes) -> Iterator[SearchableText]:
    """Yield the searchable texts of these session lines, and note whose session it is."""
    for line in data.split(b"\n"):
        for row in decode(line)[0]:
            if is_record(row):
                key = row.get("key")
                file.key = key if isinstance(key, str) else file.key
                continue
            if row.get("role") == "user":
                file.outside = file.outside or is_outside(trust_in(row, file.key))
                file.scopes.add(str(row.get("scope", "")))
                if row.get("sender_id") and row.get("origin", Origin.USER) == Origin.USER:
                    file.senders.add(str(row["sender_id"]))
            if entry := message_in(row, file.key):
                yield entry


def _next_lines(opened: BinaryIO, file: IndexedFile) -> bytes:
    """Read on: the rest of a memory file; of a session whole lines. Empty if there is nothing more."""
    opened.seek(file.read_to)
    if file.source.is_memory:
        return opened.read()
    data = b""
    while more := opened.read(_BLOCK):
        data += more
        if cut := data.rfind(b"\n") + 1:
            return data[:cut]
    return data if decode(data)[1] else b""  # a last line without a line break


def _tail_of(file: BinaryIO, end: int) -> int:
    """Return a checksum of the bytes before an offset."""
    file.seek(max(0, end - _TAIL))
    return zlib.crc32(file.read(min(_TAIL, end)))
