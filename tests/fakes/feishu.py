"""Feishu on loopback: its REST API, CardKit, and the long connection. Pages of open.feishu.cn/document:

server-docs/event-subscription-guide/long-connection, server-docs/im-v1/message/create, .../reply, .../list,
.../events/receive, server-docs/im-v1/message-reaction/create, server-docs/im-v1/image/create, .../file/create,
cardkit-v1/card/settings, .../update, .../id_convert, cardkit-v1/card-element/content,
feishu-cards/card-json-v2-structure.

It refuses what these pages refuse. The vendor's own client is run against it in tests/channels/test_feishu.py.
"""

import html
import json
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from nanobot.bus.queue import MessageBus
from nanobot.channels.feishu import FeishuChannel
from nanobot.channels.feishu.incoming import Frame, new_frame
from nanobot.config.channels import FeishuConfig
from nanobot.testing.platform import Shown
from tests.fakes.served import Handler, Json, Line, RefusedError, Said, ServedPlatform

APP_ID, SECRET = "cli_a1b2c3", "feishu-app-secret"
BOT, BOT_NAME = "ou_bot", "nanobot"
ANNA, ZOE = "ou_anna", "ou_zoe"
HALL, HALL_ROOT = "oc_hall", "om_hall_root"

_TEXT_BYTES, _CARD_BYTES, _IMAGE_BYTES, _FILE_BYTES = 150_000, 30_000, 10 << 20, 30 << 20
_EMOJI = {"THUMBSUP", "OK", "DONE", "Typing", "EYES"}
_FILE_TYPES = {"opus", "mp4", "pdf", "doc", "xls", "ppt", "stream"}
_FOR_TYPE = {"image": "image_key", "file": "file_key", "audio": "file_key", "media": "file_key"}


@dataclass
class Card:
    """A card, as it is now."""

    id: str
    message: str
    told: Json
    streams: bool
    sequence: int = 0
    edits: int = 0


@dataclass
class Post:
    """A message. `sender` is a person's id, or the app's."""

    id: str
    chat: str
    sender: str
    kind: str
    content: Json
    root: str = ""
    parent: str = ""
    topic: str = ""
    made: int = 0
    mentions: list[Json] = field(default_factory=list)
    signs: list[str] = field(default_factory=list)
    uuid: str = ""
    card: Card | None = None


@dataclass
class Room:
    """A chat with its messages; `person`: whose private one it is."""

    id: str
    person: str = ""
    posts: dict[str, Post] = field(default_factory=dict)


@dataclass
class Event:
    """Something that the app is told, until it says that it has it."""

    told: Json
    about: str
    codes: list[int] = field(default_factory=list)

    @property
    def acknowledged(self) -> bool:
        return 200 in self.codes


class FeishuPlatform(ServedPlatform):
    """One company with one app."""

    _last_event: Event

    name = "feishu"
    secret = SECRET
    autoping = False
    stall_s = 2.5
    person, private = ANNA, ANNA
    stranger, stranger_chat = ZOE, ZOE
    group, thread = HALL, HALL_ROOT
    limit = 7000
    edits = threads = files = quotes = dedupes = queues_messages = buttons = reacts = takes_back = loses_answers = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.rooms = {"oc_anna": Room("oc_anna", ANNA), "oc_zoe": Room("oc_zoe", ZOE), HALL: Room(HALL)}
        self.events: list[Event] = []
        self.ping_s = 1
        self.part_bytes = 1 << 20
        self.reactions: dict[str, str] = {}
        """The emoji of each reaction."""
        self.cards: dict[str, Card] = {}
        self.scopes = {"im:message", "cardkit:card:write", "im:resource", "history"}
        self.has_bot, self.activate_status, self.endpoint_code = True, 2, 0
        self.takes_cards = True
        self.pushes_again = True
        """Whether what was not acknowledged comes again with the next connection; at Feishu after 15 s, 5 min, ..."""
        self.polls: deque[Json] = deque()
        """What whoever waits for a new app is told, one after the other."""
        self._tickets: set[str] = set()
        self._waiting: dict[str, tuple[Event, int]] = {}
        self.add(self.rooms[HALL], ANNA, "text", {"text": "a topic"}, message_id=HALL_ROOT).topic = "omt_hall"

    @property
    def feishu(self) -> "FeishuPlatform":
        return self

    def channel(self, bus: MessageBus, **settings: Any) -> FeishuChannel:
        usual = {
            "enabled": True, "app_id": APP_ID, "app_secret": SECRET, "allow_from": [self.person],
            "domain": self.url, "reply_to_message": True,
        }  # fmt: skip
        return FeishuChannel(FeishuConfig.model_validate(usual | settings), bus)

    def routes(self) -> list[web.RouteDef]:
        api = "/open-apis"
        return [
            web.post("/callback/ws/endpoint", self._endpoint),
            web.post("/oauth/v1/app/registration", self._register),
            web.get("/link", self._connect),
            web.post(f"{api}/auth/v3/tenant_access_token/internal", self._token),
            *(
                web.route(method, f"{api}{path}", self._guarded(call))
                for method, path, call in (
                    ("GET", "/bot/v3/info", self._bot_info),
                    ("POST", "/im/v1/messages", self._create),
                    ("GET", "/im/v1/messages", self._history),
                    ("GET", "/im/v1/messages/{message}", self._get_message),
                    ("POST", "/im/v1/messages/{message}/reply", self._reply),
                    ("POST", "/im/v1/messages/{message}/reactions", self._react),
                    ("DELETE", "/im/v1/messages/{message}/reactions/{reaction}", self._take_back),
                    ("GET", "/im/v1/messages/{message}/resources/{key}", self._resource),
                    ("POST", "/im/v1/images", self._upload_image),
                    ("POST", "/im/v1/files", self._upload_file),
                    ("POST", "/cardkit/v1/cards", self._create_card),
                    ("POST", "/cardkit/v1/cards/id_convert", self._convert),
                    ("PUT", "/cardkit/v1/cards/{card}/elements/{element}/content", self._stream_text),
                    ("PUT", "/cardkit/v1/cards/{card}", self._update_card),
                    ("PATCH", "/cardkit/v1/cards/{card}/settings", self._set_card),
                )
            ),
        ]

    # what people do

    async def send_said(self, said: Said) -> str:
        text = f"@_user_1 {said.text}" if said.mention else said.text
        kind = "text"
        content: Json = {"text": text}
        if said.file is not None:  # a text with a picture is a "post" at Feishu
            key = self.put_file(said.file.name, said.file.read_bytes(), "img")
            parts = [[{"tag": "text", "text": text}], [{"tag": "img", "image_key": key}]]
            kind, content = "post", {"title": "", "content": parts}
        mentions = [{"key": "@_user_1", "id": {"open_id": BOT}, "name": BOT_NAME, "tenant_key": "t"}]
        return await self.writes(
            kind, content, said.chat, said.sender, mentions if said.mention else [], said.thread or said.reply_to or ""
        )

    async def writes(
        self,
        kind: str,
        content: Json,
        chat: str = ANNA,
        sender: str = ANNA,
        mentions: list[Json] | None = None,
        reply_to: str = "",
    ) -> str:
        """Write a message of any kind. Return its id."""
        post = self.add(self.room_of(chat), sender, kind, content)
        post.mentions = mentions or []
        if (target := self.post_of(reply_to)) is not None:
            post.root, post.parent, post.topic = target.root or target.id, target.id, target.topic
        self._last_event = await self.tell_of(post)
        return post.id

    def room_of(self, chat: str) -> Room:
        """A chat by its id, or a private one by its person's."""
        return next(room for room in self.rooms.values() if chat in (room.id, room.person))

    def post_of(self, message_id: str) -> Post | None:
        return next((room.posts[message_id] for room in self.rooms.values() if message_id in room.posts), None)

    def add(self, room: Room, sender: str, kind: str, content: Json, message_id: str = "") -> Post:
        """Put a message into a chat, and tell nobody."""
        post = Post(message_id or f"om_{next(self._ids)}", room.id, sender, kind, content)
        post.made = max(int(time.time() * 1000), 1 + max((one.made for one in room.posts.values()), default=0))
        room.posts[post.id] = post
        return post

    def put_file(self, name: str, data: bytes, prefix: str = "file") -> str:
        key = f"{prefix}_{next(self._ids)}"
        self.stored[key] = (name, data)
        return key

    async def tell_of(self, post: Post) -> Event:
        """Tell the app of a person's message."""
        room = self.rooms[post.chat]
        message: Json = {
            "message_id": post.id, "create_time": str(post.made), "update_time": str(post.made),
            "chat_id": room.id, "chat_type": "p2p" if room.person else "group", "message_type": post.kind,
            "content": json.dumps(post.content, ensure_ascii=False), "user_agent": "Mozilla/5.0",
        } | {
            key: value
            for key, value in {"root_id": post.root, "parent_id": post.parent, "thread_id": post.topic}.items()
            if value
        }  # fmt: skip
        if post.mentions:
            message["mentions"] = post.mentions
        ids = {"open_id": post.sender, "union_id": f"on_{post.sender}", "user_id": None}
        sender = {"sender_id": ids, "sender_type": "app" if post.sender == APP_ID else "user", "tenant_key": "t"}
        return await self.tell("im.message.receive_v1", {"sender": sender, "message": message}, post.id)

    async def tell(self, kind: str, event: Json, about: str = "") -> Event:
        """Tell the app of something."""
        header = {
            "event_id": f"ev{next(self._ids)}", "event_type": kind, "create_time": str(int(time.time() * 1000)),
            "token": "verification", "app_id": APP_ID, "tenant_key": "t",
        }  # fmt: skip
        self.events.append(told := Event({"schema": "2.0", "header": header, "event": event}, about))
        await self.deliver(told)
        return told

    async def deliver(self, event: Event) -> None:
        """Send it, in parts if it is long, to one connection."""
        line = self.lines[-1] if self.lines else None
        if line is None or line.is_deaf:
            return
        data = json.dumps(event.told, ensure_ascii=False).encode()
        parts = [data[start : start + self.part_bytes] for start in range(0, len(data), self.part_bytes)]
        name = f"msg{next(self._ids)}"
        self._waiting[name] = (event, len(parts))
        for number, part in enumerate(parts):
            headers = {
                "type": "event", "message_id": name, "sum": str(len(parts)), "seq": str(number), "trace_id": "tr",
            }  # fmt: skip
            try:
                await line.socket.send_bytes(new_frame(33, 1, headers, part))
            except OSError:
                return

    # the long connection

    async def _endpoint(self, request: web.Request) -> web.Response:
        asked = await request.json()
        self.calls.append("endpoint")
        if (asked.get("AppID"), asked.get("AppSecret")) != (APP_ID, self.secret):
            return web.json_response({"code": 514, "msg": "auth failed"})
        if self.endpoint_code:
            return web.json_response({"code": self.endpoint_code, "msg": "refused"})
        self._tickets.add(ticket := f"k{next(self._ids)}")
        url = f"{self.url.replace('http', 'ws')}/link?device_id=d1&service_id=33&access_key={ticket}&ticket={ticket}"
        config = {"ReconnectCount": -1, "ReconnectInterval": 120, "ReconnectNonce": 30, "PingInterval": self.ping_s}
        return web.json_response({"code": 0, "msg": "", "data": {"URL": url, "ClientConfig": config}})

    async def _connect(self, request: web.Request) -> web.WebSocketResponse:
        ticket = request.query.get("ticket", "")
        if ticket not in self._tickets:
            raise web.HTTPForbidden(headers={"handshake-status": "514", "handshake-msg": "bad ticket"})
        self._tickets.remove(ticket)
        return await self.serve_line(request)

    async def greet(self, line: Line) -> None:
        for event in self.events if self.pushes_again else ():
            if not event.acknowledged:
                await self.deliver(event)

    async def receive(self, line: Line, frame: Any) -> None:
        frame = Frame.decode(frame)
        headers = frame.headers
        if frame.is_control:
            assert headers == {"type": "ping"}
            config = json.dumps({"PingInterval": self.ping_s}).encode()
            await line.socket.send_bytes(new_frame(33, 0, {"type": "pong"}, config))
            return
        event, parts = self._waiting[headers["message_id"]]
        assert headers["sum"] == str(parts)
        event.codes.append(json.loads(frame.payload)["code"])

    # the REST API

    async def _token(self, request: web.Request) -> web.Response:
        self.calls.append("token")
        asked = await request.json()
        if asked.get("app_id") != APP_ID:
            return web.json_response({"code": 10003, "msg": "invalid param"})
        if asked.get("app_secret") != self.secret:
            return web.json_response({"code": 10014, "msg": "app secret invalid"})
        told = {"code": 0, "msg": "ok", "tenant_access_token": self.new_token(), "expire": 7200}
        return web.json_response(told)

    async def _register(self, request: web.Request) -> web.Response:
        """The device flow that creates an app (RFC 8628)."""
        asked = await request.post()
        if asked["action"] == "init":
            return web.json_response({"nonce": "n", "supported_auth_methods": ["client_secret"]})
        if asked["action"] == "begin":
            if (asked["archetype"], asked["auth_method"]) != ("PersonalAgent", "client_secret"):
                return web.json_response({"error": "invalid_request"}, status=400)
            link = "https://open.feishu.cn/page/launcher?user_code=AB12"
            begun = {"device_code": "device", "verification_uri_complete": link, "interval": 0.01, "expires_in": 600}
            return web.json_response(begun)
        if (asked["device_code"], asked["tp"]) != ("device", "ob_app"):
            return web.json_response({"error": "invalid_request"}, status=400)
        answer = self.polls.popleft() if self.polls else {"error": "authorization_pending"}
        return web.json_response(answer, status=400 if "error" in answer else 200)

    def note(self, request: web.Request) -> None:
        pass  # by name: see `_guarded`

    def _guarded(self, call: Callable[[web.Request], Any]) -> Handler:
        """A call with the checks that all have."""
        name = call.__name__.removeprefix("_")

        async def checked(request: web.Request) -> Any:
            self.calls.append(name)
            if request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
                raise RefusedError(99991663, "Invalid access token for authorization")
            if name in ("create", "reply", "stream_text", "update_card"):
                self.refuse_one()
            told = await call(request)
            if isinstance(told, web.StreamResponse):
                return told
            return {"code": 0, "msg": "success", "again": name not in ("create", "reply"), **told}

        return self.answered(checked, raw=True)

    def is_send(self, request: web.Request) -> bool:
        return True  # the others say `again`

    def is_refusable(self, request: web.Request) -> bool:
        return False  # by name: see `_guarded`

    def body_of(self, error: RefusedError) -> Json:
        return {"code": error.code, "msg": error.message}

    def refusal(self, status: int, retry_after_s: float | None) -> RefusedError:
        if status == 429:
            limited = RefusedError(99991400, "request trigger frequency limit", 429)
            return limited.after("x-ogw-ratelimit-reset", retry_after_s)
        if status == 403:
            return RefusedError(230002, "Bot/User can NOT be out of the chat.")
        return RefusedError(2200, "internal error", 500)

    async def _bot_info(self, request: web.Request) -> Json:
        if not self.has_bot:
            raise RefusedError(11205, "app do not have bot", 200)
        return {"bot": {"activate_status": self.activate_status, "app_name": BOT_NAME, "open_id": BOT}}

    async def _create(self, request: web.Request) -> Json:
        asked = await request.json()
        kind, chat = request.query.get("receive_id_type"), str(asked.get("receive_id") or "")
        prefix = {"chat_id": "oc_", "open_id": "ou_"}.get(str(kind))
        if prefix is None or not chat.startswith(prefix):
            raise RefusedError(99992402, "field validation failed")
        room = next((room for room in self.rooms.values() if chat in (room.id, room.person)), None)
        if room is None:
            raise RefusedError(230002 if prefix == "oc_" else 230013, "Bot has NO availability to this user.")
        return await self._post(room, asked)

    async def _reply(self, request: web.Request) -> Json:
        to = self.post_of(request.match_info["message"])
        if to is None:
            raise RefusedError(230011, "The message was withdrawn.")
        return await self._post(self.rooms[to.chat], await request.json(), to)

    async def _post(self, room: Room, asked: Json, to: Post | None = None) -> Json:
        uuid = str(asked.get("uuid") or "")
        if len(uuid) > 50:
            raise RefusedError(99992402, "field validation failed")
        again = next((post for post in room.posts.values() if uuid and post.uuid == uuid), None)
        if again is not None:
            return {"data": self._told(again), "again": True}
        kind, content = asked.get("msg_type"), json.loads(asked["content"])
        size, card = len(asked["content"].encode()), None
        if kind == "text":
            if not content["text"].strip():
                raise RefusedError(230001, "Your request contains an invalid request parameter.")
            if size > _TEXT_BYTES:
                raise RefusedError(230025, "The length of the message content reaches its limit.")
        elif kind == "interactive" and content.get("type") == "card":
            card = self.cards.get(content["data"]["card_id"])
            if card is None or card.message:
                raise RefusedError(230099, "Failed to create card content: a card entity can be sent once")
            content = card.told
        elif kind == "interactive":
            card = self._new_card(content, size)
        elif content.get(_FOR_TYPE.get(str(kind), "")) not in self.stored:
            raise RefusedError(230001, "invalid key")
        post = self.add(room, APP_ID, str(kind), content)
        post.uuid = uuid
        if card is not None:
            post.card, card.message = card, post.id
        if to is not None:
            post.root, post.parent, post.topic = to.root or to.id, to.id, to.topic
        return {"data": self._told(post)}

    def _new_card(self, told: Json, size: int) -> Card:
        self._check_card(told, size)
        card = Card(f"7{next(self._ids):012}", "", told, told["config"].get("streaming_mode", False))
        self.cards[card.id] = card
        return card

    def _check_card(self, card: Json, size: int) -> None:
        if size > _CARD_BYTES:
            raise RefusedError(230025, "The length of the message content reaches its limit.")
        elements = card.get("body", {}).get("elements", [])
        buttons = [one for one in elements if one["tag"] == "button"]
        values = [behavior["value"] for button in buttons for behavior in button["behaviors"]]
        ids = [one["element_id"] for one in elements if "element_id" in one]
        is_sound = (
            card.get("schema") == "2.0"
            and all(one["tag"] in ("markdown", "button", "hr") for one in elements)
            and all(re.fullmatch(r"[A-Za-z]\w{0,19}", one, re.ASCII) for one in ids)
            and len({*ids}) == len(ids)
            and all(isinstance(value, dict) for value in values)
            and not (buttons and card["config"].get("streaming_mode"))
        )
        if not is_sound or not self.takes_cards:
            raise RefusedError(
                230099, "Failed to create card content, ext=ErrCode: 11310; ErrMsg: element exceeds limit"
            )

    def _told(self, post: Post) -> Json:
        told = {
            "message_id": post.id, "msg_type": post.kind, "create_time": str(post.made), "chat_id": post.chat,
            "sender": {
                "id": post.sender, "id_type": "app_id" if post.sender == APP_ID else "open_id",
                "sender_type": "app" if post.sender == APP_ID else "user", "tenant_key": "t",
            },
            "body": {"content": json.dumps(post.content, ensure_ascii=False)}, "deleted": False, "updated": False,
        }  # fmt: skip
        if post.mentions:
            told["mentions"] = [{**one, "id": one["id"]["open_id"], "id_type": "open_id"} for one in post.mentions]
        optional = {"root_id": post.root, "parent_id": post.parent, "thread_id": post.topic}
        return told | {key: value for key, value in optional.items() if value}

    async def _get_message(self, request: web.Request) -> Json:
        post = self.post_of(request.match_info["message"])
        if post is None:
            raise RefusedError(230011, "The message was withdrawn.")
        forwarded = [one for room in self.rooms.values() for one in room.posts.values() if one.root == f"in {post.id}"]
        return {"data": {"items": [self._told(post), *map(self._told, forwarded)]}}

    async def _history(self, request: web.Request) -> Json:
        if "history" not in self.scopes:
            raise RefusedError(
                99991672, "Access denied. One of the following scopes is required: [im:message:readonly]"
            )
        if request.query["container_id_type"] != "chat" or request.query["container_id"] not in self.rooms:
            raise RefusedError(230002, "Bot/User can NOT be out of the chat.")
        since, size = int(request.query.get("start_time") or 0), int(request.query.get("page_size") or 20)
        assert size <= 50
        posts = [one for one in self.rooms[request.query["container_id"]].posts.values() if one.made // 1000 >= since]
        if request.query.get("sort_type") == "ByCreateTimeDesc":
            posts.reverse()
        start = int(request.query.get("page_token") or 0)
        page = {
            "items": [self._told(one) for one in posts[start : start + size]],
            "has_more": start + size < len(posts),
        }
        return {"data": page | ({"page_token": str(start + size)} if page["has_more"] else {})}

    async def _react(self, request: web.Request) -> Json:
        post = self.post_of(request.match_info["message"])
        emoji = (await request.json())["reaction_type"]["emoji_type"]
        if post is None:
            raise RefusedError(231003, "The message is not found.")
        if emoji not in _EMOJI:
            raise RefusedError(231001, "reaction type is invalid.")
        post.signs.append(emoji)
        self.reactions[reaction := f"re{next(self._ids)}"] = emoji
        return {"data": {"reaction_id": reaction}}

    async def _take_back(self, request: web.Request) -> Json:
        post = self.post_of(request.match_info["message"])
        emoji = self.reactions.pop(request.match_info["reaction"], None)
        if post is None or emoji is None:
            raise RefusedError(231007, "The reaction is not found.")
        post.signs.remove(emoji)
        return {"data": {}}

    async def _resource(self, request: web.Request) -> web.Response:
        post, key = self.post_of(request.match_info["message"]), request.match_info["key"]
        if post is None or key not in json.dumps(post.content) or key not in self.stored:
            raise RefusedError(234003, "File not in msg.")
        if request.query["type"] != ("image" if key.startswith("img") else "file"):
            raise RefusedError(234001, "Invalid request param.")
        return web.Response(body=self.stored[key][1], content_type="application/octet-stream")

    async def _upload_image(self, request: web.Request) -> Json:
        form = await request.post()
        return {
            "data": {
                "image_key": self._take_upload(form["image"], _IMAGE_BYTES, form["image_type"] == "message", "img")
            }
        }

    async def _upload_file(self, request: web.Request) -> Json:
        form = await request.post()
        is_sound = form["file_type"] in _FILE_TYPES and bool(form["file_name"])
        return {"data": {"file_key": self._take_upload(form["file"], _FILE_BYTES, is_sound, "file")}}

    def _take_upload(self, part: Any, largest: int, is_sound: bool, prefix: str) -> str:
        data = part.file.read()
        if not is_sound:
            raise RefusedError(234001, "Invalid request param.")
        if not data or len(data) > largest:
            raise RefusedError(234010 if not data else 234006, "The file size is not right.")
        return self.put_file(part.filename, data, prefix)

    # CardKit

    def _check_scope(self) -> None:
        if "cardkit:card:write" not in self.scopes:
            raise RefusedError(99991672, "Access denied. One of the following scopes is required: [cardkit:card:write]")

    async def _create_card(self, request: web.Request) -> Json:
        self._check_scope()
        asked = await request.json()
        assert asked["type"] == "card_json"
        return {"data": {"card_id": self._new_card(json.loads(asked["data"]), len(asked["data"].encode())).id}}

    def _card_of(self, request: web.Request) -> Card:
        self._check_scope()
        card = self.cards.get(request.match_info["card"])
        if card is None:
            raise RefusedError(300301, "card not found")
        return card

    def _count(self, card: Card, asked: Json) -> None:
        if not card.sequence < asked["sequence"] < 1 << 31:
            raise RefusedError(300317, "sequence number compare failed")
        card.sequence = asked["sequence"]

    async def _convert(self, request: web.Request) -> Json:
        post = self.post_of((await request.json())["message_id"])
        if post is None or post.card is None:
            raise RefusedError(200810, "message is not a card")
        return {"data": {"card_id": post.card.id}}

    async def _stream_text(self, request: web.Request) -> Json:
        card, asked = self._card_of(request), await request.json()
        if not card.streams:
            raise RefusedError(300309, "streaming mode is closed")
        element = next(
            (one for one in card.told["body"]["elements"] if one.get("element_id") == request.match_info["element"]),
            None,
        )
        if element is None:
            raise RefusedError(300313, "element not found")
        self._count(card, asked)
        element["content"], card.edits = asked["content"], card.edits + 1
        return {}

    async def _update_card(self, request: web.Request) -> Json:
        card, asked = self._card_of(request), await request.json()
        assert asked["card"]["type"] == "card_json"
        told = json.loads(asked["card"]["data"])
        self._check_card(told, len(asked["card"]["data"].encode()))
        self._count(card, asked)
        card.told.clear()
        card.told.update(told)
        card.streams, card.edits = told["config"].get("streaming_mode", False), card.edits + 1
        return {}

    async def _set_card(self, request: web.Request) -> Json:
        card, asked = self._card_of(request), await request.json()
        self._count(card, asked)
        card.streams = json.loads(asked["settings"])["config"]["streaming_mode"]
        return {}

    # what people see

    async def press_button(self, message_id: str, label: str, sender: str | None = None) -> None:
        post = self._post_of(message_id)
        value = buttons_of(post)[label]["behaviors"][0]["value"]
        event = {
            "operator": {"tenant_key": "t", "open_id": sender or self.person, "union_id": "on_x"}, "token": "c-1",
            "action": {"value": value, "tag": "button"}, "host": "im_message",
            "context": {"open_message_id": post.id, "open_chat_id": post.chat},
        }  # fmt: skip
        await self.tell("card.action.trigger", event)

    def in_chat(self, chat: str) -> list[Post]:
        return [post for post in self.room_of(chat).posts.values() if post.sender == APP_ID]

    def as_seen(self, post: Post) -> Shown:
        keys = [key for key in post.content.values() if isinstance(key, str) and key in self.stored]
        names = [self.stored[key][0] for key in keys]
        edits = post.card.edits if post.card is not None else 0
        topic = (post.root or None) if post.topic else None
        return Shown(post.id, text_of(post), names, post.parent or None, topic, edits, [*buttons_of(post)])

    def reactions_on(self, message_id: str) -> list[str]:
        return self._post_of(message_id).signs

    def _post_of(self, message_id: str) -> Post:
        post = self.post_of(message_id)
        assert post is not None
        return post

    async def repeat_last(self) -> None:
        await self.deliver(self._last_event)

    def acknowledged(self, message_id: str) -> bool:
        about = [event for event in self.events if event.about == message_id]
        return bool(about) and all(event.acknowledged for event in about)


def text_of(post: Post) -> str:
    """What a person reads: marks are taken away, entities are characters."""
    if post.kind == "text":
        return str(post.content["text"])
    if post.kind != "interactive":
        return ""
    text = "\n".join(one["content"] for one in post.content["body"]["elements"] if one["tag"] == "markdown")
    return html.unescape(re.sub(r"```\w*\n?|\*\*|[*`]|~~", "", text)).replace("\u200b", "")


def buttons_of(post: Post) -> dict[str, Json]:
    """The buttons of a message, by their labels."""
    elements = post.content["body"]["elements"] if post.kind == "interactive" else []
    return {one["text"]["content"]: one for one in elements if one["tag"] == "button"}
