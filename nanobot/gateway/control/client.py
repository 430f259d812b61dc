"""The client of the local socket: connects a command to the running gateway of its data folder.

Imports nothing heavy, so that commands start fast.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from nanobot.errors import NanobotError
from nanobot.gateway.control.wire import (
    LONGEST_LINE,
    PROTOCOL,
    Frame,
    decode_frame,
    encode_frame,
    port_file,
    socket_file,
)

HELLO_S = 2.0
"""Timeout for connecting, until the gateway's hello."""


class GatewayError(NanobotError):
    """The gateway answered a request with an error."""

    def __init__(self, text: str, exit_code: int = 1) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class GatewayConnection:
    """A connection to a running gateway, for one request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: Frame) -> None:
        self._reader = reader
        self._writer = writer
        self.hello = hello
        """The gateway's first frame: version, pid, workspace."""

    async def send(self, frame: Frame) -> None:
        """Send a frame. Does not raise if the gateway is gone; `receive` reports that."""
        with suppress(OSError):
            self._writer.write(encode_frame(frame))
            await self._writer.drain()

    async def receive(self) -> Frame | None:
        """Return the next frame, or None if the gateway is gone. Raises GatewayError for an error frame."""
        try:
            frame = await _read_frame(self._reader)
        except (OSError, ValueError):
            return None
        if frame is not None and frame.get("type") == "error":
            raise GatewayError(str(frame.get("text")), int(frame.get("code", 1)))
        return frame

    async def request(self, frame: Frame) -> Frame:
        """Send a frame and return the answer. Raises GatewayError."""
        await self.send(frame)
        answer = await self.receive()
        if answer is None:
            raise GatewayError("The gateway stopped before it answered. See `nanobot gateway status`.")
        return answer

    async def close(self) -> None:
        """Never raises."""
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


@asynccontextmanager
async def connect(state: Path) -> AsyncIterator[GatewayConnection | None]:
    """Connect to the gateway with this state folder; None if none answers (not running, or a stale socket)."""
    connection = await _connect(state)
    try:
        yield connection
    finally:
        if connection is not None:
            await connection.close()


async def _connect(state: Path) -> GatewayConnection | None:
    try:
        async with asyncio.timeout(HELLO_S):
            reader, writer = await _open(state)
            try:
                hello = await _read_frame(reader)
            except BaseException:
                writer.close()
                raise
    except (OSError, ValueError, TypeError, KeyError, TimeoutError):
        return None
    if hello is None or hello.get("protocol") != PROTOCOL:
        writer.close()
        return None
    return GatewayConnection(reader, writer, hello)


async def _open(state: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    path = socket_file(state)
    if path.exists():
        return await asyncio.open_unix_connection(path, limit=LONGEST_LINE)
    address = json.loads(port_file(state).read_text(encoding="utf-8"))
    reader, writer = await asyncio.open_connection("127.0.0.1", int(address["port"]), limit=LONGEST_LINE)
    writer.write(encode_frame({"token": str(address["token"])}))
    return reader, writer


async def _read_frame(reader: asyncio.StreamReader) -> Frame | None:
    line = await reader.readline()
    return decode_frame(line) if line.endswith(b"\n") else None
