"""The gateway as a process: its lock, requests to stop or restart it, and what systemd hears from it.

The lock allows one gateway per data folder: two would answer every message twice. It is a lock of the operating system,
released when the process dies. A file beside it names the holder; it is informational and ignored while the lock is
free.
"""

import asyncio
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum

from nanobot.config.paths import DataPaths
from nanobot.errors import InstanceLockedError
from nanobot.utils.files import write_in_place
from nanobot.utils.locks import ProcessLock
from nanobot.utils.storage_error import storage_errors
from nanobot.utils.text import format_when

_LOCK, _HOLDER = "gateway.lock", "gateway.json"


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
    lock, file = ProcessLock(places.state / _LOCK), places.state / _HOLDER
    holder = LockHolder(os.getpid(), datetime.now().astimezone().isoformat(timespec="seconds"))
    try:
        with storage_errors(f"{places.state} cannot be used"):
            for pause_s in (0.02, 0.1, None):  # `find_lock_holder` takes it for a moment
                if lock.try_acquire():
                    break
                if pause_s is None:
                    raise _already_locked_error(places)
                time.sleep(pause_s)
            write_in_place(file, json.dumps(asdict(holder)))
        try:
            yield holder
        finally:
            if not is_lost(places, holder):
                with suppress(OSError):
                    file.unlink(missing_ok=True)
    finally:
        lock.release()


def is_lost(places: DataPaths, holder: LockHolder) -> bool:
    """Whether the lock's files were deleted or replaced, so that the lock no longer excludes others.

    False if that cannot be determined.
    """
    current = _read(places)
    return current != holder if current else not (places.state / _HOLDER).exists()


def find_lock_holder(places: DataPaths) -> LockHolder | None:
    """Return the process that runs the gateway of this data folder, or None. Raises OSError. Creates no file."""
    if not (places.state / _LOCK).exists():
        return None
    lock = ProcessLock(places.state / _LOCK)
    if lock.try_acquire():  # the holder is dead, whatever the file says
        lock.release()
        return None
    return _read(places) or LockHolder(0, "")


def _read(places: DataPaths) -> LockHolder | None:
    try:
        return LockHolder(**json.loads((places.state / _HOLDER).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None  # it is being written, or was deleted


def _already_locked_error(places: DataPaths) -> InstanceLockedError:
    holder = _read(places)
    process = f" (pid {holder.pid}, since {format_when(datetime.fromisoformat(holder.since))})" if holder else ""
    return InstanceLockedError(
        f"A gateway of {places.data} is already running{process}. Talk to it with `nanobot agent`, or stop it with "
        f"`nanobot gateway stop`{f' or `kill {holder.pid}`' if holder else ''}; another data folder needs --config."
    )


class ExitReason(StrEnum):
    """Why the gateway exits."""

    STOP = "stop"
    RESTART = "restart"


class ShutdownRequests:
    """Requests to stop or restart: from a signal, the local socket, or `/restart` in a chat. The first one counts."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._reason = ExitReason.STOP

    @property
    def is_requested(self) -> bool:
        return self._requested.is_set()

    def stop(self) -> None:
        self._requested.set()

    def restart(self) -> None:
        if not self.is_requested:
            self._reason = ExitReason.RESTART
        self._requested.set()

    async def wait(self) -> ExitReason:
        """Wait for the first request."""
        await self._requested.wait()
        return self._reason


def tell_service_manager(state: str) -> None:
    """Send a state to systemd, if it started the gateway. Never raises. The protocol: sd_notify(3) of systemd."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address or not hasattr(socket, "AF_UNIX"):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram:
        datagram.setblocking(False)
        datagram.connect("\0" + address[1:] if address.startswith("@") else address)
        datagram.send(state.encode())
