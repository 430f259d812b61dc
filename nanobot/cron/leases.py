"""Leases of runs: file locks that the system releases when their process dies.

A lease in jobs.json names a lock. If the lock is free, its holder is dead.
"""

import secrets
import time
from contextlib import suppress
from pathlib import Path

from nanobot.utils.locks import ProcessLock
from nanobot.utils.open_no_follow import open_own

_STALE_S = 3_600.0


class Leases:
    """The locks of a store's folder, and the one of this service."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own: ProcessLock | None = None
        self._serving: ProcessLock | None = None
        self.holder = ""
        """The name of this service's lock; empty before `open`."""

    def open(self) -> str:
        """Take this service's lock, if not yet taken; return its name. Raises OSError."""
        if self._own is None:
            self.sweep()
            self.holder = secrets.token_hex(8)
            self._own = ProcessLock(self._lock_of(self.holder), open_own)
            while not self._own.try_acquire():  # another process is just testing it
                time.sleep(0.001)
        return self.holder

    def serve(self) -> None:
        """Register as the process that runs the jobs, unless another one is. Raises OSError."""
        if self._serving is None:
            lock = ProcessLock(self._serving_path, open_own)
            self._serving = lock if lock.try_acquire() else None

    @property
    def is_complete(self) -> bool:
        """Whether both locks are held."""
        return self._own is not None and self._serving is not None

    def is_served(self) -> bool:
        """Whether any process, including this one, runs the jobs."""
        if self._serving is not None:
            return True
        return self._serving_path.exists() and not _is_free(self._serving_path)

    def is_alive(self, holder: str) -> bool:
        """Whether the holder's process is alive."""
        if holder == self.holder and self._own is not None:
            return True
        path = self._lock_of(holder)
        return path.exists() and not _is_free(path)

    def close(self) -> None:
        """Release all locks. Unfinished leases are settled by the next process."""
        for lock in (self._own, self._serving):
            if lock is not None:
                lock.release()
        if self._own is not None:
            with suppress(OSError):
                self._lock_of(self.holder).unlink(missing_ok=True)
        self._own = self._serving = None

    def sweep(self) -> None:
        """Remove lock files of dead processes. Never raises."""
        with suppress(OSError):
            for path in self._folder.glob("holder-*.lock"):
                if time.time() - path.stat().st_mtime > _STALE_S and _is_free(path):
                    path.unlink(missing_ok=True)

    @property
    def _serving_path(self) -> Path:
        return self._folder / "serving.lock"

    def _lock_of(self, holder: str) -> Path:
        safe = "".join(character for character in holder if character in "0123456789abcdef")
        return self._folder / f"holder-{safe}.lock"


def _is_free(path: Path) -> bool:
    lock = ProcessLock(path, open_own)
    try:
        if not lock.try_acquire():
            return False
    except OSError:  # cannot be tested: assume it is held
        return False
    lock.release()
    return True
