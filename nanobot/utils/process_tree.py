"""The descendants of a child process: finding them, killing them all, and the memory they use.

Platform differences stay in this module.

On POSIX a child gets its own session, so signals do not cross over. A descendant may leave that session, as daemons do;
to find it anyway, every child carries a mark in its environment, which its descendants inherit and which Linux shows in
/proc. Elsewhere, process groups and parents are all there is.
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
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "NANOBOT_CHILD"
KILL_TIMEOUT_S = 2.0
_END_TIMEOUT_S = 0.05
_INFO_TIMEOUT_S = 10.0
_PROC = Path("/proc")
_SCAN_S, _QUIET_S, _SCAN_PIDS = 0.4, 0.03, 64


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


if sys.platform == "win32":
    CREATION_FLAGS = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
    HANG_UP = KILL = 0

    def signal_group(pid: int, number: int) -> bool:
        """Windows has no signals."""
        del pid, number
        return False

    def kill_family(pid: int, mark: str, *, reaped: bool) -> None:
        """Uses taskkill, which follows parents to children."""
        del mark, reaped
        subprocess.run(["taskkill", "/F", "/T", "/PID", str(pid)], capture_output=True, check=False, timeout=10)

    def family_of(pid: int, mark: str, *, reaped: bool) -> list[Process]:
        """Not available on Windows."""
        del pid, mark, reaped
        return []

    def descendants_of(head: int) -> list[Process]:
        """Windows has no PID namespaces."""
        del head
        return []

else:
    CREATION_FLAGS = 0
    HANG_UP, KILL = signal.SIGHUP, signal.SIGKILL

    def signal_group(pid: int, number: int) -> bool:
        """Return whether there was a process to signal."""
        try:
            os.killpg(pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def kill_family(pid: int, mark: str, *, reaped: bool) -> None:
        """Stop all, then kill all, until none is left: stopped processes cannot fork while we search."""
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while (family := family_of(pid, mark, reaped=reaped)) and time.monotonic() < deadline:
            for how in (signal.SIGSTOP, signal.SIGKILL):
                for member in family:
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(member.pid, how)
            time.sleep(0.01)
        _kill_new_processes(f"{MARK}={mark}".encode(), deadline)

    def _kill_new_processes(mark_entry: bytes, deadline: float) -> None:
        """Kill processes that fork and exit faster than the process table can be read: check the newest PIDs
        individually until no new ones appear, or none of them carries the mark for a while.
        """
        newest, moved = 0, time.monotonic()
        until = moved + _SCAN_S
        with suppress(OSError, ValueError):  # no /proc
            while (now := time.monotonic()) < min(until, moved + _QUIET_S, deadline):
                before, newest = newest, int(_PROC.joinpath("loadavg").read_bytes().split()[-1])
                if newest != before:
                    moved = now
                for pid in range(newest, max(newest - _SCAN_PIDS, 1), -1):
                    if _has_mark(pid, mark_entry):
                        with suppress(ProcessLookupError, PermissionError):
                            os.kill(pid, KILL)
                        until = now + _SCAN_S

    def descendants_of(head: int) -> list[Process]:
        """All descendants of this process, without itself."""
        table = _table_from_proc()
        pids = _with_descendants({head}, table)
        return [Process(row.pid, row.command) for row in table.values() if row.pid in pids and row.pid != head]

    def _with_descendants(pids: set[int], table: "dict[int, _ProcessRow]") -> set[int]:
        while children := {row.pid for row in table.values() if row.parent in pids} - pids:
            pids |= children
        return pids

    def family_of(pid: int, mark: str, *, reaped: bool) -> list[Process]:
        """The living processes of the family; `reaped` if the child itself has ended and was waited for."""
        table = _table_from_proc() if _PROC.joinpath("self/stat").exists() else _table_from_ps()
        # A PID may be reused once its process was reaped; a session without a leader is still the child's.
        own = not reaped or pid not in table
        mark_entry = f"{MARK}={mark}".encode()
        pids = {pid} if not reaped else set()
        pids |= {row.pid for row in table.values() if own and pid in (row.group, row.session)}
        pids |= {row.pid for row in table.values() if row.pid not in pids and _has_mark(row.pid, mark_entry)}
        pids = _with_descendants(pids, table)
        pids.discard(os.getpid())
        return [Process(row.pid, row.command) for row in table.values() if row.pid in pids]


@dataclass(frozen=True, slots=True)
class _ProcessRow:
    pid: int
    parent: int
    group: int
    session: int
    command: str


def _table_from_proc() -> dict[int, _ProcessRow]:
    """All processes except zombies."""
    table = {}
    for name in os.listdir(_PROC):  # noqa: PTH208 - a busy host has thousands
        if not name.isdigit():
            continue
        try:
            stat = _PROC.joinpath(name, "stat").read_bytes().decode(errors="replace")
        except OSError:
            continue
        command, _, rest = stat.partition("(")[2].rpartition(")")  # a command may contain parentheses
        state, parent, group, session = rest.split()[:4]
        if state not in {"Z", "X"}:
            table[int(name)] = _ProcessRow(int(name), int(parent), int(group), int(session), command)
    return table


def _table_from_ps() -> dict[int, _ProcessRow]:
    """The same without /proc. Not all systems show sessions, so the group is used instead."""
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,pgid=,stat=,comm="],
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        check=False,
        timeout=5,
    )
    table = {}
    for line in listing.stdout.splitlines():
        pid, parent, group, state, command = [*line.split(None, 4), "", "", "", "", ""][:5]
        if pid.isdigit() and not state.startswith("Z"):
            table[int(pid)] = _ProcessRow(int(pid), int(parent), int(group), int(group), command)
    return table


def _has_mark(pid: int, mark_entry: bytes) -> bool:
    try:
        return mark_entry in _PROC.joinpath(str(pid), "environ").read_bytes().split(b"\0")
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
    """Bytes in use on this machine, from proc_meminfo(5); 0 if unknown."""
    try:
        text = _PROC.joinpath("meminfo").read_bytes()
    except OSError:
        return 0
    values = dict(re.findall(rb"^(MemTotal|MemAvailable): +(\d+) kB", text, re.MULTILINE))
    return (int(values.get(b"MemTotal", 0)) - int(values.get(b"MemAvailable", 0))) * 1024 if len(values) == 2 else 0


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
