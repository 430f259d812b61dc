"""A connection to WeCom's smart robots: requests with their answers, and callbacks.

Source: developer.work.weixin.qq.com/document/path/101463. Every frame has a `req_id`; an answer has that of its
request. Replies have that of the callback they reply to, so there is one at a time.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import Any

from websockets.asyncio.client import ClientConnection

from nanobot.channels.errors import ChannelSetupError, ErrorCodes, require_settings
from nanobot.channels.payload import Payload
from nanobot.channels.sockets import RequestSocket, open_socket, read_messages
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


class Connection(RequestSocket):
    """An open connection of one robot."""

    def __init__(self, socket: ClientConnection) -> None:
        super().__init__("WeCom", socket)
        self._replying = asyncio.Lock()

    async def request(self, command: str, body: Mapping[str, Any], req_id: str = "") -> Payload:
        """Send a request and return the body of the answer. `req_id`: of the callback that it replies to.

        Raises SendError; ChannelSetupError for wrong credentials; safe to cancel.
        """
        async with self._replying if req_id else nullcontext():
            req_id = req_id or secrets.token_hex(12)
            answer = await self.ask(req_id, frame_of(command, body, req_id), _ANSWER_S)
        code, text = answer.get("errcode") or 0, answer.line("errmsg")[:300] or "no reason given"
        if code in _WRONG_CREDENTIALS:
            raise ChannelSetupError(
                f"WeCom does not take channels.wecom.botId and channels.wecom.secret ({text}, {code}). Copy both "
                "again: Workbench (工作台), Smart Robot (智能机器人), your robot, API mode with a long connection."
            )
        if code:
            raise _CODES.error(code, text)
        return answer.part("body")


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

        async def beat() -> None:
            await connection.tell(frame_of("ping", {}, secrets.token_hex(12)))

        frames = read_messages(socket, touch, beat_s, beat)
        reading = asyncio.create_task(
            connection.read(frames, lambda frame: None if "cmd" in frame else id_of(frame)), name="wecom frames"
        )
        try:
            await connection.request("aibot_subscribe", {"bot_id": bot_id, "secret": secret})
            yield connection
        finally:
            reading.cancel()
            await asyncio.wait([reading])


def frame_of(command: str, body: Mapping[str, Any], req_id: str) -> dict[str, Any]:
    return {"cmd": command, "headers": {"req_id": req_id}, "body": body}


def id_of(frame: Payload) -> str:
    """The `req_id` of a frame."""
    return frame.text("headers", "req_id")
