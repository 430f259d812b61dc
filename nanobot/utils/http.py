"""Every connection we open.

A pool of httpx is linear in its open connections (20 ms of CPU a turn at 500 chats). So there are many small pools:
each lane that waits for an answer has one to itself, and hands it back warm. A request costs the same with any number.
"""

import asyncio
import ipaddress
import os
import ssl
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import httpx

_GOODBYE_S = 2.0
"""How long the end of a body may take before its connection is given up."""
KEEP_ALIVE_S = 55.0
"""Shorter than the minute after which most servers hang up."""


def load_httpx() -> None:
    """Import httpx, without its command line: that brings click and Rich and is a third of the 100 ms it takes."""
    if "httpx" not in sys.modules:
        nothing = ModuleType("httpx._main")
        nothing.__dict__["main"] = lambda: None
        sys.modules.setdefault("httpx._main", nothing)
    import httpx  # noqa: F401 the import is the point


@cache
def _verified_context() -> ssl.SSLContext:
    import certifi  # comes with httpx

    folder = os.environ.get("SSL_CERT_DIR")  # where a company has a root of its own
    file = os.environ.get("SSL_CERT_FILE") or (None if folder else certifi.where())
    return ssl.create_default_context(cafile=file, capath=folder)


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
    if host == "localhost" or host.endswith(".localhost"):
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
    from urllib.request import getproxies, proxy_bypass  # httpx has it loaded already

    found = getproxies()
    chosen = found.get(parts.scheme) or found.get("all")
    return None if chosen is None or proxy_bypass(host) else chosen


def _load(url: str) -> None:
    load_httpx()
    if urlsplit(url).scheme == "https":
        _verified_context()


async def _read_out(body: AsyncIterator[bytes], connection: AsyncExitStack) -> None:
    import httpx

    async with connection:
        try:
            async with asyncio.timeout(_GOODBYE_S):
                async for _ in body:
                    pass
        except (TimeoutError, httpx.HTTPError, httpx.StreamError):
            pass  # the answer is whole; only the connection is lost


@dataclass(slots=True)
class _Pool:
    client: "httpx.AsyncClient"
    returned_at: float = 0.0


class HttpPools:
    """Small pools, lent one a call. The warmest is lent first; those that stay idle are closed."""

    def __init__(self, *, proxy: str | None = None, most_idle: int = 512, idle_s: float = KEEP_ALIVE_S) -> None:
        self._proxy = proxy
        self._most_idle = most_idle
        self._idle_s = idle_s
        self._idle: dict[tuple[str, str | None], list[_Pool]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False
        self._prepared = False

    @property
    def idle(self) -> int:
        """How many wait to be lent."""
        return sum(map(len, self._idle.values()))

    def prepare(self, url: str) -> None:
        """A call to this URL is near: load the client, and the certificates if it takes any, in a thread."""
        if self._prepared:
            return
        self._prepared = True
        threading.Thread(target=_load, args=(url,), name="load-httpx", daemon=True).start()

    @asynccontextmanager
    async def lend(self, url: str) -> AsyncIterator["httpx.AsyncClient"]:
        """A client for one call to this URL. Follows no redirects, reads nothing from the environment by itself."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # connections die with the loop that made them
            self._loop, self._idle = loop, {}
        key = (urlsplit(url).scheme, proxy_for(url, self._proxy))
        waiting = self._idle.setdefault(key, [])
        pool = waiting.pop() if waiting else _Pool(await self._open(url, key[1]))
        try:
            yield pool.client
        finally:
            if self._closed:
                await pool.client.aclose()
            else:
                pool.returned_at = time.monotonic()
                self._idle.setdefault(key, []).append(pool)
                await self._close_idle()

    async def let_go(self, body: AsyncIterator[bytes], connection: AsyncExitStack) -> None:
        """Close a connection whose answer is known, but read what ends its body first, so that it can be used again.

        That mostly came along already. Where a server keeps the body open it goes on behind the caller's back.
        """
        leaving = asyncio.create_task(_read_out(body, connection))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        await asyncio.wait((leaving,), timeout=0.002)

    async def _open(self, url: str, proxy: str | None) -> "httpx.AsyncClient":
        load_httpx()
        import httpx

        transport = httpx.AsyncHTTPTransport(
            verify=await ssl_context(url),
            trust_env=False,
            proxy=proxy,
            limits=httpx.Limits(max_connections=4, max_keepalive_connections=2, keepalive_expiry=KEEP_ALIVE_S),
        )
        # Each call brings its own limits.
        return httpx.AsyncClient(transport=transport, trust_env=False, timeout=None)  # noqa: S113

    async def _close_idle(self) -> None:
        """Close those nobody wanted for a while, oldest first; a look at the oldest is all it mostly costs."""
        oldest_kept = time.monotonic() - self._idle_s
        for waiting in self._idle.values():
            while waiting and (waiting[0].returned_at < oldest_kept or len(waiting) > self._most_idle):
                await waiting.pop(0).client.aclose()

    async def close(self) -> None:
        """Close what is idle at once, and what is lent when its call ends."""
        self._closed = True
        pools, self._idle = self._idle, {}
        if self._loop is not asyncio.get_running_loop():
            return
        for task in (leaving := [*self._leaving]):
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        for pool in [pool for waiting in pools.values() for pool in waiting]:
            await pool.client.aclose()
