"""The tables of the search index: queries, and bringing them up to date with the files.

`rows` has the texts, `folded` what is searched of them, and `words` the trigrams of that.
"""

import errno
import json
import logging
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nanobot.messages.types import Origin, is_outside
from nanobot.security.redaction import redact_known
from nanobot.session.file_names import key_of
from nanobot.session.lines import decode, is_record
from nanobot.session.search.query import Query, fold
from nanobot.session.search.rows import SearchableText, entries_in, message_in, trust_in
from nanobot.session.search.sources import IndexedFile, IndexSource
from nanobot.utils.text import escape_surrogates

log = logging.getLogger(__name__)

MayRead = Callable[[IndexedFile], bool]
"""Whether the caller may read a file."""

_VERSION = 3
"""Version of tables and folding; an index with another one is rebuilt."""
_SCHEMA = """
DROP TABLE IF EXISTS files; DROP TABLE IF EXISTS rows; DROP TABLE IF EXISTS words; DROP TABLE IF EXISTS folded;
CREATE TABLE files (
    id INTEGER PRIMARY KEY, path BLOB NOT NULL, is_memory INTEGER NOT NULL, archived INTEGER NOT NULL,
    folder TEXT NOT NULL, key TEXT NOT NULL, stamp TEXT NOT NULL, read_to INTEGER NOT NULL, tail INTEGER NOT NULL,
    outside INTEGER NOT NULL, senders TEXT NOT NULL, scopes TEXT NOT NULL);
CREATE TABLE rows (
    id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER NOT NULL, time REAL NOT NULL, role TEXT NOT NULL,
    text TEXT NOT NULL, trust TEXT NOT NULL, turn_id TEXT NOT NULL);
CREATE INDEX rows_of_file ON rows (file);
CREATE TABLE folded (id INTEGER PRIMARY KEY, text TEXT NOT NULL);
CREATE VIRTUAL TABLE words USING fts5 (
    text, content = 'folded', content_rowid = 'id', tokenize = 'trigram case_sensitive 1');
"""
"""`folded` is the content of `words`, apart from `rows` so that terms too short for trigrams are found quickly."""
_TRIGRAM = 3
_OPTIMIZE_ROWS = 20_000
"""New rows after which the index is optimised, which makes it small and fast."""
_MAX_RANKED = 5_000
"""With more matches than this only the newest are ranked, to bound the time."""
_RECENCY_S = 90 * 86400.0
"""Age at which the recency factor of a message is 0.75; it approaches 0.5."""
_BLOCK = 1 << 18
_TAIL = 256
_PAUSE_S = 0.0005
"""Pause between two blocks, so that other threads get the interpreter."""


@dataclass(frozen=True, slots=True)
class IndexedText:
    """A searchable text in the index."""

    id: int
    file: int
    time: float
    role: str
    text: str
    trust: str


_COLUMNS = "r.id, r.file, r.time, r.role, r.text, r.trust"


class IndexTables:
    """The tables, for one query or update."""

    def __init__(
        self, db: sqlite3.Connection, opener: Callable[[str, int], int] | None, is_late: Callable[[], bool]
    ) -> None:
        """`is_late` tells whether to stop an update before it is complete."""
        self._db = db
        self._opener = opener
        self._is_late = is_late
        self._added = 0
        self.files: dict[int, IndexedFile] = {}
        """By id, without files that are gone."""
        self.is_whole = False
        """Whether all that is in the files is in the index."""

    # --- queries

    def find(
        self, query: Query, may_read: MayRead, limit: int, since: float, excluded: tuple[str, str]
    ) -> list[IndexedText]:
        """Return the best matches, by BM25 and age. Messages of the `excluded` role and turn are left out."""
        joint = " AND " if query.is_all else " OR "
        long = [term for term in query.terms if len(term) >= _TRIGRAM]
        if query.is_all or len(long) == len(query.terms):
            short = [term for term in query.terms if term not in long]
        else:
            long, short = [], [*query.terms]
        conditions, values = ["r.time >= ?", "r.role <> ?", "r.turn_id <> ?"], [since, *excluded]
        if short:
            conditions.append(f"({joint.join(['instr(f.text, ?) > 0'] * len(short))})")
            values += short
        score, tables = "-1.0", "folded AS f"
        if long:
            conditions.append("words MATCH ?")
            values.append(joint.join(f'"{term}"' for term in long))
            score, tables = "bm25(words)", "words JOIN folded AS f ON f.id = words.rowid"
        files = [file.id for file in self.files.values() if may_read(file)]
        # for few files without an index of words, read only theirs
        of_file = "r.file" if not long and 4 * len(files) < len(self.files) else "+r.file"
        rows = self._db.execute(
            f"SELECT {_COLUMNS} FROM ("  # noqa: S608 only our words
            f"  SELECT f.id AS id, {score} AS score FROM {tables} JOIN rows AS r ON r.id = f.id"
            f"  WHERE {' AND '.join(conditions)} AND {of_file} IN (SELECT value FROM json_each(?))"
            f"  ORDER BY {'words.rowid' if long else 'f.id'} DESC LIMIT {_MAX_RANKED}"
            ") AS w JOIN rows AS r ON r.id = w.id"
            " ORDER BY w.score * (0.5 + 0.5 / (1.0 + max(0.0, ? - r.time) / ?))"
            " * CASE r.role WHEN 'tool' THEN 0.5 ELSE 1.0 END, r.time DESC LIMIT ?",
            (*values, json.dumps(files), time.time(), _RECENCY_S, limit),
        )
        return [IndexedText(*row) for row in rows]

    def around(self, number: int, beside: int, may_read: MayRead) -> list[IndexedText]:
        """Return a row with its neighbours in the same file; empty if there is none that may be read."""
        select = f"SELECT {_COLUMNS} FROM rows AS r WHERE"  # noqa: S608 our words
        own = [IndexedText(*row) for row in self._db.execute(f"{select} id = ?", (number,))]
        file = self.files.get(own[0].file) if own else None
        if file is None or not may_read(file):
            return []
        earlier = self._db.execute(f"{select} file = ? AND id < ? ORDER BY id DESC LIMIT ?", (file.id, number, beside))
        later = self._db.execute(f"{select} file = ? AND id > ? ORDER BY id LIMIT ?", (file.id, number, beside))
        return [*reversed([IndexedText(*row) for row in earlier]), *own, *(IndexedText(*row) for row in later)]

    # --- update

    def update(self, sources: Iterable[IndexSource]) -> None:
        """Index what is new until `is_late`, in one transaction."""
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

    def purge(self) -> None:
        """Remove what deleted rows left in the file."""
        self._db.execute("INSERT INTO words (words) VALUES ('optimize')")
        self._db.execute("PRAGMA wal_checkpoint (TRUNCATE)")

    def _update(self, stamps: dict[IndexSource, str]) -> bool:
        """Return whether the index is complete."""
        known = self._load_files()  # again: another process may have updated it
        self.files = {file.id: file for file in known if stamps.get(file.source) == file.stamp}
        unchanged = {file.source for file in self.files.values()}
        others = {file.inode: file for file in known if file.id not in self.files}
        work: list[tuple[IndexSource, IndexedFile | None]] = []
        for source in sorted(stamps.keys() - unchanged, key=lambda source: int(stamps[source].rpartition(":")[2])):
            before = others.get(stamps[source].partition(":")[0])
            if before is not None and before.source.is_memory == source.is_memory:
                del others[before.inode]
            else:
                before = None
            work.append((source, before))
        reused = {before.id for _, before in work if before is not None}
        for file in known:
            if file.id not in self.files and file.id not in reused:
                self._delete_rows(file)
                self._db.execute("DELETE FROM files WHERE id = ?", (file.id,))
        is_whole = True
        for source, before in work:
            if self._is_late() or not self._index(source, before, stamps[source].partition(":")[0]):
                is_whole = False
                break
        if self._added > _OPTIMIZE_ROWS:
            self._db.execute("INSERT INTO words (words) VALUES ('optimize')")
        return is_whole

    def _index(self, source: IndexSource, before: IndexedFile | None, inode: str) -> bool:
        """Index what is new in a file. Return False if time ran out. Unreadable files are tried again next time."""
        try:
            with open(source.path, "rb", opener=self._opener if source.is_memory else None) as opened:
                status = os.fstat(opened.fileno())
                if str(status.st_ino) != inode:  # replaced meanwhile, perhaps by a link to another chat's memory
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                file = before or self._add_file(source)
                file.source = source
                stamp = f"{inode}:{status.st_size}:{status.st_mtime_ns}"
                is_continued = status.st_size > file.read_to and _tail_of(opened, file.read_to) == file.tail
                if stamp != file.stamp and not (source.only_grows and is_continued):
                    self._delete_rows(file)
                    file = IndexedFile(file.id, source, file.key)
                self.files[file.id] = file
                is_whole = self._index_blocks(file, opened, status)
                file.stamp = stamp if is_whole else f"{inode}:0:0"
                file.tail = _tail_of(opened, file.read_to)
                self._save(file)
                return is_whole
        except OSError as error:
            log.warning("%s cannot be searched: %s", source.path, error.strerror)
            return True

    def _index_blocks(self, file: IndexedFile, opened: BinaryIO, status: os.stat_result) -> bool:
        while data := _whole_lines(opened, file.read_to, status.st_size, everything=file.source.is_memory):
            texts = (
                entries_in(data, file.source.path.name, status.st_mtime)
                if file.source.is_memory
                else _messages_in(file, data)
            )
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
        self._db.execute("INSERT INTO folded (id, text) VALUES (?, ?)", (number, folded))
        self._db.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (number, folded))
        self._added += 1

    def _delete_rows(self, file: IndexedFile) -> None:
        self._db.execute(
            "INSERT INTO words (words, rowid, text)"
            " SELECT 'delete', f.id, f.text FROM folded AS f JOIN rows AS r ON r.id = f.id WHERE r.file = ?",
            (file.id,),
        )
        self._db.execute("DELETE FROM folded WHERE id IN (SELECT id FROM rows WHERE file = ?)", (file.id,))
        self._db.execute("DELETE FROM rows WHERE file = ?", (file.id,))

    # --- files

    def _load_files(self) -> list[IndexedFile]:
        return [
            IndexedFile(
                number, IndexSource(Path(os.fsdecode(path)), bool(is_memory), bool(archived), folder), key, stamp,
                read_to, tail, bool(outside), set(json.loads(senders)), set(json.loads(scopes)),
            )
            for number, path, is_memory, archived, folder, key, stamp, read_to, tail, outside, senders, scopes
            in self._db.execute("SELECT * FROM files")
        ]  # fmt: skip

    def _add_file(self, source: IndexSource) -> IndexedFile:
        key = "" if source.is_memory else escape_surrogates(key_of(source.path.stem))
        number = self._db.execute("INSERT INTO files VALUES (NULL, x'', 0, 0, '', '', '', 0, 0, 0, '', '')").lastrowid
        return IndexedFile(int(number or 0), source, key)

    def _save(self, file: IndexedFile) -> None:
        source = file.source
        self._db.execute(
            "REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                file.id, os.fsencode(source.path), source.is_memory, source.archived, source.folder, file.key,
                file.stamp, file.read_to, file.tail, file.outside, json.dumps(sorted(file.senders)),
                json.dumps(sorted(file.scopes)),
            ),
        )  # fmt: skip


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
                file.key = escape_surrogates(key) if isinstance(key, str) else file.key
                continue
            if row.get("role") == "user":
                file.outside = file.outside or is_outside(trust_in(row, file.key))
                file.scopes.add(str(row.get("scope", "")))
                if row.get("sender_id") and row.get("origin", Origin.USER) == Origin.USER:
                    file.senders.add(str(row["sender_id"]))
            if entry := message_in(row, file.key):
                yield entry


def _whole_lines(file: BinaryIO, start: int, size: int, *, everything: bool) -> bytes:
    """Read the next bytes up to a line end, and a complete last line without one. Empty if there are none."""
    file.seek(start)
    if everything:
        return file.read(size - start)
    data = b""
    while more := file.read(min(_BLOCK, size - start - len(data))):
        data += more
        if cut := data.rfind(b"\n") + 1:
            return data[:cut]
    return data if decode(data)[1] else b""


def _tail_of(file: BinaryIO, end: int) -> int:
    """Return a checksum of the bytes before an offset."""
    file.seek(max(0, end - _TAIL))
    return zlib.crc32(file.read(min(_TAIL, end)))
