"""WeChat's bot API and its CDN on loopback: login with a QR code, long poll, messages with their tokens, files.

Imitated from Tencent's own plugin (github.com/Tencent/openclaw-weixin, docs/protocol.md and src). Ten messages for each
of a person's, for a day, and -2 for more: its issues 81 and 204. Its codes were never compared with the live service.
"""

import asyncio
import base64
import hashlib
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from nanobot.bus.queue import MessageBus
from nanobot.channels.weixin import WeixinChannel
from nanobot.config.channels import WeixinConfig
from tests.fakes.served import Json, RefusedError, Said, ServedPlatform

TOKEN = "bot-token-0123456789@im.bot:060000"
ANNA, ZOE = "o9cq8anna@im.wechat", "o9cq8zoe@im.wechat"
RESTRICTED, BAD_ARGUMENT, LOGGED_OUT, UNKNOWN = -2, -3, -14, -99
MOST_MESSAGES, USABLE_S = 10, 86400.0
LONGEST = 4000
CODES = {403: BAD_ARGUMENT, 500: UNKNOWN}


@dataclass
class Post:
    """A message of the bot."""

    id: str
    chat: str
    item: Json

    @property
    def text(self) -> str:
        return str(self.item.get("text_item", {}).get("text", ""))


@dataclass
class Context:
    """The token of one message of a person."""

    person: str
    given: float
    sent: int = 0


class WeixinPlatform(ServedPlatform):
    """One bot, the people who write to it, and what it did."""

    name = "weixin"
    stall_s = 0.8
    person = private = ANNA
    stranger = stranger_chat = ZOE
    limit = 1800
    files = queues_messages = types = loses_answers = True
    rate_limits = speaks_first = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.token = TOKEN
        self.now: Callable[[], float] = time.time
        self.hold_s = 0.2
        """How long a poll waits."""
        self.messages: list[Json] = []
        """All that people sent; a cursor is how many of them were polled."""
        self.polled = 0
        """The newest cursor that came back: everything before was acknowledged."""
        self.notices: list[str] = []
        self.requests: list[tuple[str, Json]] = []
        self.headers: list[Json] = []
        self.silence = 0
        """Requests that were made before it grew are never answered."""
        self.contexts: dict[str, Context] = {}
        self.is_stale: set[str] = set()
        """Tokens that are refused until `getconfig` gives another one."""
        self.gives_tokens = False
        """Whether `getconfig` gives a fresh token."""
        self.statuses: deque[Json] = deque()
        """What the next polls for the state of a login answer; `wait` behind the last one."""
        self.numbers: list[str] = []
        """What was typed at a login."""
        self._uploads: dict[str, Json] = {}
        self._arrived = asyncio.Event()

    def channel(self, bus: MessageBus, **settings: Any) -> WeixinChannel:
        usual = {
            "enabled": True, "token": TOKEN, "allow_from": [self.person], "base_url": self.url,
            "cdn_base_url": f"{self.url}/c2c", "reply_progress_messages": True,
        }  # fmt: skip
        channel = WeixinChannel(WeixinConfig.model_validate(usual | settings), bus)
        vars(channel)["pace_s"] = 0.0
        return channel

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/{region:(?:hk/)?}ilink/bot/{method:.*}", self._serve),
            web.get("/{region:(?:hk/)?}ilink/bot/get_qrcode_status", self._login_status),
            web.post("/c2c/upload", self._take_file),
            web.get("/c2c/download", self._give_file),
        ]

    # what people do

    async def send_said(self, said: Said) -> str:
        items = [text_item(said.text)]
        if said.file is not None:
            items.append({"type": 2, "image_item": {"media": self.put_file(said.file.read_bytes())}})
        return await self.writes(*items, sender=said.sender)

    async def writes(self, *items: Json, sender: str = ANNA, **more: Any) -> str:
        """Send a message to the bot. Return its id."""
        number, token = next(self._ids), f"context-{next(self._ids)}"
        self.contexts[token] = Context(sender, self.now())
        message_id = 7448678501208393000 + number  # larger than what JavaScript reads
        message = {
            "seq": number, "message_id": message_id, "from_user_id": sender, "to_user_id": "b1@im.bot",
            "create_time_ms": int(self.now() * 1000), "message_type": 1, "message_state": 2, "item_list": [*items],
            "context_token": token,
        }  # fmt: skip
        self._deliver(message | more)
        return str(message_id)

    async def again(self, message_id: str) -> None:
        """Send a message once more."""
        self._deliver(next(one for one in self.messages if str(one["message_id"]) == message_id))

    def _deliver(self, message: Json) -> None:
        self.messages.append(message)
        self._arrived.set()
        self._arrived.clear()

    def put_file(self, data: bytes, *, hex_key: bool = True) -> Json:
        """A file that a person sends: what its item tells of it."""
        key, parameter = os.urandom(16), f"p+/={next(self._ids)}"
        self.stored[parameter] = cipher(key).encryptor().update(pad(data))
        told = base64.b64encode(key.hex().encode() if hex_key else key).decode()
        return {"encrypt_query_param": parameter, "aes_key": told, "encrypt_type": 1}

    def sent_file(self, media: Json) -> bytes:
        """What the bot uploaded, as a person's app reads it."""
        key = bytes.fromhex(base64.b64decode(media["aes_key"]).decode())
        data = cipher(key).decryptor().update(self.stored[media["encrypt_query_param"]])
        return data[: -data[-1]]

    # requests

    def refusal(self, status: int, retry_after_s: float | None) -> RefusedError:
        return RefusedError(CODES[status])

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        method, body = request.match_info["method"], await request.json()
        self.requests.append((method, body))
        self.headers.append(dict(request.headers))
        silence = self.silence
        try:
            answer = await self._answer(request, method, body)
        except RefusedError as error:
            answer = {"ret": error.code, "errmsg": error.message}
        if silence != self.silence:
            await asyncio.sleep(3600)
        if method == "sendmessage" and self.lost and "ret" not in answer:
            self.lost -= 1
            assert request.transport is not None
            request.transport.abort()
        return web.json_response(answer)

    async def _answer(self, request: web.Request, method: str, body: Json) -> Json:
        check_headers(request.headers, body)
        if method == "get_bot_qrcode":
            assert request.query["bot_type"] == "3"
            number = next(self._ids)
            return {"qrcode": f"qr-{number}", "qrcode_img_content": f"https://liteapp.weixin.qq.com/q/{number}"}
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            raise RefusedError(LOGGED_OUT, "session timeout")
        match method:
            case "msg/notifystart" | "msg/notifystop":
                self.notices.append(method.removeprefix("msg/"))
                return {"ret": 0}
            case "getupdates":
                return await self._poll(body["get_updates_buf"])
            case "sendmessage":
                return self._take(body["msg"])
            case "getconfig":
                return self._config(body)
            case "sendtyping":
                if body["typing_ticket"] != f"ticket-{body['ilink_user_id']}" or body["status"] not in (1, 2):
                    raise RefusedError(BAD_ARGUMENT)
                self.typed_in.append(body["ilink_user_id"])
                return {"ret": 0}
            case "getuploadurl":
                assert body["media_type"] in (1, 2, 3) and body["no_need_thumb"] is True
                assert len(bytes.fromhex(body["aeskey"])) == 16
                parameter = f"up+/={next(self._ids)}"
                self._uploads[parameter] = body
                return {"upload_param": parameter}
        raise RefusedError(BAD_ARGUMENT, "no such method")

    async def _poll(self, cursor: str) -> Json:
        start = int(base64.b64decode(cursor) or 0)
        self.polled = max(self.polled, start)
        if start == len(self.messages):
            try:
                await asyncio.wait_for(self._arrived.wait(), self.hold_s)
            except TimeoutError:
                return {"ret": 0, "msgs": [], "longpolling_timeout_ms": int(self.hold_s * 1000)}
        end = base64.b64encode(str(len(self.messages)).encode()).decode()
        return {"ret": 0, "msgs": self.messages[start:], "get_updates_buf": end}

    def _take(self, message: Json) -> Json:
        assert (message["message_type"], message["message_state"], message["from_user_id"]) == (2, 2, "")
        if self.refusals:
            raise self.refusals.popleft()
        (item,) = message["item_list"]
        context = self.contexts.get(message["context_token"])
        is_usable = context is not None and context.person == message["to_user_id"]
        if context is None or not is_usable or message["context_token"] in self.is_stale:
            raise RefusedError(RESTRICTED, "")
        if context.sent == MOST_MESSAGES or self.now() - context.given > USABLE_S:
            raise RefusedError(RESTRICTED, "")
        check_item(item, self.stored)
        context.sent += 1
        number = 8448678501208393000 + next(self._ids)
        self.posts.append(Post(str(number), message["to_user_id"], item))
        return {"message_id": number}

    def _config(self, body: Json) -> Json:
        answer = {"ret": 0, "typing_ticket": f"ticket-{body['ilink_user_id']}"}
        if self.gives_tokens:
            fresh = f"fresh-{next(self._ids)}"
            self.contexts[fresh] = self.contexts[body["context_token"]]
            answer["context_token"] = fresh
        return answer

    async def _login_status(self, request: web.Request) -> web.Response:
        assert "Authorization" not in request.headers and request.headers["iLink-App-Id"] == "bot"
        self.requests.append(("get_qrcode_status", dict(request.query)))
        if number := request.query.get("verify_code"):
            self.numbers.append(number)
        return web.json_response(self.statuses.popleft() if self.statuses else {"status": "wait"})

    # files

    async def _take_file(self, request: web.Request) -> web.Response:
        told, data = self._uploads.pop(request.query["encrypted_query_param"]), await request.read()
        plain = cipher(bytes.fromhex(told["aeskey"])).decryptor().update(data)
        plain = plain[: -plain[-1]]
        sizes = (told["filesize"], told["rawsize"])
        is_right = told["filekey"] == request.query["filekey"] and sizes == (len(data), len(plain))
        if not is_right or hashlib.md5(plain, usedforsecurity=False).hexdigest() != told["rawfilemd5"]:
            return web.Response(status=400, headers={"x-error-message": "not as announced"})
        parameter = f"down+/={next(self._ids)}"
        self.stored[parameter] = data
        return web.Response(headers={"x-encrypted-param": parameter})

    async def _give_file(self, request: web.Request) -> web.Response:
        return web.Response(body=self.stored[request.query["encrypted_query_param"]])

    # what people see

    def names_of(self, post: Post) -> list[str]:
        """The names of files; a picture has none, so its bytes are looked for among those that were sent."""
        if post.item["type"] == 1:
            return []
        if "file_item" in post.item:
            return [post.item["file_item"]["file_name"]]
        (kind,) = post.item.keys() - {"type"}
        data = self.sent_file(post.item[kind]["media"])
        return [path.name for path in self.folder.parent.iterdir() if path.is_file() and path.read_bytes() == data]

    def acknowledged(self, message_id: str) -> bool:
        """Whether a poll came with a cursor behind it: it does not come again."""
        return message_id in [str(one["message_id"]) for one in self.messages[: self.polled]]

    async def half_open(self) -> None:
        self.silence += 1

    async def revoke(self) -> None:
        self.token = "another"
        await self.drop()


def text_item(words: str) -> Json:
    """An item that is a text."""
    return {"type": 1, "text_item": {"text": words}}


def cipher(key: bytes) -> Cipher[modes.ECB]:
    return Cipher(algorithms.AES128(key), modes.ECB())


def pad(data: bytes) -> bytes:
    return data + bytes([16 - len(data) % 16]) * (16 - len(data) % 16)


def check_headers(headers: Any, body: Json) -> None:
    """Refuse a request that is not as Tencent's plugin sends it."""
    about = body["base_info"]
    major, minor, patch = map(int, about["channel_version"].split("."))
    uin = int(base64.b64decode(headers["X-WECHAT-UIN"], validate=True))
    assert headers["AuthorizationType"] == "ilink_bot_token" and headers["iLink-App-Id"] == "bot"
    assert headers["iLink-App-ClientVersion"] == str(major << 16 | minor << 8 | patch)
    assert 0 <= uin < 1 << 32 and about["bot_agent"].isascii() and len(about["bot_agent"]) <= 256


def check_item(item: Json, files: dict[str, bytes]) -> None:
    """Refuse an item that an app could not show."""
    match item["type"]:
        case 1:
            is_right = 0 < len(item["text_item"]["text"]) <= LONGEST
        case 2:
            is_right = item["image_item"]["mid_size"] == len(files[item["image_item"]["media"]["encrypt_query_param"]])
        case 4:
            is_right = bool(item["file_item"]["file_name"]) and item["file_item"]["len"].isdecimal()
        case 5:
            is_right = item["video_item"]["video_size"] > 0
        case _:
            is_right = False
    if not is_right:
        raise RefusedError(BAD_ARGUMENT)
