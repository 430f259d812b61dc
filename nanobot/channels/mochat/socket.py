"""A Socket.IO connection to Mochat: events in their order, and calls with their answers.

It does not reconnect by itself: the channel polls while there is none, and then opens another.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import socketio
from socketio.exceptions import SocketIOError

from nanobot.config.channels import MochatConfig
from nanobot.errors import NanobotError
from nanobot.net.http import proxy_for, ssl_context
from nanobot.utils.aio import finish

_wire = logging.getLogger(f"{__name__}.wire")
_wire.setLevel(logging.CRITICAL)  # it would log the token, and whole messages

_CALL_S, _CLOSE_S = 10.0, 1.0


class SocketLostError(NanobotError):
    """There is no socket, or it is of no use."""


class Socket:
    """An open connection."""

    def __init__(self, client: socketio.AsyncClient) -> None:
        self._client = client
        self._events: asyncio.Queue[tuple[str, Any] | None] = asyncio.Queue()
        self._answer: asyncio.Future[Any] | None = None
        client.on("*", lambda name, *data: self._events.put_nowait((name, data[0] if data else None)))
        client.on("disconnect", self._lose)

    def _lose(self, *_: object) -> None:
        self._events.put_nowait(None)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(SocketLostError("the connection is lost"))

    async def next_event(self, within_s: float) -> tuple[str, Any] | None:
        """Name and data of the next event; None if there is none within this time. Raises SocketLostError."""
        try:
            async with asyncio.timeout(within_s):
                event = await self._events.get()
        except TimeoutError:
            return None
        if event is None:
            raise SocketLostError("the connection is lost")
        return event

    async def call(self, name: str, data: Mapping[str, Any]) -> Any:
        """Send an event and return the data of its answer; one at a time. Raises SocketLostError, also if Mochat
        refuses it.
        """
        self._answer = answered = asyncio.get_running_loop().create_future()

        def take(*values: Any) -> None:
            if not answered.done():  # nobody waits any more
                answered.set_result(values[0] if values else None)

        try:
            async with asyncio.timeout(_CALL_S):
                await self._client.emit(name, dict(data), callback=take)
                answer = await answered
        except (SocketIOError, TimeoutError) as error:
            raise SocketLostError(f"{name} has no answer ({type(error).__name__})") from None
        if not isinstance(answer, Mapping):
            return answer
        if not answer.get("result"):
            raise SocketLostError(f"{name} is refused: {str(answer.get('message'))[:300]}")
        return answer.get("data")


@asynccontextmanager
async def open_socket(section: MochatConfig) -> AsyncIterator[Socket]:
    """Connect, and disconnect when the block ends. Raises SocketLostError."""
    url = (section.socket_url.strip() or section.base_url.strip()).rstrip("/")
    client = socketio.AsyncClient(
        reconnection=False,
        serializer="default" if section.socket_disable_msgpack else "msgpack",
        logger=_wire,
        engineio_logger=_wire,
        handle_sigint=False,
        request_timeout=_CLOSE_S,
        websocket_extra_options={"ssl": await ssl_context(url), "proxy": proxy_for(url)},
    )
    socket = Socket(client)
    connecting = asyncio.create_task(
        client.connect(
            url,
            auth={"token": section.claw_token.strip()},
            transports=["websocket"],
            socketio_path=section.socket_path.strip().strip("/") or "socket.io",
            wait_timeout=max(1, section.socket_connect_timeout_ms / 1000),
        ),
        name="mochat socket",
    )
    try:
        await asyncio.wait([connecting], timeout=max(1.0, section.socket_connect_timeout_ms / 1000))
        error = connecting.exception() if connecting.done() else TimeoutError()
        if error is not None:  # of any type: the libraries below raise errors of their own
            raise SocketLostError(f"no connection ({type(error).__name__})")
        yield socket
    finally:
        await finish(_close(client, connecting))


async def _close(client: socketio.AsyncClient, connecting: asyncio.Task[None]) -> None:
    await asyncio.wait([connecting], timeout=_CLOSE_S)  # cancelled during a handshake, it would leave a connection open
    while not connecting.done():  # it may swallow a cancellation
        connecting.cancel()
        await asyncio.wait([connecting], timeout=0.1)
    await client.disconnect()
    client.eio.ws = None  # in a cycle with its session, a lost connection looks to aiohttp like one that was left open
