"""The descendants of a child process: finding them, killing them all, and the memory they use.

On POSIX a child gets its own session, so signals do not cross over. A descendant may leave that session, as daemons do;
to find it anyway, every child carries a mark in its environment, which its descendants inherit.
"""

import asyncio
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imported where it is used: 10 ms that only commands need
    import psutil

MARK = "NANOBOT_CHILD"
KILL_TIMEOUT_S = 2.0
_END_TIMEOUT_S = 0.05
_INFO_TIMEOUT_S = 10.0
_PROC = Path("/proc")
_SCAN_S, _QUIET_S, _SCAN_PIDS = 0.4, 0.03, 64

if sys.platform == "win32":
    CREATION_FLAGS = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
    HANG_UP = KILL = 0
else:
    CREATION_FLAGS = 0
    HANG_UP, KILL = signal.SIGHUP, signal.SIGKILL


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a family."""

    pid: int
    command: str


def count_processes() -> int:
    """The number of processes on the host; 0 if that is not cheap to know."""
    try:
        return sum(name.isdigit() for name in os.listdir(_PROC))  # noqa: PTH208 - called several times a second
    except OSError:
        return 0


def signal_group(pid: int, number: int) -> bool:
    """Return whether there was a process to signal. Windows has no signals."""
    if sys.platform == "win32":
        return False
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def family_of(pid: int, mark: str, *, reaped: bool) -> list[Process]:
    """The living processes of the family; `reaped` if the child itself has ended and was waited for."""
    return [Process(process.pid, process.info["name"]) for process in _family(pid, mark, reaped=reaped)]


def descendants_of(head: int) -> list[Process]:
    """All living descendants of this process, without itself."""
    found = _with_descendants({head}, _living())
    return [Process(process.pid, process.info["name"]) for process in found if process.pid != head]


def kill_family(pid: int, mark: str, *, reaped: bool) -> None:
    """Stop all, then kill all, until none is left: stopped processes cannot fork while we search."""
    import psutil

    deadline = time.monotonic() + KILL_TIMEOUT_S
    while (family := _family(pid, mark, reaped=reaped)) and time.monotonic() < deadline:
        for end in (psutil.Process.suspend, psutil.Process.kill):
            for member in family:
                with suppress(psutil.Error):
                    end(member)
        time.sleep(0.01)
    _kill_new_processes(mark, deadline)


def _kill_new_processes(mark: str, deadline: float) -> None:
    """Kill processes that fork and exit faster than the process table can be read: check the newest PIDs individually
    until no new ones appear, or none of them carries the mark for a while.
    """
    newest, moved = 0, time.monotonic()
    until = moved + _SCAN_S
    mark_entry = f"{MARK}={mark}".encode()
    with suppress(OSError, ValueError):  # no /proc
        while (now := time.monotonic()) < min(until, moved + _QUIET_S, deadline):
            before, newest = newest, int(_PROC.joinpath("loadavg").read_bytes().split()[-1])
            if newest != before:
                moved = now
            for pid in range(newest, max(newest - _SCAN_PIDS, 1), -1):
                with suppress(OSError):
                    if mark_entry in _PROC.joinpath(str(pid), "environ").read_bytes().split(b"\0"):
                        os.kill(pid, KILL)
                        until = now + _SCAN_S


def _family(pid: int, mark: str, *, reaped: bool) -> "list[psutil.Process]":
    living = _living()
    # A PID may be reused once its process was reaped; a session without a leader is still the child's.
    own = not reaped or pid not in living
    members = set() if reaped else {pid}
    for other, process in living.items():
        if (own and _is_in_session(other, pid)) or (process.info["environ"] or {}).get(MARK) == mark:
            members.add(other)
    return [process for process in _with_descendants(members, living) if process.pid != os.getpid()]


def _living() -> "dict[int, psutil.Process]":
    """All processes by PID, without those that have only not been waited for."""
    import psutil

    found = psutil.process_iter(["environ", "name", "ppid", "status"])
    return {one.pid: one for one in found if one.info["status"] not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)}


def _with_descendants(pids: set[int], processes: "Mapping[int, psutil.Process]") -> "list[psutil.Process]":
    while children := {pid for pid, process in processes.items() if process.info["ppid"] in pids} - pids:
        pids = pids | children
    return [process for pid, process in processes.items() if pid in pids]


def _is_in_session(pid: int, leader: int) -> bool:
    """Whether it is in the session or process group of a leader."""
    if sys.platform == "win32":
        return False
    try:
        return leader in (os.getsid(pid), os.getpgid(pid))
    except OSError:
        return False


class PidNamespace:
    """A PID namespace of a sandboxed command: when its first process ends, the kernel kills all others.

    A pidfd references that process, since PIDs are reused.
    """

    def __init__(self, head: int) -> None:
        """Raises ProcessLookupError if it has ended already."""
        self.head = head
        self._pidfd: int | None = os.pidfd_open(head)

    @classmethod
    def from_info_fd(cls, info_fd: int) -> "PidNamespace | None":
        """Read the namespace from bwrap's info pipe; None if the program ended without creating one. Blocking. Raises
        TimeoutError.
        """
        data, ready = b"", select.poll()
        ready.register(info_fd, select.POLLIN)
        while b"}" not in data:
            if not ready.poll(_INFO_TIMEOUT_S * 1000):
                raise TimeoutError(f"its sandbox sent no information within {_INFO_TIMEOUT_S:g} s")
            if not (chunk := os.read(info_fd, 4096)):
                return None
            data += chunk
        with suppress(ProcessLookupError):
            return cls(int(json.loads(data)["child-pid"]))
        return None

    @property
    def is_alive(self) -> bool:
        """Whether the first process is alive: it stays until all others have ended."""
        if self._pidfd is None:
            return False
        ended = select.poll()
        ended.register(self._pidfd, select.POLLIN)
        return not ended.poll(0)

    async def has_processes(self) -> bool:
        """Whether processes are left after its command has ended."""
        if self.is_alive:
            with suppress(OSError):  # orphans become children of the first process
                return bool(_PROC.joinpath(f"{self.head}/task/{self.head}/children").read_bytes())
        return not await self._wait_ended(_END_TIMEOUT_S)  # no information; give the first process time to notice

    async def end(self) -> bool:
        """Kill all processes in it; return False if it had ended. All are gone on return, unless that takes over two
        seconds.
        """
        if not self.is_alive or self._pidfd is None:
            return False
        signal.pidfd_send_signal(self._pidfd, KILL)
        await self._wait_ended(KILL_TIMEOUT_S)
        return True

    async def _wait_ended(self, timeout_s: float) -> bool:
        if not self.is_alive or self._pidfd is None:
            return True
        loop, gone, pidfd = asyncio.get_running_loop(), asyncio.Event(), self._pidfd  # it may be closed meanwhile
        loop.add_reader(pidfd, gone.set)
        try:
            async with asyncio.timeout(timeout_s):
                await gone.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(pidfd)
        return True

    def close(self) -> None:
        """Close the pidfd. Processes in it continue."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


def memory_in_use() -> int:
    """Bytes in use on this machine."""
    import psutil

    memory = psutil.virtual_memory()
    return memory.total - memory.available


def memory_of(pids: Iterable[int]) -> int:
    """Bytes used by these processes together, without mapped files, which the system can reclaim. Shared memory counts
    once. Blocking. From proc_pid_smaps(5); 0 where that is missing.
    """
    return sum(map(_share_of, pids))


def _share_of(pid: int) -> int:
    with suppress(OSError):  # it has ended, or belongs to another user
        text = _PROC.joinpath(str(pid), "smaps_rollup").read_bytes()
        return sum(map(int, re.findall(rb"^(?:Pss_Anon|Pss_Shmem|SwapPss): +(\d+) kB", text, re.MULTILINE))) * 1024
    return 0
