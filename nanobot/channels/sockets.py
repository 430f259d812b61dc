"""WebSockets to platforms: connect as the environment says, send heartbeats, and keep secrets out of logs."""

import asyncio
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from nanobot.channels.errors import NotConnectedError, SendError
from nanobot.channels.incoming import Payload
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
    socket: ClientConnection,
    touch: Callable[[], None],
    beat_s: float,
    beat: Callable[[], Awaitable[None]] | None = None,
) -> AsyncIterator[str | bytes]:
    """Yield messages until the connection breaks; every `beat_s` seconds, `beat` sends a heartbeat, by default a ping.

    `touch` is called for every message and pong. Raises ConnectionClosed.
    """

    def answered(pong: "asyncio.Future[float]") -> None:
        if not pong.cancelled() and pong.exception() is None:
            touch()

    clock = asyncio.get_running_loop()
    beat_at = clock.time() + beat_s
    while True:
        try:
            async with asyncio.timeout_at(beat_at):
                message = await socket.recv()
        except TimeoutError:
            if beat is not None:
                await beat()
            else:  # not awaited: the pong comes behind messages that wait to be read
                asyncio.ensure_future(await socket.ping()).add_done_callback(answered)
            beat_at = clock.time() + beat_s
            continue
        touch()
        yield message


class RequestSocket(ABC):
    """A connection with requests that wait for their answers, by id, and other frames, in their order."""

    platform: ClassVar[str]

    def __init__(self, socket: ClientConnection | None = None) -> None:
        """Without a socket it is a connection that is closed."""
        self.socket = socket
        self.requests: dict[str, asyncio.Future[Payload]] = {}
        self._frames: asyncio.Queue[Payload | None] = asyncio.Queue()

    @abstractmethod
    def answered_by(self, frame: Payload) -> str | None:
        """The id of the request that a frame answers; None for another frame."""

    async def next_frame(self) -> Payload | None:
        """The next frame that is no answer; None once the connection is broken. Safe to cancel."""
        return await self._frames.get()

    async def tell(self, frame: Mapping[str, Any]) -> None:
        """Send a frame. Raises NotConnectedError."""
        try:
            if self.socket is not None:
                await self.socket.send(json.dumps(frame))
                return
        except WebSocketException:
            pass
        raise NotConnectedError(f"{self.platform} is not connected")

    async def ask(self, request_id: str, frame: Mapping[str, Any], timeout_s: float | None) -> Payload:
        """Send a request and return its answer. Raises SendError; safe to cancel."""
        waiting: asyncio.Future[Payload] = asyncio.get_running_loop().create_future()
        self.requests[request_id] = waiting
        try:
            await self.tell(frame)
            await asyncio.wait([waiting], timeout=timeout_s)
        finally:
            self.requests.pop(request_id, None)
        if not waiting.done() or waiting.cancelled():
            raise SendError(f"{self.platform} did not confirm it", may_have_arrived=True)
        return waiting.result()

    @asynccontextmanager
    async def reading(self, messages: AsyncIterator[str | bytes]) -> AsyncIterator[None]:
        """Read in this block, until the connection breaks."""
        task = asyncio.create_task(self._read(messages), name=f"{self.platform} frames")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _read(self, messages: AsyncIterator[str | bytes]) -> None:
        try:
            async for text in messages:
                frame = Payload.parse(text)
                request_id = self.answered_by(frame)
                if request_id is None:
                    self._frames.put_nowait(frame)
                elif (waiting := self.requests.get(request_id)) is not None and not waiting.done():
                    waiting.set_result(frame)
        except WebSocketException:
            pass
        finally:
            self._frames.put_nowait(None)
            for waiting in self.requests.values():
                waiting.cancel()
