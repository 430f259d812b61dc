"""The local socket of a running gateway: its protocol, and its client. JSON lines, one request per connection.

The socket is `state/gateway.sock`, which only its owner may open. Without Unix sockets (Windows, a path that is too
long) it is a port on loopback, named in `state/gateway.port` with a token that the client sends first.

    server  {"type": "hello", "protocol": 1, "version": ..., "pid": ..., "workspace": ...}
    client  {"do": "turn", "turn": ID, "text": ..., "session": ..., "media": [...], "folder": ..., "attended": ...}
            a program adds "options": {"model", "instructions", "budget_usd", "ephemeral", "schema"}
    server  {"type": "turn", "turn_id": ..., "epoch": ...}, {"type": "run_started", ...} ... {"type": "turn_ended", ...}

The id of a turn is the client's own. The message is journaled, and heard once: a client that has lost its connection
sends the request again, with the last event that it has "seen", "ID.EPOCH.SEQ". After a crash of the gateway,
{"type": "turn_restored", "parts": [...]} is what the turn had shown, as far as it was stored.

Other requests, each on a connection of its own:

    {"do": "stop turn", "session": ..., "turn": ID}              {"do": "waiting", "turn": ID, "lines": [...]}
    {"do": "answer", "question": ..., "answer": "once"}          {"do": "resume", "session": ...}
    {"do": "background", "session": ...}     working (running), message (text) ..., delivered: the end

The client of a terminal is `gateway/control/client.py`, the handlers are beside it in `server.py`.

Imports nothing heavy, for commands and programs that only talk to the gateway.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from nanobot.errors import NanobotError

PROTOCOL = 1
LONGEST_LINE = 16 * 1024 * 1024
"""Longest frame, in bytes."""
LONGEST_PATH = 100
"""Longest socket path, in bytes; systems allow 104 or 108."""

_MAX_UNREAD = 64 * 1024 * 1024
"""Buffered bytes after which a peer that does not read is disconnected."""
HELLO_S = 2.0
"""Timeout for connecting, until the gateway's hello."""

Frame = dict[str, Any]


class GatewayError(NanobotError):
    """The gateway answered a request with an error."""

    def __init__(self, text: str, exit_code: int = 1) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class GatewayGoneError(GatewayError):
    """No gateway is running any more."""

    def __init__(self) -> None:
        super().__init__("The gateway does not answer any more: nothing was sent to it. See `nanobot gateway status`.")


class Connection:
    """One end of a connection: frames as JSON lines."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, frame: Frame) -> None:
        """Send a frame. Never raises or waits; disconnects a peer that does not read."""
        transport = self._writer.transport
        if not transport.is_closing():
            self._writer.write(json.dumps(frame, ensure_ascii=True, default=str).encode() + b"\n")
            if transport.get_write_buffer_size() > _MAX_UNREAD:
                transport.abort()

    async def receive(self) -> Frame | None:
        """Return the next frame, or None if the peer has left. Raises OSError, ValueError for an invalid frame."""
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            return None
        try:
            frame = json.loads(line)
        except RecursionError:
            raise ValueError("it is nested too deep") from None
        if not isinstance(frame, dict):
            raise ValueError("a frame is a JSON object")  # noqa: TRY004 as json's own errors are
        return frame

    def abort(self) -> None:
        """Close at once; a pending `receive` returns None."""
        self._writer.close()

    async def close(self) -> None:
        """Never raises."""
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


class GatewayConnection(Connection):
    """A client's connection to a running gateway, for one request."""

    hello: Frame
    """The gateway's first frame: version, pid, workspace."""

    async def receive(self) -> Frame | None:
        """Return the next frame, or None if the gateway is gone. Raises GatewayError for an error frame."""
        try:
            frame = await super().receive()
        except (OSError, ValueError):
            return None
        if frame is not None and frame.get("type") == "error":
            raise GatewayError(str(frame.get("text")), int(frame.get("code", 1)))
        return frame

    async def request(self, frame: Frame) -> Frame:
        """Send a frame and return the answer. Raises GatewayError."""
        self.send(frame)
        answer = await self.receive()
        if answer is None:
            raise GatewayError("The gateway stopped before it answered. See `nanobot gateway status`.")
        return answer


@asynccontextmanager
async def connect(state: Path) -> AsyncIterator[GatewayConnection | None]:
    """Connect to the gateway with this state folder; None if none answers (not running, or a stale socket)."""
    connection, is_ready = None, False
    try:
        with suppress(OSError, ValueError, TypeError, KeyError, TimeoutError):
            async with asyncio.timeout(HELLO_S):
                connection = await _open(state)
                connection.hello = await connection.receive() or {}
                is_ready = connection.hello.get("protocol") == PROTOCOL
        yield connection if is_ready else None
    finally:
        if connection is not None:
            await connection.close()


async def _open(state: Path) -> GatewayConnection:
    path = socket_file(state)
    if path.exists():
        return GatewayConnection(*await asyncio.open_unix_connection(path, limit=LONGEST_LINE))
    address = json.loads(port_file(state).read_text(encoding="utf-8"))
    connection = GatewayConnection(
        *await asyncio.open_connection("127.0.0.1", int(address["port"]), limit=LONGEST_LINE)
    )
    connection.send({"token": str(address["token"])})
    return connection


async def ask(state: Path, request: Frame) -> Frame:
    """Send a request and return the gateway's answer. Raises GatewayGoneError, GatewayError."""
    async with connect(state) as connection:
        if connection is None:
            raise GatewayGoneError
        return await connection.request(request)


def socket_file(state: Path) -> Path:
    return state / "gateway.sock"


def port_file(state: Path) -> Path:
    """The file with the port and token, used without a Unix socket."""
    return state / "gateway.port"


def settings_in(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the config settings in an environment (`NANOBOT_AGENTS__...`): name to digest of the value."""
    return {
        name: hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()
        for name, value in environ.items()
        if name.upper().startswith("NANOBOT_") and "__" in name
    }
