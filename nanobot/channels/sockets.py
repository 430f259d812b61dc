"""WebSockets to platforms: connect as the environment says, send heartbeats, and keep secrets out of logs."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from nanobot.channels.errors import NotConnectedError
from nanobot.net.http import proxy_for, ssl_context
from nanobot.utils.storage_error import os_reason

_wire = logging.getLogger(f"{__name__}.wire")
_wire.setLevel(logging.CRITICAL)  # it would log tokens, and whole messages

_CONNECT_S, _CLOSE_S = 15.0, 1.0


@asynccontextmanager
async def open_socket(platform: str, url: str, **options: Any) -> AsyncIterator[ClientConnection]:
    """A connection, for this block. `options`: as `websockets.connect` takes them.

    Raises NotConnectedError, also if the connection breaks later. Its text does not have the URL, which may be secret.
    """
    http_url = url.replace("ws", "http", 1)
    failure = f"{platform} cannot be reached"
    try:
        async with connect(
            url,
            ssl=await ssl_context(http_url) if url.startswith("wss:") else None,
            proxy=proxy_for(http_url),
            open_timeout=_CONNECT_S,
            close_timeout=_CLOSE_S,
            logger=_wire,
            **options,
        ) as socket:
            failure = f"the connection to {platform} is lost"
            yield socket
    except (OSError, WebSocketException) as error:
        reason = os_reason(error) if isinstance(error, OSError) else type(error).__name__
        raise NotConnectedError(f"{failure} ({reason})") from None


async def read_messages(
    socket: ClientConnection, touch: Callable[[], None], beat_s: float, beat: Callable[[], Awaitable[None]]
) -> AsyncIterator[str | bytes]:
    """Yield messages until the connection breaks; every `beat_s` seconds, `beat` sends a heartbeat.

    `touch` is called for every message. Raises ConnectionClosed.
    """
    clock = asyncio.get_running_loop()
    beat_at = clock.time() + beat_s
    while True:
        try:
            async with asyncio.timeout_at(beat_at):
                message = await socket.recv()
        except TimeoutError:
            await beat()
            beat_at = clock.time() + beat_s
            continue
        touch()
        yield message
