"""The checked transport for remote MCP servers, whose library uses httpx2.

Every request, redirects included, goes to an address that the egress gate approved, under the host name of the URL
(Host header and certificate). That library reads responses to their end and decompresses them. So endless responses and
compression bombs are limited here.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import httpx2

from nanobot.net.egress import EgressGate, NetworkDeniedError, NetworkPolicy, Route
from nanobot.net.http import ACCEPT_ENCODING, BodyError, Decoder, ssl_context
from nanobot.net.urls import parse_url

MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""Decompressed bytes of a response, or of one event in a stream."""
_CONNECT_S = 15.0
_READ_TIMEOUT_S = 300.0
"""How long a stream may be silent: a server may hold a response open for minutes."""


class CheckedTransport(httpx2.AsyncBaseTransport):
    """One transport of httpx2 per origin and route: a warm connection belongs to the name it was opened for, even if
    other names have the same address.
    """

    def __init__(self, gate: EgressGate) -> None:
        self._gate = gate
        self._transports: dict[tuple[str, bool], httpx2.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request to the first address that can be connected to. Raises what the gate and httpx2 raise."""
        route = await self._gate.route(str(request.url))
        transport = await self._transport_for(route)
        *rest, last = route.addresses or (route.url.host,)
        for address in rest:
            try:
                return _limit_response(await transport.handle_async_request(_request_to(address, request, route)))
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                continue
        return _limit_response(await transport.handle_async_request(_request_to(last, request, route)))

    async def aclose(self) -> None:
        transports, self._transports = [*self._transports.values()], {}
        for transport in transports:
            await transport.aclose()

    async def _transport_for(self, route: Route) -> httpx2.AsyncHTTPTransport:
        key = (route.url.origin, bool(route.addresses))
        context = await ssl_context(route.url.origin)
        if key not in self._transports:
            proxy = None if route.addresses else self._gate.policy.proxy
            limits = httpx2.Limits(max_connections=16, max_keepalive_connections=4)
            try:
                transport = httpx2.AsyncHTTPTransport(verify=context, trust_env=False, proxy=proxy, limits=limits)
            except (ValueError, ImportError) as error:  # unknown kind of proxy, or its package is missing
                raise NetworkDeniedError(f"tools.web.proxy names a proxy that cannot be used: {error}") from None
            self._transports[key] = transport
        return self._transports[key]


def _request_to(address: str, request: httpx2.Request, route: Route) -> httpx2.Request:
    """The request with the normalised URL, sent to this address."""
    headers = request.headers.copy()
    headers.update({"Host": route.url.authority, "Accept-Encoding": ACCEPT_ENCODING})
    return httpx2.Request(
        request.method,
        httpx2.URL(str(route.url)).copy_with(host=address),
        headers=headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": route.url.host},
    )


async def open_mcp_client(policy: NetworkPolicy, url: str, headers: Mapping[str, str]) -> httpx2.AsyncClient:
    """A client for the server at this URL, which the owner put into the config: it may be anywhere. It follows
    redirects within the server's own origin; each is checked. Raises UrlError.
    """
    parse_url(url)  # httpx2's error would name only the path
    return httpx2.AsyncClient(
        transport=CheckedTransport(EgressGate(replace(policy, owned=(url,)))),
        headers=dict(headers),
        timeout=httpx2.Timeout(_CONNECT_S, read=_READ_TIMEOUT_S),
        trust_env=False,
    )


def _limit_response(response: httpx2.Response) -> httpx2.Response:
    assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 the transport is asynchronous
    headers = response.headers.copy()
    for name in ("content-encoding", "content-length"):
        headers.pop(name, None)
    stream = _LimitedStream(
        response.stream,
        response.headers.get("content-encoding", ""),
        in_events=response.headers.get("content-type", "").startswith("text/event-stream"),
    )
    return httpx2.Response(response.status_code, headers=headers, stream=stream, extensions=response.extensions)


class _LimitedStream(httpx2.AsyncByteStream):
    """A body, decompressed incrementally. Raises httpx2.ReadError if it is too large."""

    def __init__(self, compressed: httpx2.AsyncByteStream, encoding: str, *, in_events: bool) -> None:
        self._compressed = compressed
        self._encoding = encoding
        self._in_events = in_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size, previous = 0, b""
        try:
            decoder = Decoder(self._encoding)
            async for data in self._compressed:
                for chunk in decoder.chunks(data):
                    size += len(chunk)
                    if self._in_events:
                        joined = (previous + chunk).replace(b"\r\n", b"\n")
                        if (end := joined.rfind(b"\n\n")) >= 0:
                            size = len(joined) - end
                        previous = chunk[-3:]
                    if size > MAX_RESPONSE_BYTES:
                        raise httpx2.ReadError(f"the answer is larger than {MAX_RESPONSE_BYTES >> 20} MB")
                    yield chunk
                    await asyncio.sleep(0)  # one compressed chunk may yield a thousand
        except BodyError as error:
            raise httpx2.ReadError(str(error)) from None

    async def aclose(self) -> None:
        await self._compressed.aclose()
