"""Pools of connections and httpx clients, each lent to one call at a time.

An httpx pool scans all its open connections (20 ms of CPU a turn at 500 chats), so nothing is shared: each call has its
own connection and returns it warm. The cost of a call does not depend on their number. Model servers are called over
`connection`, other servers over httpx.
"""

import asyncio
import ipaddress
import os
import ssl
import threading
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

from nanobot.net.clients import load_httpx, new_client
from nanobot.net.connection import KEEP_ALIVE_S, Connection, HttpError, ServerAddress, parse_server_address
from nanobot.net.pace import Pace

if TYPE_CHECKING:
    import httpx

_DRAIN_S = 2.0
"""How long the end of a body may take before its connection is closed."""
_DRAIN_WAIT_S = 0.002
"""How long a caller waits for it, so that the next call finds the connection."""


def verifying_context() -> ssl.SSLContext:
    """A new TLS context that trusts the usual certificate authorities. Takes 20 ms."""
    import certifi  # only TLS needs it

    folder = os.environ.get("SSL_CERT_DIR")  # set where a company has its own root certificate
    file = os.environ.get("SSL_CERT_FILE") or (None if folder else certifi.where())
    return ssl.create_default_context(cafile=file, capath=folder)


@cache
def _https_context() -> ssl.SSLContext:
    context = verifying_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


@cache
def _plain_context() -> ssl.SSLContext:
    # For http URLs: httpx requires a context anyway, and this one loads no certificates.
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


async def ssl_context(url: str) -> ssl.SSLContext:
    """The shared context for this kind of URL. Loading the certificates takes 20 ms, so it runs once, in a thread."""
    if urlsplit(url).scheme != "https":
        return _plain_context()
    return await asyncio.to_thread(_https_context)


def is_loopback(host: str) -> bool:
    """Whether the host is this machine, judged by its spelling alone (no DNS)."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def proxy_for(url: str, proxy: str | None = None) -> str | None:
    """The proxy for this URL: none for this machine, else the given one, else that of the environment."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host):
        return None
    if proxy:
        return proxy
    from urllib.request import getproxies, proxy_bypass  # slow import; `prepare` has loaded it already

    proxies = getproxies()
    chosen = proxies.get(parts.scheme) or proxies.get("all")
    return None if chosen is None or proxy_bypass(host) else chosen


def _load(url: str, proxy: str | None) -> None:
    if proxy_for(url, proxy) is None:
        from nanobot.net import direct_connection  # noqa: F401 imported for its side effect
    else:
        load_httpx()
    if urlsplit(url).scheme == "https":
        _https_context()


class _Closable(Protocol):
    async def aclose(self) -> None: ...


T = TypeVar("T", bound=_Closable)


class _IdlePool(Generic[T]):
    """Idle entries by key, each with the time it was returned; the most recently used is taken first."""

    def __init__(self, max_per_key: int, idle_s: float) -> None:
        self._max_per_key = max_per_key
        self._idle_s = idle_s
        self._entries: defaultdict[object, deque[tuple[float, T]]] = defaultdict(deque)

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def take(self, key: object) -> T | None:
        """The most recently used entry, if any."""
        entries = self._entries[key]
        return entries.pop()[1] if entries else None

    async def put(self, key: object, entry: T) -> None:
        """Store an entry and close those that stayed idle too long. Mostly looks at the oldest entry only."""
        now = time.monotonic()
        self._entries[key].append((now, entry))
        for entries in self._entries.values():
            while entries and (entries[0][0] < now - self._idle_s or len(entries) > self._max_per_key):
                await entries.popleft()[1].aclose()

    def clear(self) -> list[T]:
        """Remove and return all entries without closing them."""
        removed = [entry for entries in self._entries.values() for _, entry in entries]
        self._entries.clear()
        return removed


class HttpPools:
    """Connections and clients, lent to one call at a time. The most recently used goes first; idle ones are closed."""

    def __init__(self, *, proxy: str | None = None, max_idle: int = 512, idle_s: float = KEEP_ALIVE_S) -> None:
        self._proxy = proxy
        self._connections: _IdlePool[Connection] = _IdlePool(max_idle, idle_s)
        self._clients: _IdlePool[httpx.AsyncClient] = _IdlePool(max_idle, idle_s)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pace = Pace()
        self._draining: set[asyncio.Task[None]] = set()
        self._closed = False
        self._prepared = False

    @property
    def idle(self) -> int:
        """The number of idle connections and clients."""
        return len(self._connections) + len(self._clients)

    def prepare(self, url: str) -> None:
        """A call to this URL is likely soon: load the code and certificates it needs in a thread."""
        if self._prepared:
            return
        self._prepared = True
        threading.Thread(target=_load, args=(url, self._proxy), name="load-http", daemon=True).start()

    @asynccontextmanager
    async def borrow_client(self, url: str) -> AsyncIterator["httpx.AsyncClient"]:
        """A client for one call to this URL. Follows no redirects and ignores the environment."""
        self._check_loop()
        proxy = proxy_for(url, self._proxy)
        key = (urlsplit(url).scheme, proxy)
        client = self._clients.take(key) or new_client(await ssl_context(url), proxy)
        try:
            yield client
        finally:
            if self._closed:
                await client.aclose()
            else:
                await self._clients.put(key, client)

    async def throttle(self) -> None:
        """Call when a response head has arrived: spreads the work when hundreds arrive at once."""
        await self._pace.step()

    async def connect(self, address: ServerAddress, connect_s: float) -> Connection:
        """A connection for one call, reused if possible. Return it with `release`. Raises HttpError."""
        self._check_loop()
        while (connection := self._connections.take(address)) is not None:
            if connection.usable:
                return connection
            await connection.aclose()
        context = await ssl_context(address.url)
        proxy = proxy_for(address.url, self._proxy)
        if proxy is not None:
            from nanobot.net.proxied_connection import ProxiedConnection  # imports httpx

            return ProxiedConnection.open(address, proxy, context, connect_s)
        from nanobot.net.direct_connection import DirectConnection  # imports h11

        return await DirectConnection.open(address, context, connect_s)

    async def get(self, url: str, headers: Mapping[str, str], timeout_s: float) -> tuple[int, bytes]:
        """The status and the body of a GET over such a connection. Raises HttpError, also for an invalid URL."""
        body = b""
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self.connect(parse_server_address(url), timeout_s)
                try:
                    await connection.request("GET", headers)
                    while chunk := await connection.read():
                        body += chunk
                finally:
                    await self.release(connection)
        except TimeoutError:
            raise HttpError(f"no answer within {timeout_s:g} s") from None
        except ValueError as error:
            raise HttpError(str(error)) from None
        return connection.status, body

    async def release(self, connection: Connection, *, is_complete: bool = False) -> None:
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

    async def _drain(self, connection: Connection) -> None:
        try:
            async with asyncio.timeout(_DRAIN_S):
                while await connection.read():
                    pass
        except (TimeoutError, HttpError):
            pass  # the answer is complete; only the connection is lost
        finally:
            await self._keep(connection)

    async def _keep(self, connection: Connection) -> None:
        if connection.usable and not self._closed:
            await self._connections.put(connection.address, connection)
        else:
            await connection.aclose()

    def _check_loop(self) -> None:
        """Drop connections of another event loop: they die with it."""
        if (loop := asyncio.get_running_loop()) is not self._loop:
            self._loop = loop
            self._connections.clear()
            self._clients.clear()

    async def close(self) -> None:
        """Close idle connections now, and lent ones when their call ends."""
        self._closed = True
        idle: list[_Closable] = [*self._connections.clear(), *self._clients.clear()]
        if self._loop is not asyncio.get_running_loop():
            return
        for task in (draining := [*self._draining]):
            task.cancel()
        await asyncio.gather(*draining, return_exceptions=True)
        for entry in idle:
            await entry.aclose()
        await asyncio.sleep(0)  # asyncio closes transports in its next iteration
