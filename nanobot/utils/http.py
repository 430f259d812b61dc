"""Every connection we open, lent and kept warm.

A pool of httpx is linear in its open connections (20 ms of CPU a turn at 500 chats). So nothing is shared: each call
that waits for an answer has a connection to itself, and hands it back warm. A call costs the same with any number.
Models are asked over `connection`, the few other servers by a small client of httpx.
"""

import asyncio
import ipaddress
import os
import ssl
import threading
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

from nanobot.utils.clients import load_httpx, new_client
from nanobot.utils.connection import KEEP_ALIVE_S, Connection, HttpError, Place
from nanobot.utils.pace import Pace

if TYPE_CHECKING:
    import httpx

_GOODBYE_S = 2.0
"""How long the end of a body may take before its connection is given up."""
_WAITED_FOR_GOODBYE_S = 0.002
"""How long a caller waits for it, so that the next call finds the connection."""


@cache
def _verified_context() -> ssl.SSLContext:
    import certifi  # where it is asked for: plain http needs none

    folder = os.environ.get("SSL_CERT_DIR")  # where a company has a root of its own
    file = os.environ.get("SSL_CERT_FILE") or (None if folder else certifi.where())
    context = ssl.create_default_context(cafile=file, capath=folder)
    context.set_alpn_protocols(["http/1.1"])
    return context


@cache
def _plain_context() -> ssl.SSLContext:
    # For http URLs: httpx wants a context all the same, and this one loads no certificates.
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


async def ssl_context(url: str) -> ssl.SSLContext:
    """The one shared context for this kind of URL. Reading the certificates takes 20 ms: off the event loop, once."""
    if urlsplit(url).scheme != "https":
        return _plain_context()
    return await asyncio.to_thread(_verified_context)


def is_loopback(host: str) -> bool:
    """Whether the host is this machine, by its spelling alone."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def proxy_for(url: str, proxy: str | None = None) -> str | None:
    """The proxy on the way to this URL: none to this machine, else the one given, else what the environment says."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host):
        return None
    if proxy:
        return proxy
    from urllib.request import getproxies, proxy_bypass  # takes a while: `prepare` has it loaded already

    found = getproxies()
    chosen = found.get(parts.scheme) or found.get("all")
    return None if chosen is None or proxy_bypass(host) else chosen


def _load(url: str, proxy: str | None) -> None:
    if proxy_for(url, proxy) is None:
        from nanobot.utils import direct_connection  # noqa: F401 the import is the point
    else:
        load_httpx()
    if urlsplit(url).scheme == "https":
        _verified_context()


class _Closes(Protocol):
    async def aclose(self) -> None: ...


T = TypeVar("T", bound=_Closes)


class _Shelf(Generic[T]):
    """What waits to be lent again, under what it is good for, with the time it came back; the warmest is on top."""

    def __init__(self, most: int, idle_s: float) -> None:
        self._most = most
        self._idle_s = idle_s
        self._things: defaultdict[object, deque[tuple[float, T]]] = defaultdict(deque)

    def __len__(self) -> int:
        return sum(map(len, self._things.values()))

    def take(self, good_for: object) -> T | None:
        """The warmest, if there is one."""
        things = self._things[good_for]
        return things.pop()[1] if things else None

    async def put(self, good_for: object, thing: T) -> None:
        """Keep it, and close those nobody wanted for a while: a look at the oldest is all it mostly costs."""
        now = time.monotonic()
        self._things[good_for].append((now, thing))
        for things in self._things.values():
            while things and (things[0][0] < now - self._idle_s or len(things) > self._most):
                await things.popleft()[1].aclose()

    def forget(self) -> list[T]:
        """Keep nothing; what was kept is not closed."""
        kept = [thing for things in self._things.values() for _, thing in things]
        self._things.clear()
        return kept


class HttpPools:
    """Connections, lent one a call. The warmest is lent first; those that stay idle are closed."""

    def __init__(self, *, proxy: str | None = None, most_idle: int = 512, idle_s: float = KEEP_ALIVE_S) -> None:
        self._proxy = proxy
        self._connections: _Shelf[Connection] = _Shelf(most_idle, idle_s)
        self._clients: _Shelf[httpx.AsyncClient] = _Shelf(most_idle, idle_s)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pace = Pace()
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False
        self._prepared = False

    @property
    def idle(self) -> int:
        """How many wait to be lent."""
        return len(self._connections) + len(self._clients)

    def prepare(self, url: str) -> None:
        """A call to this URL is near: load what it needs, and the certificates if it takes any, in a thread."""
        if self._prepared:
            return
        self._prepared = True
        threading.Thread(target=_load, args=(url, self._proxy), name="load-http", daemon=True).start()

    @asynccontextmanager
    async def lend(self, url: str) -> AsyncIterator["httpx.AsyncClient"]:
        """A client for one call to this URL. Follows no redirects, reads nothing from the environment by itself."""
        self._keep_to_this_loop()
        proxy = proxy_for(url, self._proxy)
        good_for = (urlsplit(url).scheme, proxy)
        client = self._clients.take(good_for) or new_client(await ssl_context(url), proxy)
        try:
            yield client
        finally:
            if self._closed:
                await client.aclose()
            else:
                await self._clients.put(good_for, client)

    async def answered(self) -> None:
        """The head of an answer is here: where hundreds come at once, they are worked on by and by."""
        await self._pace.step()

    async def connect(self, place: Place, connect_s: float) -> Connection:
        """A connection for one call, warm if there is one. `take_back` must follow. Raises HttpError."""
        self._keep_to_this_loop()
        while (connection := self._connections.take(place)) is not None:
            if connection.usable:
                return connection
            await connection.aclose()
        context = await ssl_context(place.url)
        proxy = proxy_for(place.url, self._proxy)
        if proxy is not None:
            from nanobot.utils.proxied_connection import ProxiedConnection  # brings httpx

            return ProxiedConnection.open(place, proxy, context, connect_s)
        from nanobot.utils.direct_connection import DirectConnection  # brings h11

        return await DirectConnection.open(place, context, connect_s)

    async def take_back(self, connection: Connection, *, all_said: bool = False) -> None:
        """The call is over. A connection that another request may use is kept, others are closed.

        `all_said`: the answer is known, so what ends its body is read first. That mostly came along already; where a
        server keeps the body open, it goes on behind the caller's back.
        """
        if connection.usable or not all_said:
            await self._keep(connection)
            return
        leaving = asyncio.create_task(self._read_out(connection))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        await asyncio.wait((leaving,), timeout=_WAITED_FOR_GOODBYE_S)

    async def _read_out(self, connection: Connection) -> None:
        try:
            async with asyncio.timeout(_GOODBYE_S):
                while await connection.read():
                    pass
        except (TimeoutError, HttpError):
            pass  # the answer is whole; only the connection is lost
        finally:
            await self._keep(connection)

    async def _keep(self, connection: Connection) -> None:
        if connection.usable and not self._closed:
            await self._connections.put(connection.place, connection)
        else:
            await connection.aclose()

    def _keep_to_this_loop(self) -> None:
        """Connections die with the loop that made them."""
        if (loop := asyncio.get_running_loop()) is not self._loop:
            self._loop = loop
            self._connections.forget()
            self._clients.forget()

    async def close(self) -> None:
        """Close what is idle at once, and what is lent when its call ends."""
        self._closed = True
        idle: list[_Closes] = [*self._connections.forget(), *self._clients.forget()]
        if self._loop is not asyncio.get_running_loop():
            return
        for task in (leaving := [*self._leaving]):
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        for one in idle:
            await one.aclose()
        await asyncio.sleep(0)  # what asyncio closes it closes in its next pass
