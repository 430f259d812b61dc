"""DingTalk on loopback: the stream, the requests of a robot, AI cards and uploads.

Imitated from opensource.dingtalk.com/developerpedia/docs/learn/stream/protocol (frames) and the pages below
open.dingtalk.com/document/orgapp: obtain-the-access-token-of-an-internal-app, receive-message,
chatbots-send-one-on-one-chat-messages-in-batches, the-robot-sends-a-group-message,
create-and-deliver-cards, interactive-card-update-interface, ai-card-streaming, upload-media-files,
download-the-file-content-of-the-robot-receiving-message, invocation-frequency-limit. Its error codes were never
compared with the live service.

What was pushed and not acknowledged is pushed again as soon as somebody is connected; DingTalk takes up to a minute. A
person here waits until the robot is connected: what DingTalk does with a message meanwhile is not documented.
"""

import json
import mimetypes
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from nanobot.bus.queue import MessageBus
from nanobot.channels.dingtalk import DingTalkChannel
from nanobot.config.channels import DingTalkConfig
from nanobot.testing.platform import Shown
from tests.fakes.served import Json, Line, RefusedError, Said, ServedPlatform

CLIENT_ID, SECRET = "dingrobot", "s3cr3t-of-the-app"
ANNA, ZOE = "anna01", "zoe02"
HALL = "cidHALL=="
ROBOT_USER = "$:LWCP_v1:$robot"
MESSAGES = "/v1.0/im/bot/messages/get"
SCOPES = frozenset({"qyapi_robot_sendmsg", "Card.Instance.Write", "Card.Streaming.Write"})
_LARGEST_PARAMETERS = 20_000
_FILES = ("doc", "docx", "xls", "xlsx", "ppt", "pptx", "zip", "pdf", "rar")
_LEAVING = "leaving"


@dataclass
class Post:
    """A message of the robot; `card` has the variables of one that is a card."""

    id: str
    chat: str
    key: str
    parameters: Json
    card: Json | None = None
    edits: int = 0
    is_final: bool = False
    """Whether the stream of a card has ended."""


@dataclass
class Pushed:
    """A message of a person that DingTalk wants to be told of that it arrived."""

    data: Json
    headers: Json
    acknowledged: bool = False
    line: Line | None = None


class DingTalkPlatform(ServedPlatform):
    """The people, what they wrote, and what the robot did."""

    name = "dingtalk"
    secret = SECRET
    autoping = False
    ping_s = 0.2
    stall_s = 0.8
    person = private = ANNA
    stranger = stranger_chat = ZOE
    group = f"group:{HALL}"
    hears_groups = False
    limit = 18_000
    edits = files = reacts = loses_answers = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.staff = {ANNA: "Anna", ZOE: "Zoe\nZ."}
        """What the members of the organisation call themselves."""
        self.groups = {HALL}
        self.stream_mode = True
        self.scopes = set(SCOPES)
        self.pushed: list[Pushed] = []
        self.subscriptions: list[Json] = []
        self.reactions: dict[str, list[str]] = {}
        self.redirect_to = ""
        """Where the download of a file leads."""
        self.throttled_people: set[str] = set()
        self._tickets: set[str] = set()

    def channel(self, bus: MessageBus, **settings: Any) -> DingTalkChannel:
        usual = {
            "enabled": True, "client_id": CLIENT_ID, "client_secret": SECRET, "allow_from": [self.person],
            "api_base": self.url, "oapi_base": self.url,
        }  # fmt: skip
        channel = DingTalkChannel(DingTalkConfig.model_validate(usual | settings), bus)
        channel.ping_s = self.ping_s
        return channel

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1.0/oauth2/accessToken", self.answered(self._give_token)),
            web.post("/v1.0/gateway/connections/open", self.answered(self._open)),
            web.get("/connect", self._connect),
            web.post("/v1.0/robot/oToMessages/batchSend", self.answered(self._send_to_people)),
            web.post("/v1.0/robot/groupMessages/send", self.answered(self._send_to_group)),
            web.post("/v1.0/robot/emotion/reply", self.answered(self._react)),
            web.post("/v1.0/robot/messageFiles/download", self.answered(self._find_file)),
            web.post("/v1.0/card/instances/createAndDeliver", self.answered(self._create_and_deliver)),
            web.post("/v1.0/card/instances", self.answered(self._create_card)),
            web.post("/v1.0/card/instances/deliver", self.answered(self._deliver_card)),
            web.put("/v1.0/card/instances", self.answered(self._update_card)),
            web.put("/v1.0/card/streaming", self.answered(self._stream_card)),
            web.post("/media/upload", self._upload),
            web.get("/files/{code}", self._give_file),
        ]

    # what people do

    def put_file(self, name: str, data: bytes) -> str:
        """A file that lies here; its code."""
        code = f"code{next(self._ids)}"
        self.stored[code] = (name, data)
        return code

    async def send_said(self, said: Said) -> str:
        more: dict[str, Any] = {}
        if said.file is not None:
            code = self.put_file(said.file.name, said.file.read_bytes())
            parts = [{"text": said.text}, {"type": "picture", "downloadCode": code}]
            more = {"msgtype": "richText", "content": {"richText": parts}}
        return await self.writes(f" {said.text}", sender=said.sender, group=said.group and HALL, **more)

    async def writes(self, words: str = "", *, sender: str = ANNA, group: str | None = None, **more: Any) -> str:
        """Push a message to the robot. Return its id."""
        message_id = f"msg{next(self._ids)}=="
        await self.some_line()
        await self.push({
            "msgId": message_id, "conversationId": group or f"cid-of-{sender}",
            "conversationType": "2" if group else "1", "conversationTitle": "Hall" if group else None,
            "senderStaffId": sender if sender in self.staff else None, "senderId": f"$:LWCP_v1:${sender}",
            "senderNick": self.staff.get(sender, sender), "chatbotUserId": ROBOT_USER, "robotCode": CLIENT_ID,
            "isInAtList": True if group else None, "createAt": 1_770_000_000_000 + next(self._ids),
            "sessionWebhook": f"{self.url}/robot/sendBySession", "sessionWebhookExpiredTime": 1_770_005_400_000,
            "msgtype": "text", **({"text": {"content": words}} if words else {}), **more,
        })  # fmt: skip
        return message_id

    async def push(self, data: Json) -> Pushed:
        """Push something on the topic of messages."""
        headers = {
            "appId": "a-1", "connectionId": "c-1", "contentType": "application/json", "time": "1770000000000",
            "messageId": f"frame{next(self._ids)}", "topic": MESSAGES,
        }  # fmt: skip
        self.pushed.append(pushed := Pushed(data, headers))
        await self._deliver(pushed)
        return pushed

    async def again(self, message_id: str) -> None:
        """Push a message once more, as if no acknowledgement had come."""
        for pushed in [one for one in self.pushed if one.data["msgId"] == message_id]:
            pushed.line = None
            await self._deliver(pushed)

    async def end_lines(self) -> None:
        """Announce the end of every connection."""
        for line in [*self.lines]:
            line.session = _LEAVING
            await self._send_system(line, "disconnect", {"reason": "persistent connection is timeout"})

    async def ping_lines(self) -> None:
        """Ask every connection for a sign of life, as the protocol does."""
        for line in [*self.lines]:
            await self._send_system(line, "ping", {"opaque": "o-1"})

    def in_chat(self, chat: str) -> list[Post]:
        return super().in_chat(chat.removeprefix("group:"))

    # the stream

    async def _send_system(self, line: Line, topic: str, data: Json) -> None:
        headers = {"contentType": "application/json", "messageId": f"frame{next(self._ids)}", "topic": topic}
        await line.socket.send_json(
            {"specVersion": "1.0", "type": "SYSTEM", "headers": headers, "data": json.dumps(data)}
        )

    async def _deliver(self, pushed: Pushed) -> None:
        line = next((one for one in reversed(self.lines) if one.session != _LEAVING), None)
        if line is None or pushed.line is not None:
            return
        pushed.line = line
        if not line.is_deaf:
            frame = {
                "specVersion": "1.0",
                "type": "CALLBACK",
                "headers": pushed.headers,
                "data": json.dumps(pushed.data),
            }
            try:
                await line.socket.send_json(frame)
            except OSError:
                pushed.line = None

    async def _connect(self, request: web.Request) -> web.WebSocketResponse:
        ticket = request.query.get("ticket", "")
        if ticket not in self._tickets:
            raise web.HTTPUnauthorized
        self._tickets.remove(ticket)
        try:
            return await self.serve_line(request)
        finally:
            for pushed in self.pushed:
                if pushed.line not in self.lines:
                    pushed.line = None

    async def greet(self, line: Line) -> None:
        for pushed in self.pushed:
            if not pushed.acknowledged:
                await self._deliver(pushed)

    async def receive(self, line: Line, frame: Any) -> None:
        frame = json.loads(frame)
        json.loads(frame["data"])  # a string with JSON
        line.acknowledgements.append(frame)
        for pushed in self.pushed:
            if pushed.headers["messageId"] == frame["headers"]["messageId"] and frame["code"] == 200:
                pushed.acknowledged = True

    # requests

    def check(self, request: web.Request) -> None:
        is_login = request.path in ("/v1.0/oauth2/accessToken", "/v1.0/gateway/connections/open")
        if not is_login and request.headers.get("x-acs-dingtalk-access-token") not in self.tokens:
            raise RefusedError("InvalidAuthentication", "不合法的access_token", 401)

    def is_send(self, request: web.Request) -> bool:
        return "/robot/" in request.path and "essages/" in request.path

    def is_refusable(self, request: web.Request) -> bool:
        return self.is_send(request) or "/card/" in request.path

    def refusal(self, status: int, retry_after_s: float | None) -> RefusedError:
        code, status = {
            500: ("ServiceUnavailable", 503),
            429: ("Forbidden.AccessDenied.QpsLimitForAppkeyAndApi", 403),
            403: ("Forbidden.AccessDenied", 403),
        }[status]
        return RefusedError(code, status=status)

    def _give_token(self, body: Json) -> Json:
        if (body.get("appKey"), body.get("appSecret")) != (CLIENT_ID, self.secret):
            raise RefusedError("invalidClientIdOrSecret", "无效的clientId或者clientSecret")
        return {"accessToken": self.new_token(), "expireIn": 7200}

    def _open(self, body: Json) -> Json:
        if (body.get("clientId"), body.get("clientSecret")) != (CLIENT_ID, self.secret):
            raise RefusedError("authFailed", "鉴权失败", 401)
        if not self.stream_mode:
            raise RefusedError("notSupportStream", "应用未开启Stream模式")
        self.subscriptions = body["subscriptions"]
        self._tickets.add(ticket := f"ticket+{next(self._ids)}")
        return {"endpoint": f"{self.url.replace('http', 'ws')}/connect", "ticket": ticket}

    def _require(self, *scopes: str) -> None:
        if missing := [scope for scope in scopes if scope not in self.scopes]:
            code = "Forbidden.AccessDenied.AccessTokenPermissionDenied"
            raise RefusedError(code, status=403, accessdenieddetail={"requiredScopes": missing})

    def _parameters(self, body: Json) -> Json:
        self._require("qyapi_robot_sendmsg")
        if body.get("robotCode") != CLIENT_ID:
            raise RefusedError("resource.not.found", "robot 不存在", 404)
        if len(body["msgParam"].encode()) > _LARGEST_PARAMETERS:
            raise RefusedError("param.error", "msgParam is too long")
        parameters: Json = json.loads(body["msgParam"])
        needed = {
            "sampleMarkdown": {"title", "text"}, "sampleImageMsg": {"photoURL"},
            "sampleFile": {"mediaId", "fileName", "fileType"},
        }[body["msgKey"]]  # fmt: skip
        if needed != parameters.keys() or not all(isinstance(value, str) and value for value in parameters.values()):
            raise RefusedError("param.error", "msgParam is not as msgKey wants it")
        media = parameters.get("mediaId") or parameters.get("photoURL")
        if media and not media.startswith("http") and media not in self.stored:
            raise RefusedError("param.error", "no such media")
        return parameters

    def _send_to_people(self, body: Json) -> Json:
        parameters, (person,) = self._parameters(body), body["userIds"]
        if person not in self.staff:
            raise RefusedError("staffId.notExisted", "staffId不存在")
        if person in self.throttled_people:
            self.throttled_people.remove(person)
            return {"processQueryKey": "", "flowControlledStaffIdList": [person], "invalidStaffIdList": []}
        self.posts.append(post := Post(f"key{next(self._ids)}", person, body["msgKey"], parameters))
        return {"processQueryKey": post.id, "flowControlledStaffIdList": [], "invalidStaffIdList": []}

    def _send_to_group(self, body: Json) -> Json:
        parameters = self._parameters(body)
        if body["openConversationId"] not in self.groups:
            raise RefusedError("invalidParameter.openConversationId", "robot is not in the group")
        self.posts.append(post := Post(f"key{next(self._ids)}", body["openConversationId"], body["msgKey"], parameters))
        return {"processQueryKey": post.id}

    def _react(self, body: Json) -> Json:
        chats = [(one.data["msgId"], one.data["conversationId"]) for one in self.pushed]
        if (body["openMsgId"], body["openConversationId"]) not in chats:
            raise RefusedError("param.error", "no such message")
        assert body["textEmotion"]["text"] == body["emotionName"]
        self.reactions.setdefault(body["openMsgId"], []).append(body["emotionName"])
        return {"success": True}

    # cards

    def _create_card(self, body: Json) -> Json:
        self._require("Card.Instance.Write")
        if any(post.id == body["outTrackId"] for post in self.posts):
            raise RefusedError("param.outTrackIdDuplicated", "outTrackId exists")
        if not body["cardTemplateId"].endswith(".schema"):
            raise RefusedError("param.templateNotExist", "no such template")
        self.posts.append(Post(body["outTrackId"], "", "card", {}, dict(body["cardData"]["cardParamMap"])))
        return {"success": True, "result": body["outTrackId"]}

    def _deliver_card(self, body: Json) -> Json:
        post = self._card(body)
        space = re.fullmatch(r"dtv1\.card//(IM_ROBOT|IM_GROUP)\.(.+)", body["openSpaceId"])
        if space is None:
            raise RefusedError("param.openSpaceIdInvalid", "no such space")
        known, model = (
            (self.staff, "imRobotOpenDeliverModel")
            if space[1] == "IM_ROBOT"
            else (self.groups, "imGroupOpenDeliverModel")
        )
        if model not in body:
            raise RefusedError("param.deliverModelMissing", model)
        delivery = {
            "spaceType": space[1],
            "spaceId": space[2],
            "success": space[2] in known,
            "errorMsg": "no such space",
        }
        if space[2] in known:
            post.chat = space[2]
        return {"success": True, "result": {"outTrackId": post.id, "deliverResults": [delivery]}}

    def _create_and_deliver(self, body: Json) -> Json:
        self._create_card(body)
        return self._deliver_card(body)

    def _card(self, body: Json) -> Post:
        posts: list[Post] = self.posts
        post = next((one for one in posts if one.id == body["outTrackId"] and one.card is not None), None)
        if post is None:
            raise RefusedError("param.cardNotExist", "no such card", 404)
        return post

    def _update_card(self, body: Json) -> Json:
        self._require("Card.Instance.Write")
        post = self._card(body)
        assert post.card is not None
        post.card = dict(body["cardData"]["cardParamMap"])
        post.edits += 1
        return {"success": True, "result": True}

    def _stream_card(self, body: Json) -> Json:
        self._require("Card.Streaming.Write")
        post = self._card(body)
        assert post.card is not None
        if post.is_final:
            raise RefusedError("param.streamFinalized", "the stream of the card has ended")
        if not body["isFull"] or not body["guid"]:
            raise RefusedError("param.error", "isFull must be true for Markdown")
        post.card[body["key"]], post.is_final = body["content"], body["isFinalize"]
        post.edits += 1
        return {"success": True, "result": True}

    # files

    async def _upload(self, request: web.Request) -> web.Response:
        self.calls.append(f"POST {request.path}")
        if request.query.get("access_token") not in self.tokens:
            return web.json_response({"errcode": 40014, "errmsg": "不合法的access_token"})
        form = await request.post()
        media = form["media"]
        assert isinstance(media, web.FileField)
        kind, suffix = request.query.get("type") or form.get("type"), media.filename.rpartition(".")[2]
        if kind == "file" and suffix not in _FILES:
            return web.json_response({"errcode": 40005, "errmsg": "不合法的媒体文件类型"})
        media_id = f"@lA{next(self._ids)}"
        self.stored[media_id] = (media.filename, media.file.read())
        return web.json_response({"errcode": 0, "errmsg": "ok", "media_id": media_id, "type": kind, "created_at": 1})

    def _find_file(self, body: Json) -> Json:
        if body["downloadCode"] not in self.stored or body["robotCode"] != CLIENT_ID:
            raise RefusedError("invalidDownloadCode", "unknown download code")
        return {"downloadUrl": f"{self.url}/files/{body['downloadCode']}"}

    async def _give_file(self, request: web.Request) -> web.Response:
        if self.redirect_to and self.redirect_to != str(request.url):
            raise web.HTTPFound(self.redirect_to)
        name, data = self.stored[request.match_info["code"]]
        return web.Response(body=data, content_type=mimetypes.guess_type(name)[0] or "application/octet-stream")

    # what people see

    def as_seen(self, post: Post) -> Shown:
        """A message: line ends and escapes undone, marks as they are."""
        text = str(post.card.get("msgContent", "") if post.card is not None else post.parameters.get("text", ""))
        text = re.sub(r"\\([\\`*_<\]#>.+-])", r"\1", text.replace("  \n", "\n"))
        media = post.parameters.get("mediaId") or post.parameters.get("photoURL")
        return Shown(post.id, text, [self.stored[media][0]] if media else [], edits=post.edits)

    def reactions_on(self, message_id: str) -> list[str]:
        return self.reactions.get(message_id, [])

    def acknowledged(self, message_id: str) -> bool:
        about = [one for one in self.pushed if one.data["msgId"] == message_id]
        return bool(about) and all(one.acknowledged for one in about)
