"""Child processes without a terminal that are killed together with all their descendants.

On POSIX a child gets its own session, so signals do not cross over. A descendant may leave that session, as daemons do;
to find it anyway, every child carries a mark in its environment, which its descendants inherit.

A program may put its command into a PID namespace (`PidNamespace`), as sandboxes do. It then reports the first process
of the namespace: when that ends, the kernel kills all others.
"""

import asyncio
import json
import os
import re
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from asyncio.subprocess import SubprocessStreamProtocol
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import psutil

T = TypeVar("T")

_MARK = "NANOBOT_CHILD"
_KILL_TIMEOUT_S = 2.0
_END_TIMEOUT_S = 0.05
_INFO_TIMEOUT_S = 10.0
_PROC = Path("/proc")
_SCAN_S, _QUIET_S, _SCAN_PIDS = 0.4, 0.03, 64

if sys.platform == "win32":
    _CREATION_FLAGS = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
    _HANG_UP = _KILL = 0
else:
    _CREATION_FLAGS = 0
    _HANG_UP, _KILL = signal.SIGHUP, signal.SIGKILL


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


def memory_of(pids: Iterable[int]) -> int:
    """Bytes used by these processes together, without mapped files, which the system can reclaim. Shared memory counts
    once. Blocking. From proc_pid_smaps(5); 0 where that is missing.
    """
    kilobytes = 0
    for pid in pids:
        with suppress(OSError):  # it has ended, or belongs to another user
            text = _PROC.joinpath(str(pid), "smaps_rollup").read_bytes()
            kilobytes += sum(map(int, re.findall(rb"^(?:Pss_Anon|Pss_Shmem|SwapPss): +(\d+) kB", text, re.MULTILINE)))
    return kilobytes * 1024


def _signal_group(pid: int, number: int) -> bool:
    """Return whether there was a process to signal. Windows has no signals."""
    if sys.platform == "win32":
        return False
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _kill_family(pid: int, mark: str, *, reaped: bool) -> None:
    """Stop all, then kill all, until none is left: stopped processes cannot fork while we search."""
    import psutil

    deadline = time.monotonic() + _KILL_TIMEOUT_S
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
    mark_entry = f"{_MARK}={mark}".encode()
    with suppress(OSError, ValueError):  # no /proc
        while (now := time.monotonic()) < min(until, moved + _QUIET_S, deadline):
            before, newest = newest, int(_PROC.joinpath("loadavg").read_bytes().split()[-1])
            if newest != before:
                moved = now
            for pid in range(newest, max(newest - _SCAN_PIDS, 1), -1):
                with suppress(OSError):
                    if mark_entry in _PROC.joinpath(str(pid), "environ").read_bytes().split(b"\0"):
                        os.kill(pid, _KILL)
                        until = now + _SCAN_S


def _family(pid: int, mark: str, *, reaped: bool) -> "list[psutil.Process]":
    living = _living()
    # A PID may be reused once its process was reaped; a session without a leader is still the child's.
    own = not reaped or pid not in living
    members = set() if reaped else {pid}
    for other, process in living.items():
        if (process.info["environ"] or {}).get(_MARK) == mark:
            members.add(other)
        elif own and sys.platform != "win32":
            with suppress(OSError):  # it has ended
                members |= {other} if pid in (os.getsid(other), os.getpgid(other)) else set()
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


def has_ended(pidfd: int) -> bool:
    """Return whether the process has ended: then its pidfd is readable, see pidfd_open(2)."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


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
        return self._pidfd is not None and not has_ended(self._pidfd)

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
        signal.pidfd_send_signal(self._pidfd, _KILL)
        await self._wait_ended(_KILL_TIMEOUT_S)
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


_READ_BUFFER = 256 * 1024
_DETACH_S = 0.15

Argv = Sequence[str] | str | Callable[[int], Sequence[str]]
"""A program with its arguments; a command line for the system's shell; or a program that creates a PID namespace, and
writes JSON with a `child-pid` to this descriptor (`bwrap --info-fd`).
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
        if not _signal_group(head, 0):
            return False
        await asyncio.sleep(_DETACH_S)  # a nohup that was just started needs time to take effect
        return _signal_group(head, _HANG_UP)

    @property
    def head(self) -> Process | None:
        """The first process of its PID namespace, as long as any process is in it; None without a namespace."""
        if self._namespace is None or not self._namespace.is_alive:
            return None
        return Process(self._namespace.head, "processes that come and go")

    async def family(self) -> list[Process]:
        """Its living processes."""
        namespace, reaped = self._namespace, self.returncode is not None
        if namespace is not None and not namespace.is_alive:
            return []

        def find() -> list[Process]:
            if namespace is None:
                members = _family(self.pid, self._mark, reaped=reaped)
            else:
                members = [one for one in _with_descendants({namespace.head}, _living()) if one.pid != namespace.head]
            return [Process(process.pid, process.info["name"]) for process in members]

        return await asyncio.to_thread(find)

    async def kill(self) -> None:
        """Kill all processes of the family, including detached ones. Returns when they are gone, at the latest after
        two seconds.
        """
        reaped = self.returncode is not None
        if not reaped:
            _signal_group(self.pid, _KILL)  # immediately; finding processes that left the group takes a moment
        if self._namespace is None or not await asyncio.shield(self._namespace.end()):
            await asyncio.shield(asyncio.to_thread(_kill_family, self.pid, self._mark, reaped=reaped))
        with suppress(TimeoutError):
            async with asyncio.timeout(_KILL_TIMEOUT_S):
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
) -> AsyncIterator[Child]:
    """Run a program without a terminal; its stdin is empty or this open file. Raises OSError if it cannot be started.

    `confine` is called in the thread that starts it, to give up rights that the child then lacks; Linux only.

    Leaving the block early (timeout, cancelling, an error) kills the whole family.
    """
    starting = asyncio.create_task(_start(argv, cwd, env, stdin, confine))
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


async def _start(
    argv: Argv, cwd: Path, env: Mapping[str, str], stdin: int, confine: Callable[[], None] | None
) -> Child:
    mark = secrets.token_hex(8)
    options: dict[str, Any] = {
        "stdin": stdin,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "cwd": cwd,
        "env": {**env, _MARK: mark},
        "start_new_session": sys.platform != "win32",
        "creationflags": _CREATION_FLAGS,
    }
    if callable(argv) or (confine is not None and not isinstance(argv, str)):
        starting = in_own_thread(partial(_start_confined, argv, confine, options))
        process, namespace = await asyncio.wrap_future(starting)
        confined = _Confined(process)
        await confined.connect()
        return Child(confined, confined, mark, namespace)
    loop = asyncio.get_running_loop()
    start: Callable[..., Any] = (
        partial(loop.subprocess_shell, lambda: _Protocol(loop), argv)
        if isinstance(argv, str)
        else partial(loop.subprocess_exec, lambda: _Protocol(loop), *argv)
    )
    transport, protocol = await start(**options)
    return Child(transport, protocol, mark)


def in_own_thread(work: Callable[[], T]) -> Future[T]:
    """Do it in a thread that is not used again, since rights that a thread gives up do not come back."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="confined", daemon=True).start()
    return done


def _start_confined(
    argv: Sequence[str] | Callable[[int], Sequence[str]],
    confine: Callable[[], None] | None,
    options: Mapping[str, Any],
) -> tuple[subprocess.Popen[bytes], PidNamespace | None]:
    if confine is not None:
        confine()
    if not callable(argv):
        return subprocess.Popen(argv, **options), None
    info_read, info_write = os.pipe()
    try:
        try:
            process = subprocess.Popen(argv(info_write), pass_fds=(info_write,), **options)
        finally:
            os.close(info_write)
        try:
            return process, PidNamespace.from_info_fd(info_read)
        except BaseException:
            _signal_group(process.pid, _KILL)
            process.communicate()
            raise
    finally:
        os.close(info_read)


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
