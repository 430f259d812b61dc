"""The checked transport: how every request that the agent causes leaves the house.

A client of httpx over it may do as it likes: each request, redirects too, goes to an address that the gate has judged,
under the name that the URL has (Host, and what the certificate is for). `fetching` is the ordinary way in; remote MCP
servers are spoken to over httpx2, and `checked_mcp` is the same door for it. Brings httpx: import it late, after
`load_httpx`.
"""

import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import httpx

from nanobot.security.network import Gate, NetworkDeniedError, Ways
from nanobot.utils.http import ssl_context

if TYPE_CHECKING:
    import httpx2

_IDLE_S = 30.0

Q = TypeVar("Q", "httpx.Request", "httpx2.Request")
R = TypeVar("R")
Takes = TypeVar("Takes", "httpx.Request", "httpx2.Request", contravariant=True)
Gives = TypeVar("Gives", covariant=True)


class _Inner(Protocol[Takes, Gives]):
    """A transport of either library."""

    async def handle_async_request(self, request: Takes, /) -> Gives: ...

    async def aclose(self) -> None: ...


class Doors(Generic[Q, R]):
    """A transport to each host, and the way through it.

    Hosts never share one: a warm connection belongs to the name it was opened for, whatever else has its address.
    """

    def __init__(
        self,
        gate: Gate,
        make: Callable[[ssl.SSLContext, str | None], _Inner[Q, R]],
        failures: tuple[type[Exception], ...],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`make` opens a transport of the client's own library, by way of a proxy if one is named; `failures` of it say
        that an address could not be connected to. `headers` go with each request."""
        self._gate = gate
        self._make: Callable[[ssl.SSLContext, str | None], _Inner[Q, R]] = make
        self._failures = failures
        self._headers = headers or {}
        self._inner: dict[tuple[str, bool], _Inner[Q, R]] = {}

    async def answer(self, request: Q) -> R:
        """Send it to the first address that can be connected to.

        Raises what the gate raises, what the transport raises, and the last failure.
        """
        ways = await self._gate.ways(str(request.url))
        inner = await self._to(ways)
        *rest, last = ways.addresses or (None,)
        for address in rest:
            try:
                return await inner.handle_async_request(_addressed(request, ways, address, self._headers))
            except self._failures:
                continue
        return await inner.handle_async_request(_addressed(request, ways, last, self._headers))

    async def aclose(self) -> None:
        """Hang up everywhere."""
        inner, self._inner = [*self._inner.values()], {}
        for one in inner:
            await one.aclose()

    async def _to(self, ways: Ways) -> _Inner[Q, R]:
        direct = bool(ways.addresses)
        key = (ways.url.origin, direct)
        context = await ssl_context(ways.url.origin)
        if key not in self._inner:
            try:
                self._inner[key] = self._make(context, None if direct else self._gate.policy.proxy)
            except (ValueError, ImportError) as error:  # no such kind of proxy, or a package that it takes is missing
                raise NetworkDeniedError(f"tools.web.proxy names a proxy that cannot be used: {error}") from None
        return self._inner[key]


def _addressed(request: Q, ways: Ways, address: str | None, more: Mapping[str, str]) -> Q:
    """The request as our reading of the URL has it, to this address."""
    headers = request.headers.copy()
    headers.update({"Host": ways.url.authority, **more})
    return type(request)(
        request.method,
        type(request.url)(str(ways.url)).copy_with(host=address or ways.url.host),
        headers=headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": ways.url.host},
    )


MakeTransport = Callable[[ssl.SSLContext, str | None], httpx.AsyncBaseTransport]
"""Opens what speaks to one host, with these certificates, by way of a proxy if one is named."""


class CheckedTransport(httpx.AsyncBaseTransport):
    """The transport under every client that asks the web for the agent."""

    def __init__(self, gate: Gate, make: MakeTransport | None = None) -> None:
        self._doors = Doors(gate, make or _transport, (httpx.ConnectError, httpx.ConnectTimeout))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """httpx: send it. Raises as the gate does, and as httpx does."""
        return await self._doors.answer(request)

    async def aclose(self) -> None:
        """httpx: hang up."""
        await self._doors.aclose()


def _transport(context: ssl.SSLContext, proxy: str | None) -> httpx.AsyncBaseTransport:
    limits = httpx.Limits(max_connections=8, max_keepalive_connections=2, keepalive_expiry=_IDLE_S)
    return httpx.AsyncHTTPTransport(verify=context, trust_env=False, proxy=proxy, limits=limits)
