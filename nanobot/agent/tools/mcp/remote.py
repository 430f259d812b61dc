"""The transports to a server with a URL: streamable HTTP, and the older SSE.

https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#streamable-http

The owner chooses the URL, wherever it leads. Redirects are followed within its origin only (the SDK ensures it), so the
configured headers reach nobody else; proxies of the environment are not used.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from nanobot.agent.tools.mcp.server_output import CpuShare, truncate_lists
from nanobot.agent.tools.mcp.settings import ServerSettings, Transport
from nanobot.net.egress import NetworkPolicy

if TYPE_CHECKING:
    import httpx2
    from mcp.client._transport import TransportStreams

OpenClient = Callable[[str, Mapping[str, str]], Awaitable["httpx2.AsyncClient"]]
"""Returns a client for requests to this URL, with these headers."""

MAX_EVENT_BYTES = 64 * 1024 * 1024
_SESSION = "mcp-session-id"
_SESSION_LOST = frozenset({400, 404, 410})
"""Responses of servers to an unknown session id. The specification says 404; 400 is common too."""


async def open_client(
    url: str, headers: Mapping[str, str], *, policy: NetworkPolicy | None = None
) -> "httpx2.AsyncClient":
    """Return a client for one connection, over the checked transport: to this server and nowhere else nearby."""
    from nanobot.net.mcp_transport import open_mcp_client  # brings httpx2

    return await open_mcp_client(policy or NetworkPolicy(), url, headers)


@asynccontextmanager
async def remote_streams(
    settings: ServerSettings,
    open_client: OpenClient,
    on_end: Callable[[], None],
    on_session_lost: Callable[[], None],
    on_response: Callable[[int], None],
) -> AsyncIterator["TransportStreams"]:
    """Connect to the server. `on_end` is called when it hangs up, `on_session_lost` when it has lost our session: then
    it did nothing of the last request. `on_response` gets the status of each response.

    Connection errors are those of the SDK or its client, then or later, maybe in a group.
    """
    from mcp.client.sse import sse_client
    from mcp.client.streamable_http import streamable_http_client

    client = await open_client(settings.url, settings.headers)

    async def check(response: "httpx2.Response") -> None:
        request = response.request
        # a GET asks for notifications, which are optional
        if request.method == "POST" or settings.transport is Transport.SSE:
            on_response(response.status_code)
        if response.status_code in _SESSION_LOST and request.method == "POST" and _SESSION in request.headers:
            on_session_lost()

    client.event_hooks["response"].append(check)
    if settings.transport is Transport.SSE:

        def client_factory(*_: Any, **__: Any) -> "httpx2.AsyncClient":
            return client

        async with (
            sse_client(settings.url, httpx_client_factory=client_factory) as streams,
            _watch_end(streams, on_end) as watched,
        ):
            yield watched
        return
    async with (
        client,
        streamable_http_client(settings.url, http_client=client, max_sse_event_size=MAX_EVENT_BYTES) as streams,
        _watch_end(streams, on_end) as watched,
    ):
        yield watched


@asynccontextmanager
async def _watch_end(streams: "TransportStreams", on_end: Callable[[], None]) -> AsyncIterator["TransportStreams"]:
    """Return equivalent streams that notice when they end, also while nothing is requested."""
    import anyio
    from mcp.shared.message import SessionMessage

    source, outbox = streams
    sink, inbox = anyio.create_memory_object_stream[SessionMessage | Exception](0)

    async def relay() -> None:
        share = CpuShare()
        try:
            async with sink:
                async for message in source:
                    started = time.thread_time()
                    await sink.send(message if isinstance(message, Exception) else truncate_lists(message))
                    await share.throttle(time.thread_time() - started)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            on_end()

    relaying = asyncio.create_task(relay())
    try:
        yield inbox, outbox
    finally:
        relaying.cancel()
        await asyncio.gather(relaying, return_exceptions=True)
        sink.close()
        inbox.close()
