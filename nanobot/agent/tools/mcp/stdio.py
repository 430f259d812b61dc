"""The wire to a server that is a program: a JSON message a line, on its stdin and stdout.

https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#stdio

The program itself is in `program`. On Windows the SDK's own wire is used, whose job objects end what it started.
"""

import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.agent.tools.mcp.incoming import Share, parsed
from nanobot.agent.tools.mcp.program import READ_AT_ONCE, Program, Spoken, program_of, server_environment
from nanobot.agent.tools.mcp.settings import ServerSettings

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.client._transport import TransportStreams
    from mcp.shared.message import SessionMessage

logger = logging.getLogger(__name__)

LONGEST_LINE = 64 * 1024 * 1024
_PARSED_ASIDE = 512 * 1024
"""From this size on a message is read in a thread: the loop has others to serve."""


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

    program = await Program.start(argv, env, folder)
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


async def _read(
    stdout: asyncio.StreamReader,
    to_us: "MemoryObjectSendStream[SessionMessage | Exception]",
    spoken: Spoken,
    on_end: Callable[[], None],
) -> None:
    """Lines into messages, until the end of the stream. What is no message is remembered and passed over."""
    import anyio

    share, news = Share(), b""
    async with to_us:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # nobody listens any more
            async for line in _lines(stdout):
                if line == news:
                    continue  # the same once more says nothing new
                news = line if b"list_changed" in line else b""
                began = time.thread_time()
                message = await _parsed(line) if line.strip() else None
                if message is not None:
                    await to_us.send(message)
                elif line.strip():
                    spoken.garbled(line)
                await share.took(time.thread_time() - began)
    on_end()


async def _lines(stdout: asyncio.StreamReader) -> AsyncIterator[bytes]:
    parts: list[bytes] = []
    size = 0
    while chunk := await stdout.read(READ_AT_ONCE):
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
    while said := await stderr.read(READ_AT_ONCE):
        spoken.heard(said)
