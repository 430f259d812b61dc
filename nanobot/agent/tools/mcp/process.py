"""A server that is a program: its path, environment, process, and what it writes on stderr.

Whatever becomes of us, the program and all it started end: see `process_guard`. Only the tail of its stderr is kept,
for errors; it never reaches our terminal.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from nanobot.agent.tools.mcp.settings import ServerSettings
from nanobot.errors import NanobotError
from nanobot.security.environment import child_environment

READ_AT_ONCE = 256 * 1024
_TAIL_BYTES = 4096
_NPM_NOISE = re.compile(r"npm notice.*|npm error( \d+)?|npm error A complete log.*")
"""Lines that npm prints around its reason, which they would push out of the tail: many servers are started by npx."""
_EXIT_WAIT_S = 0.3
_STORAGE_VARIABLES = frozenset({"XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"})
"""Where a server stores things between starts."""


class ProgramNotFoundError(NanobotError):
    """The command of a server is not installed, or not where it is expected."""


def server_environment(inherited: Mapping[str, str], settings: ServerSettings) -> dict[str, str]:
    """Return a server's environment: the harmless part of ours, and what the config adds."""
    return {**child_environment(inherited, _STORAGE_VARIABLES), **settings.env}


def find_program(settings: ServerSettings, env: Mapping[str, str], folder: Path) -> str | None:
    """Return the path of the server's program, or None; a relative one starts at the working directory. Blocks."""
    command = str(folder / settings.command) if os.path.dirname(settings.command) else settings.command  # noqa: PTH120
    return shutil.which(command, path=env.get("PATH", os.defpath))


async def resolve_program(settings: ServerSettings, env: Mapping[str, str], folder: Path) -> str:
    """Return the path of the server's program. Raises ProgramNotFoundError."""
    program = await asyncio.to_thread(find_program, settings, env, folder)
    if program is None:
        raise ProgramNotFoundError(
            f"There is no program {settings.command!r}. Install it, or give its full path in "
            f"tools.mcpServers.{settings.name}.command."
        )
    return program


class ServerDiagnostics:
    """What a server reported besides its messages: stderr, invalid lines and exit code."""

    def __init__(self) -> None:
        self._tail = b""
        self._garbage = ""
        self.exit_code: int | None = None
        self._exited = asyncio.Event()

    def set_exit_code(self, code: int) -> None:
        self.exit_code = code
        self._exited.set()

    async def wait_for_report(self) -> str:
        """Return the report, once the exit code is known: that takes a moment longer than the end of the streams."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_WAIT_S):
                await self._exited.wait()
        return str(self)

    def add_stderr(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-_TAIL_BYTES:]

    def add_garbage(self, line: bytes) -> None:
        """Record a line on stdout that is not a message."""
        self._garbage = self._garbage or line[:200].decode(errors="replace")

    def __str__(self) -> str:
        """The report for an error; empty if there is nothing to report."""
        lines = (line.strip() for line in self._tail.decode(errors="replace").splitlines())
        last = [line for line in lines if line and not _NPM_NOISE.fullmatch(line)][-5:]
        parts = (
            f"it ended with exit code {self.exit_code}" if self.exit_code is not None else "",
            f"it printed what is not a message: {self._garbage!r}" if self._garbage else "",
            f"its last output: {' | '.join(last)}" if last else "",
        )
        return "; ".join(part for part in parts if part)


class ServerProcess:
    """A server's process under its guard. It ends with us even if nobody calls `release`."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        guard_fd: int,
        stdin: asyncio.StreamWriter,
        readers: list[asyncio.StreamReader],
        transports: list[asyncio.BaseTransport],
    ) -> None:
        self._process = process
        self._guard_fd = guard_fd
        self._transports = transports
        self.stdin = stdin
        self.stdout, self.stderr = readers

    @classmethod
    async def start(cls, argv: list[str], env: dict[str, str], folder: Path) -> "ServerProcess":
        """Start the program. Raises OSError."""
        guard_end, guard_fd = os.pipe()
        try:
            process = _spawn(guard_end, argv, env, folder)
        except BaseException:
            os.close(guard_fd)
            raise
        finally:
            os.close(guard_end)
        transports: list[asyncio.BaseTransport] = []
        try:
            return await cls._connect(process, guard_fd, transports)
        except BaseException:
            os.close(guard_fd)  # the guard ends the program
            for transport in transports:
                transport.close()
            for pipe in (process.stdout, process.stderr, process.stdin)[len(transports) :]:
                pipe.close()  # type: ignore[union-attr]
            threading.Thread(target=process.wait, name="mcp server", daemon=True).start()  # reaps it
            raise

    @classmethod
    async def _connect(
        cls, process: "subprocess.Popen[bytes]", guard_fd: int, transports: list[asyncio.BaseTransport]
    ) -> "ServerProcess":
        """Connect stdout, stderr and stdin, in this order; `transports` gets each as it is connected."""
        loop = asyncio.get_running_loop()
        assert process.stdin and process.stdout and process.stderr  # noqa: S101 - all three are pipes
        readers: list[asyncio.StreamReader] = []
        for pipe in (process.stdout, process.stderr):
            reader = asyncio.StreamReader(limit=READ_AT_ONCE, loop=loop)
            protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
            transports.append((await loop.connect_read_pipe(lambda protocol=protocol: protocol, pipe))[0])  # type: ignore[misc]
            readers.append(reader)
        flow = asyncio.StreamReaderProtocol(asyncio.StreamReader(loop=loop), loop=loop)
        transport, _ = await loop.connect_write_pipe(lambda: flow, process.stdin)
        transports.append(transport)
        return cls(process, guard_fd, asyncio.StreamWriter(transport, flow, None, loop), readers, transports)

    def on_exit(self, callback: Callable[[int], None]) -> None:
        """Call this with the exit code, from a thread that also reaps the process."""
        threading.Thread(target=lambda: callback(self._process.wait()), name="mcp server", daemon=True).start()

    def release(self) -> None:
        """Close stdin and the guard's pipe: now the program ends, by itself or by its guard. Does not wait."""
        if not self.stdin.transport.is_closing():
            self.stdin.transport.abort()
        if self._guard_fd >= 0:
            os.close(self._guard_fd)
            self._guard_fd = -1

    def close(self) -> None:
        """Release, and close the streams."""
        self.release()
        for transport in self._transports:
            if not transport.is_closing():
                transport.close()


def _spawn(guard_end: int, argv: list[str], env: dict[str, str], folder: Path) -> "subprocess.Popen[bytes]":
    guard = [sys.executable, "-I", "-S", str(Path(__file__).with_name("process_guard.py")), str(guard_end)]
    return subprocess.Popen(
        [*guard, *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env=env,
        cwd=folder,
        pass_fds=(guard_end,),
        start_new_session=True,
    )
