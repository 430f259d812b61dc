"""Locks between processes, and the lease of a process that is alive. The system releases a lock when its holder dies.

flock on POSIX, a locked byte on Windows; only this module knows which.
"""

import asyncio
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nanobot.errors import StorageError
from nanobot.utils.files import O_NOFOLLOW, open_private
from nanobot.utils.storage_error import storage_error

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


_POLL_S = 0.001
_ASYNC_POLL_S = (0.005, 0.1)
"""First and longest pause between attempts in `acquire`: such locks are held for long."""
_REQUEST_TTL_S = 1.0
"""How long a request for the lock counts: much longer than the longest pause."""


class ProcessLock:
    """A lock file. The file stays; only the lock on it is taken and released."""

    def __init__(self, path: Path, opener: Callable[[Path, int], int] = open_private) -> None:
        """`opener` creates and opens the file: `open_own` if a command could put a link into its path."""
        self._path = path
        self._opener = opener
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """Take the lock if it is free. Raises OSError if the lock file cannot be opened."""
        descriptor = self._opener(self._path, os.O_RDWR | os.O_CREAT | O_NOFOLLOW)
        try:
            _lock(descriptor)
        except (BlockingIOError, PermissionError):
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    async def acquire(self, on_wait: Callable[[], None] | None = None) -> None:
        """Wait for the lock without blocking the event loop; calls `on_wait` once if it is not free. Raises OSError."""
        if self.try_acquire():
            return
        if on_wait is not None:
            on_wait()
        pause, longest = _ASYNC_POLL_S
        while not self.try_acquire():
            self._request()
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, longest)

    @property
    def is_wanted(self) -> bool:
        """Whether another process waits in `acquire`; a holder that would retake it at once should pause briefly."""
        try:
            return self._path.stat().st_mtime > time.time()
        except OSError:
            return False

    def _request(self) -> None:
        until = time.time() + _REQUEST_TTL_S
        with suppress(OSError):
            os.utime(self._path, (until, until), follow_symlinks=os.utime not in os.supports_follow_symlinks)

    def release(self) -> None:
        """Release the lock; harmless if not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@contextmanager
def file_lock(path: Path, opener: Callable[[Path, int], int] = open_private) -> Iterator[None]:
    """Hold the lock briefly, blocking this thread: for writes, never for a turn."""
    lock = ProcessLock(path, opener)
    while not lock.try_acquire():
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        lock.release()


_STALE_S = 3_600.0
"""Age from which the lock file of an ended process is deleted: a younger one may be about to be locked."""


class ProcessLease:
    """Who works at this, and is that process alive? A row names the lease of its process; a lock proves that it lives.

    The system releases the lock when the process dies. Another process may then take over the row, in one transaction.
    Methods block.
    """

    def __init__(self, folder: Path) -> None:
        """`folder` holds one lock file for each process."""
        self.name = secrets.token_hex(6)
        self._folder = folder
        self._lock: ProcessLock | None = None

    def hold(self) -> None:
        """Take the lease, before this process writes its name into a row. Raises StorageError."""
        if self._lock is not None:
            return
        lock = ProcessLock(self._path_of(self.name))
        try:
            self._sweep()
            if not lock.try_acquire():
                raise StorageError(f"The lock {self.name} is held by another process.")
        except OSError as error:
            raise storage_error(f"No lock can be taken in {self._folder}", error) from error
        self._lock = lock

    def is_alive(self, name: str) -> bool:
        """Whether the process that holds this lease is alive. One that cannot be tested counts as alive."""
        if name == self.name:
            return self._lock is not None
        path = self._path_of(name)
        if not name or not path.exists():
            return False
        lock = ProcessLock(path)
        try:
            is_free = lock.try_acquire()
        except OSError:
            return True
        lock.release()
        return not is_free

    def release(self) -> None:
        """End the lease: what rows still name it for may be taken over."""
        if self._lock is not None:
            with suppress(OSError):
                self._path_of(self.name).unlink(missing_ok=True)
            self._lock.release()
            self._lock = None

    def _sweep(self) -> None:
        for path in self._folder.glob("*.lock"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _STALE_S and not self.is_alive(path.stem):
                    path.unlink(missing_ok=True)

    def _path_of(self, name: str) -> Path:
        return self._folder / f"{Path(name).name}.lock"
