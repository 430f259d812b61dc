"""The checked transport for remote MCP servers: their library speaks over httpx2, whose types are its own.

That library reads answers to their end and unpacks them as it reads. So what has no end, and what a kilobyte unpacks
to, is bounded here.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import httpx2

from nanobot.security.checked import Doors
from nanobot.security.network import Gate, NetworkPolicy
from nanobot.security.urls import parse_url
from nanobot.utils.unpacking import ACCEPTED, PackingError, Unpacker

LARGEST_ANSWER = 64 * 1024 * 1024
"""Bytes of an answer, or of one event of a stream of them, unpacked."""
_CONNECT_S = 15.0
_SILENCE_S = 300.0
"""How long a stream may say nothing: a server may hold an answer open for minutes."""


class CheckedTransport2(httpx2.AsyncBaseTransport):
    """As `checked.CheckedTransport`."""

    def __init__(self, gate: Gate) -> None:
        unreachable = (httpx2.ConnectError, httpx2.ConnectTimeout)
        self._doors = Doors(gate, _transport, unreachable, {"Accept-Encoding": ACCEPTED})

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """httpx2: send it. Raises as the gate does, and as httpx2 does."""
        return _bounded(await self._doors.answer(request))

    async def aclose(self) -> None:
        """httpx2: hang up."""
        await self._doors.aclose()


def checked_mcp_client(
    gate: Gate,
    headers: Mapping[str, str] | None = None,
    timeout: httpx2.Timeout | None = None,
    auth: httpx2.Auth | None = None,
) -> httpx2.AsyncClient:
    """What the MCP transports take as their client; bound to a gate, the factory they take for one.

    The owner's server stands in the policy's `owned`. Redirects are followed by those transports alone, within the
    server's own origin; each is checked like any request.
    """
    return httpx2.AsyncClient(
        transport=CheckedTransport2(gate),
        headers=dict(headers or {}),
        timeout=timeout or _usual(),
        auth=auth,
        trust_env=False,
    )


async def open_mcp_client(policy: NetworkPolicy, url: str, headers: Mapping[str, str]) -> httpx2.AsyncClient:
    """A client of its own for the server at this URL, which the owner wrote into the config: it may be anywhere.

    Raises UrlError.
    """
    parse_url(url)  # httpx2 would tell of no more than the path
    return checked_mcp_client(Gate(replace(policy, owned=(url,))), headers)


def _usual() -> httpx2.Timeout:
    return httpx2.Timeout(_CONNECT_S, read=_SILENCE_S)


def _transport(context: ssl.SSLContext, proxy: str | None) -> httpx2.AsyncBaseTransport:
    limits = httpx2.Limits(max_connections=16, max_keepalive_connections=4)
    return httpx2.AsyncHTTPTransport(verify=context, trust_env=False, proxy=proxy, limits=limits)


def _bounded(response: httpx2.Response) -> httpx2.Response:
    assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - of an asynchronous transport
    headers = response.headers.copy()
    for name in ("content-encoding", "content-length"):
        headers.pop(name, None)
    stream = _BoundedStream(
        response.stream,
        response.headers.get("content-encoding", ""),
        in_events=response.headers.get("content-type", "").startswith("text/event-stream"),
    )
    return httpx2.Response(response.status_code, headers=headers, stream=stream, extensions=response.extensions)


class _BoundedStream(httpx2.AsyncByteStream):
    """A body, unpacked piece by piece. Raises httpx2.ReadError where there is too much of it."""

    def __init__(self, packed: httpx2.AsyncByteStream, encoding: str, *, in_events: bool) -> None:
        self._packed = packed
        self._encoding = encoding
        self._in_events = in_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size, before = 0, b""
        try:
            unpacker = Unpacker(self._encoding)
            async for data in self._packed:
                for piece in unpacker.pieces(data):
                    size += len(piece)
                    if self._in_events:
                        joined = (before + piece).replace(b"\r\n", b"\n")
                        if (end := joined.rfind(b"\n\n")) >= 0:
                            size = len(joined) - end
                        before = piece[-3:]
                    if size > LARGEST_ANSWER:
                        raise httpx2.ReadError(f"the answer is larger than {LARGEST_ANSWER >> 20} MB")
                    yield piece
                    await asyncio.sleep(0)  # a thousand pieces may come out of one
        except PackingError as error:
            raise httpx2.ReadError(str(error)) from None

    async def aclose(self) -> None:
        """httpx2: hang up."""
        await self._packed.aclose()
