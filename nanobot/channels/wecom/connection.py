"""A connection to WeCom's smart robots: requests with their answers, and callbacks.

Source: developer.work.weixin.qq.com/document/path/101463. Every frame has a `req_id`; an answer has that of its
request. Replies have that of the callback they reply to, so there is one at a time.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import WebSocketException

from nanobot.channels.errors import ChannelSetupError, ErrorCodes, NotConnectedError, SendError, require_settings
from nanobot.channels.payload import Payload
from nanobot.channels.sockets import open_socket, read_messages
from nanobot.config.channels import WeComConfig

_ANSWER_S = 15.0
_WRONG_CREDENTIALS = (853000, 853001)
_CODES = ErrorCodes(
    "WeCom",
    {
        40003: "there is no such person or group",
        846607: "they have not written to the bot yet. It can answer once they do",
        846608: "the streamed answer was not complete after ten minutes",
        846609: "the streamed answer is gone",
    },
    limited=(45009, 45033),
    pause_s=2,  # WeCom takes 30 messages a minute and chat, and does not say when it takes the next one
)


class Connection:
    """An open connection of one robot."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._answers: dict[str, asyncio.Future[Payload]] = {}
        self._callbacks: asyncio.Queue[Payload | None] = asyncio.Queue()
        self._replying = asyncio.Lock()

    async def callbacks(self) -> AsyncIterator[Payload]:
        """Yield callbacks, in order. Raises NotConnectedError behind the last one, when the connection breaks."""
        while (frame := await self._callbacks.get()) is not None:
            yield frame
        raise NotConnectedError("the connection to WeCom is lost")

    async def request(self, command: str, body: Mapping[str, Any], req_id: str = "") -> Payload:
        """Send a request and return the body of the answer. `req_id`: of the callback that it replies to.

        Raises SendError; ChannelSetupError for wrong credentials; safe to cancel.
        """
        if not req_id:
            return await self._exchange(command, body, secrets.token_hex(12))
        async with self._replying:
            return await self._exchange(command, body, req_id)

    async def _exchange(self, command: str, body: Mapping[str, Any], req_id: str) -> Payload:
        waiting = self._answers[req_id] = asyncio.get_running_loop().create_future()
        try:
            await self._send(command, req_id, body)
            await asyncio.wait([waiting], timeout=_ANSWER_S)
        except WebSocketException:
            raise NotConnectedError("WeCom is not connected") from None
        finally:
            self._answers.pop(req_id, None)
        if not waiting.done() or waiting.cancelled():
            raise SendError("WeCom did not confirm it", may_have_arrived=True)
        answer: Payload = waiting.result()
        code, text = answer.get("errcode") or 0, answer.line("errmsg")[:300] or "no reason given"
        if code in _WRONG_CREDENTIALS:
            raise ChannelSetupError(
                f"WeCom does not take channels.wecom.botId and channels.wecom.secret ({text}, {code}). Copy both "
                "again: Workbench (工作台), Smart Robot (智能机器人), your robot, API mode with a long connection."
            )
        if code:
            raise _CODES.error(code, text)
        return answer.part("body")

    async def _send(self, command: str, req_id: str, body: Mapping[str, Any]) -> None:
        await self._socket.send(json.dumps({"cmd": command, "headers": {"req_id": req_id}, "body": body}))

    async def read(self, beat_s: float, touch: Callable[[], None]) -> None:
        """Read frames and send heartbeats until the connection breaks."""
        try:
            async for text in read_messages(
                self._socket, touch, beat_s, lambda: self._send("ping", secrets.token_hex(12), {})
            ):
                frame = Payload.parse(text)
                if "cmd" in frame:
                    self._callbacks.put_nowait(frame)
                elif (answer := self._answers.get(id_of(frame))) is not None and not answer.done():
                    answer.set_result(frame)
        except WebSocketException:
            pass
        finally:
            self._callbacks.put_nowait(None)
            for answer in self._answers.values():
                answer.cancel()


@asynccontextmanager
async def connect_robot(
    settings: WeComConfig, *, beat_s: float, touch: Callable[[], None]
) -> AsyncIterator[Connection]:
    """Connect and subscribe. WeCom closes an older connection of the same bot. `touch`: for every frame that arrives.

    Raises NotConnectedError; ChannelSetupError for missing or wrong credentials.
    """
    bot_id, secret = require_settings("wecom", botId=settings.bot_id, secret=settings.secret)
    async with open_socket("WeCom", settings.ws_url, ping_interval=None) as socket:
        connection = Connection(socket)
        reading = asyncio.create_task(connection.read(beat_s, touch), name="wecom frames")
        try:
            await connection.request("aibot_subscribe", {"bot_id": bot_id, "secret": secret})
            yield connection
        finally:
            reading.cancel()
            await asyncio.wait([reading])


def id_of(frame: Payload) -> str:
    """The `req_id` of a frame."""
    return frame.text("headers", "req_id")
