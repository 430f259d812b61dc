"""One connection to a server, used by any number of calls at once, and closed in the task that opened it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client._transport import TransportStreams
    from mcp.client.session import IncomingMessage

logger = logging.getLogger(__name__)

OpenStreams = Callable[["McpConnection"], AbstractAsyncContextManager["TransportStreams"]]
"""Opens the transport, and notifies the connection when the server hangs up."""

_CLOSE_TIMEOUT_S = 1.0


class McpConnection:
    """A connection. Once `closed` is set it is over, and never comes back."""

    def __init__(self, open_streams: OpenStreams, on_change: Callable[[], None], *, use_legacy: bool) -> None:
        """`on_change` is called when the server reports changed tools; `use_legacy` skips the newest handshake."""
        self._open_streams = open_streams
        self._on_change = on_change
        self._use_legacy = use_legacy
        self._closing = asyncio.Event()
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self.closed = asyncio.Event()
        self.session_lost = False
        """Whether the server has lost our session, so that it did nothing of the last request."""
        self.cause: Exception | None = None
        """The error that ended the connection, if any."""

    async def open(self) -> None:
        """Connect. Raises what the transport or the handshake raises; cancelling releases everything."""
        await asyncio.to_thread(import_module, "mcp")  # 0.6 s of imports, off the event loop
        logging.getLogger("mcp").setLevel(logging.CRITICAL)  # we report lost connections ourselves, in a line
        self._task = asyncio.create_task(self._run(), name="mcp connection")
        try:
            await asyncio.wait((self._ready, self._task), return_when=asyncio.FIRST_COMPLETED)
            if not self._ready.done():
                raise self.cause or ConnectionError("it hung up during the handshake")
        except BaseException:
            await self.close()
            raise

    @property
    def client(self) -> "Client":
        """The SDK's client. Only available once the connection is open."""
        return self._ready.result()

    def on_disconnect(self) -> None:
        """The server has hung up."""
        self._closing.set()

    def on_session_lost(self) -> None:
        """The server does not know our session any more."""
        self.session_lost = True

    def close_soon(self) -> None:
        """Close in the background. No call may be in flight."""
        self._closing.set()
        self.closed.set()

    async def close(self) -> None:
        """Close. Never raises, and does not wait long."""
        self._closing.set()
        if self._task is not None and not self._task.done():
            if not self._ready.done():
                self._task.cancel()
            await asyncio.wait((self._task,), timeout=_CLOSE_TIMEOUT_S)
            if not self._task.done():
                self._task.cancel()
                await asyncio.wait((self._task,), timeout=_CLOSE_TIMEOUT_S)
        self.closed.set()

    async def _run(self) -> None:
        try:
            async with self._client() as client, self._watch_changes(client):
                self._ready.set_result(client)
                await self._closing.wait()
        except Exception as error:  # isolate connections: the next caller gets the error
            self.cause = _single(error)
            logger.debug("A connection to an MCP server ended.", exc_info=True)
        finally:
            self.closed.set()

    @asynccontextmanager
    async def _client(self) -> "AsyncIterator[Client]":
        from mcp import Client
        from mcp.types import Implementation

        # No roots: a file server would use them instead of the folders the owner gave it. No sampling and no
        # elicitation either: the SDK declines them.
        manager = Client(
            self._open_streams(self),
            client_info=Implementation(name="nanobot", version=version("nanobot")),
            message_handler=self._on_message,
            mode="legacy" if self._use_legacy else "auto",
            cache=None,
        )
        async with manager as client:
            yield client

    async def _on_message(self, message: "IncomingMessage") -> None:
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._on_change()

    @asynccontextmanager
    async def _watch_changes(self, client: "Client") -> AsyncIterator[None]:
        """Listen for changed tools, if the newest protocol has a stream of its own for them."""
        tools = client.server_capabilities.tools
        if client.session.discover_result is None or tools is None or not tools.list_changed:
            yield
            return
        listening = asyncio.create_task(self._listen(client))
        try:
            yield
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, client: "Client") -> None:
        with suppress(Exception):  # a server without such a stream: its tools are listed at the next connection
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._on_change()


def _single(error: Exception) -> Exception:
    """Return the first error of a group: task groups wrap what they raise."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
