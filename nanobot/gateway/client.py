"""The other end of the local socket: how a command finds the gateway of its data folder, and talks with it.

Imports nothing heavy: through a running gateway an answer costs what the answer costs.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from nanobot.errors import NanobotError
from nanobot.gateway.wire import LONGEST_LINE, PROTOCOL, Frame, decoded, encoded, port_file, socket_file

HELLO_S = 2.0
"""How long a gateway has to say hello; one that hangs is no help."""


class GatewayError(NanobotError):
    """What the gateway answers where it cannot do what was asked."""

    def __init__(self, text: str, exit_code: int = 1) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class Line:
    """A connection to a running gateway, for one request and what follows on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: Frame) -> None:
        self._reader = reader
        self._writer = writer
        self.hello = hello
        """Who answered: version, pid, workspace."""

    async def say(self, frame: Frame) -> None:
        """Say something. A gateway that is gone is noticed by `hear`."""
        with suppress(OSError):
            self._writer.write(encoded(frame))
            await self._writer.drain()

    async def hear(self) -> Frame | None:
        """What it says next; None where it is gone. Raises GatewayError for its no."""
        try:
            frame = await _hear(self._reader)
        except (OSError, ValueError):
            return None
        if frame is not None and frame.get("type") == "error":
            raise GatewayError(str(frame.get("text")), int(frame.get("code", 1)))
        return frame

    async def ask(self, frame: Frame) -> Frame:
        """One question, one answer. Raises GatewayError."""
        await self.say(frame)
        answer = await self.hear()
        if answer is None:
            raise GatewayError("The gateway ended before it could answer. See `nanobot gateway status`.")
        return answer

    async def close(self) -> None:
        """Hang up. Never raises."""
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


@asynccontextmanager
async def dial(state: Path) -> AsyncIterator[Line | None]:
    """A line to the gateway whose state folder this is; None where none answers (none runs, or its socket is stale)."""
    line = await _dialled(state)
    try:
        yield line
    finally:
        if line is not None:
            await line.close()


async def _dialled(state: Path) -> Line | None:
    try:
        async with asyncio.timeout(HELLO_S):
            reader, writer = await _connected(state)
            try:
                hello = await _hear(reader)
            except BaseException:
                writer.close()
                raise
    except (OSError, ValueError, TypeError, KeyError, TimeoutError):
        return None
    if hello is None or hello.get("protocol") != PROTOCOL:
        writer.close()
        return None
    return Line(reader, writer, hello)


async def _connected(state: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    path = socket_file(state)
    if path.exists():
        return await asyncio.open_unix_connection(path, limit=LONGEST_LINE)
    told = json.loads(port_file(state).read_text(encoding="utf-8"))
    reader, writer = await asyncio.open_connection("127.0.0.1", int(told["port"]), limit=LONGEST_LINE)
    writer.write(encoded({"token": str(told["token"])}))
    return reader, writer


async def _hear(reader: asyncio.StreamReader) -> Frame | None:
    line = await reader.readline()
    return decoded(line) if line.endswith(b"\n") else None
