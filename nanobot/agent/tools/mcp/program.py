"""A server that is a program: where it lies, what it is told of our environment, its life, and what it says beside.

Whatever becomes of us, the program and all it started end: see `keeper`. What it writes on stderr is kept for errors,
its tail only, and never reaches our terminal.
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
from nanobot.security.environment import needed_of

READ_AT_ONCE = 256 * 1024
_TAIL = 4096
_NPM_AROUND_IT = re.compile(r"npm notice.*|npm error( \d+)?|npm error A complete log.*")
"""What npm says around its reason, and would push it out of the last lines: many servers are started by npx."""
_TO_END_S = 0.3
_ALSO = frozenset({"XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"})
"""Where a server keeps things from one start to the next."""


class NoSuchProgramError(NanobotError):
    """The command of a server is not installed, or not where it is looked for."""


def server_environment(ours: Mapping[str, str], settings: ServerSettings) -> dict[str, str]:
    """What a server may know of our environment, and what its owner gives it."""
    return {**needed_of(ours, _ALSO), **settings.env}


async def program_of(settings: ServerSettings, env: Mapping[str, str]) -> str:
    """Where the program lies. Raises NoSuchProgramError."""
    program = await asyncio.to_thread(shutil.which, settings.command, path=env.get("PATH", os.defpath))
    if program is None:
        raise NoSuchProgramError(
            f"There is no program {settings.command!r}. Install it, or give its full path in "
            f"tools.mcpServers.{settings.name}.command."
        )
    return program


class Spoken:
    """What a server said beside its messages."""

    def __init__(self) -> None:
        self._tail = b""
        self._garbage = ""
        self.exit_code: int | None = None
        self._over = asyncio.Event()

    def ended(self, code: int) -> None:
        """It ended."""
        self.exit_code = code
        self._over.set()

    async def last_words(self) -> str:
        """What it said, once its end is known: that takes a moment longer than its silence."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_TO_END_S):
                await self._over.wait()
        return str(self)

    def heard(self, data: bytes) -> None:
        """It wrote on stderr."""
        self._tail = (self._tail + data)[-_TAIL:]

    def garbled(self, line: bytes) -> None:
        """It wrote a line on stdout that is no message."""
        self._garbage = self._garbage or line[:200].decode(errors="replace")

    def __str__(self) -> str:
        """In words, for an error; empty where there is nothing to tell."""
        lines = (line.strip() for line in self._tail.decode(errors="replace").splitlines())
        last = [line for line in lines if line and not _NPM_AROUND_IT.fullmatch(line)][-5:]
        parts = (
            f"it ended with exit code {self.exit_code}" if self.exit_code is not None else "",
            f"it printed what is no message: {self._garbage!r}" if self._garbage else "",
            f"its last words: {' | '.join(last)}" if last else "",
        )
        return "; ".join(part for part in parts if part)


class Program:
    """A server under its keeper. It ends with us even if nobody calls `let_go`."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        life: int,
        stdin: asyncio.StreamWriter,
        readers: list[asyncio.StreamReader],
        transports: list[asyncio.BaseTransport],
    ) -> None:
        self._process = process
        self._life = life
        self._transports = transports
        self.stdin = stdin
        self.stdout, self.stderr = readers

    @classmethod
    async def start(cls, argv: list[str], env: dict[str, str], folder: Path) -> "Program":
        """Start it. Raises OSError."""
        held, life = os.pipe()
        try:
            process = _spawn(held, argv, env, folder)
        except BaseException:
            os.close(life)
            raise
        finally:
            os.close(held)
        try:
            return await cls._connected(process, life)
        except BaseException:
            os.close(life)  # its keeper does the rest
            raise

    @classmethod
    async def _connected(cls, process: "subprocess.Popen[bytes]", life: int) -> "Program":
        loop = asyncio.get_running_loop()
        assert process.stdin and process.stdout and process.stderr  # noqa: S101 - all three are pipes
        readers: list[asyncio.StreamReader] = []
        transports: list[asyncio.BaseTransport] = []
        for pipe in (process.stdout, process.stderr):
            reader = asyncio.StreamReader(limit=READ_AT_ONCE, loop=loop)
            made = asyncio.StreamReaderProtocol(reader, loop=loop)
            transports.append((await loop.connect_read_pipe(lambda made=made: made, pipe))[0])  # type: ignore[misc]
            readers.append(reader)
        flow = asyncio.StreamReaderProtocol(asyncio.StreamReader(loop=loop), loop=loop)
        transport, _ = await loop.connect_write_pipe(lambda: flow, process.stdin)
        transports.append(transport)
        return cls(process, life, asyncio.StreamWriter(transport, flow, None, loop), readers, transports)

    def on_exit(self, act: Callable[[int], None]) -> None:
        """Call this with the exit code, from a thread of ours that also spares the host a zombie."""
        threading.Thread(target=lambda: act(self._process.wait()), name="mcp server", daemon=True).start()

    def let_go(self) -> None:
        """Close its stdin and cut the life line: now it ends, by itself or by its keeper. Waits for nothing."""
        if not self.stdin.transport.is_closing():
            self.stdin.transport.abort()
        if self._life >= 0:
            os.close(self._life)
            self._life = -1

    def close(self) -> None:
        """Let go of the streams."""
        self.let_go()
        for transport in self._transports:
            if not transport.is_closing():
                transport.close()


def _spawn(held: int, argv: list[str], env: dict[str, str], folder: Path) -> "subprocess.Popen[bytes]":
    keeper = [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py")), str(held)]
    return subprocess.Popen(
        [*keeper, *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env=env,
        cwd=folder if folder.is_dir() else None,  # a workspace may yet have to be made
        pass_fds=(held,),
        start_new_session=True,
    )
