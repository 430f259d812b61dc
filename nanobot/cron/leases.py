"""Who runs an instant: a lock that the system lets go of when its process dies, however that happens.

A lease in jobs.json names such a lock. Whoever meets a lease whose lock is free knows that its holder is gone.
"""

import secrets
import time
from contextlib import suppress
from pathlib import Path

from nanobot.utils.locks import ProcessLock

_STALE_S = 3_600.0


class Leases:
    """The locks of a store's folder, and the one this service goes by."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own: ProcessLock | None = None
        self._serving: ProcessLock | None = None
        self.holder = ""
        """The name of our lock, once there is one."""

    def open(self) -> str:
        """Take a lock of our own, if there is none yet; its name. Raises OSError."""
        if self._own is None:
            self.sweep()
            self.holder = secrets.token_hex(8)
            self._own = ProcessLock(self._lock_of(self.holder))
            while not self._own.try_acquire():  # somebody asks at this very moment whether it is free
                time.sleep(0.001)
        return self.holder

    def serve(self) -> None:
        """Be the one that people are told of, if nobody else is. Raises OSError."""
        if self._serving is None:
            lock = ProcessLock(self._serving_path)
            self._serving = lock if lock.try_acquire() else None

    @property
    def complete(self) -> bool:
        """Whether there is nothing left to take."""
        return self._own is not None and self._serving is not None

    def is_served(self) -> bool:
        """Whether some process, this one perhaps, runs the jobs when they are due."""
        if self._serving is not None:
            return True
        return self._serving_path.exists() and not _is_free(self._serving_path)

    def is_alive(self, holder: str) -> bool:
        """Whether the process that took the lock of this name still has it."""
        if holder == self.holder and self._own is not None:
            return True
        path = self._lock_of(holder)
        return path.exists() and not _is_free(path)

    def close(self) -> None:
        """Let go of all of it: what was leased and did not end is for the next one to settle."""
        for lock in (self._own, self._serving):
            if lock is not None:
                lock.release()
        if self._own is not None:
            with suppress(OSError):
                self._lock_of(self.holder).unlink(missing_ok=True)
        self._own = self._serving = None

    def sweep(self) -> None:
        """Remove the locks of processes long dead. Never raises."""
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
    lock = ProcessLock(path)
    try:
        if not lock.try_acquire():
            return False
    except OSError:  # it is there and cannot be asked: believe that somebody has it
        return False
    lock.release()
    return True
