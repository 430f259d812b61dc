"""An MCP server at an address of loopback, which forgets sessions and drops calls when it is told to.

Streamable HTTP with plain JSON answers, as of 2025-11-25, and as strict about sessions:
https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#session-management
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


class RemoteServer:
    """What it was asked, and how it is to behave."""

    def __init__(self) -> None:
        self.port = 0
        self.headers: list[dict[str, str]] = []
        self.calls = 0
        self.drops_every: int | None = None
        """Every so many calls the connection is cut in the middle of one."""
        self.gone_status = 404
        self._sessions: set[str] = set()
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def forget_sessions(self) -> None:
        self._sessions.clear()

    def hang_up(self) -> None:
        for writer in self._open:
            writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while (head := await reader.readuntil(b"\r\n\r\n")) and await self._answer(head, reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.headers.append(headers)
        if not first.startswith("POST /mcp "):
            return _send(writer, 405)
        message = json.loads(body)
        method, session = message["method"], headers.get("mcp-session-id")
        if method == "server/discover":
            return _send(writer, 200, {"id": message["id"], "error": {"code": -32601, "message": "no such method"}})
        if method == "initialize":
            session = secrets.token_hex(4)
            self._sessions.add(session)
            info = {"name": "remote", "version": "1"}
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
            return _send(writer, 200, {"id": message["id"], "result": result}, session)
        if session not in self._sessions:
            return _send(writer, self.gone_status)
        if "id" not in message:
            return _send(writer, 202)
        if method == "tools/list":
            tool = {"name": "count", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
            return _send(
                writer, 200, {"id": message["id"], "result": {"tools": [tool, {**tool, "name": "act"} | _ACTS]}}
            )
        self.calls += 1
        if self.drops_every and self.calls % self.drops_every == 0:
            return False
        text = {"type": "text", "text": f"call {self.calls}"}
        return _send(writer, 200, {"id": message["id"], "result": {"content": [text]}})


_ACTS: dict[str, Any] = {"annotations": {}}


def _send(
    writer: asyncio.StreamWriter, status: int, message: dict[str, Any] | None = None, session: str | None = None
) -> bool:
    body = json.dumps({"jsonrpc": "2.0", **message}).encode() if message else b""
    more = f"mcp-session-id: {session}\r\n" if session else ""
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    writer.write(head.encode() + body)
    return True


@asynccontextmanager
async def remote_server(port: int = 0) -> AsyncIterator[RemoteServer]:
    """Serve until the end of the block; then nobody answers there."""
    server = RemoteServer()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", port)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        server.hang_up()
