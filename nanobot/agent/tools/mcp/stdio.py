"""The wire to a server that is a program: a JSON message a line, on its stdin and stdout.

https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#stdio

What it writes on stderr is kept for errors, its tail only, and never reaches our terminal. Whatever becomes of us, the
program and all it started end: see `keeper`. On Windows the SDK's own wire is used, whose job objects do the same.
"""

import asyncio
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.agent.tools.mcp.incoming import parsed
from nanobot.agent.tools.mcp.settings import ServerSettings
from nanobot.errors import NanobotError
from nanobot.security.environment import needed_of

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.client._transport import TransportStreams
    from mcp.shared.message import SessionMessage

logger = logging.getLogger(__name__)

LONGEST_LINE = 64 * 1024 * 1024
_READ_AT_ONCE = 256 * 1024
_PARSED_ASIDE = 512 * 1024
"""From this size on a message is read in a thread: the loop has others to serve."""
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


async def program_of(settings: ServerSettings, env: Mapping[str, str]) -> str:
    """Where the program lies. Raises NoSuchProgramError."""
    program = await asyncio.to_thread(shutil.which, settings.command, path=env.get("PATH", os.defpath))
    if program is None:
        raise NoSuchProgramError(
            f"There is no program {settings.command!r}. Install it, or give its full path in "
            f"tools.mcpServers.{settings.name}.command."
        )
    return program


@asynccontextmanager
async def stdio_streams(
    settings: ServerSettings, folder: Path, spoken: Spoken, on_end: Callable[[], None]
) -> AsyncIterator["TransportStreams"]:
    """Start the program and talk with it. `on_end` is called when it has gone.

    Raises NoSuchProgramError, OSError where it cannot be started.
    """
    env = server_environment(os.environ, settings)
    program = await program_of(settings, env)
    wire = _sdk_streams if sys.platform == "win32" else _kept_streams
    async with wire([program, *settings.args], env, folder, spoken, on_end) as streams:
        yield streams


@asynccontextmanager
async def _sdk_streams(
    argv: list[str], env: dict[str, str], folder: Path, spoken: Spoken, on_end: Callable[[], None]
) -> AsyncIterator["TransportStreams"]:
    import tempfile

    from mcp.client.stdio import StdioServerParameters, stdio_client

    del on_end  # the next call finds out
    program = StdioServerParameters(command=argv[0], args=argv[1:], env=env, cwd=folder)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        try:
            async with stdio_client(program, errlog=said) as streams:
                yield streams
        finally:
            said.seek(0)
            spoken.heard(said.read().encode())


@asynccontextmanager
async def _kept_streams(
    argv: list[str], env: dict[str, str], folder: Path, spoken: Spoken, on_end: Callable[[], None]
) -> AsyncIterator["TransportStreams"]:
    import anyio
    from mcp.shared.message import SessionMessage

    program = await _Program.start(argv, env, folder)
    to_us, inbox = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outbox, to_it = anyio.create_memory_object_stream[SessionMessage](0)
    loop = asyncio.get_running_loop()

    def ended(code: int) -> None:
        spoken.ended(code)
        on_end()

    program.on_exit(lambda code: _soon(loop, ended, code))
    try:
        pumps = [
            asyncio.create_task(_read(program.stdout, to_us, spoken, on_end)),
            asyncio.create_task(_write(program.stdin, to_it, to_us)),
            asyncio.create_task(_listen(program.stderr, spoken)),
        ]
        try:
            yield inbox, outbox
        finally:
            program.let_go()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for stream in (to_us, inbox, outbox, to_it):
                stream.close()
    finally:
        program.close()


def _soon(loop: asyncio.AbstractEventLoop, act: Callable[[int], None], code: int) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits for it any more
        loop.call_soon_threadsafe(act, code)


class _Program:
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
    async def start(cls, argv: list[str], env: dict[str, str], folder: Path) -> "_Program":
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
    async def _connected(cls, process: "subprocess.Popen[bytes]", life: int) -> "_Program":
        loop = asyncio.get_running_loop()
        assert process.stdin and process.stdout and process.stderr  # noqa: S101 - all three are pipes
        readers: list[asyncio.StreamReader] = []
        transports: list[asyncio.BaseTransport] = []
        for pipe in (process.stdout, process.stderr):
            reader = asyncio.StreamReader(limit=_READ_AT_ONCE, loop=loop)
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


async def _read(
    stdout: asyncio.StreamReader,
    to_us: "MemoryObjectSendStream[SessionMessage | Exception]",
    spoken: Spoken,
    on_end: Callable[[], None],
) -> None:
    """Lines into messages, until the end of the stream. What is no message is remembered and passed over."""
    import anyio

    async with to_us:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # nobody listens any more
            async for line in _lines(stdout):
                message = await _parsed(line) if line.strip() else None
                if message is not None:
                    await to_us.send(message)
                elif line.strip():
                    spoken.garbled(line)
    on_end()


async def _lines(stdout: asyncio.StreamReader) -> AsyncIterator[bytes]:
    parts: list[bytes] = []
    size = 0
    while chunk := await stdout.read(_READ_AT_ONCE):
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            yield b"".join([*parts, line]) if parts else line
            parts, size = [], 0
        if rest:
            parts.append(rest)
            size += len(rest)
        if size > LONGEST_LINE:
            logger.warning("An MCP server sent a line of more than %d MB.", LONGEST_LINE >> 20)
            return


async def _parsed(line: bytes) -> "SessionMessage | None":
    return await asyncio.to_thread(parsed, line) if len(line) > _PARSED_ASIDE else parsed(line)


async def _write(
    stdin: asyncio.StreamWriter,
    to_it: "MemoryObjectReceiveStream[SessionMessage]",
    to_us: "MemoryObjectSendStream[SessionMessage | Exception]",
) -> None:
    async with to_it:
        try:
            async for one in to_it:
                stdin.write(one.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await stdin.drain()
        except OSError:
            to_us.close()  # nobody reads there: whoever waits for an answer learns it


async def _listen(stderr: asyncio.StreamReader, spoken: Spoken) -> None:
    while said := await stderr.read(_READ_AT_ONCE):
        spoken.heard(said)
