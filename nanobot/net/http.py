"""What all HTTP clients share: addresses, TLS contexts, proxies, httpx on first use, pools for one call at a time.

One big pool of httpx scans all its open connections (20 ms of CPU a turn at 500 chats), so nothing is shared: each call
has its own connection or client and returns it warm. Model servers are called over `connection`, other servers over
httpx.
"""

import asyncio
import ipaddress
import os
import ssl
import sys
import threading
import time
from base64 import b64encode
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from nanobot.utils.storage_error import os_reason

if TYPE_CHECKING:
    import httpx

    from nanobot.net.connection import Connection

KEEP_ALIVE_S = 55.0
"""How long to keep an idle connection: most servers close theirs after a minute."""
_PORTS = {"http": 80, "https": 443}
_DRAIN_S = 2.0
"""How long the end of a body may take before its connection is closed."""
_DRAIN_WAIT_S = 0.002
"""How long a caller waits for it, so that the next call finds the connection."""


class HttpError(Exception):
    """No response, or no more of it. The text is the system's reason."""


class BodyError(HttpError):
    """The body does not match the response's headers."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The parts of a URL that a request needs."""

    url: str = field(repr=False)
    secure: bool
    host: str
    port: int
    authority: str
    """Host and port for the Host header."""
    target: str
    """Path and query."""
    authorization: str | None = field(default=None, repr=False)
    """Set if the URL contains user name and password."""


@lru_cache(maxsize=64)
def parse_server_address(url: str) -> ServerAddress:
    """Parse a URL. Raises ValueError if it is not the URL of a server."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError("a server's address must begin with http:// or https:// and name a host")
    host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()
    port = parts.port or _PORTS[parts.scheme]
    bracketed_host = f"[{host}]" if ":" in host else host
    user = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}".encode()
    return ServerAddress(
        url,
        secure=parts.scheme == "https",
        host=host,
        port=port,
        authority=bracketed_host if port == _PORTS[parts.scheme] else f"{bracketed_host}:{port}",
        target=quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe="/%?:@!$&'()*+,;=~"),
        authorization=f"Basic {b64encode(user).decode()}" if "@" in parts.netloc else None,
    )


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


def load_httpx() -> None:
    """Import httpx without its command line, which needs click and Rich: a third of the 100 ms."""
    if "httpx" in sys.modules:
        return
    stub = ModuleType("httpx._main")
    stub.__dict__["main"] = lambda: None
    sys.modules.setdefault("httpx._main", stub)
    import httpx  # noqa: F401 imported for its side effect

    if sys.modules.get("httpx._main") is stub:
        del sys.modules["httpx._main"]  # an embedding program that wants it gets the real one


def new_client(context: ssl.SSLContext, proxy: str | None) -> "httpx.AsyncClient":
    """A client for one call at a time. Follows no redirects and ignores the environment."""
    load_httpx()
    import httpx

    transport = httpx.AsyncHTTPTransport(
        verify=context,
        trust_env=False,
        proxy=proxy,
        limits=httpx.Limits(max_connections=4, max_keepalive_connections=2, keepalive_expiry=KEEP_ALIVE_S),
    )
    # Each call sets its own timeouts.
    return httpx.AsyncClient(transport=transport, trust_env=False, timeout=None)  # noqa: S113


def connection_error_reason(error: BaseException) -> str:
    """Why an httpx connection failed, from the system's error, which httpx wraps in several causes."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and len(causes) < 6:
        causes.append(cause)
    return os_reason(next((cause for cause in reversed(causes) if isinstance(cause, OSError) and str(cause)), error))


class HttpPools:
    """Connections and httpx clients, lent to one call at a time. The most recently used goes first."""

    def __init__(self, *, proxy: str | None = None) -> None:
        self._proxy = proxy
        self._connections: defaultdict[ServerAddress, list[tuple[float, Connection]]] = defaultdict(list)
        """Idle ones, with the time they were returned, oldest first."""
        self._clients: defaultdict[tuple[str, str | None], list[httpx.AsyncClient]] = defaultdict(list)
        """Idle ones by scheme and proxy. They close old connections themselves."""
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

        if proxy_for(url, self._proxy) is not None:
            load_httpx()
        if urlsplit(url).scheme == "https":
            _https_context()

    @asynccontextmanager
    async def borrow_client(self, url: str) -> AsyncIterator["httpx.AsyncClient"]:
        """A client for one call to this URL. Follows no redirects and ignores the environment."""
        self._check_loop()
        proxy = proxy_for(url, self._proxy)
        idle = self._clients[urlsplit(url).scheme, proxy]
        client = idle.pop() if idle else new_client(await ssl_context(url), proxy)
        try:
            yield client
        finally:
            if self._closed:
                await client.aclose()
            else:
                idle.append(client)

    async def connect(self, address: ServerAddress, connect_s: float) -> "Connection":
        """A connection for one call, reused if possible. Return it with `release`. Raises HttpError."""
        from nanobot.net.connection import DirectConnection, ProxiedConnection  # bring h11

        self._check_loop()
        idle = self._connections[address]
        while idle:
            _, connection = idle.pop()
            if await connection.is_open():
                return connection
            await connection.aclose()
        context = await ssl_context(address.url)
        proxy = proxy_for(address.url, self._proxy)
        if proxy is None:
            return await DirectConnection.open(address, context, connect_s)
        try:
            return ProxiedConnection(address, new_client(context, proxy), connect_s)
        except (ImportError, ValueError) as error:  # unknown kind of proxy, or its package is missing
            raise HttpError(str(error)) from None

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
            self._clients.clear()

    async def close(self) -> None:
        """Close idle connections now, and lent ones when their call ends."""
        self._closed = True
        self._check_loop()
        for task in (draining := [*self._draining]):
            task.cancel()
        await asyncio.gather(*draining, return_exceptions=True)
        for _, connection in [entry for idle in self._connections.values() for entry in idle]:
            await connection.aclose()
        for client in [client for idle in self._clients.values() for client in idle]:
            await client.aclose()
        self._connections.clear()
        self._clients.clear()
        await asyncio.sleep(0)  # asyncio closes transports in its next iteration
