"""The search index: a SQLite FTS5 database of which words are where in which file. It stores no text.

It is updated before each query and reads only what is new. A file is recognised by path and inode, and by checksums of
its start and of the bytes before the indexed end; so a file moved to the archive keeps its entries, and a rewritten one
is indexed again. Words of deleted rows stay until there are too many, then the index is rebuilt. A damaged index is
deleted and rebuilt from the files.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from nanobot.errors import StorageError
from nanobot.session.search.open_index import VERSION, OpenIndex, make_tables
from nanobot.session.search.sources import IndexSource
from nanobot.utils.files import PRIVATE_FILE, make_private_folder
from nanobot.utils.locks import ProcessLock
from nanobot.utils.storage_error import storage_error

log = logging.getLogger(__name__)
T = TypeVar("T")

_POLL_S = 0.01
_HARMLESS_ERRORS = ("locked", "busy", "full", "readonly", "read-only", "unable to open", "disk i/o", "permission")
"""Error messages that do not mean that the database is damaged."""


class SearchIndex:
    """The index in a file. Methods block; several processes may use the same file."""

    def __init__(
        self, path: Path, sources: Callable[[], Iterable[IndexSource]], opener: Callable[[str, int], int] | None = None
    ) -> None:
        """`opener` opens memory files without following links, which a tool may have created."""
        self._path = path
        self._sources = sources
        self._opener = opener
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Stop a running update, as the process ends."""
        self._stopping.set()

    def ask(self, work: Callable[[OpenIndex], T], timeout_s: float) -> T:
        """Update the index for at most `timeout_s`, then run `work` on it. Raises StorageError."""
        try:
            return self._ask(work, timeout_s)
        except sqlite3.Error as error:
            if _is_not_damage(error):
                raise self._storage_error(error) from error
            log.warning("The search index is damaged and will be rebuilt: %s", error)
            self._delete()
        try:
            return self._ask(work, timeout_s)
        except sqlite3.Error as error:
            raise self._storage_error(error) from error

    def clear(self) -> None:
        """Delete the content, so that nothing of deleted files is left; the next search rebuilds it. Raises
        StorageError.
        """
        if not self._path.exists():
            return
        try:
            with closing(self._connect()) as db:
                make_tables(db)
                db.execute("VACUUM")
                db.execute("PRAGMA wal_checkpoint (TRUNCATE)")
        except sqlite3.Error:
            self._delete()

    def _ask(self, work: Callable[[OpenIndex], T], timeout_s: float) -> T:
        with closing(self._connect()) as db:
            deadline = time.monotonic() + timeout_s
            index = OpenIndex(db, self._opener, lambda: self._stopping.is_set() or time.monotonic() > deadline)
            index.is_whole = self._update(index)
            return work(index)

    def _storage_error(self, error: sqlite3.Error) -> StorageError:
        if "no such module" in str(error):
            return StorageError(
                "The Python that nanobot runs on has a SQLite without FTS5, so nothing can be searched."
            )
        return StorageError(f"{self._path} cannot be used: {error}. Check free space and permissions.")

    def _connect(self) -> sqlite3.Connection:
        try:
            make_private_folder(self._path.parent)
            self._path.touch(PRIVATE_FILE, exist_ok=True)
        except OSError as error:
            raise storage_error(f"{self._path} cannot be used", error) from error
        db = sqlite3.connect(self._path, isolation_level=None, timeout=10, check_same_thread=False)
        try:
            db.execute("PRAGMA synchronous = NORMAL")
            if db.execute("PRAGMA user_version").fetchone()[0] != VERSION:
                db.execute("PRAGMA journal_mode = WAL")
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

    def _update(self, index: OpenIndex) -> bool:
        """Update the index. Return whether it is complete. Waits while another process updates it."""
        lock = ProcessLock(self._path.with_suffix(".lock"))
        try:
            while not lock.try_acquire():
                if index.is_late():
                    return False
                time.sleep(_POLL_S)
        except OSError as error:
            raise storage_error(f"{self._path} cannot be locked", error) from error
        try:
            return index.update(list(self._sources()))
        finally:
            lock.release()


def _is_not_damage(error: sqlite3.Error) -> bool:
    """Whether an error comes from the disk, a lock or the SQLite build, not from a damaged index."""
    message = str(error).lower()
    return "no such module" in message or any(word in message for word in _HARMLESS_ERRORS)
