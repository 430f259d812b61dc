"""The checked transport for remote MCP servers, whose library uses httpx2 with types of its own.

That library reads responses to their end and decompresses them. So endless responses and compression bombs are limited
here.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import httpx2

from nanobot.net.egress import EgressGate, NetworkPolicy
from nanobot.net.http import ACCEPT_ENCODING, BodyError, Decoder
from nanobot.net.transport import TransportPool
from nanobot.net.urls import parse_url

MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""Decompressed bytes of a response, or of one event in a stream."""
_CONNECT_S = 15.0
_READ_TIMEOUT_S = 300.0
"""How long a stream may be silent: a server may hold a response open for minutes."""


class CheckedTransport2(httpx2.AsyncBaseTransport):
    """As `transport.CheckedTransport`."""

    def __init__(self, gate: EgressGate) -> None:
        unreachable = (httpx2.ConnectError, httpx2.ConnectTimeout)
        self._pool = TransportPool(gate, _open_transport, unreachable, {"Accept-Encoding": ACCEPT_ENCODING})

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return _limit_response(await self._pool.send(request))

    async def aclose(self) -> None:
        await self._pool.aclose()


def checked_mcp_client(gate: EgressGate, headers: Mapping[str, str]) -> httpx2.AsyncClient:
    """A client for the MCP transports. They follow redirects within the server's own origin; each is checked."""
    return httpx2.AsyncClient(
        transport=CheckedTransport2(gate),
        headers=dict(headers),
        timeout=httpx2.Timeout(_CONNECT_S, read=_READ_TIMEOUT_S),
        trust_env=False,
    )


async def open_mcp_client(policy: NetworkPolicy, url: str, headers: Mapping[str, str]) -> httpx2.AsyncClient:
    """A client for the server at this URL, which the owner put into the config: it may be anywhere. Raises UrlError."""
    parse_url(url)  # httpx2's error would name only the path
    return checked_mcp_client(EgressGate(replace(policy, owned=(url,))), headers)


def _open_transport(context: ssl.SSLContext, proxy: str | None) -> httpx2.AsyncBaseTransport:
    limits = httpx2.Limits(max_connections=16, max_keepalive_connections=4)
    return httpx2.AsyncHTTPTransport(verify=context, trust_env=False, proxy=proxy, limits=limits)


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
