"""The search index: a SQLite FTS5 database with the text of all conversations and memory files, secrets redacted.

It is updated before each query and reads only what is new. A file is recognised by its inode, so one that is moved to
the archive keeps its rows; a rewritten or edited one is indexed again; rows of a deleted one are deleted. Each update
is one transaction. A damaged index is deleted and rebuilt from the files.
"""

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
from nanobot.security.redaction import redact_known
from nanobot.session.search.query import Query, find_match, parse_query
from nanobot.session.search.sources import IndexSource
from nanobot.session.search.tables import IndexedText, IndexTables, MayRead, make_tables
from nanobot.utils.files import PRIVATE_FILE, make_private_folder
from nanobot.utils.storage_error import storage_error

log = logging.getLogger(__name__)
T = TypeVar("T")

_NOT_DAMAGED = {
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM,
}  # fmt: skip
"""Codes of errors that come from the disk or a lock, not from a damaged file."""

_TIMEOUT_S = 20.0
"""Time limit for updating the index. Building it for 100,000 messages takes about ten seconds."""
_LOCK_TIMEOUT_S = 5.0
_MORE = 12
"""Extra candidates: some are duplicates in another file."""
_SHOWN = 320
"""Characters shown of a message."""
_BEFORE = 100
"""Characters shown before the match."""


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
        return self._ask(lambda index: index.is_whole, self._timeout_s)

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

        def find(index: IndexTables) -> RecallResult:
            hits: dict[tuple[float, str, str], RecallHit] = {}
            is_loose = False
            for query in queries:
                if len(hits) >= limit or (hits and not query.is_all):
                    break
                for row in index.find(query, may_read, 2 * limit + _MORE, since, excluded):
                    shown = redact_known(row.text)
                    if shown != row.text and not query.matches(shown):
                        continue  # it matched a secret
                    hits.setdefault((row.time, row.role, row.text), self._hit(index, row, _excerpt(shown, queries)))
                    if len(hits) >= limit:
                        break
                is_loose = bool(hits) and not query.is_all
            return RecallResult(list(hits.values()), is_loose, index.is_whole)

        return self._ask(find, self._timeout_s)

    def around(self, number: int, may_read: MayRead, *, results: bool = True, beside: int = 3) -> RecallResult:
        """Return the messages before and after a hit; nothing if it is gone or may not be read."""

        def find(index: IndexTables) -> RecallResult:
            rows = [row for row in index.around(number, beside, may_read) if results or row.role != "tool"]
            return RecallResult([self._hit(index, row, redact_known(row.text)) for row in rows], False, index.is_whole)

        return self._ask(find, self._timeout_s)

    def forget_deleted(self) -> None:
        """Delete for good what the index holds of files that are gone."""
        if not self._path.exists():
            return
        self._ask(IndexTables.purge, 0.0)

    def _hit(self, index: IndexTables, row: IndexedText, text: str) -> RecallHit:
        file = index.files[row.file]
        trust = Provenance(row.trust)
        if file.source.is_memory and file.source.path.name != "HISTORY.md":  # its entries have marks
            trust = least_trusted([trust, self._provenance_of(file.source.path) or Provenance.FILE])
        shown = text if len(text) <= 2 * _SHOWN else f"{text[: 2 * _SHOWN]}…"
        minute = f"{datetime.fromtimestamp(row.time):%Y-%m-%d %H:%M}" if row.time else ""
        return RecallHit(row.id, file.name, minute, row.role, " ".join(shown.split()), trust)

    # --- the file

    def _ask(self, work: Callable[[IndexTables], T], timeout_s: float) -> T:
        """Update the index for at most `timeout_s`, then run `work` on it."""
        try:
            return self._try(work, timeout_s)
        except sqlite3.Error as error:
            if "no such" in str(error):
                raise StorageError(
                    "The Python that nanobot runs on has a SQLite without FTS5 trigrams, so nothing can be searched."
                ) from error
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _NOT_DAMAGED:
                raise self._storage_error(error) from error
            log.warning("The search index is damaged and will be rebuilt: %s", error)
            self._delete()
        try:
            return self._try(work, timeout_s)
        except sqlite3.Error as error:
            raise self._storage_error(error) from error

    def _try(self, work: Callable[[IndexTables], T], timeout_s: float) -> T:
        with closing(self._connect()) as db:
            deadline = time.monotonic() + timeout_s
            index = IndexTables(db, self._opener, lambda: self._stopping.is_set() or time.monotonic() > deadline)
            index.update(self._sources())
            return work(index)

    def _storage_error(self, error: sqlite3.Error) -> StorageError:
        return StorageError(f"{self._path} cannot be used: {error}. Check free space and permissions.")

    def _connect(self) -> sqlite3.Connection:
        try:
            make_private_folder(self._path.parent)
            self._path.touch(PRIVATE_FILE, exist_ok=True)
        except OSError as error:
            raise storage_error(f"{self._path} cannot be used", error) from error
        db = sqlite3.connect(self._path, isolation_level=None, timeout=_LOCK_TIMEOUT_S, check_same_thread=False)
        try:
            make_tables(db)
        except BaseException:
            db.close()
            raise
        return db

    def _delete(self) -> None:
        try:
            for end in ("", "-wal", "-shm"):
                self._path.with_name(self._path.name + end).unlink(missing_ok=True)
        except OSError as error:
            raise storage_error(f"{self._path} is damaged and cannot be deleted", error) from error


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
