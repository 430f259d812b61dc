"""The search index: a SQLite FTS5 database with the text of all conversations and memory files, secrets redacted.

It is updated before each query. A damaged index is deleted and rebuilt from the files.
"""

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from nanobot.errors import StorageError
from nanobot.messages.types import Provenance, least_trusted
from nanobot.security.secrets import redact_known
from nanobot.session.search.query import Query, find_match, parse_query
from nanobot.session.search.update import IndexedFile, IndexSource, IndexUpdate, make_tables
from nanobot.utils.files import PRIVATE_FILE, make_private_folder
from nanobot.utils.storage_error import storage_errors

log = logging.getLogger(__name__)
T = TypeVar("T")

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
"""Codes of errors that may come from a damaged file, not from the disk or a lock."""
_TIMEOUT_S = 20.0
"""Time limit for updating the index. Building it for 100,000 messages takes about ten seconds."""
_LOCK_TIMEOUT_S = 5.0
_MORE = 12
"""Extra candidates: some are duplicates in another file."""
_SHOWN = 320
"""Characters shown of a message."""
_BEFORE = 100
"""Characters shown before the match."""
_BESIDE = 3
"""Messages shown before and after a hit."""
_TRIGRAM = 3
_MAX_RANKED = 5_000
"""With more matches than this only the newest are ranked, to bound the time."""
_RECENCY_S = 90 * 86400.0
"""Age at which the recency factor of a message is 0.75; it approaches 0.5."""

MayRead = Callable[[IndexedFile], bool]
"""Whether the caller may read a file."""
_COLUMNS = "r.id, r.file, r.time, r.role, r.text, r.trust"
_IndexedText = tuple[int, int, float, str, str, str]
"""These columns."""


@dataclass(frozen=True, slots=True)
class RecallHit:
    """A message or memory entry that matches."""

    number: int
    """Its id for `around`."""
    name: str
    """The session, as commands accept it, or the memory file."""
    time: str
    """YYYY-MM-DD HH:MM; empty if unknown."""
    role: str
    text: str
    """The text around the match, on one line, with ellipses where it was cut."""
    trust: Provenance


@dataclass(frozen=True, slots=True)
class RecallResult:
    """The result of a search."""

    hits: list[RecallHit] = field(default_factory=list)
    is_loose: bool = False
    """Whether no message has all the words, so that these have only some."""
    is_whole: bool = True
    """Whether the index was up to date."""


class SearchIndex:
    """The index of a workspace's conversations and memories. Methods block and raise StorageError.

    Several processes may use the same file.
    """

    def __init__(
        self,
        path: Path,
        sources: Callable[[], Iterable[IndexSource]],
        opener: Callable[[str, int], int] | None = None,
        *,
        provenance_of: Callable[[Path], Provenance | None] = lambda path: None,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        """`opener` opens memory files without following links, which a tool may have created.

        `provenance_of` returns the provenance of a memory file; None if it is the owner's. `timeout_s` limits the
        update before a query.
        """
        self._path = path
        self._sources = sources
        self._opener = opener
        self._provenance_of = provenance_of
        self._timeout_s = timeout_s
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Stop a running update, as the process ends."""
        self._stopping.set()

    def refresh(self) -> bool:
        """Update the index, so that a later query need not wait. Return whether it is complete."""
        return self._ask(lambda db, index: index.is_whole, self._timeout_s)

    def search(
        self,
        text: str,
        may_read: MayRead,
        *,
        limit: int = 10,
        since: float = 0.0,
        results: bool = True,
        leave_out_turn: str = "",
    ) -> RecallResult:
        """Search in files that `may_read` accepts, best match first; a turn can be left out.

        `since` is in seconds since 1970. Tool results are searched with `results`.
        """
        queries = parse_query(text)
        if not queries:
            return RecallResult()
        excluded = ("" if results else "tool", leave_out_turn or "-")

        def find(db: sqlite3.Connection, index: IndexUpdate) -> RecallResult:
            files = {number: file for number, file in index.files.items() if may_read(file)}
            is_few = 4 * len(files) < len(index.files)
            hits: dict[tuple[float, str, str], RecallHit] = {}
            is_loose = False
            for query in queries:
                if len(hits) >= limit or (hits and not query.is_all):
                    break
                statement, values = _select(query, is_few=is_few)
                wanted = (since, *excluded, json.dumps([*files]), time.time(), _RECENCY_S, 2 * limit + _MORE)
                for row in db.execute(statement, (*values, *wanted)):
                    shown = redact_known(row[4])
                    if shown != row[4] and not query.matches(shown):
                        continue  # it matched a secret
                    hits.setdefault(row[2:5], self._hit(files, row, _excerpt(shown, queries)))
                    if len(hits) >= limit:
                        break
                is_loose = bool(hits) and not query.is_all
            return RecallResult(list(hits.values()), is_loose, index.is_whole)

        return self._ask(find, self._timeout_s)

    def around(self, number: int, may_read: MayRead, *, results: bool = True) -> RecallResult:
        """Return the messages before and after a hit; nothing if it is gone or may not be read."""

        def find(db: sqlite3.Connection, index: IndexUpdate) -> RecallResult:
            select = f"SELECT {_COLUMNS} FROM rows AS r WHERE"  # noqa: S608 our words
            own = db.execute(f"{select} id = ?", (number,)).fetchall()
            file = index.files.get(own[0][1]) if own else None
            if file is None or not may_read(file):
                return RecallResult(is_whole=index.is_whole)
            place = (file.id, number, _BESIDE)
            earlier = db.execute(f"{select} file = ? AND id < ? ORDER BY id DESC LIMIT ?", place).fetchall()
            later = db.execute(f"{select} file = ? AND id > ? ORDER BY id LIMIT ?", place).fetchall()
            rows = [row for row in (*reversed(earlier), *own, *later) if results or row[3] != "tool"]
            hits = [self._hit(index.files, row, redact_known(row[4])) for row in rows]
            return RecallResult(hits, False, index.is_whole)

        return self._ask(find, self._timeout_s)

    def forget_deleted(self) -> None:
        """Delete for good what the index holds of files that are gone."""

        def purge(db: sqlite3.Connection, index: IndexUpdate) -> None:
            db.execute("INSERT INTO words (words) VALUES ('optimize')")
            db.execute("PRAGMA wal_checkpoint (TRUNCATE)")

        if self._path.exists():
            self._ask(purge, 0.0)

    def _hit(self, files: dict[int, IndexedFile], row: _IndexedText, text: str) -> RecallHit:
        number, file_id, seconds, role, _, trust = row
        file, provenance = files[file_id], Provenance(trust)
        if file.source.is_memory and file.source.path.name != "HISTORY.md":  # its entries have marks
            provenance = least_trusted([provenance, self._provenance_of(file.source.path) or Provenance.FILE])
        shown = text if len(text) <= 2 * _SHOWN else f"{text[: 2 * _SHOWN]}…"
        minute = f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}" if seconds else ""
        return RecallHit(number, file.name, minute, role, " ".join(shown.split()), provenance)

    def _ask(self, work: Callable[[sqlite3.Connection, IndexUpdate], T], timeout_s: float) -> T:
        """Update the index for at most `timeout_s`, then run `work` on it. A damaged index is rebuilt."""
        try:
            return self._update_and_run(work, timeout_s)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _DAMAGED:
                raise self._storage_error(error) from error
            log.warning("The search index is damaged and will be rebuilt: %s", error)
        with storage_errors(f"{self._path} is damaged and cannot be deleted"):
            for end in ("", "-wal", "-shm"):
                self._path.with_name(self._path.name + end).unlink(missing_ok=True)
        try:
            return self._update_and_run(work, timeout_s)
        except sqlite3.Error as error:
            raise self._storage_error(error) from error

    def _update_and_run(self, work: Callable[[sqlite3.Connection, IndexUpdate], T], timeout_s: float) -> T:
        with storage_errors(f"{self._path} cannot be used"):
            make_private_folder(self._path.parent)
            self._path.touch(PRIVATE_FILE, exist_ok=True)
        deadline = time.monotonic() + timeout_s
        with closing(sqlite3.connect(self._path, isolation_level=None, timeout=_LOCK_TIMEOUT_S)) as db:
            make_tables(db)
            index = IndexUpdate(db, self._opener, lambda: self._stopping.is_set() or time.monotonic() > deadline)
            index.run(self._sources())
            return work(db, index)

    def _storage_error(self, error: sqlite3.Error) -> StorageError:
        return StorageError(f"{self._path} cannot be used: {error}. Check free space and permissions.")


def _select(query: Query, *, is_few: bool) -> tuple[str, list[str]]:
    """Return the statement that finds the best matches by BM25 and age, and the terms as its first values.

    The other values: earliest time, role and turn to leave out, ids of the files as JSON, now, _RECENCY_S, how many.
    """
    joint = " AND " if query.is_all else " OR "
    short = [term for term in query.terms if len(term) < _TRIGRAM]
    if short and not query.is_all:  # any of them: the index of trigrams does not help
        short = [*query.terms]
    long = [term for term in query.terms if term not in short]
    conditions, values = ["TRUE"], [*short]
    row_id, score, tables = "f.id", "-1.0", "words_content AS f"
    if short:
        conditions.append(f"({joint.join(['instr(f.c0, ?) > 0'] * len(short))})")
    if long:
        conditions.append("words MATCH ?")
        values.append(joint.join(f'"{term}"' for term in long))
        row_id, score, tables = "words.rowid", "bm25(words)", "words"
        if short:
            tables += " JOIN words_content AS f ON f.id = words.rowid"
    # for few files without an index of words, read only theirs
    of_file = "r.file" if not long and is_few else "+r.file"
    statement = (
        f"SELECT {_COLUMNS} FROM ("  # noqa: S608 only our words
        f"  SELECT {row_id} AS id, {score} AS score FROM {tables} JOIN rows AS r ON r.id = {row_id}"
        f"  WHERE {' AND '.join(conditions)} AND r.time >= ? AND r.role <> ? AND r.turn_id <> ?"
        f"  AND {of_file} IN (SELECT value FROM json_each(?))"
        f"  ORDER BY {row_id} DESC LIMIT {_MAX_RANKED}"
        ") AS w JOIN rows AS r ON r.id = w.id"
        " ORDER BY w.score * (0.5 + 0.5 / (1.0 + max(0.0, ? - r.time) / ?))"
        " * CASE r.role WHEN 'tool' THEN 0.5 ELSE 1.0 END, r.time DESC LIMIT ?"
    )
    return statement, values


def _excerpt(text: str, queries: list[Query]) -> str:
    """Cut a long text to the part around the match."""
    if len(text) <= _SHOWN:
        return text
    start, end = find_match(text, queries)
    begin = max(0, min(start - _BEFORE, len(text) - _SHOWN))
    if begin and (blank := text.find(" ", begin, start)) >= 0:
        begin = blank + 1
    stop = max(end, begin + _SHOWN)
    return f"{'…' if begin else ''}{text[begin:stop]}{'…' if stop < len(text) else ''}"
