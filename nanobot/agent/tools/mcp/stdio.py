"""The transport to a server that is a program: a JSON message per line, on its stdin and stdout.

https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#stdio

`process` manages the program. On Windows the SDK's transport is used, whose job objects end what the program started.
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

from nanobot.agent.tools.mcp.process import (
    READ_AT_ONCE,
    ServerDiagnostics,
    ServerProcess,
    resolve_program,
    server_environment,
)
from nanobot.agent.tools.mcp.server_output import CpuShare, parse_line
from nanobot.agent.tools.mcp.settings import ServerSettings

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.client._transport import TransportStreams
    from mcp.shared.message import SessionMessage

logger = logging.getLogger(__name__)

MAX_LINE_BYTES = 64 * 1024 * 1024
_PARSE_IN_THREAD_BYTES = 512 * 1024
"""Messages of this size or more are parsed in a thread, to keep the event loop responsive."""


@asynccontextmanager
async def stdio_streams(
    settings: ServerSettings, folder: Path, diagnostics: ServerDiagnostics, on_end: Callable[[], None]
) -> AsyncIterator["TransportStreams"]:
    """Start the program and connect to it. `on_end` is called when it has ended.

    Raises ProgramNotFoundError, OSError if it cannot be started.
    """
    env = server_environment(os.environ, settings)
    program = await resolve_program(settings, env, folder)
    open_streams = _sdk_streams if sys.platform == "win32" else _posix_streams
    async with open_streams([program, *settings.args], env, folder, diagnostics, on_end) as streams:
        yield streams


@asynccontextmanager
async def _sdk_streams(
    argv: list[str], env: dict[str, str], folder: Path, diagnostics: ServerDiagnostics, on_end: Callable[[], None]
) -> AsyncIterator["TransportStreams"]:
    import tempfile

    from mcp.client.stdio import StdioServerParameters, stdio_client

    del on_end  # the next call notices
    program = StdioServerParameters(command=argv[0], args=argv[1:], env=env, cwd=folder)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errlog:
        try:
            async with stdio_client(program, errlog=errlog) as streams:
                yield streams
        finally:
            errlog.seek(0)
            diagnostics.add_stderr(errlog.read().encode())


@asynccontextmanager
async def _posix_streams(
    argv: list[str], env: dict[str, str], folder: Path, diagnostics: ServerDiagnostics, on_end: Callable[[], None]
) -> AsyncIterator["TransportStreams"]:
    import anyio
    from mcp.shared.message import SessionMessage

    program = await ServerProcess.start(argv, env, folder)
    sink, inbox = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outbox, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    loop = asyncio.get_running_loop()

    def handle_exit(code: int) -> None:
        diagnostics.set_exit_code(code)
        on_end()

    program.on_exit(lambda code: _call_soon(loop, handle_exit, code))
    try:
        pumps = [
            asyncio.create_task(_read(program.stdout, sink, diagnostics, on_end)),
            asyncio.create_task(_write(program.stdin, outgoing, sink)),
            asyncio.create_task(_read_stderr(program.stderr, diagnostics)),
        ]
        try:
            yield inbox, outbox
        finally:
            program.release()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for stream in (sink, inbox, outbox, outgoing):
                stream.close()
    finally:
        program.close()


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[int], None], code: int) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(callback, code)


async def _read(
    stdout: asyncio.StreamReader,
    sink: "MemoryObjectSendStream[SessionMessage | Exception]",
    diagnostics: ServerDiagnostics,
    on_end: Callable[[], None],
) -> None:
    """Parse lines to messages until the end of the stream. Other lines are recorded and skipped."""
    import anyio

    share, last_notification = CpuShare(), b""
    async with sink:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # nobody reads any more
            async for line in _lines(stdout):
                if line == last_notification:
                    continue  # a repeated notification
                last_notification = line if b"list_changed" in line else b""
                started = time.thread_time()
                message = await _parse(line) if line.strip() else None
                if message is not None:
                    await sink.send(message)
                elif line.strip():
                    diagnostics.add_garbage(line)
                await share.throttle(time.thread_time() - started)
    on_end()


async def _lines(stdout: asyncio.StreamReader) -> AsyncIterator[bytes]:
    parts: list[bytes] = []
    size = 0
    while chunk := await stdout.read(READ_AT_ONCE):
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            yield b"".join([*parts, line]) if parts else line
            parts, size = [], 0
        if rest:
            parts.append(rest)
            size += len(rest)
        if size > MAX_LINE_BYTES:
            logger.warning("An MCP server sent a line of more than %d MB.", MAX_LINE_BYTES >> 20)
            return


async def _parse(line: bytes) -> "SessionMessage | None":
    return await asyncio.to_thread(parse_line, line) if len(line) > _PARSE_IN_THREAD_BYTES else parse_line(line)


async def _write(
    stdin: asyncio.StreamWriter,
    outgoing: "MemoryObjectReceiveStream[SessionMessage]",
    sink: "MemoryObjectSendStream[SessionMessage | Exception]",
) -> None:
    async with outgoing:
        try:
            async for message in outgoing:
                stdin.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await stdin.drain()
        except OSError:
            sink.close()  # the server does not read: those waiting for an answer get an error


async def _read_stderr(stream: asyncio.StreamReader, diagnostics: ServerDiagnostics) -> None:
    while data := await stream.read(READ_AT_ONCE):
        diagnostics.add_stderr(data)
