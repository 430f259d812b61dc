"""The checked transport: how every request that the agent causes leaves the house.

A client of httpx over it may do as it likes: each request, redirects too, goes to an address that the gate has judged,
under the name that the URL has (Host, and what the certificate is for). `fetching` is the ordinary way in; remote MCP
servers are spoken to over httpx2, and `checked_mcp` is the same door for it. Brings httpx: import it late, after
`load_httpx`.
"""

import ssl
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

import httpx

from nanobot.security.network import Gate, NetworkDeniedError, Ways
from nanobot.utils.http import ssl_context

_IDLE_S = 30.0


class _Inner(Protocol):
    async def aclose(self) -> None: ...


I = TypeVar("I", bound=_Inner)  # noqa: E741 - the inner transport
R = TypeVar("R")


class Doors(Generic[I]):
    """A transport to each host, and the way through it.

    Hosts never share one: a warm connection belongs to the name it was opened for, whatever else has its address.
    """

    def __init__(self, gate: Gate, make: Callable[[ssl.SSLContext, str | None], I]) -> None:
        """`make` opens a transport of the client's own library, by way of a proxy if one is named."""
        self._gate = gate
        self._make = make
        self._inner: dict[tuple[str, bool], I] = {}

    async def through(
        self, url: str, send: Callable[[I, Ways, str | None], Awaitable[R]], failures: tuple[type[Exception], ...]
    ) -> R:
        """What `send` gets from the first address that can be connected to; `failures` say that one could not.

        Raises what the gate raises, what `send` raises, and the last failure.
        """
        ways = await self._gate.ways(url)
        inner = await self._to(ways)
        *rest, last = ways.addresses or (None,)
        for address in rest:
            try:
                return await send(inner, ways, address)
            except failures:
                continue
        return await send(inner, ways, last)

    async def aclose(self) -> None:
        """Hang up everywhere."""
        inner, self._inner = [*self._inner.values()], {}
        for one in inner:
            await one.aclose()

    async def _to(self, ways: Ways) -> I:
        direct = bool(ways.addresses)
        key = (ways.url.origin, direct)
        if key not in self._inner:
            context = await ssl_context(ways.url.origin)
            try:
                self._inner[key] = self._make(context, None if direct else self._gate.policy.proxy)
            except (ValueError, ImportError) as error:  # no such kind of proxy, or a package that it takes is missing
                raise NetworkDeniedError(f"tools.web.proxy names a proxy that cannot be used: {error}") from None
        return self._inner[key]


MakeTransport = Callable[[ssl.SSLContext, str | None], httpx.AsyncBaseTransport]
"""Opens what speaks to one host, with these certificates, by way of a proxy if one is named."""


class CheckedTransport(httpx.AsyncBaseTransport):
    """The transport under every client that asks the web for the agent."""

    def __init__(self, gate: Gate, make: MakeTransport | None = None) -> None:
        self._doors = Doors(gate, make or _transport)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """httpx: send it. Raises as the gate does, and as httpx does."""

        async def send(inner: httpx.AsyncBaseTransport, ways: Ways, address: str | None) -> httpx.Response:
            return await inner.handle_async_request(_addressed(request, ways, address))

        return await self._doors.through(str(request.url), send, (httpx.ConnectError, httpx.ConnectTimeout))

    async def aclose(self) -> None:
        """httpx: hang up."""
        await self._doors.aclose()


def _transport(context: ssl.SSLContext, proxy: str | None) -> httpx.AsyncBaseTransport:
    limits = httpx.Limits(max_connections=8, max_keepalive_connections=2, keepalive_expiry=_IDLE_S)
    return httpx.AsyncHTTPTransport(verify=context, trust_env=False, proxy=proxy, limits=limits)


def _addressed(request: httpx.Request, ways: Ways, address: str | None) -> httpx.Request:
    """The request as our reading of the URL has it, to this address."""
    headers = request.headers.copy()
    headers["Host"] = ways.url.authority
    return httpx.Request(
        request.method,
        httpx.URL(str(ways.url)).copy_with(host=address or ways.url.host),
        headers=headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": ways.url.host},
    )
