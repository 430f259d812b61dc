"""One connection to a server: opened, used by any number of calls at once, and let go in the task that opened it."""

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

OpenStreams = Callable[["Link"], AbstractAsyncContextManager["TransportStreams"]]
"""Opens the wire, and tells the link when the other side has hung up."""

_GOODBYE_S = 1.0


class Link:
    """A connection whose handshake is done. It is gone once `gone` is set, and never comes back."""

    def __init__(self, open_streams: OpenStreams, on_change: Callable[[], None], *, old: bool) -> None:
        """`on_change` is called when the server says that its tools have changed; `old` skips the newest handshake."""
        self._open_streams = open_streams
        self._on_change = on_change
        self._old = old
        self._leave = asyncio.Event()
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self.gone = asyncio.Event()
        self.refused = False
        """Whether the other side has forgotten us, so that it did nothing of what it was asked last."""
        self.cause: Exception | None = None
        """What ended it, where that was an error."""

    async def open(self) -> None:
        """Connect. Raises whatever the wire or the handshake did; cancelling it lets everything go."""
        await asyncio.to_thread(import_module, "mcp")  # 0.6 s of imports: aside, where they stall nobody
        logging.getLogger("mcp").setLevel(logging.CRITICAL)  # what is lost we say ourselves, in a line
        self._task = asyncio.create_task(self._live(), name="mcp connection")
        try:
            await asyncio.wait((self._ready, self._task), return_when=asyncio.FIRST_COMPLETED)
            if not self._ready.done():
                raise self.cause or ConnectionError("it hung up during the handshake")
        except BaseException:
            await self.close()
            raise

    @property
    def client(self) -> "Client":
        """The SDK's client. Only once it is open."""
        return self._ready.result()

    def hung_up(self) -> None:
        """The other side has gone."""
        self._leave.set()

    def forgotten(self) -> None:
        """The other side knows nothing of us any more."""
        self.refused = True

    def leave(self) -> None:
        """Let go, soon. No call may be under way."""
        self._leave.set()
        self.gone.set()

    async def close(self) -> None:
        """Let go. Never raises, and does not wait long."""
        self._leave.set()
        if self._task is not None and not self._task.done():
            if not self._ready.done():
                self._task.cancel()
            await asyncio.wait((self._task,), timeout=_GOODBYE_S)
            if not self._task.done():
                self._task.cancel()
                await asyncio.wait((self._task,), timeout=_GOODBYE_S)
        self.gone.set()

    async def _live(self) -> None:
        try:
            async with self._client() as client, self._changes(client):
                self._ready.set_result(client)
                await self._leave.wait()
        except Exception as error:  # the wall of a connection: what ends it is told to whoever asks next
            self.cause = _single(error)
            logger.debug("A connection to an MCP server ended.", exc_info=True)
        finally:
            self.gone.set()

    @asynccontextmanager
    async def _client(self) -> "AsyncIterator[Client]":
        from mcp import Client
        from mcp.types import Implementation

        # No roots: a server of files would take them instead of the folders its owner gave it. No sampling and no
        # questions either: the SDK declines them in our name.
        made = Client(
            self._open_streams(self),
            client_info=Implementation(name="nanobot", version=version("nanobot")),
            message_handler=self._hear,
            mode="legacy" if self._old else "auto",
            cache=None,
        )
        async with made as client:
            yield client

    async def _hear(self, message: "IncomingMessage") -> None:
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._on_change()

    @asynccontextmanager
    async def _changes(self, client: "Client") -> AsyncIterator[None]:
        """Listen for changes of the tools, where the newest protocol has a stream of its own for them."""
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
        with suppress(Exception):  # a server without such a stream: its tools are asked for at the next connection
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._on_change()


def _single(error: Exception) -> Exception:
    """The first error of a group: task groups wrap what they raise, and a person wants the reason."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
