"""Child processes with a family of their own: no terminal, nothing to read, and gone as a whole when they must go.

What differs between hosts stays in this file. POSIX gives a child a session of its own, so that no signal meant for it
reaches us and none of its reaches ours. A child may leave that session (a daemon does); to find it all the same, every
child carries a mark in its environment, which its children inherit and which Linux shows in /proc. Elsewhere a family
is what its process group and its parents tell.

A program may give its command a space of process numbers of its own, as sandboxes do. Then it tells us who is the head
of that space, and waits for us before the command begins: what the head is bound to holds for all of them, and when it
goes, the kernel ends everybody in it.
"""

import asyncio
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from asyncio.subprocess import SubprocessStreamProtocol
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

MARK = "NANOBOT_CHILD"
_PROC = Path("/proc")
_READ_AHEAD = 256 * 1024
_KILL_PATIENCE_S = 2.0
_CHASE_S, _STILL_S, _NEWEST = 0.4, 0.03, 64
_TO_DETACH_S = 0.15
_TO_END_S = 0.05
_TO_TELL_S = 10.0

Argv = Sequence[str] | str | Callable[[int, int], Sequence[str]]
"""A program with its arguments; a line for the system's shell; or a program that makes a space of process numbers. That
one tells on the first of these descriptors who is the head, as JSON with a `child-pid`, and waits for the end of the
second before its command begins (`bwrap --info-fd --block-fd`)."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a family."""

    pid: int
    command: str


class Child:
    """A running child. Its output is in two streams; `wait` ends with the process, not with its streams."""

    def __init__(
        self,
        transport: "asyncio.SubprocessTransport | _Confined",
        protocol: "_Protocol | _Streams",
        mark: str,
        space: "_Space | None" = None,
    ) -> None:
        self._transport = transport
        self._protocol = protocol
        self._mark = mark
        self._space = space
        self.pid = transport.get_pid() or 0
        assert protocol.stdout is not None and protocol.stderr is not None  # noqa: S101 - both are pipes
        self.stdout: asyncio.StreamReader = protocol.stdout
        self.stderr: asyncio.StreamReader = protocol.stderr

    @property
    def returncode(self) -> int | None:
        """How it ended; minus the signal where one ended it; None while it runs."""
        return self._transport.get_returncode()

    async def wait(self) -> int:
        """Until the process itself has ended. What it left in the background does not count. Cancelling is safe."""
        await self._protocol.gone.wait()
        return self.returncode or 0

    async def hang_up(self) -> bool:
        """What a closing terminal does to a session: whoever did not ask to outlive it ends.

        True where somebody of the session may still be there.
        """
        head = self.pid
        if self._space is not None:
            if not await self._space.is_inhabited():
                return False
            head = self._space.head
        if not _signal_group(head, 0):
            return False
        await asyncio.sleep(_TO_DETACH_S)  # a nohup that was only just started has yet to say so
        return _signal_group(head, _HANG_UP)

    @property
    def head(self) -> Process | None:
        """Who answers for all of a family that has a space of its own, as long as anybody is in it."""
        space = self._space
        return Process(space.head, "processes that come and go") if space is not None and space.is_alive else None

    async def family(self) -> list[Process]:
        """Who of its family is alive."""
        if self._space is not None:
            return await asyncio.to_thread(_inhabitants, self._space.head) if self._space.is_alive else []
        return await asyncio.to_thread(_family, self.pid, self._mark, reaped=self.returncode is not None)

    async def kill(self) -> None:
        """End the whole family, whatever it did to hide. Returns when it is gone, after two seconds at the latest."""
        reaped = self.returncode is not None
        if not reaped:
            _signal_group(self.pid, _KILL)  # at once; the search for those who left the group takes a moment
        if self._space is None or not await asyncio.shield(self._space.end()):
            await asyncio.shield(asyncio.to_thread(_kill_family, self.pid, self._mark, reaped=reaped))
        with suppress(TimeoutError):
            async with asyncio.timeout(_KILL_PATIENCE_S):
                await self._protocol.gone.wait()

    async def close(self) -> None:
        """Let go of the streams. A process that still runs ends, with its family."""
        try:
            if self.returncode is None:
                await self.kill()
        finally:
            self._transport.close()
            if self._space is not None:
                self._space.close()


@asynccontextmanager
async def child_process(
    argv: Argv,
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: int = subprocess.DEVNULL,
    confine: Callable[[], None] | None = None,
    limit: Callable[[int], None] | None = None,
) -> AsyncIterator[Child]:
    """Run a program without a terminal, with nothing on its stdin or this open file. Raises OSError where it cannot be
    started.

    `confine` is called by the thread that starts it, which gives up rights that its children then lack; on Linux only.
    `limit` is called with the head of its space, before the command in there begins.

    Whatever ends the block early (a time-out, a cancel, an error) ends the whole family of the child.
    """
    starting = asyncio.create_task(_start(argv, cwd, env, stdin, confine, limit))
    try:
        child = await asyncio.shield(starting)
    except asyncio.CancelledError:
        with suppress(OSError):  # it is there in a moment; one that is only half there could not be ended as a whole
            child = await starting
            await child.kill()
            await child.close()
        raise
    try:
        yield child
    except BaseException:
        await child.kill()
        raise
    finally:
        await child.close()


async def _start(
    argv: Argv,
    cwd: Path,
    env: Mapping[str, str],
    stdin: int,
    confine: Callable[[], None] | None,
    limit: Callable[[int], None] | None,
) -> Child:
    mark = secrets.token_hex(8)
    how: dict[str, Any] = {
        "stdin": stdin,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "cwd": cwd,
        "env": {**env, MARK: mark},
        "start_new_session": sys.platform != "win32",
        "creationflags": _CREATION_FLAGS,
    }
    if callable(argv):
        process, space = await _from_a_thread_of_its_own(confine, partial(_start_with_a_space, argv, limit, how))
    elif confine is not None and not isinstance(argv, str):
        process, space = await _from_a_thread_of_its_own(confine, lambda: (subprocess.Popen(argv, **how), None))
    else:
        loop = asyncio.get_running_loop()
        start: Callable[..., Any] = (
            partial(loop.subprocess_shell, lambda: _Protocol(loop), argv)
            if isinstance(argv, str)
            else partial(loop.subprocess_exec, lambda: _Protocol(loop), *argv)
        )
        transport, protocol = await start(**how)
        return Child(transport, protocol, mark)
    streams = _Streams()
    return Child(await _Confined.of(process, streams), streams, mark, space)


async def _from_a_thread_of_its_own(confine: Callable[[], None] | None, start: "Callable[[], _Started]") -> "_Started":
    """Start it from a thread that is never used again: what it gave up does not come back."""
    started: Future[_Started] = Future()

    def work() -> None:
        try:
            if confine is not None:
                confine()
            started.set_result(start())
        except BaseException as error:
            started.set_exception(error)

    threading.Thread(target=work, name="confined", daemon=True).start()
    return await asyncio.wrap_future(started)


def _start_with_a_space(
    argv: Callable[[int, int], Sequence[str]], limit: Callable[[int], None] | None, how: Mapping[str, Any]
) -> "_Started":
    """Start it, and let its command begin when its head is known and bound."""
    told, tells = os.pipe()
    waits, begins = os.pipe()
    try:
        try:
            process = subprocess.Popen(argv(tells, waits), pass_fds=(tells, waits), **how)
        finally:
            os.close(tells)
            os.close(waits)
        space = None
        try:
            space = _Space.told_on(told)
            if limit is not None and space is not None:
                limit(space.head)
        except BaseException:
            if space is not None:
                os.kill(space.head, _KILL)
            _signal_group(process.pid, _KILL)
            process.communicate()
            raise
        return process, space
    finally:
        os.close(told)
        os.close(begins)


@dataclass(slots=True)
class _Streams:
    """What a started program says, and whether it is gone."""

    stdout: asyncio.StreamReader = field(default_factory=lambda: asyncio.StreamReader(_READ_AHEAD))
    stderr: asyncio.StreamReader = field(default_factory=lambda: asyncio.StreamReader(_READ_AHEAD))
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class _Confined:
    """A process that was not started by the event loop, as the loop's own would look."""

    def __init__(self, process: subprocess.Popen[bytes], gone: asyncio.Event) -> None:
        self._process = process
        self._gone = gone
        self._pipes: list[asyncio.BaseTransport] = []
        self._held: int | None = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(self._held, self._has_ended)

    @classmethod
    async def of(cls, process: subprocess.Popen[bytes], streams: _Streams) -> "_Confined":
        """With its output read into these streams."""
        self = cls(process, streams.gone)
        loop = asyncio.get_running_loop()
        for reader, pipe in ((streams.stdout, process.stdout), (streams.stderr, process.stderr)):
            transport, _ = await loop.connect_read_pipe(partial(asyncio.StreamReaderProtocol, reader), pipe)
            self._pipes.append(transport)
        return self

    def get_pid(self) -> int:
        return self._process.pid

    def get_returncode(self) -> int | None:
        return self._process.returncode

    def close(self) -> None:
        self._has_ended()
        for pipe in self._pipes:
            pipe.close()

    def _has_ended(self) -> None:
        if self._process.poll() is None:
            return
        self._gone.set()
        if self._held is not None:
            asyncio.get_running_loop().remove_reader(self._held)
            os.close(self._held)
            self._held = None


class _Space:
    """A space of process numbers, known by its head, who is held by a descriptor: a number may be given again."""

    def __init__(self, head: int) -> None:
        """Raises ProcessLookupError where it is gone already."""
        self.head = head
        self._held: int | None = os.pidfd_open(head)

    @classmethod
    def told_on(cls, told: int) -> "_Space | None":
        """The one that is told of here; None where its program ended without one. Blocking. Raises TimeoutError."""
        said, ready = b"", select.poll()
        ready.register(told, select.POLLIN)
        while b"}" not in said:
            if not ready.poll(_TO_TELL_S * 1000):
                raise TimeoutError(f"its sandbox did not say a word within {_TO_TELL_S:g} s")
            if not (more := os.read(told, 4096)):
                return None
            said += more
        with suppress(ProcessLookupError):
            return cls(int(json.loads(said)["child-pid"]))
        return None

    @property
    def is_alive(self) -> bool:
        """Whether its head is: it stays until the last has gone."""
        if self._held is None:
            return False
        ended = select.poll()
        ended.register(self._held, select.POLLIN)
        return not ended.poll(0)

    async def is_inhabited(self) -> bool:
        """Whether anybody is left once its command has ended."""
        if self.is_alive:
            with suppress(OSError):  # whoever loses its parent in there becomes a child of the head
                return bool(_PROC.joinpath(f"{self.head}/task/{self.head}/children").read_bytes())
        return not await self._is_over(_TO_END_S)  # the kernel does not say; the head needs a moment to see it

    async def end(self) -> bool:
        """End everybody in it; whether there was one to end. All are gone when it returns, or two seconds are over."""
        if not self.is_alive or self._held is None:
            return False
        signal.pidfd_send_signal(self._held, _KILL)
        await self._is_over(_KILL_PATIENCE_S)
        return True

    async def _is_over(self, patience_s: float) -> bool:
        if not self.is_alive or self._held is None:
            return True
        loop, gone, held = asyncio.get_running_loop(), asyncio.Event(), self._held  # it may be let go of meanwhile
        loop.add_reader(held, gone.set)
        try:
            async with asyncio.timeout(patience_s):
                await gone.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(held)
        return True

    def close(self) -> None:
        """Let go of it. Who is in it stays."""
        if self._held is not None:
            os.close(self._held)
            self._held = None


_Started = tuple[subprocess.Popen[bytes], _Space | None]


def count_processes() -> int:
    """How many processes the host runs; 0 where that is not cheap to know."""
    try:
        return sum(name.isdigit() for name in os.listdir(_PROC))  # noqa: PTH208 - called several times a second
    except OSError:
        return 0


class _Protocol(SubprocessStreamProtocol):
    """Tells when the process is gone. `Process.wait` of asyncio waits, in some releases, for its streams as well."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=_READ_AHEAD, loop=loop)
        self.gone = asyncio.Event()

    def process_exited(self) -> None:
        self.gone.set()
        super().process_exited()


if sys.platform == "win32":
    _CREATION_FLAGS = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW

    _HANG_UP = _KILL = 0

    def _signal_group(pid: int, number: int) -> bool:
        del pid, number
        return False

    def _kill_family(pid: int, mark: str, *, reaped: bool) -> None:
        del mark, reaped
        subprocess.run(["taskkill", "/F", "/T", "/PID", str(pid)], capture_output=True, check=False, timeout=10)

    def _family(pid: int, mark: str, *, reaped: bool) -> list[Process]:
        del pid, mark, reaped
        return []

    def _inhabitants(head: int) -> list[Process]:
        del head
        return []

else:
    _CREATION_FLAGS = 0

    _HANG_UP, _KILL = signal.SIGHUP, signal.SIGKILL

    def _signal_group(pid: int, number: int) -> bool:
        """Whether there was anybody to hear it."""
        try:
            os.killpg(pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _kill_family(pid: int, mark: str, *, reaped: bool) -> None:
        """Stop all, then kill all, until nobody is left: who is stopped cannot fork while we look for the next."""
        deadline = time.monotonic() + _KILL_PATIENCE_S
        while (family := _family(pid, mark, reaped=reaped)) and time.monotonic() < deadline:
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
                            os.kill(pid, _KILL)
                        until = now + _CHASE_S

    def _inhabitants(head: int) -> list[Process]:
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

    def _family(pid: int, mark: str, *, reaped: bool) -> list[Process]:
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
