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
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from aiohttp import WSMsgType, web

from tests.support.eventually import eventually

Json = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

CLIENT_ID, SECRET = "dingrobot", "s3cr3t-of-the-app"
ANNA, ZOE = "anna01", "zoe02"
HALL = "cidHALL=="
ROBOT_USER = "$:LWCP_v1:$robot"
MESSAGES = "/v1.0/im/bot/messages/get"
SCOPES = frozenset({"qyapi_robot_sendmsg", "Card.Instance.Write", "Card.Streaming.Write"})
_LARGEST_PARAMETERS = 20_000
_FILES = ("doc", "docx", "xls", "xlsx", "ppt", "pptx", "zip", "pdf", "rar")


class RefusedError(Exception):
    """What DingTalk answers to a request that it does not serve."""

    def __init__(self, status: int, code: str, message: str = "refused", **more: Any) -> None:
        super().__init__(code)
        self.status = status
        self.body = {"code": code, "message": message, "requestid": "R-1", **more}


@dataclass
class Post:
    """A message of the robot; `card` has the variables of one that is a card."""

    id: str
    chat: str
    key: str
    parameters: Json
    card: Json | None = None
    edits: int = 0


@dataclass
class Pushed:
    """A message of a person that DingTalk wants to be told of that it arrived."""

    data: Json
    headers: Json
    acknowledged: bool = False
    line: "Line | None" = None


@dataclass(eq=False)
class Line:
    """An open connection."""

    socket: web.WebSocketResponse
    is_deaf: bool = False
    is_leaving: bool = False
    acknowledgements: list[Json] = field(default_factory=list)


class FakeDingTalk:
    """The people, what they wrote, and what the robot did."""

    def __init__(self) -> None:
        self.url = ""
        self.staff = {ANNA: "Anna", ZOE: "Zoe\nZ."}
        """What the members of the organisation call themselves."""
        self.groups = {HALL}
        self.secret = SECRET
        self.stream_mode = True
        self.scopes = set(SCOPES)
        self.posts: list[Post] = []
        self.pushed: list[Pushed] = []
        self.lines: list[Line] = []
        self.calls: list[str] = []
        self.subscriptions: list[Json] = []
        self.reactions: dict[str, list[str]] = {}
        self.files: dict[str, tuple[str, bytes]] = {}
        """Names and bytes, by download code or media id."""
        self.redirect_to = ""
        """Where the download of a file leads."""
        self.refusals: deque[RefusedError] = deque()
        self.loses_answers = 0
        self.throttled_people: set[str] = set()
        self._tokens: set[str] = set()
        self._tickets: set[str] = set()
        self._ids = count(1)

    def routes(self) -> list[web.RouteDef]:
        """All that it serves."""
        return [
            web.post("/v1.0/oauth2/accessToken", self._answered(self._give_token)),
            web.post("/v1.0/gateway/connections/open", self._answered(self._open)),
            web.get("/connect", self._serve_line),
            web.post("/v1.0/robot/oToMessages/batchSend", self._answered(self._send_to_people)),
            web.post("/v1.0/robot/groupMessages/send", self._answered(self._send_to_group)),
            web.post("/v1.0/robot/emotion/reply", self._answered(self._react)),
            web.post("/v1.0/robot/messageFiles/download", self._answered(self._find_file)),
            web.post("/v1.0/card/instances/createAndDeliver", self._answered(self._create_and_deliver)),
            web.post("/v1.0/card/instances", self._answered(self._create_card)),
            web.post("/v1.0/card/instances/deliver", self._answered(self._deliver_card)),
            web.put("/v1.0/card/instances", self._answered(self._update_card)),
            web.put("/v1.0/card/streaming", self._answered(self._stream_card)),
            web.post("/media/upload", self._upload),
            web.get("/files/{code}", self._give_file),
        ]

    # what people do

    def put_file(self, name: str, data: bytes) -> str:
        """A file that lies here; its code."""
        code = f"code{next(self._ids)}"
        self.files[code] = (name, data)
        return code

    async def says(self, words: str = "", *, sender: str = ANNA, group: str | None = None, **more: Any) -> str:
        """Push a message to the robot. Return its id."""
        message_id = f"msg{next(self._ids)}=="
        await eventually(lambda: self.lines)
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
            line.is_leaving = True
            await self._send_system(line, "disconnect", {"reason": "persistent connection is timeout"})

    async def ping_lines(self) -> None:
        """Ask every connection for a sign of life, as the protocol does."""
        for line in [*self.lines]:
            await self._send_system(line, "ping", {"opaque": "o-1"})

    def in_chat(self, chat: str) -> list[Post]:
        """The robot's messages to this person or group."""
        return [post for post in self.posts if post.chat == chat]

    # the stream

    async def _send_system(self, line: Line, topic: str, data: Json) -> None:
        headers = {"contentType": "application/json", "messageId": f"frame{next(self._ids)}", "topic": topic}
        await line.socket.send_json(
            {"specVersion": "1.0", "type": "SYSTEM", "headers": headers, "data": json.dumps(data)}
        )

    async def _deliver(self, pushed: Pushed) -> None:
        line = next((one for one in reversed(self.lines) if not one.is_leaving), None)
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

    async def _serve_line(self, request: web.Request) -> web.WebSocketResponse:
        ticket = request.query.get("ticket", "")
        if ticket not in self._tickets:
            raise web.HTTPUnauthorized
        self._tickets.remove(ticket)
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        self.lines.append(line := Line(socket))
        try:
            for pushed in self.pushed:
                if not pushed.acknowledged:
                    await self._deliver(pushed)
            async for frame in socket:
                if line.is_deaf:
                    continue
                if frame.type is WSMsgType.PING:
                    await socket.pong(frame.data)
                elif frame.type is WSMsgType.TEXT:
                    self._acknowledge(line, json.loads(frame.data))
        except OSError:
            pass
        finally:
            self.lines.remove(line)
            for pushed in self.pushed:
                if pushed.line is line:
                    pushed.line = None
        return socket

    def _acknowledge(self, line: Line, frame: Json) -> None:
        json.loads(frame["data"])  # a string with JSON
        line.acknowledgements.append(frame)
        for pushed in self.pushed:
            if pushed.headers["messageId"] == frame["headers"]["messageId"] and frame["code"] == 200:
                pushed.acknowledged = True

    # requests

    def _answered(self, handle: Callable[[Json], Json]) -> Handler:
        async def answer(request: web.Request) -> web.Response:
            self.calls.append(f"{request.method} {request.path}")
            body = await request.json()
            is_login = request.path in ("/v1.0/oauth2/accessToken", "/v1.0/gateway/connections/open")
            is_post = "/robot/" in request.path and "essages/" in request.path
            try:
                if not is_login and request.headers.get("x-acs-dingtalk-access-token") not in self._tokens:
                    raise RefusedError(401, "InvalidAuthentication", "不合法的access_token")
                if self.refusals and (is_post or "/card/" in request.path):
                    raise self.refusals.popleft()
                answered = handle(body)
            except RefusedError as error:
                return web.json_response(error.body, status=error.status)
            if self.loses_answers and is_post and request.transport is not None:
                self.loses_answers -= 1
                request.transport.abort()
            return web.json_response(answered)

        return answer

    def refuse(self, times: int, status: int, _: float | None = None) -> None:
        """Refuse the next so many sendings."""
        code, status = {
            500: ("ServiceUnavailable", 503),
            429: ("Forbidden.AccessDenied.QpsLimitForAppkeyAndApi", 403),
            403: ("Forbidden.AccessDenied", 403),
        }[status]
        self.refusals.extend(RefusedError(status, code) for _ in range(times))

    def expire_tokens(self) -> None:
        """Forget all access tokens, as when the secret is reset."""
        self._tokens.clear()

    def _give_token(self, body: Json) -> Json:
        if (body.get("appKey"), body.get("appSecret")) != (CLIENT_ID, self.secret):
            raise RefusedError(400, "invalidClientIdOrSecret", "无效的clientId或者clientSecret")
        self._tokens.add(token := f"token{next(self._ids)}")
        return {"accessToken": token, "expireIn": 7200}

    def _open(self, body: Json) -> Json:
        if (body.get("clientId"), body.get("clientSecret")) != (CLIENT_ID, self.secret):
            raise RefusedError(401, "authFailed", "鉴权失败")
        if not self.stream_mode:
            raise RefusedError(400, "notSupportStream", "应用未开启Stream模式")
        self.subscriptions = body["subscriptions"]
        self._tickets.add(ticket := f"ticket+{next(self._ids)}")
        return {"endpoint": f"{self.url.replace('http', 'ws')}/connect", "ticket": ticket}

    def _require(self, *scopes: str) -> None:
        if missing := [scope for scope in scopes if scope not in self.scopes]:
            raise RefusedError(
                403,
                "Forbidden.AccessDenied.AccessTokenPermissionDenied",
                accessdenieddetail={"requiredScopes": missing},
            )

    def _parameters(self, body: Json) -> Json:
        self._require("qyapi_robot_sendmsg")
        if body.get("robotCode") != CLIENT_ID:
            raise RefusedError(404, "resource.not.found", "robot 不存在")
        if len(body["msgParam"].encode()) > _LARGEST_PARAMETERS:
            raise RefusedError(400, "param.error", "msgParam is too long")
        parameters: Json = json.loads(body["msgParam"])
        needed = {
            "sampleMarkdown": {"title", "text"}, "sampleImageMsg": {"photoURL"},
            "sampleFile": {"mediaId", "fileName", "fileType"},
        }[body["msgKey"]]  # fmt: skip
        if needed != parameters.keys() or not all(isinstance(value, str) and value for value in parameters.values()):
            raise RefusedError(400, "param.error", "msgParam is not as msgKey wants it")
        media = parameters.get("mediaId") or parameters.get("photoURL")
        if media and not media.startswith("http") and media not in self.files:
            raise RefusedError(400, "param.error", "no such media")
        return parameters

    def _send_to_people(self, body: Json) -> Json:
        parameters, (person,) = self._parameters(body), body["userIds"]
        if person not in self.staff:
            raise RefusedError(400, "staffId.notExisted", "staffId不存在")
        if person in self.throttled_people:
            self.throttled_people.remove(person)
            return {"processQueryKey": "", "flowControlledStaffIdList": [person], "invalidStaffIdList": []}
        self.posts.append(post := Post(f"key{next(self._ids)}", person, body["msgKey"], parameters))
        return {"processQueryKey": post.id, "flowControlledStaffIdList": [], "invalidStaffIdList": []}

    def _send_to_group(self, body: Json) -> Json:
        parameters = self._parameters(body)
        if body["openConversationId"] not in self.groups:
            raise RefusedError(400, "invalidParameter.openConversationId", "robot is not in the group")
        self.posts.append(post := Post(f"key{next(self._ids)}", body["openConversationId"], body["msgKey"], parameters))
        return {"processQueryKey": post.id}

    def _react(self, body: Json) -> Json:
        chats = [(one.data["msgId"], one.data["conversationId"]) for one in self.pushed]
        if (body["openMsgId"], body["openConversationId"]) not in chats:
            raise RefusedError(400, "param.error", "no such message")
        assert body["textEmotion"]["text"] == body["emotionName"]
        self.reactions.setdefault(body["openMsgId"], []).append(body["emotionName"])
        return {"success": True}

    # cards

    def _create_card(self, body: Json) -> Json:
        self._require("Card.Instance.Write")
        if any(post.id == body["outTrackId"] for post in self.posts):
            raise RefusedError(400, "param.outTrackIdDuplicated", "outTrackId exists")
        if not body["cardTemplateId"].endswith(".schema"):
            raise RefusedError(400, "param.templateNotExist", "no such template")
        self.posts.append(Post(body["outTrackId"], "", "card", {}, dict(body["cardData"]["cardParamMap"])))
        return {"success": True, "result": body["outTrackId"]}

    def _deliver_card(self, body: Json) -> Json:
        post = self._card(body)
        space = re.fullmatch(r"dtv1\.card//(IM_ROBOT|IM_GROUP)\.(.+)", body["openSpaceId"])
        if space is None:
            raise RefusedError(400, "param.openSpaceIdInvalid", "no such space")
        known, model = (
            (self.staff, "imRobotOpenDeliverModel")
            if space[1] == "IM_ROBOT"
            else (self.groups, "imGroupOpenDeliverModel")
        )
        if model not in body:
            raise RefusedError(400, "param.deliverModelMissing", model)
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
        post = next((one for one in self.posts if one.id == body["outTrackId"] and one.card is not None), None)
        if post is None:
            raise RefusedError(404, "param.cardNotExist", "no such card")
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
        if post.card.get("finalized"):
            raise RefusedError(400, "param.streamFinalized", "the stream of the card has ended")
        if not body["isFull"] or not body["guid"]:
            raise RefusedError(400, "param.error", "isFull must be true for Markdown")
        post.card |= {body["key"]: body["content"]} | ({"finalized": True} if body["isFinalize"] else {})
        post.edits += 1
        return {"success": True, "result": True}

    # files

    async def _upload(self, request: web.Request) -> web.Response:
        self.calls.append(f"POST {request.path}")
        if request.query.get("access_token") not in self._tokens:
            return web.json_response({"errcode": 40014, "errmsg": "不合法的access_token"})
        form = await request.post()
        media = form["media"]
        assert isinstance(media, web.FileField)
        kind, suffix = request.query.get("type") or form.get("type"), media.filename.rpartition(".")[2]
        if kind == "file" and suffix not in _FILES:
            return web.json_response({"errcode": 40005, "errmsg": "不合法的媒体文件类型"})
        media_id = f"@lA{next(self._ids)}"
        self.files[media_id] = (media.filename, media.file.read())
        return web.json_response({"errcode": 0, "errmsg": "ok", "media_id": media_id, "type": kind, "created_at": 1})

    def _find_file(self, body: Json) -> Json:
        if body["downloadCode"] not in self.files or body["robotCode"] != CLIENT_ID:
            raise RefusedError(400, "invalidDownloadCode", "unknown download code")
        return {"downloadUrl": f"{self.url}/files/{body['downloadCode']}"}

    async def _give_file(self, request: web.Request) -> web.Response:
        if self.redirect_to and self.redirect_to != str(request.url):
            raise web.HTTPFound(self.redirect_to)
        name, data = self.files[request.match_info["code"]]
        return web.Response(body=data, content_type=mimetypes.guess_type(name)[0] or "application/octet-stream")


def as_seen(post: Post) -> str:
    """What a person reads: line ends and escapes undone, marks as they are."""
    text = str(post.card.get("msgContent", "") if post.card is not None else post.parameters.get("text", ""))
    return re.sub(r"\\([\\`*_<\]#>.+-])", r"\1", text.replace("  \n", "\n"))
