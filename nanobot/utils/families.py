"""A child's family: who belongs to it, and how all of them end. What differs between hosts stays in this file.

POSIX gives a child a session of its own, so that no signal meant for it reaches us and none of its reaches ours. A
child may leave that session (a daemon does); to find it all the same, every child carries a mark in its environment,
which its children inherit and which Linux shows in /proc. Elsewhere a family is what its process group and its parents
tell.
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
KILL_PATIENCE_S = 2.0
_PROC = Path("/proc")
_CHASE_S, _STILL_S, _NEWEST = 0.4, 0.03, 64


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a family."""

    pid: int
    command: str


def count_processes() -> int:
    """How many processes the host runs; 0 where that is not cheap to know."""
    try:
        return sum(name.isdigit() for name in os.listdir(_PROC))  # noqa: PTH208 - called several times a second
    except OSError:
        return 0


if sys.platform == "win32":
    CREATION_FLAGS = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
    HANG_UP = KILL = 0

    def signal_group(pid: int, number: int) -> bool:
        """There are no signals."""
        del pid, number
        return False

    def kill_family(pid: int, mark: str, *, reaped: bool) -> None:
        """By the system's own tool, which goes from parents to children."""
        del mark, reaped
        subprocess.run(["taskkill", "/F", "/T", "/PID", str(pid)], capture_output=True, check=False, timeout=10)

    def family_of(pid: int, mark: str, *, reaped: bool) -> list[Process]:
        """Nobody says."""
        del pid, mark, reaped
        return []

    def inhabitants_of(head: int) -> list[Process]:
        """There are no spaces."""
        del head
        return []

else:
    CREATION_FLAGS = 0
    HANG_UP, KILL = signal.SIGHUP, signal.SIGKILL

    def signal_group(pid: int, number: int) -> bool:
        """Whether there was anybody to hear it."""
        try:
            os.killpg(pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def kill_family(pid: int, mark: str, *, reaped: bool) -> None:
        """Stop all, then kill all, until nobody is left: who is stopped cannot fork while we look for the next."""
        deadline = time.monotonic() + KILL_PATIENCE_S
        while (family := family_of(pid, mark, reaped=reaped)) and time.monotonic() < deadline:
            for how in (signal.SIGSTOP, signal.SIGKILL):
                for member in family:
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(member.pid, how)
            time.sleep(0.01)
        _chase(f"{MARK}={mark}".encode(), deadline)

    def _chase(marked: bytes, deadline: float) -> None:
        """End who hands on to a child and is gone before a table of all is made: look at the newest processes by
        themselves, until nobody makes new ones, or none of them is of the family for a while.
        """
        newest, moved = 0, time.monotonic()
        until = moved + _CHASE_S
        with suppress(OSError, ValueError):  # no /proc
            while (now := time.monotonic()) < min(until, moved + _STILL_S, deadline):
                before, newest = newest, int(_PROC.joinpath("loadavg").read_bytes().split()[-1])
                if newest != before:
                    moved = now
                for pid in range(newest, max(newest - _NEWEST, 1), -1):
                    if _carries(pid, marked):
                        with suppress(ProcessLookupError, PermissionError):
                            os.kill(pid, KILL)
                        until = now + _CHASE_S

    def inhabitants_of(head: int) -> list[Process]:
        """All below this process, without itself."""
        table = _table_from_proc()
        found = _with_children({head}, table)
        return [Process(row.pid, row.command) for row in table.values() if row.pid in found and row.pid != head]

    def _with_children(found: set[int], table: "dict[int, _Row]") -> set[int]:
        grew = True
        while grew:
            young = {row.pid for row in table.values() if row.parent in found} - found
            found |= young
            grew = bool(young)
        return found

    def family_of(pid: int, mark: str, *, reaped: bool) -> list[Process]:
        """Who is alive of the family of this process; `reaped`: itself is gone, and was waited for."""
        table = _table_from_proc() if _PROC.joinpath("self/stat").exists() else _table_from_ps()
        # A number may be given again once its owner was waited for; only a session without a head is still the child's.
        own = not reaped or pid not in table
        marked = f"{MARK}={mark}".encode()
        found = {pid} if not reaped else set()
        found |= {row.pid for row in table.values() if own and pid in (row.group, row.session)}
        found |= {row.pid for row in table.values() if row.pid not in found and _carries(row.pid, marked)}
        found = _with_children(found, table)
        found.discard(os.getpid())
        return [Process(row.pid, row.command) for row in table.values() if row.pid in found]


@dataclass(frozen=True, slots=True)
class _Row:
    pid: int
    parent: int
    group: int
    session: int
    command: str


def _table_from_proc() -> dict[int, _Row]:
    """All processes but those that are dead and only wait to be counted."""
    table = {}
    for name in os.listdir(_PROC):  # noqa: PTH208 - a busy host has thousands
        if not name.isdigit():
            continue
        try:
            stat = _PROC.joinpath(name, "stat").read_bytes().decode(errors="replace")
        except OSError:
            continue
        command, _, rest = stat.partition("(")[2].rpartition(")")  # a command may contain brackets itself
        state, parent, group, session = rest.split()[:4]
        if state not in {"Z", "X"}:
            table[int(name)] = _Row(int(name), int(parent), int(group), int(session), command)
    return table


def _table_from_ps() -> dict[int, _Row]:
    """The same where there is no /proc. A session is not shown everywhere: the group stands for it."""
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
            table[int(pid)] = _Row(int(pid), int(parent), int(group), int(group), command)
    return table


def _carries(pid: int, marked: bytes) -> bool:
    try:
        return marked in _PROC.joinpath(str(pid), "environ").read_bytes().split(b"\0")
    except OSError:
        return False
