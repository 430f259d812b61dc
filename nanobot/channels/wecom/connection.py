"""A connection to WeCom's smart robots: requests with their answers, and callbacks.

Source: developer.work.weixin.qq.com/document/path/101463. Every frame has a `req_id`; an answer has that of its
request. Replies have that of the callback they reply to, so there is one at a time.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from nanobot.channels.errors import (
    ChannelSetupError,
    NotConnectedError,
    RateLimitedError,
    SendError,
    UndeliverableError,
)
from nanobot.net.http import proxy_for, ssl_context

_wire = logging.getLogger(f"{__name__}.wire")
_wire.setLevel(logging.CRITICAL)  # it would log the secret, and whole messages

Frame = Mapping[str, Any]

_CONNECT_S, _CLOSE_S = 15.0, 1.0
_ANSWER_S = 15.0
_THROTTLED_S = 2.0
"""WeCom takes 30 messages a minute and chat, and does not say when it takes the next one."""
_LIMITED = (45009, 45033)
_WRONG_CREDENTIALS = (853000, 853001)
_FINAL = {
    40003: "there is no such person or group",
    846607: "they have not written to the bot yet. It can answer once they do",
    846608: "the streamed answer was not complete after ten minutes",
    846609: "the streamed answer is gone",
}
"""Why something is refused for good, by error code."""


class Connection:
    """An open connection of one bot."""

    def __init__(self, socket: ClientConnection, beat_s: float, touch: Callable[[], None]) -> None:
        """`touch` is called for every frame that arrives."""
        self._socket = socket
        self._beat_s = beat_s
        self._touch = touch
        self._answers: dict[str, asyncio.Future[Frame]] = {}
        self._callbacks: asyncio.Queue[Frame | None] = asyncio.Queue()
        self._replying = asyncio.Lock()

    async def callbacks(self) -> AsyncIterator[Frame]:
        """Yield callbacks, in order. Raises NotConnectedError behind the last one, when the connection breaks."""
        while (frame := await self._callbacks.get()) is not None:
            yield frame
        raise NotConnectedError("the connection to WeCom is lost")

    async def request(self, command: str, body: Frame, req_id: str = "") -> Frame:
        """Send a request and return the body of the answer. `req_id`: of the callback that it replies to.

        Raises SendError; safe to cancel.
        """
        if not req_id:
            return await self._exchange(command, body, _new_id())
        async with self._replying:
            return await self._exchange(command, body, req_id)

    async def _exchange(self, command: str, body: Frame, req_id: str) -> Frame:
        answer = self._answers[req_id] = asyncio.get_running_loop().create_future()
        try:
            await self._send(command, req_id, body)
            await asyncio.wait([answer], timeout=_ANSWER_S)
        except WebSocketException:
            raise NotConnectedError("WeCom is not connected") from None
        finally:
            self._answers.pop(req_id, None)
        if not answer.done() or answer.cancelled():
            raise SendError("WeCom did not confirm it", may_have_arrived=True)
        return _check(answer.result())

    async def _send(self, command: str, req_id: str, body: Frame) -> None:
        await self._socket.send(json.dumps({"cmd": command, "headers": {"req_id": req_id}, "body": body}))

    async def read(self) -> None:
        """Read frames and send heartbeats until the connection breaks."""
        clock = asyncio.get_running_loop()
        beat_at = clock.time() + self._beat_s
        try:
            while True:
                try:
                    async with asyncio.timeout_at(beat_at):
                        frame = _read_frame(await self._socket.recv())
                except TimeoutError:
                    await self._send("ping", _new_id(), {})
                    beat_at = clock.time() + self._beat_s
                    continue
                self._touch()
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
    url: str, bot_id: str, secret: str, *, beat_s: float, touch: Callable[[], None]
) -> AsyncIterator[Connection]:
    """Connect and subscribe. WeCom closes an older connection of the same bot.

    Raises NotConnectedError; ChannelSetupError for wrong credentials.
    """
    http_url = url.replace("ws", "http", 1)
    try:
        socket = await connect(
            url,
            ssl=await ssl_context(http_url) if url.startswith("wss:") else None,
            proxy=proxy_for(http_url),
            open_timeout=_CONNECT_S,
            close_timeout=_CLOSE_S,
            ping_interval=None,
            logger=_wire,
        )
    except (OSError, TimeoutError, WebSocketException) as error:
        raise NotConnectedError(f"WeCom cannot be reached ({type(error).__name__})") from None
    connection = Connection(socket, beat_s, touch)
    reading = asyncio.create_task(connection.read(), name="wecom frames")
    try:
        await connection.request("aibot_subscribe", {"bot_id": bot_id, "secret": secret})
        yield connection
    finally:
        reading.cancel()
        await asyncio.wait([reading])
        await socket.close()


def id_of(frame: Frame) -> str:
    """The `req_id` of a frame."""
    headers = frame.get("headers")
    return str(headers.get("req_id") or "") if isinstance(headers, Mapping) else ""


def _new_id() -> str:
    return secrets.token_hex(12)


def _read_frame(text: str | bytes) -> Frame:
    try:
        frame = json.loads(text)
    except ValueError:
        return {}
    return frame if isinstance(frame, Mapping) else {}


def _check(answer: Frame) -> Frame:
    """Return the body of an answer. Raises what its error code means."""
    code, said = answer.get("errcode") or 0, " ".join(str(answer.get("errmsg") or "no reason given").split())[:300]
    if code in _WRONG_CREDENTIALS:
        raise ChannelSetupError(
            f"WeCom does not take channels.wecom.botId and channels.wecom.secret ({said}, {code}). Copy both again: "
            "Workbench (工作台), Smart Robot (智能机器人), your robot, API mode with a long connection."
        )
    if code in _LIMITED:
        raise RateLimitedError(f"WeCom: too many messages ({code})", _THROTTLED_S)
    if code in _FINAL:
        raise UndeliverableError(f"WeCom: {_FINAL[code]} ({code})")
    if code:
        raise SendError(f"WeCom answered: {said} ({code})")
    body = answer.get("body")
    return body if isinstance(body, Mapping) else {}
