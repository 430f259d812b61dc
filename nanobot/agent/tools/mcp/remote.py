"""The wires to a server that is an address: streamable HTTP, and the older SSE.

https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#streamable-http

The address is its owner's will, wherever it leads. Redirects are followed within its origin only (the SDK sees to it),
so the headers of the config reach nobody else; proxies of the environment are not used.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from nanobot.agent.tools.mcp.incoming import Share, bearable
from nanobot.agent.tools.mcp.settings import ServerSettings, Wire
from nanobot.security.network import NetworkPolicy

if TYPE_CHECKING:
    import httpx2
    from mcp.client._transport import TransportStreams

OpenClient = Callable[[str, Mapping[str, str]], Awaitable["httpx2.AsyncClient"]]
"""A client for requests to this URL, which carries these headers."""

LARGEST_EVENT = 64 * 1024 * 1024
_SESSION = "mcp-session-id"
_REFUSED = frozenset({400, 404, 410})
"""How servers answer to the id of a session they no longer know. The specification says 404; 400 is common too."""


async def open_client(
    url: str, headers: Mapping[str, str], *, policy: NetworkPolicy | None = None
) -> "httpx2.AsyncClient":
    """A client of its own for each connection, over the checked transport: to this server, and nowhere else near."""
    from nanobot.security.checked_mcp import open_mcp_client  # brings httpx2

    return await open_mcp_client(policy or NetworkPolicy(), url, headers)


@asynccontextmanager
async def remote_streams(
    settings: ServerSettings,
    open_client: OpenClient,
    on_end: Callable[[], None],
    on_refusal: Callable[[], None],
    on_answer: Callable[[int], None],
) -> AsyncIterator["TransportStreams"]:
    """Talk with the server at that address. `on_end` is called when it has hung up, `on_refusal` when it has forgotten
    our session: then it has done nothing of what it was asked since. `on_answer` hears how each request was answered.

    What cannot be reached is an error of the SDK's or of its client, then or later, maybe in a group.
    """
    from mcp.client.sse import sse_client
    from mcp.client.streamable_http import streamable_http_client

    client = await open_client(settings.url, settings.headers)

    async def judge(response: "httpx2.Response") -> None:
        request = response.request
        if request.method == "POST" or settings.wire is Wire.SSE:  # a GET asks for news, which need not be there
            on_answer(response.status_code)
        if response.status_code in _REFUSED and request.method == "POST" and _SESSION in request.headers:
            on_refusal()

    client.event_hooks["response"].append(judge)
    if settings.wire is Wire.SSE:

        def handed_in(*_: Any, **__: Any) -> "httpx2.AsyncClient":
            return client

        async with (
            sse_client(settings.url, httpx_client_factory=handed_in) as streams,
            _watched(streams, on_end) as ours,
        ):
            yield ours
        return
    async with (
        client,
        streamable_http_client(settings.url, http_client=client, max_sse_event_size=LARGEST_EVENT) as streams,
        _watched(streams, on_end) as ours,
    ):
        yield ours


@asynccontextmanager
async def _watched(streams: "TransportStreams", on_end: Callable[[], None]) -> AsyncIterator["TransportStreams"]:
    """The same streams; but somebody notices when they end, also while nothing is asked."""
    import anyio
    from mcp.shared.message import SessionMessage

    theirs, outbox = streams
    to_us, inbox = anyio.create_memory_object_stream[SessionMessage | Exception](0)

    async def relay() -> None:
        share = Share()
        try:
            async with to_us:
                async for message in theirs:
                    began = time.thread_time()
                    await to_us.send(message if isinstance(message, Exception) else bearable(message))
                    await share.took(time.thread_time() - began)
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
        to_us.close()
        inbox.close()
