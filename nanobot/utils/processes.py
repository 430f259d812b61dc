"""Child processes with a family of their own: no terminal, nothing to read, and gone as a whole when they must go.

Who is of the family is known by `families`. A program may give its command a space of process numbers of its own
(`spaces`), as sandboxes do. Then it tells us who is the head of that space, and waits for us before the command begins:
what the head is bound to holds for all of them, and when it goes, the kernel ends everybody in it.
"""

import asyncio
import os
import secrets
import subprocess
import sys
import threading
from asyncio.subprocess import SubprocessStreamProtocol
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from nanobot.utils.families import (
    CREATION_FLAGS,
    HANG_UP,
    KILL,
    KILL_PATIENCE_S,
    MARK,
    Process,
    family_of,
    inhabitants_of,
    kill_family,
    signal_group,
)
from nanobot.utils.spaces import Space

_READ_AHEAD = 256 * 1024
_TO_DETACH_S = 0.15

Argv = Sequence[str] | str | Callable[[int, int], Sequence[str]]
"""A program with its arguments; a line for the system's shell; or a program that makes a space of process numbers. That
one tells on the first of these descriptors who is the head, as JSON with a `child-pid`, and waits for the end of the
second before its command begins (`bwrap --info-fd --block-fd`)."""


class Child:
    """A running child. Its output is in two streams; `wait` ends with the process, not with its streams."""

    def __init__(
        self,
        transport: "asyncio.SubprocessTransport | _Confined",
        protocol: "_Protocol | _Streams",
        mark: str,
        space: Space | None = None,
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
        if not signal_group(head, 0):
            return False
        await asyncio.sleep(_TO_DETACH_S)  # a nohup that was only just started has yet to say so
        return signal_group(head, HANG_UP)

    @property
    def head(self) -> Process | None:
        """Who answers for all of a family that has a space of its own, as long as anybody is in it."""
        space = self._space
        return Process(space.head, "processes that come and go") if space is not None and space.is_alive else None

    async def family(self) -> list[Process]:
        """Who of its family is alive."""
        if self._space is not None:
            return await asyncio.to_thread(inhabitants_of, self._space.head) if self._space.is_alive else []
        return await asyncio.to_thread(family_of, self.pid, self._mark, reaped=self.returncode is not None)

    async def kill(self) -> None:
        """End the whole family, whatever it did to hide. Returns when it is gone, after two seconds at the latest."""
        reaped = self.returncode is not None
        if not reaped:
            signal_group(self.pid, KILL)  # at once; the search for those who left the group takes a moment
        if self._space is None or not await asyncio.shield(self._space.end()):
            await asyncio.shield(asyncio.to_thread(kill_family, self.pid, self._mark, reaped=reaped))
        with suppress(TimeoutError):
            async with asyncio.timeout(KILL_PATIENCE_S):
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


_Started = tuple[subprocess.Popen[bytes], Space | None]


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
        "creationflags": CREATION_FLAGS,
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


async def _from_a_thread_of_its_own(confine: Callable[[], None] | None, start: Callable[[], _Started]) -> _Started:
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
) -> _Started:
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
            space = Space.told_on(told)
            if limit is not None and space is not None:
                limit(space.head)
        except BaseException:
            if space is not None:
                os.kill(space.head, KILL)
            signal_group(process.pid, KILL)
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


class _Protocol(SubprocessStreamProtocol):
    """Tells when the process is gone. `Process.wait` of asyncio waits, in some releases, for its streams as well."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=_READ_AHEAD, loop=loop)
        self.gone = asyncio.Event()

    def process_exited(self) -> None:
        self.gone.set()
        super().process_exited()
