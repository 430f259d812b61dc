"""Uvicorn's HTTP protocol with limits. Imported with the first connection, see `http_server`."""

import asyncio

import h11
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

REQUEST_S = 5.0
"""How long a client may take to send the head of a request, also of the next one on the same connection."""
_MAX_HEAD = 16 * 1024


class HttpProtocol(H11Protocol):
    """Serves one connection. Closes it if no request arrives in time."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_request()

    def _expect_request(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(REQUEST_S, self._close_if_waiting)

    def _close_if_waiting(self) -> None:
        if self.conn.our_state in (h11.IDLE, h11.DONE):  # no head yet, or still the rest of an answered request
            self.transport.abort()


class Connections:
    """The open connections of a server."""

    def __init__(self, app: ASGIApp) -> None:
        self._config = Config(
            app,
            http=HttpProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="error",  # what a stranger sends is no warning of ours
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=int(REQUEST_S),
            h11_max_incomplete_event_size=_MAX_HEAD,
        )
        self._config.load()
        self._state = ServerState()

    def __len__(self) -> int:
        return len(self._state.connections)

    def new(self) -> HttpProtocol:
        """The protocol for a new connection."""
        return HttpProtocol(self._config, self._state, {})

    async def close(self, within_s: float) -> None:
        """Let requests in progress end, then cancel them."""
        for connection in [*self._state.connections]:
            connection.shutdown()
        if tasks := [*self._state.tasks]:
            _, late = await asyncio.wait(tasks, timeout=within_s)
            for task in late:
                task.cancel()
        for connection in [*self._state.connections]:
            connection.transport.abort()
