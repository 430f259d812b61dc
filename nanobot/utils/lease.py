"""Who works at this, and is that process alive? A row names the lease of its process; a lock proves that it lives.

The system releases the lock when the process dies. Another process may then take over the row, in one transaction.
"""

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from nanobot.errors import StorageError
from nanobot.utils.files import open_private
from nanobot.utils.locks import ProcessLock, is_held
from nanobot.utils.storage_error import storage_error

_STALE_S = 3_600.0
"""Age from which the lock file of an ended process is deleted: a younger one may be about to be locked."""


class ProcessLease:
    """The lease of this process, and whether others are alive. Methods block."""

    def __init__(self, folder: Path, opener: Callable[[Path, int], int] = open_private) -> None:
        """`folder` holds one lock file for each process; `opener` as for a ProcessLock."""
        self.name = secrets.token_hex(6)
        self._folder = folder
        self._opener = opener
        self._lock: ProcessLock | None = None

    def hold(self) -> None:
        """Take the lease, before this process writes its name into a row. Raises StorageError."""
        if self._lock is not None:
            return
        lock = ProcessLock(self._path_of(self.name), self._opener)
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
        return bool(name) and is_held(self._path_of(name), self._opener)

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
