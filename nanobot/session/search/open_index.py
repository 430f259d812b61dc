"""An open search index: queries, and bringing it up to date."""

import errno
import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import BinaryIO

from nanobot.messages.types import Origin, is_outside
from nanobot.security.redaction import redact_known
from nanobot.session.file_names import key_of
from nanobot.session.lines import is_record
from nanobot.session.search.query import index_words
from nanobot.session.search.rows import SearchableText, entries_in, messages_in, searchable_text, seconds_of, trust_in
from nanobot.session.search.sources import (
    KINDS,
    FilePosition,
    IndexedFile,
    IndexSource,
    SourceKind,
    age_in,
    file_checksums,
    file_stamp,
    inode_in,
    is_same,
    only_grows,
    whole_lines,
)

log = logging.getLogger(__name__)

VERSION = 2
"""Version of the tables and the tokenization; an index with another one is rebuilt."""
_SCHEMA = """
CREATE TABLE files (
    id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, archived INTEGER NOT NULL,
    folder TEXT NOT NULL, key TEXT NOT NULL, stamp TEXT NOT NULL, read_to INTEGER NOT NULL,
    head INTEGER NOT NULL, tail INTEGER NOT NULL, outside INTEGER NOT NULL, senders TEXT NOT NULL,
    scopes TEXT NOT NULL);
CREATE TABLE rows (
    id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER NOT NULL, at INTEGER NOT NULL, size INTEGER NOT NULL,
    nth INTEGER NOT NULL, time REAL NOT NULL, role TEXT NOT NULL);
CREATE INDEX rows_of_file ON rows (file);
CREATE VIRTUAL TABLE words USING fts5 (text, place, content = '', tokenize = 'ascii');
"""

_OPTIMIZE_ROWS = 20_000
"""New rows after which the index is optimised, which makes it small and fast."""
_MIN_DEAD_ROWS = 2_000
_MAX_RANKED = 5_000
"""With more matches than this only the newest are ranked, to bound the time."""
_MAX_RANKED_UNRESTRICTED = 200_000
"""The same limit if the query cannot be restricted to readable files."""
_MAX_NAMED_FILES = 200
"""Files that a query may name."""
_RECENCY_S = 90 * 86400.0
"""Age at which the recency factor of a message is 0.75; it approaches 0.5."""
_PAUSE_S = 0.0005
"""Pause between two blocks, so that other threads get the interpreter."""


class OpenIndex:
    def __init__(
        self, db: sqlite3.Connection, opener: Callable[[str, int], int] | None, is_late: Callable[[], bool]
    ) -> None:
        """`is_late` tells whether to stop an update before it is complete."""
        self._db = db
        self._opener = opener
        self.is_late = is_late
        self._files: list[IndexedFile] | None = None
        self.is_whole = False
        """Whether all that is in the files is in the index."""

    # --- asking

    def files(self) -> list[IndexedFile]:
        """Every file it knows."""
        if self._files is None:
            self._files = self._all_files()
        return self._files

    def _all_files(self) -> list[IndexedFile]:
        rows = self._db.execute(
            "SELECT id, path, kind, archived, folder, key, stamp, read_to, head, tail, outside, senders, scopes"
            " FROM files"
        )
        return [
            IndexedFile(
                row[0],
                IndexSource(row[1], KINDS[row[2]], bool(row[3]), row[4]),
                row[5], row[6], row[7], row[8], row[9], bool(row[10]), _names(row[11]), _names(row[12]),
            )
            for row in rows
        ]  # fmt: skip

    def find(
        self, expression: str, files: Collection[int], limit: int, *, since: float = 0.0, excluded_role: str = ""
    ) -> list[FilePosition]:
        """Return the best matches in `files`, by BM25 and age. Messages of `excluded_role` are left out."""
        named = self._only_in(files)
        rows = self._db.execute(
            "SELECT r.id, r.file, r.at, r.size, r.nth, r.time, r.role FROM"
            " (SELECT rowid, bm25(words, 1.0, 0.0) AS score FROM words WHERE words MATCH ? ORDER BY rowid DESC LIMIT ?)"
            " AS w JOIN rows AS r ON r.id = w.rowid WHERE r.time >= ? AND r.role <> ?"
            " AND r.file IN (SELECT value FROM json_each(?))"
            " ORDER BY w.score * (0.5 + 0.5 / (1.0 + max(0.0, ? - r.time) / ?))"
            " * CASE r.role WHEN 'tool' THEN 0.5 ELSE 1.0 END, r.time DESC LIMIT ?",
            (
                f"text : ({expression}){named or ''}", _MAX_RANKED_UNRESTRICTED if named is None else _MAX_RANKED,
                since, excluded_role, json.dumps(list(files)), time.time(), _RECENCY_S, limit,
            ),
        )  # fmt: skip
        return [FilePosition(*row) for row in rows]

    def _only_in(self, files: Collection[int]) -> str | None:
        """Return the part of the query that restricts it to these files, by naming the fewer files in or out; None if
        both lists are too long.
        """
        others = [file.id for file in self.files() if file.id not in files]
        if not others:
            return ""
        shorter = min(files, others, key=len)
        if len(shorter) > _MAX_NAMED_FILES:
            return None
        named = " OR ".join(f"f{file_id}" for file_id in shorter)
        return f" AND place : ({named or 'none'})" if len(files) <= len(others) else f" NOT place : ({named})"

    def around(self, row: int, before: int, after: int) -> list[FilePosition]:
        """Return a row with its neighbours in the same file; empty if there is no such row."""
        columns = "SELECT id, file, at, size, nth, time, role FROM rows"
        own = self._db.execute(f"{columns} WHERE id = ?", (row,)).fetchone()
        if own is None:
            return []
        file = own[1]
        earlier = self._db.execute(f"{columns} WHERE file = ? AND id < ? ORDER BY id DESC LIMIT ?", (file, row, before))
        later = self._db.execute(f"{columns} WHERE file = ? AND id > ? ORDER BY id LIMIT ?", (file, row, after))
        return [FilePosition(*values) for values in [*reversed(earlier.fetchall()), own, *later.fetchall()]]

    def read(self, file: IndexedFile, position: FilePosition) -> bytes:
        """Return the bytes at a position. Raises OSError."""
        with self._open(file.source, file.stamp) as opened:
            opened.seek(position.at)
            return opened.read(position.size)

    # --- update

    def update(self, sources: list[IndexSource]) -> bool:
        """Index what is new, until `is_late`. Return whether the index is complete."""
        if self._needs_rebuild():
            make_tables(self._db)
            self._files = None
        indexed = {file.source.place: file for file in self.files()}
        paths = {source.place for source in sources}
        missing = [file for path, file in indexed.items() if path not in paths]
        changed = [
            (source, stamp)
            for source in sources
            if (stamp := file_stamp(source)) and not is_same(indexed.get(source.place), source, stamp)
        ]
        if not changed and not missing:
            return True
        self._files = None
        candidates = {
            file.id: file
            for file in [*missing, *(indexed[source.place] for source, _ in changed if source.place in indexed)]
        }
        first_row = self._last_row()
        work: list[tuple[IndexSource, str, IndexedFile | None]] = []
        for source, stamp in sorted(changed, key=lambda pair: age_in(pair[1])):
            before = self._find_previous(source, stamp, candidates, indexed.get(source.place))
            if before is not None:
                del candidates[before.id]
            work.append((source, stamp, before))
        self._remove(candidates.values())
        for source, stamp, before in work:
            if not self._index_new(source, stamp, before):
                return False
        if self._last_row() - first_row > _OPTIMIZE_ROWS:
            self._db.execute("INSERT INTO words (words) VALUES ('optimize')")
        return True

    def _find_previous(
        self, source: IndexSource, stamp: str, candidates: dict[int, IndexedFile], at_path: IndexedFile | None
    ) -> IndexedFile | None:
        """Return what was indexed of this file before, found by inode, else by path."""
        matches = [file for file in candidates.values() if inode_in(file.stamp) == inode_in(stamp)]
        if at_path is not None and at_path.id in candidates:
            matches.append(at_path)
        return next(
            (file for file in matches if file.source.kind is source.kind and self._continues(source, stamp, file)), None
        )

    def _continues(self, source: IndexSource, stamp: str, before: IndexedFile) -> bool:
        """Whether the indexed part of the file is unchanged."""
        if source.kind is SourceKind.MEMORY and not only_grows(source):
            return False
        with suppress(OSError), self._open(source, stamp) as file:
            return (before.head, before.tail) == file_checksums(file, before.read_to)
        return False

    def _remove(self, files: Iterable[IndexedFile]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        for file in files:
            self._db.execute("DELETE FROM rows WHERE file = ?", (file.id,))
            self._db.execute("DELETE FROM files WHERE id = ?", (file.id,))
        self._db.execute("COMMIT")

    def _index_new(self, source: IndexSource, stamp: str, before: IndexedFile | None) -> bool:
        """Index what is new in a file. Return False if time ran out. Unreadable files are tried again next time."""
        try:
            with self._open(source, stamp) as file:
                state = self._get_entry(source, before)
                size = os.fstat(file.fileno()).st_size
                while state.read_to < size:
                    data = whole_lines(file, state.read_to, size, everything=source.kind is SourceKind.MEMORY)
                    if not data:
                        break
                    state = self._add_texts(state, data, file)
                    if self.is_late():
                        return False
                    time.sleep(_PAUSE_S)
                head, tail = file_checksums(file, state.read_to)
                self._save(replace(state, source=source, stamp=stamp, head=head, tail=tail))
        except OSError as error:
            log.warning("%s cannot be searched: %s", source.place, error.strerror)
        return True

    def _get_entry(self, source: IndexSource, before: IndexedFile | None) -> IndexedFile:
        """Return the file's entry, creating it if needed. Renames the entry of another file with the same path."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute(
            "UPDATE files SET path = path || '?' || id WHERE path = ? AND id <> ?",
            (source.place, before.id if before else -1),
        )
        if before is None:
            key = key_of(source.path.stem) if source.kind is SourceKind.SESSION else ""
            made = self._db.execute(
                "INSERT INTO files (path, kind, archived, folder, key, stamp, read_to, head, tail, outside, senders,"
                " scopes) VALUES (?, ?, ?, ?, ?, '', 0, 0, 0, 0, '[]', '[]')",
                (source.place, source.kind, source.archived, source.folder, key),
            )
            before = IndexedFile(int(made.lastrowid or 0), source, key, "", 0, 0, 0)
        self._db.execute("COMMIT")
        return replace(before, source=source)

    def _add_texts(self, state: IndexedFile, data: bytes, file: BinaryIO) -> IndexedFile:
        """Index these bytes, and store the progress in the same transaction."""
        texts: list[SearchableText]
        if state.source.kind is SourceKind.SESSION:
            texts, state = _conversation(state, data)
        else:
            modified = os.fstat(file.fileno()).st_mtime
            texts = list(entries_in(data, state.read_to, state.source.path.name, modified))
        state = replace(state, read_to=state.read_to + len(data))
        head, tail = file_checksums(file, state.read_to)
        self._db.execute("BEGIN IMMEDIATE")
        for entry in texts:
            words = index_words(redact_known(entry.text))
            if not words:
                continue
            row = self._db.execute(
                "INSERT INTO rows (file, at, size, nth, time, role) VALUES (?, ?, ?, ?, ?, ?)",
                (state.id, entry.at, entry.size, entry.nth, entry.time, entry.role),
            ).lastrowid
            self._db.execute("INSERT INTO words (rowid, text, place) VALUES (?, ?, ?)", (row, words, f"f{state.id}"))
        self._write(replace(state, head=head, tail=tail))
        self._db.execute("COMMIT")
        return state

    def _save(self, state: IndexedFile) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._write(state)
        self._db.execute("COMMIT")

    def _write(self, state: IndexedFile) -> None:
        source = state.source
        self._db.execute(
            "UPDATE files SET path = ?, kind = ?, archived = ?, folder = ?, key = ?, stamp = ?, read_to = ?, head = ?,"
            " tail = ?, outside = ?, senders = ?, scopes = ? WHERE id = ?",
            (
                source.place, source.kind, source.archived, source.folder, state.key, state.stamp, state.read_to,
                state.head, state.tail, state.outside, json.dumps(sorted(state.senders)),
                json.dumps(sorted(state.scopes)), state.id,
            ),
        )  # fmt: skip

    def _last_row(self) -> int:
        row = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'rows'").fetchone()
        return int(row[0]) if row else 0

    def _needs_rebuild(self) -> bool:
        """Whether so many words belong to deleted rows that rebuilding is better."""
        last = self._last_row()
        if last < _MIN_DEAD_ROWS:
            return False
        live = self._db.execute("SELECT count(*) FROM rows").fetchone()[0]
        return bool(last - live > _MIN_DEAD_ROWS and last - live > live // 2)

    def _open(self, source: IndexSource, stamp: str) -> BinaryIO:
        """Open a file. Raises FileNotFoundError for a memory file that was replaced since it was listed: a command may
        have put a link there that leads to another chat's memory.
        """
        is_memory = source.kind is SourceKind.MEMORY
        file = open(source.place, "rb", opener=self._opener if is_memory else None)  # noqa: SIM115 handed on
        if is_memory and str(os.fstat(file.fileno()).st_ino) != inode_in(stamp):
            file.close()
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source.place)
        return file


@lru_cache(maxsize=10_000)
def _names(names_json: str) -> frozenset[str]:
    return frozenset(json.loads(names_json))


def _conversation(state: IndexedFile, data: bytes) -> tuple[list[SearchableText], IndexedFile]:
    """Return the searchable texts of these session lines, and the file's updated state."""
    key, outside, senders, scopes = state.key, state.outside, set(state.senders), set(state.scopes)
    texts: list[SearchableText] = []
    for at, size, nth, row in messages_in(data, state.read_to):
        if is_record(row):
            record_key = row.get("key")
            key = record_key if isinstance(record_key, str) else key
            continue
        if row.get("role") == "user":
            outside = outside or is_outside(trust_in(row, key))
            scopes.add(str(row.get("scope", "")))
            if row.get("sender_id") and row.get("origin", Origin.USER) == Origin.USER:
                senders.add(str(row["sender_id"]))
        if text := searchable_text(row):
            texts.append(SearchableText(at, size, nth, seconds_of(row.get("timestamp")), str(row["role"]), text))
    return texts, replace(state, key=key, outside=outside, senders=frozenset(senders), scopes=frozenset(scopes))


def make_tables(db: sqlite3.Connection) -> None:
    """Recreate the tables, in one transaction, so that another process sees either the old or the new ones."""
    db.execute("PRAGMA secure_delete = ON")
    db.execute("BEGIN IMMEDIATE")
    try:
        for kind, name in (("TABLE", "words"), ("TABLE", "rows"), ("TABLE", "files")):
            db.execute(f"DROP {kind} IF EXISTS {name}")
        db.execute("DELETE FROM sqlite_sequence") if _has_sequence(db) else None
        for statement in filter(str.strip, _SCHEMA.split(";")):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _has_sequence(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_sequence'").fetchone() is not None
