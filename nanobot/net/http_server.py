"""Servers of the gateway: each binds, retries while its address is in use, and reports the problem. HTTP is served on
uvicorn, which is imported in a thread once the server runs.
"""

import asyncio
import errno
import logging
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, ClassVar

from nanobot.net.http import is_loopback
from nanobot.utils.storage_error import os_reason

if TYPE_CHECKING:
    from starlette.types import ASGIApp
    from uvicorn import Server

log = logging.getLogger(__name__)

RETRY_S = 30.0
"""How often binding is retried."""


class Listener(ABC):
    """A server; `run` is a supervised task."""

    _problem_format: ClassVar[str] = "%s"
    """Log format of a problem."""

    def __init__(self) -> None:
        self._server: asyncio.Server | socket.socket | None = None
        self.problem: str | None = None
        """Why it cannot listen, in one line for health; None if it listens or was not started."""

    @abstractmethod
    async def _listen(self) -> asyncio.Server | socket.socket:
        """Bind. Raises OSError."""

    async def _serve(self) -> None:
        """Serve until cancelled."""
        await asyncio.get_running_loop().create_future()  # asyncio does it

    @abstractmethod
    def _problem_of(self, error: OSError) -> str:
        """Describe an error and what its owner can do."""

    def _on_closed(self) -> None:  # noqa: B027 optional
        """Called when it has stopped listening. Never raises."""

    async def bind(self) -> bool:
        """Start listening. Return False after an error, which is kept in `problem` and logged once."""
        if self._server is not None:
            return True
        try:
            self._server = await self._listen()
        except OSError as error:
            problem = self._problem_of(error)
            if problem != self.problem:
                log.error(self._problem_format, problem)  # noqa: TRY400 the owner needs no traceback
            self.problem = problem
            return False
        self.problem = None
        return True

    async def run(self) -> None:
        """Serve until cancelled. Retries while the address is in use."""
        try:
            while not await self.bind():  # noqa: ASYNC110 a free address sends no event
                await asyncio.sleep(RETRY_S)
            await self._serve()
        finally:
            if self._server is not None:
                self._server.close()
                self._server = None
            self._on_closed()


MAX_CONNECTIONS = 512
"""Further requests are answered with 503."""
KEEP_ALIVE_S = 5
CLOSING_S = 1
"""How long requests in progress may take once the server stops."""
_MAX_HEAD = 16 * 1024
_TICK_S = 5.0


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

    @property
    def port(self) -> int | None:
        """The port it listens on; None if it does not."""
        return self._server.getsockname()[1] if isinstance(self._server, socket.socket) else None

    @property
    def url(self) -> str:
        """Its address for programs on this machine."""
        host = self._host if is_loopback(self._host) else "127.0.0.1"
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port or self._configured_port}"

    async def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        server = socket.create_server((self._host, self._configured_port), family=family)
        # connections inherit it; asyncio sets it only on sockets of its own. Without it a stream waits 40 ms for an ACK
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return server

    def _problem_of(self, error: OSError) -> str:
        reason = (
            "is used by another program"
            if error.errno == errno.EADDRINUSE
            else f"cannot be opened ({os_reason(error)})"
        )
        return f"{self._host}:{self._configured_port} {reason}. {self._advice}"

    async def _serve(self) -> None:
        assert isinstance(self._server, socket.socket)  # noqa: S101 `_listen` made it
        stopping = asyncio.get_running_loop().create_future()
        server = await asyncio.to_thread(self._load, stopping)
        serving = asyncio.create_task(server.serve(sockets=[self._server]))
        try:
            await asyncio.shield(serving)
        finally:
            server.should_exit = True
            stopping.set_result(None)
            await serving

    def _load(self, stopping: "asyncio.Future[None]") -> "Server":
        import uvicorn

        class Server(uvicorn.Server):
            def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
                return nullcontext()  # the process has its own handlers

            async def main_loop(self) -> None:  # uvicorn's wakes up ten times a second
                while not await self.on_tick(0):  # renews the Date header, which may be a little old
                    await asyncio.wait([stopping], timeout=_TICK_S)

        return Server(
            uvicorn.Config(
                self._make_app(),
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",  # what a stranger sends is no warning of ours
                access_log=False,
                proxy_headers=False,
                limit_concurrency=MAX_CONNECTIONS,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=CLOSING_S,
                h11_max_incomplete_event_size=_MAX_HEAD,
            )
        )
