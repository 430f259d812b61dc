"""Connections to model servers, lent to one call at a time, so that the cost of a call does not depend on how many are
open (one big pool of httpx takes 20 ms of CPU a turn at 500 chats).
"""

import asyncio
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from nanobot.net.http import KEEP_ALIVE_S, HttpError, https_context, proxy_for, ssl_context
from nanobot.net.urls import WebUrl

if TYPE_CHECKING:
    from nanobot.net.connection import Connection

_DRAIN_S = 2.0
"""How long the end of a body may take before its connection is closed."""
_DRAIN_WAIT_S = 0.002
"""How long a caller waits for it, so that the next call finds the connection."""


class HttpPools:
    """Connections, of which the one used last goes first."""

    def __init__(self, *, proxy: str | None = None) -> None:
        self.proxy = proxy
        self._connections: defaultdict[WebUrl, list[tuple[float, Connection]]] = defaultdict(list)
        """Idle ones, with the time they were returned, oldest first."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: set[asyncio.Task[None]] = set()
        self._closed = False
        self._prepared = False

    def prepare(self, url: str) -> None:
        """A call to this URL is likely soon: load the code and certificates it needs in a thread."""
        if not self._prepared:
            self._prepared = True
            threading.Thread(target=self._load, args=(url,), name="load-http", daemon=True).start()

    def _load(self, url: str) -> None:
        from nanobot.net import connection  # noqa: F401 brings h11

        proxy_for(url, self.proxy)  # its imports
        if urlsplit(url).scheme == "https":
            https_context()

    async def connect(self, address: WebUrl, connect_s: float) -> "Connection":
        """A connection for one call, reused if possible. Return it with `release`. Raises HttpError."""
        from nanobot.net.connection import Connection  # brings h11

        self._check_loop()
        idle = self._connections[address]
        while idle:
            _, connection = idle.pop()
            if connection.is_open():
                return connection
            await connection.aclose()
        context = await ssl_context(address.origin)
        try:
            return await Connection.open(address, context, connect_s, proxy_for(address.origin, self.proxy))
        except ValueError as error:
            raise HttpError(f"the proxy cannot be used: {error}") from None

    async def release(self, connection: "Connection", *, is_complete: bool = False) -> None:
        """End a call. A connection that can be reused is kept, others are closed.

        With `is_complete`, the rest of the body is read first to make the connection reusable, in the background if it
        takes long.
        """
        if connection.usable or not is_complete:
            await self._keep(connection)
            return
        draining = asyncio.create_task(self._drain(connection))
        self._draining.add(draining)
        draining.add_done_callback(self._draining.discard)
        await asyncio.wait((draining,), timeout=_DRAIN_WAIT_S)

    async def _drain(self, connection: "Connection") -> None:
        try:
            async with asyncio.timeout(_DRAIN_S):
                while await connection.read():
                    pass
        except (TimeoutError, HttpError):
            pass  # the answer is complete; only the connection is lost
        finally:
            await self._keep(connection)

    async def _keep(self, connection: "Connection") -> None:
        if not connection.usable or self._closed:
            await connection.aclose()
            return
        now = time.monotonic()
        self._connections[connection.address].append((now, connection))
        for idle in self._connections.values():
            while idle and idle[0][0] < now - KEEP_ALIVE_S:
                await idle.pop(0)[1].aclose()

    def _check_loop(self) -> None:
        """Drop connections of another event loop: they die with it."""
        if (loop := asyncio.get_running_loop()) is not self._loop:
            self._loop = loop
            self._connections.clear()

    async def close(self) -> None:
        """Close idle connections now, and lent ones when their call ends."""
        self._closed = True
        self._check_loop()
        for task in (draining := [*self._draining]):
            task.cancel()
        await asyncio.gather(*draining, return_exceptions=True)
        for _, connection in [entry for idle in self._connections.values() for entry in idle]:
            await connection.aclose()
        self._connections.clear()
        await asyncio.sleep(0)  # asyncio closes transports in its next iteration
