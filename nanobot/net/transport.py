"""The checked transport: the way out for every request that the agent causes.

Every request of an httpx client over it, redirects included, goes to an address that the egress gate approved, under
the host name of the URL (Host header and certificate). `fetch` uses it for ordinary requests, `mcp_transport` for
remote MCP servers, over httpx2. Imports httpx: import it late, after `load_httpx`.
"""

import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import httpx

from nanobot.net.egress import EgressGate, NetworkDeniedError, Route
from nanobot.net.http import ssl_context

if TYPE_CHECKING:
    import httpx2

_IDLE_S = 30.0

Q = TypeVar("Q", "httpx.Request", "httpx2.Request")
R = TypeVar("R")
InnerRequest = TypeVar("InnerRequest", "httpx.Request", "httpx2.Request", contravariant=True)
InnerResponse = TypeVar("InnerResponse", covariant=True)


class _Inner(Protocol[InnerRequest, InnerResponse]):
    """A transport of httpx or httpx2."""

    async def handle_async_request(self, request: InnerRequest, /) -> InnerResponse: ...

    async def aclose(self) -> None: ...


class TransportPool(Generic[Q, R]):
    """One transport per origin and route.

    Origins never share one: a warm connection belongs to the name it was opened for, even if other names have the same
    address.
    """

    def __init__(
        self,
        gate: EgressGate,
        make: Callable[[ssl.SSLContext, str | None], _Inner[Q, R]],
        failures: tuple[type[Exception], ...],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`make` opens a transport, through a proxy if one is given. `failures` are its exceptions for an address that
        cannot be connected to. `headers` are added to each request.
        """
        self._gate = gate
        self._make: Callable[[ssl.SSLContext, str | None], _Inner[Q, R]] = make
        self._failures = failures
        self._headers = headers or {}
        self._inner: dict[tuple[str, bool], _Inner[Q, R]] = {}

    async def send(self, request: Q) -> R:
        """Send the request to the first address that can be connected to.

        Raises what the gate and the transport raise; if no address works, the last failure.
        """
        route = await self._gate.route(str(request.url))
        inner = await self._inner_for(route)
        *rest, last = route.addresses or (None,)
        for address in rest:
            try:
                return await inner.handle_async_request(_request_to(request, route, address, self._headers))
            except self._failures:
                continue
        return await inner.handle_async_request(_request_to(request, route, last, self._headers))

    async def aclose(self) -> None:
        """Close all transports."""
        inner, self._inner = [*self._inner.values()], {}
        for transport in inner:
            await transport.aclose()

    async def _inner_for(self, route: Route) -> _Inner[Q, R]:
        direct = bool(route.addresses)
        key = (route.url.origin, direct)
        context = await ssl_context(route.url.origin)
        if key not in self._inner:
            try:
                self._inner[key] = self._make(context, None if direct else self._gate.policy.proxy)
            except (ValueError, ImportError) as error:  # unknown kind of proxy, or its package is missing
                raise NetworkDeniedError(f"tools.web.proxy names a proxy that cannot be used: {error}") from None
        return self._inner[key]


def _request_to(request: Q, route: Route, address: str | None, extra_headers: Mapping[str, str]) -> Q:
    """The request with the normalised URL, sent to this address."""
    headers = request.headers.copy()
    headers.update({"Host": route.url.authority, **extra_headers})
    return type(request)(
        request.method,
        type(request.url)(str(route.url)).copy_with(host=address or route.url.host),
        headers=headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": route.url.host},
    )


MakeTransport = Callable[[ssl.SSLContext, str | None], httpx.AsyncBaseTransport]
"""Opens a transport to one host with this TLS context, through a proxy if one is given."""


class CheckedTransport(httpx.AsyncBaseTransport):
    """The httpx transport for all web requests of the agent."""

    def __init__(self, gate: EgressGate, make: MakeTransport | None = None) -> None:
        self._pool = TransportPool(gate, make or _open_transport, (httpx.ConnectError, httpx.ConnectTimeout))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._pool.send(request)

    async def aclose(self) -> None:
        await self._pool.aclose()


def _open_transport(context: ssl.SSLContext, proxy: str | None) -> httpx.AsyncBaseTransport:
    limits = httpx.Limits(max_connections=8, max_keepalive_connections=2, keepalive_expiry=_IDLE_S)
    return httpx.AsyncHTTPTransport(verify=context, trust_env=False, proxy=proxy, limits=limits)
