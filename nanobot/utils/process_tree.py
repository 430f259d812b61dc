"""The descendants of a child process: finding them and killing them all. Platform differences stay in this module.

On POSIX a child gets its own session, so signals do not cross over. A descendant may leave that session, as daemons do;
to find it anyway, every child carries a mark in its environment, which its descendants inherit and which Linux shows in
/proc. Elsewhere, process groups and parents are all there is.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "NANOBOT_CHILD"
KILL_TIMEOUT_S = 2.0
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
