"""WeCom's smart robots on loopback: the long connection, streams, cards, uploads and encrypted files.

Imitated from the pages below developer.work.weixin.qq.com/document/path: 101463 (long connection, uploads, limits),
100719 (messages), 101027 (events), 101031 and 101032 (streams and cards). Its error codes were never compared with the
live service.

WeCom repeats nothing, so a person here waits until the robot is connected.
"""

import base64
import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from nanobot.bus.queue import MessageBus
from nanobot.channels.wecom import WeComChannel
from nanobot.config.channels import WeComConfig
from nanobot.testing.platform import Shown
from tests.fakes.served import LINE_S, Json, Line, RefusedError, Said, ServedPlatform
from tests.support.eventually import eventually

BOT_ID, SECRET = "aibEXAMPLE", "s3cr3t-of-the-robot"
ANNA, ZOE = "AnnaLi", "ZoeWang"
HALL = "wrGROUPAAAA"
LONGEST = 20_480
PART = 512 * 1024
BUSY, THROTTLED, NEVER_WROTE, STREAM_OVER, BAD_REQUEST, BAD_CREDENTIALS = -1, 45009, 846607, 846608, 40058, 853000
CODES = {500: BUSY, 429: THROTTLED, 403: NEVER_WROTE}


@dataclass
class Post:
    """A message of the robot: a stream has the text it shows now."""

    id: str
    chat: str
    kind: str
    content: Json
    edits: int = 0
    is_complete: bool = True


@dataclass
class Upload:
    """An upload that has begun."""

    body: Json
    parts: dict[int, bytes] = field(default_factory=dict)


class WeComPlatform(ServedPlatform):
    """The people, what they wrote, and what the robot did."""

    name = "wecom"
    scheme = "ws"
    secret = SECRET
    beat_s = 0.2
    stall_s = 0.8
    person = private = ANNA
    stranger = stranger_chat = ZOE
    group = HALL
    hears_groups = False
    limit = 20_000
    edits = files = buttons = loses_answers = True
    resumes_edits = acknowledges = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.wrote = {ANNA, ZOE, HALL}
        """Chats in which somebody has written to the robot."""
        self.welcomes: list[str] = []
        self.heartbeats = 0
        self._media: dict[str, bytes] = {}
        self._callbacks: dict[str, Json] = {}
        """What may be replied to, by `req_id`."""
        self._streams: dict[str, Post] = {}
        self._uploads: dict[str, Upload] = {}

    def channel(self, bus: MessageBus, **settings: Any) -> WeComChannel:
        usual = {"enabled": True, "bot_id": BOT_ID, "secret": SECRET, "allow_from": [self.person], "ws_url": self.url}
        channel = WeComChannel(WeComConfig.model_validate(usual | settings), bus)
        channel.beat_s = self.beat_s
        return channel

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/", self.serve_line), web.get("/media/{file}", self._give_file)]

    # what people do

    async def send_said(self, said: Said) -> str:
        more: dict[str, Any] = {}
        if said.file is not None:
            picture = self.put_file("image", said.file.name, said.file.read_bytes())
            items = [{"msgtype": "text", "text": {"content": said.text}}, picture]
            more = {"msgtype": "mixed", "mixed": {"msg_item": items}}
        return await self.writes(said.text, sender=said.sender, group=said.group, **more)

    async def writes(self, text: str, *, sender: str = ANNA, group: str | None = None, **more: Any) -> str:
        """Send a message to the robot; in a group, mention it. Return its id."""
        text = f"@Nano {text}" if group else text
        message = {"msgtype": "text", "text": {"content": text}, **more}
        return await self.push("aibot_msg_callback", message, sender=sender, group=group)

    async def push(self, command: str, body: Json, *, sender: str = ANNA, group: str | None = None) -> str:
        """Send a callback on the robot's connection, and nowhere else. Return its `msgid`."""
        line = await self.some_line()
        message_id = f"CAIQ{next(self._ids)}"
        usual: Json = {
            "msgid": message_id, "aibotid": BOT_ID, "chattype": "group" if group else "single",
            "from": {"userid": sender}, "create_time": 1_700_000_000,
        }  # fmt: skip
        if group:
            usual["chatid"] = group
        await self.send(line, command, usual | body)
        return message_id

    async def again(self, message_id: str) -> None:
        """Send a message's callback once more."""
        line = await self.some_line()
        body = next(one for one in self._callbacks.values() if one["msgid"] == message_id)
        await self.send(line, "aibot_msg_callback", body)

    async def some_line(self) -> Line:
        def find() -> Line | None:
            return next((one for one in self.lines if one.session and not one.transport.is_closing()), None)

        return await eventually(find, LINE_S)

    async def send(self, line: Line, command: str, body: Json) -> None:
        """Send a callback on this connection."""
        req_id = f"callback-{next(self._ids)}"
        self._callbacks[req_id] = body
        with suppress(OSError):
            await line.socket.send_json({"cmd": command, "headers": {"req_id": req_id}, "body": body})

    async def presses(self, post: Post, label: str, *, sender: str = ANNA) -> None:
        """Press a button of a card."""
        card = post.content
        key = next(one["key"] for one in card["button_list"] if one["text"] == label)
        event = {"card_type": card["card_type"], "event_key": key, "task_id": card["task_id"]}
        told = {"msgtype": "event", "event": {"eventtype": "template_card_event", "template_card_event": event}}
        await self.push("aibot_event_callback", told, sender=sender)

    def put_file(self, kind: str, name: str, data: bytes) -> Json:
        """A file that a person sends: the message that tells of it."""
        key = os.urandom(32)
        padding = 32 - len(data) % 32
        encryptor = Cipher(algorithms.AES256(key), modes.CBC(key[:16])).encryptor()
        self._media[name] = encryptor.update(data + bytes([padding]) * padding) + encryptor.finalize()
        where = {"url": f"{self.url.replace('ws', 'http', 1)}/media/{name}", "aeskey": base64.b64encode(key).decode()}
        return {"msgtype": kind, kind: where | ({"filename": name} if kind == "file" else {})}

    # the connection

    def refusal(self, status: int, retry_after_s: float | None) -> RefusedError:
        return RefusedError(CODES[status])

    async def receive(self, line: Line, frame: Any) -> None:
        frame = json.loads(frame)
        command, req_id, body = frame["cmd"], frame["headers"]["req_id"], frame.get("body") or {}
        self.calls.append(frame)
        answer: Json = {"headers": {"req_id": req_id}, "errcode": 0, "errmsg": "ok"}
        try:
            if command == "aibot_subscribe":
                await self._subscribe(line, body)
            elif not line.session:
                raise RefusedError(BAD_REQUEST, "not subscribed")
            elif command == "ping":
                self.heartbeats += 1
            else:
                is_send = command in ("aibot_send_msg", "aibot_respond_msg")
                if self.refusals and is_send:
                    raise self.refusals.popleft()
                answer["body"] = self._serve(command, req_id, body)
                if self.lost and is_send:
                    self.lost -= 1
                    line.transport.abort()
                    return
        except RefusedError as error:
            answer |= {"errcode": error.code, "errmsg": error.message}
        await line.socket.send_json(answer)

    async def _subscribe(self, line: Line, body: Json) -> None:
        if (body.get("bot_id"), body.get("secret")) != (BOT_ID, self.secret):
            raise RefusedError(BAD_CREDENTIALS, "invalid bot_id or secret")
        for other in self.lines:
            if other.session:
                other.session = ""
                body = {"msgtype": "event", "event": {"eventtype": "disconnected_event"}}
                await self.send(other, "aibot_event_callback", body)
                await other.socket.close()
        line.session = "subscribed"

    def _serve(self, command: str, req_id: str, body: Json) -> Json:
        match command:
            case "aibot_send_msg":
                return self._take(body["chatid"], body)
            case "aibot_respond_msg":
                return self._stream(self._replied(req_id), body["stream"])
            case "aibot_respond_welcome_msg":
                assert self._replied(req_id)["event"]["eventtype"] == "enter_chat"
                self.welcomes.append(body["text"]["content"])
            case "aibot_respond_update_msg":
                self._update(self._replied(req_id)["event"]["template_card_event"], body["template_card"])
            case "aibot_upload_media_init":
                assert body["type"] in ("file", "image", "voice", "video")
                upload_id = f"upload-{next(self._ids)}"
                self._uploads[upload_id] = Upload(body)
                return {"upload_id": upload_id}
            case "aibot_upload_media_chunk":
                data = base64.b64decode(body["base64_data"], validate=True)
                assert 0 < len(data) <= PART
                self._uploads[body["upload_id"]].parts[body["chunk_index"]] = data
            case "aibot_upload_media_finish":
                return self._finish(self._uploads.pop(body["upload_id"]))
            case _:
                raise RefusedError(BAD_REQUEST, "unknown command")
        return {}

    def _replied(self, req_id: str) -> Json:
        if req_id not in self._callbacks:
            raise RefusedError(BAD_REQUEST, "invalid req_id")
        return self._callbacks[req_id]

    def _take(self, chat: str, body: Json) -> Json:
        kind = body["msgtype"]
        if chat not in self.wrote:
            raise RefusedError(NEVER_WROTE, "no session with the user")
        if kind == "markdown" and not 0 < len(body[kind]["content"].encode()) <= LONGEST:
            raise RefusedError(BAD_REQUEST, "content is empty or too long")
        if kind == "template_card":
            check_card(body[kind])
        elif kind != "markdown" and body[kind]["media_id"] not in self.stored:
            raise RefusedError(BAD_REQUEST, "invalid media_id")
        self.posts.append(Post(f"post-{next(self._ids)}", chat, kind, body[kind]))
        return {}

    def _stream(self, replied: Json, stream: Json) -> Json:
        if not stream["content"].strip() or len(stream["content"].encode()) > LONGEST:
            raise RefusedError(BAD_REQUEST, "content is empty or too long")
        chat = replied.get("chatid") or replied["from"]["userid"]
        if (post := self._streams.get(stream["id"])) is None:
            self._streams[stream["id"]] = post = Post(stream["id"], chat, "stream", stream, edits=-1)
            self.posts.append(post)
        elif post.is_complete:
            raise RefusedError(STREAM_OVER, "stream is finished")
        post.edits += post.content != stream or post.edits < 0
        post.content, post.is_complete = stream, stream["finish"]
        return {}

    def _update(self, pressed: Json, card: Json) -> None:
        check_card(card)
        assert card["task_id"] == pressed["task_id"]
        next(post for post in self.posts if post.content.get("task_id") == card["task_id"]).content = card

    def _finish(self, upload: Upload) -> Json:
        body, data = upload.body, b"".join(part for _, part in sorted(upload.parts.items()))
        if len(upload.parts) != body["total_chunks"] or len(data) != body["total_size"]:
            raise RefusedError(BAD_REQUEST, "the upload is not complete")
        if hashlib.md5(data, usedforsecurity=False).hexdigest() != body["md5"]:
            raise RefusedError(BAD_REQUEST, "invalid md5")
        media_id = f"media-{next(self._ids)}"
        self.stored[media_id] = (body["type"], body["filename"], data)
        return {"type": body["type"], "media_id": media_id, "created_at": "1700000000"}

    async def _give_file(self, request: web.Request) -> web.Response:
        return web.Response(body=self._media[request.match_info["file"]])

    # what people see

    def as_seen(self, post: Post) -> Shown:
        if post.kind == "template_card":
            buttons = [one["text"] for one in post.content["button_list"]]
            return Shown(post.content["task_id"], post.content["main_title"]["title"], buttons=buttons)
        media = post.content.get("media_id")
        names = [self.stored[media][1]] if media else []
        return Shown(post.id, post.content.get("content", ""), names, edits=post.edits)

    async def press_button(self, message_id: str, label: str) -> None:
        await self.presses(next(one for one in self.posts if one.content.get("task_id") == message_id), label)


def check_card(card: Json) -> None:
    """Refuse a card that is not as the documentation asks."""
    buttons = card["button_list"]
    is_short = all(len(one["text"]) <= 10 and 0 < len(one["key"].encode()) <= 1024 for one in buttons)
    if card["card_type"] != "button_interaction" or not 0 < len(buttons) <= 6 or not is_short:
        raise RefusedError(BAD_REQUEST, "invalid template card")
    if not 0 < len(card["main_title"]["title"]) <= 26 or not card["task_id"]:
        raise RefusedError(BAD_REQUEST, "invalid template card")
