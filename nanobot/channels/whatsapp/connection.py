"""A connection to the WhatsApp bridge: JSON frames over a WebSocket.

To the bridge: `auth {token}` first, then `send {id, to, text, quoted?}`, `send_media {id, to, filePath, mimetype,
fileName, ptt}`, `edit {id, to, text}`, `react {id, to, sender, emoji}`, `typing {to, on}`, `read {ids, to, sender}`,
`ack {id}`, `pair {phone}`. From it: `status {status, version, me, lid}`, `message`, `sent {id, to}`, `failed {id,
error, code}`, `qr {qr}`, `code {code}`, `logged_out {code}`. Bridges of earlier releases know `auth`, `send`,
`send_media`, `message`, `status`, `qr`, and answer every request with a `sent` that names no id.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection

from nanobot.channels.errors import ChannelSetupError, ErrorCodes, NotConnectedError, SendError
from nanobot.channels.incoming import Payload
from nanobot.channels.sockets import RequestSocket, open_socket, read_messages

_CONFIRM_S = 30.0
_SILENT_S = 5.0
"""A bridge that says nothing for so long is of an earlier release, and connected."""
_LARGEST_FRAME = 16 * 1024 * 1024
_BAD_TOKEN = (1008, 4001, 4003)
"""Close codes of a bridge that does not take the token."""
_NOT_CONNECTED = 503
_CODES = ErrorCodes(
    "WhatsApp", dict.fromkeys((400, 401, 403, 404, 406, 463, 479), "{text}"), limited=(429,), pause_s=30
)


class Connection(RequestSocket):
    platform = "the WhatsApp bridge"

    def __init__(self, socket: ClientConnection | None = None) -> None:
        super().__init__(socket)
        self._chats: dict[str, str] = {}
        """The chat of each request without an answer, by id."""

    async def events(self) -> AsyncIterator[Payload]:
        """Yield what happens, in order. Raises NotConnectedError at the end, ChannelSetupError for a bad token."""
        try:
            async with asyncio.timeout(_SILENT_S):
                frame = await self.next_frame()
        except TimeoutError:
            yield Payload(type="status", status="connected")
            frame = await self.next_frame()
        while frame is not None:
            yield frame
            frame = await self.next_frame()
        if self.socket is not None and self.socket.close_code in _BAD_TOKEN:
            raise ChannelSetupError(
                "The WhatsApp bridge does not take channels.whatsapp.bridgeToken. Set it to the token the bridge was "
                "started with (BRIDGE_TOKEN)."
            )
        raise NotConnectedError("the connection to the WhatsApp bridge is lost")

    async def request(self, frame: Mapping[str, Any]) -> None:
        """Send a request, which has an `id` and says `to` which chat, and wait until it is done.

        Raises SendError; safe to cancel.
        """
        self._chats[frame["id"]] = frame["to"]
        try:
            # of a file the manager's timeout, which goes by its size
            _check(await self.ask(frame["id"], frame, None if "filePath" in frame else _CONFIRM_S))
        finally:
            del self._chats[frame["id"]]

    def answered_by(self, frame: Payload) -> str | None:
        if frame.text("type") not in ("sent", "failed"):
            return None if frame else ""
        if "id" in frame:
            return str(frame.get("id"))
        asked = (one for one, chat in self._chats.items() if chat == frame.get("to"))  # of an earlier release
        return next((one for one in asked if not self.requests[one].done()), "")


@asynccontextmanager
async def connect_bridge(
    url: str, token: str, *, beat_s: float, touch: Callable[[], None]
) -> AsyncIterator[Connection]:
    """Connect and authenticate. Raises NotConnectedError."""
    options = {"ping_interval": None, "max_size": _LARGEST_FRAME}
    async with open_socket(f"the WhatsApp bridge at {url}", url, **options) as socket:
        connection = Connection(socket)
        async with connection.reading(read_messages(socket, touch, beat_s)):
            await connection.tell({"type": "auth", "token": token})
            yield connection


def _check(answer: Payload) -> None:
    if answer.text("type") == "sent":
        return
    code, said = answer.get("code"), answer.line("error")[:300] or "no reason given"
    if code == _NOT_CONNECTED:
        raise NotConnectedError("WhatsApp is not connected")
    if not isinstance(code, int):
        raise SendError(f"WhatsApp: {said}", may_have_arrived=True)
    raise _CODES.error(code, said)
