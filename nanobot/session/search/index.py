"""The index: a SQLite database of which words stand where in which file, and of nothing else.

It is brought up to date before it is asked, and reads only what grew: a file is known by its place and inode, and by
the bytes it begins with and those before the place up to which it was read. So one that moved to the archive is the
same one, and one that was written anew is read anew. What was found in a file that is gone, or was another, is struck
off; its words stay until they are too many, then all is made anew. A damaged index is thrown away: the files have it.
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
from nanobot.session.search.open_index import OpenIndex
from nanobot.session.search.sources import Source
from nanobot.session.search.tables import VERSION, make_tables
from nanobot.utils.files import PRIVATE_FILE, make_private_folder
from nanobot.utils.locks import ProcessLock
from nanobot.utils.refusals import refusal

log = logging.getLogger(__name__)
T = TypeVar("T")

_POLL_S = 0.01
_PASSING = ("locked", "busy", "full", "readonly", "read-only", "unable to open", "disk i/o", "permission")
"""What a database says that is sound."""


class SearchIndex:
    """The index in a file. Everything blocks; other processes may use the same one."""

    def __init__(
        self, path: Path, sources: Callable[[], Iterable[Source]], opener: Callable[[str, int], int] | None = None
    ) -> None:
        """`opener` opens what lies where tools write: a link may stand there."""
        self._path = path
        self._sources = sources
        self._opener = opener
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Whoever brings it up to date is to leave off: the process ends."""
        self._stopping.set()

    def ask(self, work: Callable[[OpenIndex], T], patience_s: float) -> T:
        """What comes of it, with the index brought up to date as far as can be done so soon. Raises StorageError."""
        try:
            return self._ask(work, patience_s)
        except sqlite3.Error as error:
            if _will_pass(error):
                raise self._refusal(error) from error
            log.warning("The search index is damaged and made anew: %s", error)
            self._throw_away()
        try:
            return self._ask(work, patience_s)
        except sqlite3.Error as error:
            raise self._refusal(error) from error

    def clear(self) -> None:
        """Forget everything, so that nothing is left of what was deleted: the next search makes it anew. Raises
        StorageError."""
        if not self._path.exists():
            return
        try:
            with closing(self._connect()) as db:
                make_tables(db)
                db.execute("VACUUM")
                db.execute("PRAGMA wal_checkpoint (TRUNCATE)")
        except sqlite3.Error:
            self._throw_away()

    def _ask(self, work: Callable[[OpenIndex], T], patience_s: float) -> T:
        with closing(self._connect()) as db:
            until = time.monotonic() + patience_s
            index = OpenIndex(db, self._opener, lambda: self._stopping.is_set() or time.monotonic() > until)
            index.is_whole = self._update(index)
            return work(index)

    def _refusal(self, error: sqlite3.Error) -> StorageError:
        if "no such module" in str(error):
            return StorageError(
                "The Python that nanobot runs on has a SQLite without FTS5, so nothing can be searched."
            )
        return StorageError(f"{self._path} cannot be used: {error}. Look at the disk's space and permissions.")

    def _connect(self) -> sqlite3.Connection:
        try:
            make_private_folder(self._path.parent)
            self._path.touch(PRIVATE_FILE, exist_ok=True)
        except OSError as error:
            raise refusal(f"{self._path} cannot be used", error) from error
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

    def _throw_away(self) -> None:
        try:
            for end in ("", "-wal", "-shm"):
                self._path.with_name(self._path.name + end).unlink(missing_ok=True)
        except OSError as error:
            raise refusal(f"{self._path} is damaged and cannot be deleted", error) from error

    def _update(self, index: OpenIndex) -> bool:
        """Bring it up to date; whether that is done. Another process that does so is waited for."""
        lock = ProcessLock(self._path.with_suffix(".lock"))
        try:
            while not lock.try_acquire():
                if index.is_late():
                    return False
                time.sleep(_POLL_S)
        except OSError as error:
            raise refusal(f"{self._path} cannot be locked", error) from error
        try:
            return index.update(list(self._sources()))
        finally:
            lock.release()


def _will_pass(error: sqlite3.Error) -> bool:
    """Whether the disk or another process says no, and not the index."""
    said = str(error).lower()
    return "no such module" in said or any(word in said for word in _PASSING)
