"""A lock between processes. The system lets go of it when its holder dies, however that happens.

flock where there is POSIX, a locked byte on Windows. This is the only file that knows which.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nanobot.utils.files import open_private

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


_POLL_S = 0.001
_TURN_POLL_S = (0.005, 0.1)
"""The first pause and the longest, for turns: they last."""
_WANTED_S = 1.0
"""For how long a word of who waits counts: much longer than the longest pause."""


class ProcessLock:
    """One hold on a lock file. The file stays; only the lock on it comes and goes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """Take it if it is free. Raises OSError where the lock file cannot be opened."""
        descriptor = open_private(self._path, os.O_RDWR | os.O_CREAT)
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
        """Wait for it and leave the event loop to others; calls `on_wait` once if it is not free. Raises OSError."""
        if self.try_acquire():
            return
        if on_wait is not None:
            on_wait()
        pause, longest = _TURN_POLL_S
        while not self.try_acquire():
            self._want()
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, longest)

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits in `acquire` for it: who would take it again at once gives way for a moment."""
        try:
            return self._path.stat().st_mtime > time.time()
        except OSError:
            return False

    def _want(self) -> None:
        until = time.time() + _WANTED_S
        with suppress(OSError):
            os.utime(self._path, (until, until))

    def release(self) -> None:
        """Let go; harmless when it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock for a moment, waiting for it in this thread: for writes, never for a turn."""
    lock = ProcessLock(path)
    while not lock.try_acquire():
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        lock.release()
