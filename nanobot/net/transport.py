"""The checked transport: the way out for every request that the agent causes.

Every request of an httpx client over it, redirects included, goes to an address that the egress gate approved, under
the host name of the URL (Host header and certificate). `fetch` uses it for ordinary requests, `mcp_transport` for
remote MCP servers, over httpx2. Imports httpx: import it late, after `load_httpx`.
"""

import ssl
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from nanobot.net.egress import EgressGate, NetworkDeniedError, Route
from nanobot.net.http import ssl_context

_IDLE_S = 30.0
MakeTransport = Callable[[ssl.SSLContext, str | None], httpx.AsyncBaseTransport]
"""Opens a transport to one host with this TLS context, through a proxy if one is given."""


class TransportPool:
    """One transport of httpx, or of httpx2, per origin and route.

    Origins never share one: a warm connection belongs to the name it was opened for, even if other names have the same
    address.
    """

    def __init__(
        self,
        gate: EgressGate,
        make: Callable[[ssl.SSLContext, str | None], Any],
        failures: tuple[type[Exception], ...],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`make` opens a transport. `failures` are its exceptions for an address that cannot be connected to.

        `headers` are added to each request.
        """
        self._gate = gate
        self._make = make
        self._failures = failures
        self._headers = headers or {}
        self._transports: dict[tuple[str, bool], Any] = {}

    async def send(self, request: Any) -> Any:
        """Send the request to the first address that can be connected to.

        Raises what the gate and the transport raise; if no address works, the last failure.
        """
        route = await self._gate.route(str(request.url))
        transport = await self._transport_for(route)
        *rest, last = route.addresses or (None,)
        for address in rest:
            try:
                return await transport.handle_async_request(self._request_to(address, request, route))
            except self._failures:
                continue
        return await transport.handle_async_request(self._request_to(last, request, route))

    async def aclose(self) -> None:
        """Close all transports."""
        transports, self._transports = [*self._transports.values()], {}
        for transport in transports:
            await transport.aclose()

    async def _transport_for(self, route: Route) -> Any:
        is_direct = bool(route.addresses)
        key = (route.url.origin, is_direct)
        context = await ssl_context(route.url.origin)
        if key not in self._transports:
            try:
                self._transports[key] = self._make(context, None if is_direct else self._gate.policy.proxy)
            except (ValueError, ImportError) as error:  # unknown kind of proxy, or its package is missing
                raise NetworkDeniedError(f"tools.web.proxy names a proxy that cannot be used: {error}") from None
        return self._transports[key]

    def _request_to(self, address: str | None, request: Any, route: Route) -> Any:
        """The request with the normalised URL, sent to this address."""
        headers = request.headers.copy()
        headers.update({"Host": route.url.authority, **self._headers})
        return type(request)(
            request.method,
            type(request.url)(str(route.url)).copy_with(host=address or route.url.host),
            headers=headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": route.url.host},
        )


class CheckedTransport(httpx.AsyncBaseTransport):
    """The httpx transport for all web requests of the agent."""

    def __init__(self, gate: EgressGate, make: MakeTransport | None = None) -> None:
        self._pool = TransportPool(gate, make or _open_transport, (httpx.ConnectError, httpx.ConnectTimeout))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response: httpx.Response = await self._pool.send(request)
        return response

    async def aclose(self) -> None:
        await self._pool.aclose()


def _open_transport(context: ssl.SSLContext, proxy: str | None) -> httpx.AsyncBaseTransport:
    limits = httpx.Limits(max_connections=8, max_keepalive_connections=2, keepalive_expiry=_IDLE_S)
    return httpx.AsyncHTTPTransport(verify=context, trust_env=False, proxy=proxy, limits=limits)
