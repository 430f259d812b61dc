"""An HTTP server for an ASGI app. Uvicorn and the app are imported with the first connection: many gateways see none.

Of uvicorn we use the protocol, not its `Server`, which handles signals and wakes up ten times a second.
"""

import asyncio
import errno
from collections.abc import Callable
from typing import TYPE_CHECKING

from nanobot.net.listener import Listener

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from nanobot.net.http_protocol import Connections

MAX_CONNECTIONS = 128
CLOSING_S = 0.3
"""How long requests in progress may take once the server stops."""


class HttpServer(Listener):
    """Serves an app on a host and port."""

    _problem_format = "HTTP is not served: %s"

    def __init__(self, host: str, port: int, make_app: "Callable[[], ASGIApp]", advice: str) -> None:
        """`make_app` is called once, in a thread. `advice` says how to choose another port."""
        super().__init__()
        self._host = host
        self._configured_port = port
        self._make_app = make_app
        self._advice = advice
        self._connections: Connections | None = None
        self._loading = asyncio.Lock()
        self._handovers: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int | None:
        """The port it listens on; None if it does not."""
        return self._server.sockets[0].getsockname()[1] if self._server is not None and self._server.sockets else None

    async def _listen(self) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: _NewConnection(self._accept), self._host, self._configured_port)

    def _problem_of(self, error: OSError) -> str:
        reason = "is used by another program" if error.errno == errno.EADDRINUSE else f"cannot be opened ({error})"
        return f"{self._host}:{self._configured_port} {reason}. {self._advice}"

    async def _on_closed(self) -> None:
        """Let requests in progress end, then cancel them."""
        for handover in self._handovers:
            handover.cancel()
        if self._connections is not None:
            await self._connections.close(CLOSING_S)

    def _accept(self, transport: asyncio.Transport) -> None:
        if len(self._connections or ()) + len(self._handovers) >= MAX_CONNECTIONS:
            transport.abort()
            return
        handover = asyncio.create_task(self._hand_over(transport))
        self._handovers.add(handover)
        handover.add_done_callback(self._handovers.discard)

    async def _hand_over(self, transport: asyncio.Transport) -> None:
        try:
            async with self._loading:
                if self._connections is None:
                    self._connections = await asyncio.to_thread(self._load)
            protocol = self._connections.new()
        except BaseException:
            transport.abort()
            raise
        if not transport.is_closing():
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            transport.resume_reading()

    def _load(self) -> "Connections":
        from nanobot.net.http_protocol import Connections  # imports uvicorn

        return Connections(self._make_app())


class _NewConnection(asyncio.Protocol):
    """Reads nothing until uvicorn's protocol takes its place."""

    def __init__(self, accept: Callable[[asyncio.Transport], None]) -> None:
        self._accept = accept

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 a TCP server makes no other
        transport.pause_reading()
        self._accept(transport)
