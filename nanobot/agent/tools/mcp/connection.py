"""One connection to a server, used by any number of calls at once.

The SDK's context managers have to be left in the task that entered them, so each connection is a task.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

from nanobot.agent.tools.mcp.transport import ServerReport

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client._transport import TransportStreams
    from mcp.client.session import IncomingMessage

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 8.0
"""The SDK gives a program two seconds to exit by itself, two after SIGTERM, and two after SIGKILL."""


class McpConnection:
    """A connection. Once it is not open any more, it never comes back."""

    def __init__(self, report: ServerReport, on_change: Callable[[], None]) -> None:
        """`on_change` is called when the server reports changed tools."""
        self.report = report
        self._on_change = on_change
        self._closing = asyncio.Event()
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self.closed = asyncio.Event()
        """Set when everything is released: a program may take seconds to end."""
        self.cause: Exception | None = None
        """The error that ended the connection, if any."""

    async def open(self, streams: AbstractAsyncContextManager["TransportStreams"], *, use_legacy: bool) -> None:
        """Connect; `use_legacy` skips the newest handshake. Raises what the transport or the handshake raises; close it
        then, and also when cancelled.
        """
        await asyncio.to_thread(import_module, "mcp")  # 0.6 s of imports, off the event loop
        for name in ("mcp", "client"):  # the SDK's; we report lost connections ourselves, in a line
            logging.getLogger(name).setLevel(logging.CRITICAL)
        if self._closing.is_set():
            raise ConnectionError("nanobot is shutting down")
        self._task = asyncio.create_task(self._run(streams, use_legacy), name="mcp connection")
        await asyncio.wait((self._ready, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.done():
            raise self.cause or ConnectionError("it hung up during the handshake")

    @property
    def is_open(self) -> bool:
        return self._ready.done() and not self._closing.is_set() and not self.closed.is_set()

    @property
    def client(self) -> "Client":
        """The SDK's client. Only available once the connection is open."""
        return self._ready.result()

    def start_closing(self) -> None:
        """Close in the background: the server hung up, or is not used any more."""
        if self._closing.is_set():  # a second cancellation would break off the SDK's shutdown of the program
            return
        self._closing.set()
        if self._task is None:
            self.closed.set()
        elif not self._ready.done():
            self._task.cancel()

    async def close(self) -> None:
        """Close. Never raises, and does not wait long."""
        self.start_closing()
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=_CLOSE_TIMEOUT_S)
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=_CLOSE_TIMEOUT_S)

    async def _run(self, streams: AbstractAsyncContextManager["TransportStreams"], use_legacy: bool) -> None:
        from mcp import Client
        from mcp.types import Implementation

        # No roots: a file server would use them instead of the folders the owner gave it. No sampling and no
        # elicitation either: the SDK declines them.
        manager = Client(
            streams,
            client_info=Implementation(name="nanobot", version=version("nanobot")),
            message_handler=self._on_message,
            mode="legacy" if use_legacy else "auto",
            cache=None,
        )
        try:
            async with manager as client, self._watch_changes(client):
                self._ready.set_result(client)
                await self._closing.wait()
        except Exception as error:  # isolate connections: the next caller gets the error
            self.cause = _single(error)
            logger.debug("A connection to an MCP server ended.", exc_info=True)
        finally:
            self.closed.set()

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
