"""QQ's bot platform on loopback: token, gateway with resume, messages, files.

Imitated from the pages below bot.q.qq.com/wiki/develop/api-v2: dev-prepare/interface-framework/api-use and event-emit,
dev-prepare/error-trace/openapi and websocket, server-inter/message/send-receive/send, event and rich-media. Its error
codes were never compared with the live service.

A person here waits until the bot has had a session: what QQ does with messages to a bot that never came is not
documented. Replies are counted, their numbers are taken once, and their time ends when a test ends it.
"""

import base64
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from nanobot.bus.queue import MessageBus
from nanobot.channels.qq import QQChannel
from nanobot.config.channels import QQConfig
from tests.fakes.served import Json, Line, RefusedError, Said, ServedPlatform
from tests.support.eventually import eventually

APP_ID, SECRET = "102001122", "s3cr3tOfTheBot"
ANNA, ZOE = "E4F4AEA33253A2797FB897C50B81D7ED", "00C1AB4D29AE4E5C8F4B1B2BBB4F1D10"
HALL = "C9F778FE6ADF9D1D1DBE395BF744A33A"
PRIVATE_AND_GROUPS = 1 << 25
MOST_REPLIES = 5
LONGEST = 5000
TYPING = 6


@dataclass
class Post:
    """A message of the bot."""

    id: str
    chat: str
    body: Json

    @property
    def text(self) -> str:
        return str(self.body.get("markdown", {}).get("content") or self.body.get("content", "")).strip()


class QQPlatform(ServedPlatform):
    """The people, what they wrote, and what the bot did."""

    name = "qq"
    secret = SECRET
    stall_s = 0.8
    person = private = ANNA
    stranger = stranger_chat = ZOE
    group = HALL
    hears_groups = False
    limit = 4000
    files = dedupes = queues_messages = types = loses_answers = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.people, self.groups = {ANNA, ZOE}, {HALL}
        self.is_listed = True
        """Whether requests come from an address of the allow list."""
        self.can_speak_first = True
        self.has_markdown = True
        self.allowed_links: set[str] = set()
        self.beat_s = 0.2
        self.close_code = 0
        """With which a bot that identifies itself is sent away."""
        self.events: list[Json] = []
        """All events of the session, in order."""
        self.sent: dict[str, Json] = {}
        """Messages of people, by id."""
        self.identified: list[Json] = []
        self.resumed = 0
        self.read_to = 0
        """The last event that the bot says it has."""
        self.kinds: list[int] = []
        """What kind of file each upload is."""
        self.too_late: set[str] = set()
        """Messages that it is too late to reply to."""
        self.numbers: dict[str, list[int]] = {}
        """The replies to each message."""
        self._session = ""

    def channel(self, bus: MessageBus, **settings: Any) -> QQChannel:
        usual = {
            "enabled": True, "app_id": APP_ID, "secret": SECRET, "allow_from": [self.person], "api_base": self.url,
        }  # fmt: skip
        return QQChannel(QQConfig.model_validate(usual | settings), bus)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/app/getAppAccessToken", self._give_token),
            web.get("/users/@me", self.answered(self._who)),
            web.get("/gateway/bot", self.answered(self._gateway)),
            web.get("/websocket/", self.serve_line),
            web.post("/v2/users/{chat}/messages", self.answered(self._post_private)),
            web.post("/v2/groups/{chat}/messages", self.answered(self._post_group)),
            web.post("/v2/users/{chat}/files", self.answered(self._upload)),
            web.post("/v2/groups/{chat}/files", self.answered(self._upload)),
            web.get("/media/{file}", self._give_file),
        ]

    # what people do

    async def send_said(self, said: Said) -> str:
        more: dict[str, Any] = {}
        if said.file is not None:
            url = self.put_file(said.file.name, said.file.read_bytes())
            more = {"attachments": [{"content_type": "image/png", "filename": said.file.name, "url": url}]}
        return await self.writes(said.text, sender=said.sender, group=said.group, **more)

    async def writes(self, words: str = "", *, sender: str = ANNA, group: str | None = None, **more: Any) -> str:
        """Send a message to the bot; in a group, mention it. Return its id."""
        await eventually(lambda: self._session)
        message_id = f"ROBOT1.0_{next(self._ids)}"
        message: Json = {
            "id": message_id,
            "content": f" {words}" if group else words,
            "timestamp": "2026-11-06T13:37:18+08:00",
            "author": {"member_openid" if group else "user_openid": sender},
            **({"group_openid": group} if group else {}),
            **more,
        }
        self.sent[message_id] = message
        await self.push("GROUP_AT_MESSAGE_CREATE" if group else "C2C_MESSAGE_CREATE", message)
        return message_id

    async def push(self, kind: str, data: Any) -> None:
        """Send an event to the bot: now, or when it resumes its session."""
        event = {"op": 0, "id": f"{kind}:{len(self.events)}", "s": len(self.events) + 1, "t": kind, "d": data}
        self.events.append(event)
        for line in self.lines:
            if line.session == self._session and not line.is_deaf:
                with suppress(OSError):  # it breaks just now; the event comes with a resume
                    await line.socket.send_json(event)

    async def again(self, message_id: str) -> None:
        """Send a message's event once more, as QQ does at times."""
        message = self.sent[message_id]
        await self.push("GROUP_AT_MESSAGE_CREATE" if "group_openid" in message else "C2C_MESSAGE_CREATE", message)

    def put_file(self, name: str, data: bytes) -> str:
        """A file that lies here; its URL, without a scheme as QQ's are."""
        self.stored[name] = (name, data)
        return f"{self.url.removeprefix('http:')}/media/{name}"

    def end_session(self) -> None:
        """Forget the session, as after some minutes without a connection."""
        self._session = ""
        self.events.clear()

    async def send_to_lines(self, frame: Json) -> None:
        """Send a frame that is no event on every connection."""
        for line in [*self.lines]:
            await line.socket.send_json(frame)

    # the gateway

    def _gateway(self, _: Json) -> Json:
        limit = {"total": 1000, "remaining": 999, "reset_after": 86_400_000, "max_concurrency": 1}
        return {"url": f"{self.url.replace('http', 'ws')}/websocket/", "shards": 1, "session_start_limit": limit}

    async def greet(self, line: Line) -> None:
        await line.socket.send_json({"op": 10, "d": {"heartbeat_interval": round(self.beat_s * 1000)}})

    async def receive(self, line: Line, frame: Any) -> None:
        frame = json.loads(frame)
        data = frame["d"]
        if frame["op"] == 1:
            self.read_to = data or 0
            await line.socket.send_json({"op": 11})
            return
        if data["token"].removeprefix("QQBot ") not in self.tokens:
            await line.socket.close(code=4004)
        elif self.close_code:
            await line.socket.close(code=self.close_code)
        elif frame["op"] == 2:
            assert data["shard"] == [0, 1]
            assert data["intents"] == PRIVATE_AND_GROUPS
            self.identified.append(data)
            self.events.clear()
            self._session = line.session = f"session-{next(self._ids)}"
            user = {"id": "1", "username": "Nano", "bot": True}
            await self.push("READY", {"version": 1, "session_id": line.session, "user": user, "shard": [0, 1]})
        elif data["session_id"] != self._session:
            await line.socket.send_json({"op": 9, "d": False})
        else:
            self.resumed += 1
            self.read_to = data["seq"]
            for event in self.events[data["seq"] :]:
                await line.socket.send_json(event)
            line.session = self._session
            await self.push("RESUMED", "")

    # requests

    def check(self, request: web.Request) -> None:
        if request.headers.get("authorization", "").removeprefix("QQBot ") not in self.tokens:
            raise RefusedError(40023001, "token not exist or expire", 401)
        if not self.is_listed:
            raise RefusedError(40023002, "接口访问源IP不在白名单", 401)

    def is_send(self, request: web.Request) -> bool:
        return request.path.endswith("/messages")

    def body_of(self, error: RefusedError) -> Json:
        code = int(error.code)
        return {"message": error.message, "code": code % 100000, "err_code": code, "trace_id": "t-1"}

    def _who(self, _: Json) -> Json:
        return {"id": "1", "username": "Nano", "bot": True}

    async def _give_token(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append(f"POST {request.path}")
        if (body.get("appId"), body.get("clientSecret")) != (APP_ID, self.secret):
            return web.json_response({"code": 100016, "message": "invalid appid or secret"})
        return web.json_response({"access_token": self.new_token(), "expires_in": "7200"})

    def refusal(self, status: int, retry_after_s: float | None) -> RefusedError:
        code = {500: 50055001, 429: 22009, 403: 40054003}[status]
        return RefusedError(code, status=status).after("retry-after", retry_after_s)

    def _post_private(self, body: Json, chat: str) -> Json:
        if chat not in self.people:
            raise RefusedError(40054004, "无好友关系")
        return self._post(body, chat)

    def _post_group(self, body: Json, chat: str) -> Json:
        if chat not in self.groups or body["msg_type"] == TYPING:
            raise RefusedError(40034101, "机器人非群成员")
        return self._post(body, chat)

    def _post(self, body: Json, chat: str) -> Json:
        self._check_content(body)
        self._count_reply(body, chat)
        post = Post(f"ROBOT1.0_m{next(self._ids)}", chat, body)
        if body["msg_type"] == TYPING:
            assert body["input_notify"]["input_type"] == 1
            self.typed_in.append(chat)
        else:
            self.posts.append(post)
        return {"id": post.id, "timestamp": "2026-11-06T13:37:18+08:00"}

    def _check_content(self, body: Json) -> None:
        text = Post("", "", body).text
        match body["msg_type"]:
            case 0 | 2 if not text:
                raise RefusedError(50006, "消息为空")
            case 2 if not self.has_markdown:
                raise RefusedError(40034127, "无markdown模板权限")
            case 7:
                assert body["content"]
                if body["media"]["file_info"] not in self.stored:
                    raise RefusedError(304080, "文件信息无效")
        if len(text) > LONGEST:
            raise RefusedError(40054007, "消息长度超限")
        for word in text.split():
            if ".example" in word and word not in self.allowed_links:
                raise RefusedError(304003, "url not allowed")

    def _count_reply(self, body: Json, chat: str) -> None:
        message_id, number = body.get("msg_id"), body.get("msg_seq", 1)
        if message_id is None:
            if not self.can_speak_first:
                raise RefusedError(40034105, "主动消息发送失败，无权限")
            return
        message = self.sent.get(message_id)
        if message is None or chat not in (message.get("group_openid"), message["author"].get("user_openid")):
            raise RefusedError(40034024, "请求参数msg_id无效或越权")
        taken = self.numbers.setdefault(message_id, [])
        if number in taken:
            raise RefusedError(40054005, "消息被去重")
        if message_id in self.too_late:
            raise RefusedError(40034005, "回复消息msg_id已过期")
        if len(taken) >= MOST_REPLIES:
            raise RefusedError(40034128, "被动回复时间或次数超限")
        taken.append(number)

    # files

    def _upload(self, body: Json, chat: str) -> Json:
        assert body["srv_send_msg"] is False
        info = f"info-{next(self._ids)}"
        name = body.get("file_name") or str(body.get("url", "")).rpartition("/")[2]
        data = base64.b64decode(body["file_data"]) if "file_data" in body else b"what QQ fetched"
        self.kinds.append(body["file_type"])
        self.stored[info] = (name, data)
        return {"file_uuid": f"uuid-{info}", "file_info": info, "ttl": 3600, "file_type": body["file_type"]}

    async def _give_file(self, request: web.Request) -> web.Response:
        return web.Response(body=self.stored[request.match_info["file"]][1])

    # what people see

    def names_of(self, post: Post) -> list[str]:
        media = post.body.get("media")
        return [self.stored[media["file_info"]][0]] if media else []

    def acknowledged(self, message_id: str) -> bool:
        """Whether a heartbeat or a resume said so: what it names as the last event does not come again."""
        number = next(one["s"] for one in self.events if one["d"] == self.sent[message_id])
        return self.read_to >= int(number)
