"""One gateway a data folder: two would answer every message twice.

The lock is the system's own, so that of a gateway that was killed nothing is left to clear away. Beside it stands who
holds it; that is for people to read, and counts for nothing once the lock is free.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from nanobot.config.paths import Places
from nanobot.errors import InstanceLockedError
from nanobot.utils.files import write_in_place
from nanobot.utils.locks import ProcessLock
from nanobot.utils.refusals import refusal


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds the lock."""

    pid: int
    since: str


@contextmanager
def only_one(places: Places) -> Iterator[Holder]:
    """Be the gateway of this data folder until the block ends.

    Raises InstanceLockedError, which names the pid, where there is one already; StorageError where the disk refuses.
    """
    lock = ProcessLock(_lock_file(places))
    try:
        if not _taken(lock):
            raise _locked(places)
        holder = Holder(os.getpid(), datetime.now().astimezone().isoformat(timespec="seconds"))
        write_in_place(_holder_file(places), json.dumps({"pid": holder.pid, "since": holder.since}))
    except OSError as error:
        lock.release()
        raise refusal(f"{places.state} cannot be used", error) from error
    try:
        yield holder
    finally:
        if not is_lost(places, holder):
            with suppress(OSError):
                _holder_file(places).unlink(missing_ok=True)
        lock.release()


def is_lost(places: Places, holder: Holder) -> bool:
    """Whether the folder is no longer this one's: the files of the lock were deleted, or somebody took new ones.

    A lock on a deleted file keeps nobody out. Where it cannot be told, it is not lost.
    """
    found = _read(places)
    return found != holder if found else not _holder_file(places).exists()


def _taken(lock: ProcessLock) -> bool:
    """Whether it is ours. Who only looks (`holder_of`) has it for a moment too; that is not meant."""
    for pause_s in (0.02, 0.1, 0.0):
        if lock.try_acquire():
            return True
        time.sleep(pause_s)
    return False


def holder_of(places: Places) -> Holder | None:
    """Who is the gateway of this data folder now; None where nobody is. Raises OSError. Makes nothing."""
    file = _lock_file(places)
    if not file.exists():
        return None
    lock = ProcessLock(file)
    if lock.try_acquire():  # it is dead, whatever the file says: the system let go of its lock
        lock.release()
        return None
    return _read(places) or Holder(0, "")


def _read(places: Places) -> Holder | None:
    try:
        told = json.loads(_holder_file(places).read_text(encoding="utf-8"))
        return Holder(int(told["pid"]), str(told["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # it is being written, or was taken away


def _locked(places: Places) -> InstanceLockedError:
    holder = _read(places)
    who = f"(pid {holder.pid}, since {holder.since})" if holder else ""
    return InstanceLockedError(
        f"A gateway of {places.data} runs already {who}. Talk to it with `nanobot agent`, or end it with "
        f"`nanobot gateway stop`{f' or `kill {holder.pid}`' if holder else ''}; another data folder needs --config."
    )


def _lock_file(places: Places) -> Path:
    return places.state / "gateway.lock"


def _holder_file(places: Places) -> Path:
    return places.state / "gateway.json"
