"""A connection to the WhatsApp bridge: JSON frames over a WebSocket.

To the bridge: `auth {token}` first, then `send {id, to, text, quoted?}`, `send_media {id, to, filePath, mimetype,
fileName, ptt}`, `edit {id, to, text}`, `react {id, to, sender, emoji}`, `typing {to, on}`, `read {ids, to, sender}`,
`ack {id}`, `pair {phone}`. From it: `status {status, version, me, lid}`, `message`, `sent {id, to}`, `failed {id,
error, code}`, `qr {qr}`, `code {code}`, `logged_out {code}`. Bridges of earlier releases know `auth`, `send`,
`send_media`, `message`, `status`, `qr`, and answer every request with a `sent` that names no id.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, WebSocketException

from nanobot.channels.errors import (
    ChannelSetupError,
    NotConnectedError,
    RateLimitedError,
    SendError,
    UndeliverableError,
)
from nanobot.channels.payload import Payload
from nanobot.channels.sockets import open_socket

_CONFIRM_S, _CONFIRM_FILE_S = 30.0, 150.0
_SILENT_S = 5.0
"""A bridge that says nothing for so long is of an earlier release, and connected."""
_THROTTLED_S = 30.0
_LARGEST_FRAME = 16 * 1024 * 1024
_BAD_TOKEN = (1008, 4001, 4003)
"""Close codes of a bridge that does not take the token."""
_RATE_LIMITED, _NOT_CONNECTED = 429, 503
_FINAL = (400, 401, 403, 404, 406, 463, 479)


class Connection:
    """An open connection."""

    def __init__(self, socket: ClientConnection, touch: Callable[[], None]) -> None:
        """`touch` is called for every sign of life."""
        self._socket = socket
        self._touch = touch
        self._events: asyncio.Queue[Payload | None] = asyncio.Queue()
        self._requests: dict[str, tuple[str, asyncio.Future[Payload]]] = {}
        """Chat and answer of each request without an answer, by id."""

    async def events(self) -> AsyncIterator[Payload]:
        """Yield what happens, in order. Raises NotConnectedError at the end, ChannelSetupError for a bad token."""
        try:
            async with asyncio.timeout(_SILENT_S):
                frame = await self._events.get()
        except TimeoutError:
            yield Payload(type="status", status="connected")
            frame = await self._events.get()
        while frame is not None:
            yield frame
            frame = await self._events.get()
        if self._socket.close_code in _BAD_TOKEN:
            raise ChannelSetupError(
                "The WhatsApp bridge does not take channels.whatsapp.bridgeToken. Set it to the token the bridge was "
                "started with (BRIDGE_TOKEN)."
            )
        raise NotConnectedError("the connection to the WhatsApp bridge is lost")

    async def request(self, frame: Mapping[str, Any]) -> None:
        """Send a request, which has an `id` and says `to` which chat, and wait until it is done.

        Raises SendError; safe to cancel.
        """
        answer: asyncio.Future[Payload] = asyncio.get_running_loop().create_future()
        self._requests[frame["id"]] = (frame["to"], answer)
        try:
            await self.tell(frame)
            await asyncio.wait([answer], timeout=_CONFIRM_FILE_S if "filePath" in frame else _CONFIRM_S)
        finally:
            self._requests.pop(frame["id"], None)
        if not answer.done() or answer.cancelled():
            raise SendError("the WhatsApp bridge did not confirm it", may_have_arrived=True)
        _check(answer.result())

    async def tell(self, frame: Mapping[str, Any]) -> None:
        """Send a frame that has no answer. Raises NotConnectedError."""
        try:
            await self._socket.send(json.dumps(frame))
        except WebSocketException:
            raise NotConnectedError("the WhatsApp bridge is not connected") from None

    async def read(self) -> None:
        """Read frames until the connection breaks."""
        try:
            async for text in self._socket:
                self._touch()
                frame = Payload.parse(text)
                if frame.text("type") in ("sent", "failed"):
                    _, answer = self._requests.get(str(frame.get("id")), ("", None))
                    if "id" not in frame:  # of an earlier release
                        answers = (waiting for chat, waiting in self._requests.values() if chat == frame.get("to"))
                        answer = next((waiting for waiting in answers if not waiting.done()), None)
                    if answer is not None and not answer.done():
                        answer.set_result(frame)
                elif frame:
                    self._events.put_nowait(frame)
        except WebSocketException:
            pass
        finally:
            self._events.put_nowait(None)
            for _, answer in self._requests.values():
                answer.cancel()

    async def beat(self, beat_s: float) -> None:
        """Ping until the connection breaks."""
        try:
            while True:
                await (await self._socket.ping())
                self._touch()
                await asyncio.sleep(beat_s)
        except ConnectionClosed:
            pass


@asynccontextmanager
async def connect_bridge(
    url: str, token: str, *, beat_s: float, touch: Callable[[], None]
) -> AsyncIterator[Connection]:
    """Connect and authenticate. Raises NotConnectedError."""
    options = {"ping_interval": None, "max_size": _LARGEST_FRAME}
    async with open_socket(f"the WhatsApp bridge at {url}", url, **options) as socket:
        connection = Connection(socket, touch)
        work = [asyncio.create_task(connection.read()), asyncio.create_task(connection.beat(beat_s))]
        try:
            await connection.tell({"type": "auth", "token": token})
            yield connection
        finally:
            for task in work:
                task.cancel()
            await asyncio.wait(work)


def _check(answer: Payload) -> None:
    """Raise what a failure means."""
    if answer.text("type") == "sent":
        return
    code, said = answer.get("code"), answer.line("error")[:300] or "no reason given"
    if code == _RATE_LIMITED:
        raise RateLimitedError("WhatsApp: too many messages", _THROTTLED_S)
    if code == _NOT_CONNECTED:
        raise NotConnectedError("WhatsApp is not connected")
    if code in _FINAL:
        raise UndeliverableError(f"WhatsApp: {said} ({code})")
    raise SendError(f"WhatsApp: {said}", may_have_arrived=code is None)
