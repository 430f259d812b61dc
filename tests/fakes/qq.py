"""QQ's bot platform on loopback: token, gateway with resume, messages, files.

Imitated from the pages below bot.q.qq.com/wiki/develop/api-v2: dev-prepare/interface-framework/api-use and event-emit,
dev-prepare/error-trace/openapi and websocket, server-inter/message/send-receive/send, event and rich-media. Its error
codes were never compared with the live service.

A person here waits until the bot has had a session: what QQ does with messages to a bot that never came is not
documented. Replies are counted, their numbers are taken once, and their time ends when a test ends it.
"""

import base64
import json
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

from aiohttp import WSMsgType, web

from tests.support.eventually import eventually

Json = dict[str, Any]
Handler = Callable[[Json, str], Json]

APP_ID, SECRET = "102001122", "s3cr3tOfTheBot"
ANNA, ZOE = "E4F4AEA33253A2797FB897C50B81D7ED", "00C1AB4D29AE4E5C8F4B1B2BBB4F1D10"
HALL = "C9F778FE6ADF9D1D1DBE395BF744A33A"
PRIVATE_AND_GROUPS = 1 << 25
MOST_REPLIES = 5
LONGEST = 5000
TYPING = 6


class RefusedError(Exception):
    """What QQ answers to a request that it does not serve."""

    def __init__(self, status: int, code: int, message: str = "refused", **headers: str) -> None:
        super().__init__(code)
        self.status, self.headers = status, headers
        self.body = {"message": message, "code": code % 100000, "err_code": code, "trace_id": "t-1"}


@dataclass
class Post:
    """A message of the bot."""

    id: str
    chat: str
    body: Json

    @property
    def text(self) -> str:
        return str(self.body.get("markdown", {}).get("content") or self.body.get("content", "")).strip()


@dataclass(eq=False)
class Line:
    """An open connection of the gateway."""

    socket: web.WebSocketResponse
    session: str = ""
    is_deaf: bool = False


class FakeQQ:
    """The people, what they wrote, and what the bot did."""

    def __init__(self) -> None:
        self.url = ""
        self.people, self.groups = {ANNA, ZOE}, {HALL}
        self.secret = SECRET
        self.is_listed = True
        """Whether requests come from an address of the allow list."""
        self.can_speak_first = True
        self.has_markdown = True
        self.allowed_links: set[str] = set()
        self.beat_s = 20.0
        self.close_code = 0
        """With which a bot that identifies itself is sent away."""
        self.posts: list[Post] = []
        self.typing: list[str] = []
        self.events: list[Json] = []
        """All events of the session, in order."""
        self.sent: dict[str, Json] = {}
        """Messages of people, by id."""
        self.lines: list[Line] = []
        self.calls: list[str] = []
        self.identified: list[Json] = []
        self.resumed = 0
        self.acknowledged = 0
        """The last event that the bot says it has."""
        self.files: dict[str, tuple[str, bytes]] = {}
        self.kinds: list[int] = []
        """What kind of file each upload is."""
        self.too_late: set[str] = set()
        """Messages that it is too late to reply to."""
        self.numbers: dict[str, list[int]] = {}
        """The replies to each message."""
        self.refusals: deque[RefusedError] = deque()
        self.loses_answers = 0
        self._tokens: set[str] = set()
        self._session = ""
        self._ids = count(1)

    def routes(self) -> list[web.RouteDef]:
        """All that it serves."""
        return [
            web.post("/app/getAppAccessToken", self._give_token),
            web.get("/users/@me", self._answered(lambda _, __: {"id": "1", "username": "Nano", "bot": True})),
            web.get("/gateway/bot", self._answered(self._gateway)),
            web.get("/websocket/", self._serve_line),
            web.post("/v2/users/{chat}/messages", self._answered(self._post_private)),
            web.post("/v2/groups/{chat}/messages", self._answered(self._post_group)),
            web.post("/v2/users/{chat}/files", self._answered(self._upload)),
            web.post("/v2/groups/{chat}/files", self._answered(self._upload)),
            web.get("/media/{file}", self._give_file),
        ]

    # what people do

    async def says(self, words: str = "", *, sender: str = ANNA, group: str | None = None, **more: Any) -> str:
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
        self.files[name] = (name, data)
        return f"{self.url.removeprefix('http:')}/media/{name}"

    def in_chat(self, chat: str) -> list[Post]:
        """The bot's messages to this person or group."""
        return [post for post in self.posts if post.chat == chat]

    def end_session(self) -> None:
        """Forget the session, as after some minutes without a connection."""
        self._session = ""
        self.events.clear()

    async def send_to_lines(self, frame: Json) -> None:
        """Send a frame that is no event on every connection."""
        for line in [*self.lines]:
            await line.socket.send_json(frame)

    # the gateway

    def _gateway(self, _: Json, __: str) -> Json:
        limit = {"total": 1000, "remaining": 999, "reset_after": 86_400_000, "max_concurrency": 1}
        return {"url": f"{self.url.replace('http', 'ws')}/websocket/", "shards": 1, "session_start_limit": limit}

    async def _serve_line(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.lines.append(line := Line(socket))
        try:
            await socket.send_json({"op": 10, "d": {"heartbeat_interval": round(self.beat_s * 1000)}})
            async for frame in socket:
                if frame.type is WSMsgType.TEXT and not line.is_deaf:
                    await self._receive(line, json.loads(frame.data))
        except OSError:
            pass
        finally:
            self.lines.remove(line)
        return socket

    async def _receive(self, line: Line, frame: Json) -> None:
        data = frame["d"]
        if frame["op"] == 1:
            self.acknowledged = data or 0
            await line.socket.send_json({"op": 11})
            return
        if data["token"].removeprefix("QQBot ") not in self._tokens:
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
            self.acknowledged = data["seq"]
            for event in self.events[data["seq"] :]:
                await line.socket.send_json(event)
            line.session = self._session
            await self.push("RESUMED", "")

    # requests

    def _answered(self, handle: Handler) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            self.calls.append(f"{request.method} {request.path}")
            is_post = request.path.endswith("/messages")
            try:
                if request.headers.get("authorization", "").removeprefix("QQBot ") not in self._tokens:
                    raise RefusedError(401, 40023001, "token not exist or expire")
                if not self.is_listed:
                    raise RefusedError(401, 40023002, "接口访问源IP不在白名单")
                if self.refusals and is_post:
                    raise self.refusals.popleft()
                body = await request.json() if request.can_read_body else {}
                answered = handle(body, request.match_info.get("chat", ""))
            except RefusedError as error:
                return web.json_response(error.body, status=error.status, headers=error.headers)
            if self.loses_answers and is_post and request.transport is not None:
                self.loses_answers -= 1
                request.transport.abort()
            return web.json_response(answered)

        return answer

    async def _give_token(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append(f"POST {request.path}")
        if (body.get("appId"), body.get("clientSecret")) != (APP_ID, self.secret):
            return web.json_response({"code": 100016, "message": "invalid appid or secret"})
        self._tokens.add(token := f"token-{next(self._ids)}")
        return web.json_response({"access_token": token, "expires_in": "7200"})

    def expire_tokens(self) -> None:
        """Forget all access tokens, as when the secret is reset."""
        self._tokens.clear()

    def refuse(self, times: int, status: int, retry_after_s: float | None = None) -> None:
        """Refuse the next so many messages."""
        status, code = {500: (500, 50055001), 429: (429, 22009), 403: (403, 40054003)}[status]
        headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}
        self.refusals.extend(RefusedError(status, code, **headers) for _ in range(times))

    def _post_private(self, body: Json, chat: str) -> Json:
        if chat not in self.people:
            raise RefusedError(400, 40054004, "无好友关系")
        return self._post(body, chat)

    def _post_group(self, body: Json, chat: str) -> Json:
        if chat not in self.groups or body["msg_type"] == TYPING:
            raise RefusedError(400, 40034101, "机器人非群成员")
        return self._post(body, chat)

    def _post(self, body: Json, chat: str) -> Json:
        self._check_content(body)
        self._count_reply(body, chat)
        post = Post(f"ROBOT1.0_m{next(self._ids)}", chat, body)
        if body["msg_type"] == TYPING:
            assert body["input_notify"]["input_type"] == 1
            self.typing.append(chat)
        else:
            self.posts.append(post)
        return {"id": post.id, "timestamp": "2026-11-06T13:37:18+08:00"}

    def _check_content(self, body: Json) -> None:
        text = Post("", "", body).text
        match body["msg_type"]:
            case 0 | 2 if not text:
                raise RefusedError(400, 50006, "消息为空")
            case 2 if not self.has_markdown:
                raise RefusedError(400, 40034127, "无markdown模板权限")
            case 7:
                assert body["content"]
                if body["media"]["file_info"] not in self.files:
                    raise RefusedError(400, 304080, "文件信息无效")
        if len(text) > LONGEST:
            raise RefusedError(400, 40054007, "消息长度超限")
        for word in text.split():
            if ".example" in word and word not in self.allowed_links:
                raise RefusedError(400, 304003, "url not allowed")

    def _count_reply(self, body: Json, chat: str) -> None:
        message_id, number = body.get("msg_id"), body.get("msg_seq", 1)
        if message_id is None:
            if not self.can_speak_first:
                raise RefusedError(400, 40034105, "主动消息发送失败，无权限")
            return
        message = self.sent.get(message_id)
        if message is None or chat not in (message.get("group_openid"), message["author"].get("user_openid")):
            raise RefusedError(400, 40034024, "请求参数msg_id无效或越权")
        taken = self.numbers.setdefault(message_id, [])
        if number in taken:
            raise RefusedError(400, 40054005, "消息被去重")
        if message_id in self.too_late:
            raise RefusedError(400, 40034005, "回复消息msg_id已过期")
        if len(taken) >= MOST_REPLIES:
            raise RefusedError(400, 40034128, "被动回复时间或次数超限")
        taken.append(number)

    # files

    def _upload(self, body: Json, chat: str) -> Json:
        assert body["srv_send_msg"] is False
        info = f"info-{next(self._ids)}"
        name = body.get("file_name") or str(body.get("url", "")).rpartition("/")[2]
        data = base64.b64decode(body["file_data"]) if "file_data" in body else b"what QQ fetched"
        self.kinds.append(body["file_type"])
        self.files[info] = (name, data)
        return {"file_uuid": f"uuid-{info}", "file_info": info, "ttl": 3600, "file_type": body["file_type"]}

    async def _give_file(self, request: web.Request) -> web.Response:
        return web.Response(body=self.files[request.match_info["file"]][1])
