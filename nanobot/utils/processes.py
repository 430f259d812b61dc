"""Child processes without a terminal that are killed together with all their descendants.

`process_tree` knows the descendants. A program may put its command into a PID namespace (`PidNamespace`), as sandboxes
do. It then reports the first process of the namespace and waits for us before the command starts: limits set on that
process apply to all, and when it ends, the kernel kills all others.
"""

import asyncio
import os
import secrets
import subprocess
import sys
import threading
from asyncio.subprocess import SubprocessStreamProtocol
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from nanobot.utils.process_tree import (
    CREATION_FLAGS,
    HANG_UP,
    KILL,
    KILL_TIMEOUT_S,
    MARK,
    PidNamespace,
    Process,
    descendants_of,
    family_of,
    kill_family,
    signal_group,
)

_READ_BUFFER = 256 * 1024
_DETACH_S = 0.15

Argv = Sequence[str] | str | Callable[[int, int], Sequence[str]]
"""A program with its arguments; a command line for the system's shell; or a program that creates a PID namespace. The
latter writes JSON with a `child-pid` to the first descriptor and waits for EOF on the second before it starts its
command (`bwrap --info-fd --block-fd`).
"""


class Child:
    """A running child process. `wait` ends with the process itself, not with its output streams."""

    def __init__(
        self,
        transport: "asyncio.SubprocessTransport | _Confined",
        protocol: "_Protocol | _Confined",
        mark: str,
        namespace: PidNamespace | None = None,
    ) -> None:
        self._transport = transport
        self._protocol = protocol
        self._mark = mark
        self._namespace = namespace
        self.pid = transport.get_pid() or 0
        assert protocol.stdout is not None and protocol.stderr is not None  # noqa: S101 - both are pipes
        self.stdout: asyncio.StreamReader = protocol.stdout
        self.stderr: asyncio.StreamReader = protocol.stderr

    @property
    def returncode(self) -> int | None:
        """The exit status; negative for a signal; None while it runs."""
        return self._transport.get_returncode()

    async def wait(self) -> int:
        """Wait until the process itself has ended, regardless of background processes. Cancelling is safe."""
        await self._protocol.gone.wait()
        return self.returncode or 0

    async def hang_up(self) -> bool:
        """Send SIGHUP like a closing terminal: processes that did not detach end. Return True if some may be left."""
        head = self.pid
        if self._namespace is not None:
            if not await self._namespace.has_processes():
                return False
            head = self._namespace.head
        if not signal_group(head, 0):
            return False
        await asyncio.sleep(_DETACH_S)  # a nohup that was just started needs time to take effect
        return signal_group(head, HANG_UP)

    @property
    def head(self) -> Process | None:
        """The first process of its PID namespace, as long as any process is in it; None without a namespace."""
        namespace = self._namespace
        return (
            Process(namespace.head, "processes that come and go")
            if namespace is not None and namespace.is_alive
            else None
        )

    async def family(self) -> list[Process]:
        """Its living processes."""
        if self._namespace is not None:
            return await asyncio.to_thread(descendants_of, self._namespace.head) if self._namespace.is_alive else []
        return await asyncio.to_thread(family_of, self.pid, self._mark, reaped=self.returncode is not None)

    async def kill(self) -> None:
        """Kill all processes of the family, including detached ones. Returns when they are gone, at the latest after
        two seconds.
        """
        reaped = self.returncode is not None
        if not reaped:
            signal_group(self.pid, KILL)  # immediately; finding processes that left the group takes a moment
        if self._namespace is None or not await asyncio.shield(self._namespace.end()):
            await asyncio.shield(asyncio.to_thread(kill_family, self.pid, self._mark, reaped=reaped))
        with suppress(TimeoutError):
            async with asyncio.timeout(KILL_TIMEOUT_S):
                await self._protocol.gone.wait()

    async def close(self) -> None:
        """Close the streams. A process that still runs is killed with its family."""
        try:
            if self.returncode is None:
                await self.kill()
        finally:
            self._transport.close()
            if self._namespace is not None:
                self._namespace.close()


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
    """Run a program without a terminal; its stdin is empty or this open file. Raises OSError if it cannot be started.

    `confine` is called in the thread that starts it, to give up rights that the child then lacks; Linux only. `limit`
    is called with the first PID of its namespace before the command starts.

    Leaving the block early (timeout, cancelling, an error) kills the whole family.
    """
    starting = asyncio.create_task(_start(argv, cwd, env, stdin, confine, limit))
    try:
        child = await asyncio.shield(starting)
    except asyncio.CancelledError:
        with suppress(OSError):  # wait until it has started: a half-started one could not be killed completely
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


_Started = tuple[subprocess.Popen[bytes], PidNamespace | None]


async def _start(
    argv: Argv,
    cwd: Path,
    env: Mapping[str, str],
    stdin: int,
    confine: Callable[[], None] | None,
    limit: Callable[[int], None] | None,
) -> Child:
    mark = secrets.token_hex(8)
    options: dict[str, Any] = {
        "stdin": stdin,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "cwd": cwd,
        "env": {**env, MARK: mark},
        "start_new_session": sys.platform != "win32",
        "creationflags": CREATION_FLAGS,
    }
    if callable(argv):
        process, namespace = await _start_in_thread(confine, partial(_start_in_namespace, argv, limit, options))
    elif confine is not None and not isinstance(argv, str):
        process, namespace = await _start_in_thread(confine, lambda: (subprocess.Popen(argv, **options), None))
    else:
        loop = asyncio.get_running_loop()
        start: Callable[..., Any] = (
            partial(loop.subprocess_shell, lambda: _Protocol(loop), argv)
            if isinstance(argv, str)
            else partial(loop.subprocess_exec, lambda: _Protocol(loop), *argv)
        )
        transport, protocol = await start(**options)
        return Child(transport, protocol, mark)
    confined = _Confined(process)
    await confined.connect()
    return Child(confined, confined, mark, namespace)


async def _start_in_thread(confine: Callable[[], None] | None, start: Callable[[], _Started]) -> _Started:
    """Start it from a thread that is not reused, since the rights it gives up do not come back."""
    started: Future[_Started] = Future()

    def run() -> None:
        try:
            if confine is not None:
                confine()
            started.set_result(start())
        except BaseException as error:
            started.set_exception(error)

    threading.Thread(target=run, name="confined", daemon=True).start()
    return await asyncio.wrap_future(started)


def _start_in_namespace(
    argv: Callable[[int, int], Sequence[str]], limit: Callable[[int], None] | None, options: Mapping[str, Any]
) -> _Started:
    """Start it, and let its command start once limits are set on its first process; it also starts if we are killed."""
    info_read, info_write = os.pipe()
    block_read, block_write = os.pipe()
    try:
        try:
            process = subprocess.Popen(argv(info_write, block_read), pass_fds=(info_write, block_read), **options)
        finally:
            os.close(info_write)
            os.close(block_read)
        namespace = None
        try:
            namespace = PidNamespace.from_info_fd(info_read)
            if limit is not None and namespace is not None:
                limit(namespace.head)
        except BaseException:
            if namespace is not None:
                os.kill(namespace.head, KILL)
            signal_group(process.pid, KILL)
            process.communicate()
            raise
        return process, namespace
    finally:
        os.close(info_read)
        os.close(block_write)


class _Confined:
    """A process that the event loop has not started, as transport and protocol of a `Child`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.stdout = asyncio.StreamReader(_READ_BUFFER)
        self.stderr = asyncio.StreamReader(_READ_BUFFER)
        self.gone = asyncio.Event()
        self._process = process
        self._pipes: list[asyncio.BaseTransport] = []
        self._pidfd: int | None = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._on_exit)

    async def connect(self) -> None:
        """Connect its output to the streams."""
        loop = asyncio.get_running_loop()
        for reader, pipe in ((self.stdout, self._process.stdout), (self.stderr, self._process.stderr)):
            transport, _ = await loop.connect_read_pipe(partial(asyncio.StreamReaderProtocol, reader), pipe)
            self._pipes.append(transport)

    def get_pid(self) -> int:
        return self._process.pid

    def get_returncode(self) -> int | None:
        return self._process.returncode

    def close(self) -> None:
        self._on_exit()
        for pipe in self._pipes:
            pipe.close()

    def _on_exit(self) -> None:
        if self._process.poll() is None:
            return
        self.gone.set()
        if self._pidfd is not None:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None


class _Protocol(SubprocessStreamProtocol):
    """Signals the end of the process. asyncio's `Process.wait` also waits for the streams in some releases."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=_READ_BUFFER, loop=loop)
        self.gone = asyncio.Event()

    def process_exited(self) -> None:
        self.gone.set()
        super().process_exited()


_NEEDED = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
    # required to start programs on Windows
    "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "TEMP", "TMP", "USERPROFILE", "HOMEDRIVE", "HOMEPATH",
    "USERNAME", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "PROGRAMFILES", "PROGRAMFILES(X86)", "NUMBER_OF_PROCESSORS",
    "PROCESSOR_ARCHITECTURE",
})  # fmt: skip


def child_environment(ours: Mapping[str, str], also: Collection[str] = ()) -> dict[str, str]:
    """The variables that programs need, and those named in `also`, in capitals."""
    return {
        name: value
        for name, value in ours.items()
        if name.upper() in _NEEDED or name.upper() in also or name.startswith("LC_")
    }
