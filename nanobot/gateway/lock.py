"""The lock that allows one gateway per data folder: two would answer every message twice.

It is a lock of the operating system, released when the process dies. A file beside it names the holder; it is
informational and ignored while the lock is free.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from nanobot.config.paths import DataPaths
from nanobot.errors import InstanceLockedError
from nanobot.utils.files import write_in_place
from nanobot.utils.locks import ProcessLock
from nanobot.utils.storage_error import storage_error
from nanobot.utils.text import format_when


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The process that holds the lock."""

    pid: int
    since: str


@contextmanager
def single_instance(places: DataPaths) -> Iterator[LockHolder]:
    """Hold the lock of this data folder until the block ends.

    Raises InstanceLockedError, which names the pid of the holder, and StorageError.
    """
    lock = ProcessLock(_lock_file(places))
    try:
        if not _acquire(lock):
            raise _already_locked_error(places)
        holder = LockHolder(os.getpid(), datetime.now().astimezone().isoformat(timespec="seconds"))
        write_in_place(_holder_file(places), json.dumps({"pid": holder.pid, "since": holder.since}))
    except OSError as error:
        lock.release()
        raise storage_error(f"{places.state} cannot be used", error) from error
    try:
        yield holder
    finally:
        if not is_lost(places, holder):
            with suppress(OSError):
                _holder_file(places).unlink(missing_ok=True)
        lock.release()


def is_lost(places: DataPaths, holder: LockHolder) -> bool:
    """Whether the lock's files were deleted or replaced, so that the lock no longer excludes others.

    False if that cannot be determined.
    """
    current = _read(places)
    return current != holder if current else not _holder_file(places).exists()


def _acquire(lock: ProcessLock) -> bool:
    """Try to acquire the lock; retried, as `find_lock_holder` takes it for a moment."""
    for pause_s in (0.02, 0.1, 0.0):
        if lock.try_acquire():
            return True
        time.sleep(pause_s)
    return False


def find_lock_holder(places: DataPaths) -> LockHolder | None:
    """Return the process that runs the gateway of this data folder, or None. Raises OSError. Creates no file."""
    file = _lock_file(places)
    if not file.exists():
        return None
    lock = ProcessLock(file)
    if lock.try_acquire():  # the holder is dead, whatever the file says
        lock.release()
        return None
    return _read(places) or LockHolder(0, "")


def _read(places: DataPaths) -> LockHolder | None:
    try:
        payload = json.loads(_holder_file(places).read_text(encoding="utf-8"))
        return LockHolder(int(payload["pid"]), str(payload["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # it is being written, or was deleted


def _already_locked_error(places: DataPaths) -> InstanceLockedError:
    holder = _read(places)
    process = f" (pid {holder.pid}, since {format_when(datetime.fromisoformat(holder.since))})" if holder else ""
    return InstanceLockedError(
        f"A gateway of {places.data} is already running{process}. Talk to it with `nanobot agent`, or stop it with "
        f"`nanobot gateway stop`{f' or `kill {holder.pid}`' if holder else ''}; another data folder needs --config."
    )


def _lock_file(places: DataPaths) -> Path:
    return places.state / "gateway.lock"


def _holder_file(places: DataPaths) -> Path:
    return places.state / "gateway.json"
