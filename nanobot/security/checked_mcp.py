"""The checked transport for remote MCP servers: their library speaks over httpx2, whose types are its own."""

import ssl
from collections.abc import Mapping

import httpx2

from nanobot.security.checked import Doors
from nanobot.security.network import Gate, Ways


class CheckedTransport2(httpx2.AsyncBaseTransport):
    """As `checked.CheckedTransport`."""

    def __init__(self, gate: Gate) -> None:
        self._doors = Doors(gate, _transport)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """httpx2: send it. Raises as the gate does, and as httpx2 does."""

        async def send(inner: httpx2.AsyncBaseTransport, ways: Ways, address: str | None) -> httpx2.Response:
            return await inner.handle_async_request(_addressed(request, ways, address))

        return await self._doors.through(str(request.url), send, (httpx2.ConnectError, httpx2.ConnectTimeout))

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


def _usual() -> httpx2.Timeout:
    # As mcp's own client has it: a server may hold an answer open for minutes.
    return httpx2.Timeout(30.0, read=300.0)


def _transport(context: ssl.SSLContext, proxy: str | None) -> httpx2.AsyncBaseTransport:
    limits = httpx2.Limits(max_connections=16, max_keepalive_connections=4)
    return httpx2.AsyncHTTPTransport(verify=context, trust_env=False, proxy=proxy, limits=limits)


def _addressed(request: httpx2.Request, ways: Ways, address: str | None) -> httpx2.Request:
    headers = request.headers.copy()
    headers["Host"] = ways.url.authority
    return httpx2.Request(
        request.method,
        httpx2.URL(str(ways.url)).copy_with(host=address or ways.url.host),
        headers=headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": ways.url.host},
    )
