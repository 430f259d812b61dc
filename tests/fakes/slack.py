"""A Slack workspace on loopback: the Web API, and the WebSockets that `apps.connections.open` hands out.

Imitated from https://docs.slack.dev/reference/methods (each method by its page), .../apis/events-api/using-socket-mode,
.../apis/events-api#retries, .../reference/block-kit and .../messaging/working-with-files. What Slack sends again after
one minute and five is sent again as soon as somebody is connected. Not imitated: one message a second in a channel.
"""

import asyncio
import json
import mimetypes
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from aiohttp import web

from nanobot.bus.queue import MessageBus
from nanobot.channels.slack import SlackChannel
from nanobot.config.channels import SlackConfig
from nanobot.testing.platform import Shown
from tests.fakes.served import Json, Line, RefusedError, Said, ServedPlatform

BOT_TOKEN, APP_TOKEN, PERSON_TOKEN = "xoxb-1-good", "xapp-1-good", "xoxp-1-anna"
BOT, BOT_ID, BOT_NAME = "U0BOT", "B0BOT", "nanobot"
ANNA, ZOE = "U0ANNA", "U0ZOE"
SCOPES = frozenset({
    "app_mentions:read", "channels:history", "chat:write", "commands", "files:read", "files:write", "groups:history",
    "im:history", "im:write", "mpim:history", "reactions:write", "users:read",
})  # fmt: skip
_LIMIT = 4000
_EMOJI = frozenset({"eyes", "thumbsup", "white_check_mark"})
_REFUSALS = {500: "internal_error", 429: "ratelimited", 403: "not_in_channel"}
_LEAVING = "leaving"


def _refused(error: str, **more: Any) -> RefusedError:
    """`ok` false, and a word for it."""
    return RefusedError(error, status=200, **more)


@dataclass
class Post:
    """A message in a room."""

    user: str
    ts: str
    text: str
    thread: str | None = None
    blocks: list[Json] = field(default_factory=list)
    files: list[Json] = field(default_factory=list)
    signs: list[str] = field(default_factory=list)
    edits: int = 0
    has_preview: bool = True
    told: Json = field(default_factory=dict)


@dataclass
class Room:
    """A chat. `kind` as in `channel_type`."""

    id: str
    kind: str
    is_open: bool = True
    """Whether the bot is in it."""
    is_archived: bool = False
    posts: dict[str, Post] = field(default_factory=dict)


@dataclass
class Envelope:
    """Something Slack wants to be told of that it arrived."""

    told: Json
    ts: str
    acknowledged: bool = False
    line: Line | None = None


class SlackPlatform(ServedPlatform):
    """A workspace: the rooms, the people, and what the bot did there."""

    name = "slack"
    autoping = False
    ping_s = 0.5
    stall_s = 1.5
    person, private = ANNA, "D0ANNA"
    stranger, stranger_chat = ZOE, "D0ZOE"
    group, thread = "C0HALL", "1700000000.000007"
    limit = 4000
    edits = threads = files = queues_messages = buttons = reacts = takes_back = loses_answers = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._presses = count(1)
        self.rooms = {
            room.id: room
            for room in (
                Room("D0ANNA", "im"), Room("D0ZOE", "im"), Room("C0HALL", "channel"), Room("G0TRIO", "mpim"),
                Room("C0AWAY", "channel", is_open=False), Room("C0OLD", "channel", is_archived=True),
            )
        }  # fmt: skip
        self.people = {ANNA: "Anna", ZOE: "Zoe\nZ."}
        """What they call themselves."""
        self.slow_people_s = 0.0
        self.directs = {ANNA: "D0ANNA", ZOE: "D0ZOE"}
        self.scopes, self.app_scopes = set(SCOPES), {"connections:write"}
        self.good_tokens = {BOT_TOKEN, APP_TOKEN, PERSON_TOKEN}
        self.socket_mode = True
        self.tokens_seen: list[str] = []
        """Whatever came as a token with a download."""
        self.broken: dict[str, int] = {}
        """Methods behind which something is broken, and what is answered in their place."""
        self.limited: dict[str, int] = {}
        """Methods that were called too often, and how many more calls are refused."""
        self.envelopes: list[Envelope] = []
        self.opened = 0
        self.tickets_are_good = True
        self.slow_file: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None
        """Serves the next download instead."""
        self._tickets: set[str] = set()
        self._began = int(time.time())
        self._methods: dict[str, Callable[[Json, str], Awaitable[Json]]] = {
            "auth.test": self._auth_test,
            "apps.connections.open": self._open_connection,
            "chat.postMessage": self._post_message,
            "chat.update": self._update,
            "reactions.add": self._add_reaction,
            "reactions.remove": self._remove_reaction,
            "conversations.open": self._open_conversation,
            "conversations.history": self._history,
            "conversations.replies": self._replies,
            "files.getUploadURLExternal": self._upload_url,
            "files.completeUploadExternal": self._complete_upload,
            "files.info": self._file_info,
            "users.info": self._user_info,
        }
        self.add(Room("C0HALL", "channel"), ZOE, "long ago", ts="1700000000.000007")

    @property
    def workspace(self) -> "SlackPlatform":
        return self

    def channel(self, bus: MessageBus, **settings: Any) -> SlackChannel:
        usual = {
            "enabled": True, "bot_token": BOT_TOKEN, "app_token": APP_TOKEN, "allow_from": [self.person],
            "api_base": f"{self.url}/api",
        }  # fmt: skip
        channel = SlackChannel(SlackConfig.model_validate(usual | settings), bus)
        channel.ping_s = self.ping_s
        return channel

    def routes(self) -> list[web.RouteDef]:
        return [
            web.route("*", "/api/{method}", self._call),
            web.get("/link", self._connect),
            web.post("/upload/{file}", self._take_upload),
            web.get("/files/{file}/{name}", self._give_file),
        ]

    # what people do

    async def send_said(self, said: Said) -> str:
        text = f"<@{BOT}> {said.text}" if said.mention else said.text
        room = self.rooms[said.chat]
        post = self.add(room, said.sender, text, thread=said.thread)
        if said.file is not None:
            post.files = [self.put_file(said.file.name, said.file.read_bytes())]
        await self.tell_of(room, post, mention=said.mention, **said.more)
        return post.ts

    def add(self, room: Room, user: str, text: str, *, thread: str | None = None, ts: str | None = None) -> Post:
        """A message in a room; nobody is told."""
        post = Post(user, ts or f"{self._began}.{next(self._ids):06}", text, thread)
        self.rooms[room.id].posts[post.ts] = post
        return post

    def put_file(self, name: str, data: bytes, **more: Any) -> Json:
        """A file that lies here; how events tell of it."""
        number = f"F0{next(self._ids)}"
        address = f"{self.url}/files/{number}/{name}"
        told = {
            "id": number, "name": name, "mimetype": mimetypes.guess_type(name)[0] or "application/octet-stream",
            "size": len(data), "mode": "hosted", "url_private": address, "url_private_download": address, **more,
        }  # fmt: skip
        self.stored[number] = (told, data)
        return told

    async def tell_of(self, room: Room, post: Post, *, mention: bool, **more: Any) -> None:
        """Tell the app of a message, as often as Slack does: a mention in a channel is told of twice."""
        told = {
            "user": post.user, "text": post.text, "ts": post.ts, "event_ts": post.ts, "channel": room.id, "team": "T0",
            **({"thread_ts": post.thread} if post.thread else {}), **more,
        }  # fmt: skip
        files = {"files": post.files, "subtype": "file_share"} if post.files else {}
        post.told = {"type": "message", "channel_type": room.kind, **told, **files}
        if mention and room.kind != "im" and "app_mentions:read" in self.scopes:
            await self.tell({"type": "app_mention", **told})
        await self.tell(post.told)

    async def tell(self, event: Json) -> None:
        """Tell the app of an event."""
        if event.get("channel") in self.rooms and not self.rooms[event["channel"]].is_open:
            return
        payload = {"type": "event_callback", "event_id": f"Ev{next(self._ids)}", "team_id": "T0", "event": event}
        await self.send("events_api", payload, str(event.get("ts", "")))

    async def send(self, kind: str, payload: Json, ts: str = "") -> Envelope:
        """Put something into an envelope."""
        told = {
            "envelope_id": f"e-{next(self._ids)}", "type": kind, "accepts_response_payload": kind != "events_api",
            "payload": payload,
        }  # fmt: skip
        self.envelopes.append(envelope := Envelope(told, ts))
        await self._deliver(envelope)
        return envelope

    async def again(self, ts: str) -> None:
        """Send what tells of a message once more, as if no acknowledgement had come."""
        for envelope in [one for one in self.envelopes if one.ts == ts]:
            envelope.told |= {"retry_attempt": 1, "retry_reason": "timeout"}
            envelope.line = None
            await self._deliver(envelope)

    async def end_lines(self, reason: str, *, close: bool = False) -> None:
        """Tell every connection that it is about to be closed, or why it is."""
        for line in [*self.lines]:
            line.session = _LEAVING
            await line.socket.send_json({"type": "disconnect", "reason": reason, "debug_info": {"host": "applink"}})
            if close:
                await line.socket.close()

    # the socket

    async def _deliver(self, envelope: Envelope) -> None:
        line = next((one for one in reversed(self.lines) if one.session != _LEAVING), None)
        if line is not None and envelope.line is None:
            envelope.line = line
            if not line.is_deaf:
                try:
                    await line.socket.send_json(envelope.told)
                except OSError:
                    envelope.line = None

    async def _connect(self, request: web.Request) -> web.WebSocketResponse:
        ticket = request.query.get("ticket", "")
        if ticket not in self._tickets or not self.tickets_are_good:
            raise web.HTTPForbidden
        self._tickets.remove(ticket)
        self.opened += 1
        try:
            return await self.serve_line(request)
        finally:
            for envelope in self.envelopes:
                if envelope.line not in self.lines:
                    envelope.line = None

    async def greet(self, line: Line) -> None:
        about = {"num_connections": len(self.lines), "connection_info": {"app_id": "A0"}}
        await line.socket.send_json({"type": "hello", **about})
        await line.socket.ping(b"Ping from applink")
        for envelope in self.envelopes:
            if not envelope.acknowledged:
                await self._deliver(envelope)

    async def receive(self, line: Line, frame: Any) -> None:
        told = json.loads(frame)
        for envelope in self.envelopes:
            if envelope.told["envelope_id"] == told["envelope_id"]:
                envelope.acknowledged = True

    # the Web API

    async def _call(self, request: web.Request) -> web.StreamResponse:
        answer = await self.answered(self._answer, raw=True)(request)
        answer.headers["x-oauth-scopes"] = ",".join(sorted(self.scopes))
        return answer

    async def _answer(self, request: web.Request) -> web.Response | Json:
        method = request.match_info["method"]
        asked: Json = dict(request.query)
        if request.content_type == "application/json":
            asked |= await request.json()
        else:
            asked |= {name: value for name, value in (await request.post()).items() if isinstance(value, str)}
        if method not in self._methods:
            raise RefusedError("unknown_method", status=200)
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self._check_token(token, method)
        if method in self.broken:
            return web.Response(status=self.broken[method], text="<html>", content_type="text/html")
        if self.limited.get(method):
            self.limited[method] -= 1
            raise RefusedError("ratelimited", status=429).after("Retry-After", 0.05)
        if method in ("chat.postMessage", "chat.update", "files.completeUploadExternal"):
            self.refuse_one()
        return {"ok": True, **await self._methods[method](asked, token)}

    def note(self, request: web.Request) -> None:
        self.calls.append(request.match_info["method"])

    def is_send(self, request: web.Request) -> bool:
        return request.match_info["method"] == "chat.postMessage"

    def is_refusable(self, request: web.Request) -> bool:
        return False  # behind the checks of `_answer`

    def body_of(self, error: RefusedError) -> Json:
        return {"ok": False, "error": error.code, **error.more}

    def refusal(self, status: int, retry_after_s: float | None) -> RefusedError:
        refused = RefusedError(_REFUSALS[status], status=200 if status == 403 else status)
        return refused.after("Retry-After", retry_after_s)

    def _check_token(self, token: str, method: str) -> None:
        if not token:
            raise _refused("not_authed")
        if token not in self.good_tokens:
            raise _refused("invalid_auth")
        if token.startswith("xapp-") is not (method == "apps.connections.open"):
            raise _refused("not_allowed_token_type")
        needed = {
            "apps.connections.open": "connections:write", "chat.postMessage": "chat:write", "chat.update": "chat:write",
            "reactions.add": "reactions:write", "reactions.remove": "reactions:write",
            "files.info": "files:read", "conversations.open": "im:write",
            "files.getUploadURLExternal": "files:write", "files.completeUploadExternal": "files:write",
            "users.info": "users:read",
            "conversations.history": "channels:history", "conversations.replies": "channels:history",
        }.get(method)  # fmt: skip
        scopes = self.app_scopes if method == "apps.connections.open" else self.scopes
        if needed is not None and needed not in scopes:
            raise _refused("missing_scope", needed=needed, provided=",".join(sorted(scopes)))

    async def _auth_test(self, _: Json, token: str) -> Json:
        if token == PERSON_TOKEN:
            return {"user": "anna", "user_id": ANNA, "team_id": "T0"}
        return {"user": BOT_NAME, "user_id": BOT, "bot_id": BOT_ID, "team_id": "T0"}

    async def _open_connection(self, _: Json, __: str) -> Json:
        if not self.socket_mode:
            raise _refused("socket_mode_not_enabled")
        self._tickets.add(ticket := f"t{next(self._ids)}")
        return {"url": f"{self.url.replace('http', 'ws')}/link?ticket={ticket}&app_id=A0"}

    def _room(self, asked: Json) -> Room:
        room = self.rooms.get(self.directs.get(str(asked.get("channel")), str(asked.get("channel"))))
        if room is None:
            raise _refused("channel_not_found")
        if room.is_archived:
            raise _refused("is_archived")
        if not room.is_open:
            raise _refused("not_in_channel")
        return room

    async def _post_message(self, asked: Json, token: str) -> Json:
        room, blocks = self._room(asked), _blocks(asked)
        text = str(asked.get("text") or "")
        if not (text or blocks):
            raise _refused("no_text")
        if len(text) > _LIMIT:
            raise _refused("msg_too_long")
        thread = asked.get("thread_ts")
        if thread and thread not in room.posts:
            raise _refused("thread_not_found")
        post = self.add(room, ANNA if token == PERSON_TOKEN else BOT, text, thread=thread)
        post.blocks = blocks
        post.has_preview = str(asked.get("unfurl_links", 1)).lower() not in ("0", "false")
        await self._tell_of_own(room, post)
        return {"channel": room.id, "ts": post.ts, "message": {"text": text}}

    async def _update(self, asked: Json, _: str) -> Json:
        post = self._room(asked).posts.get(str(asked.get("ts")))
        if post is None:
            raise _refused("message_not_found")
        if post.user != BOT:
            raise _refused("cant_update_message")
        if len(asked["text"]) > _LIMIT:
            raise _refused("msg_too_long")
        post.text, post.blocks, post.edits = asked["text"], _blocks(asked), post.edits + 1
        return {"channel": asked["channel"], "ts": post.ts, "text": post.text}

    async def _tell_of_own(self, room: Room, post: Post) -> None:
        """The app is told of its own messages, too."""
        told = {"channel": room.id, "channel_type": room.kind, "user": post.user, "text": post.text, "ts": post.ts}
        await self.tell({"type": "message", "bot_id": BOT_ID, "app_id": "A0", **told})

    async def _add_reaction(self, asked: Json, _: str) -> Json:
        post = self._room(asked).posts.get(str(asked.get("timestamp")))
        name = str(asked.get("name"))
        if name not in _EMOJI:
            raise _refused("invalid_name")
        if post is None:
            raise _refused("message_not_found")
        if name in post.signs:
            raise _refused("already_reacted")
        post.signs.append(name)
        return {}

    async def _remove_reaction(self, asked: Json, _: str) -> Json:
        post, name = self._room(asked).posts.get(str(asked.get("timestamp"))), str(asked.get("name"))
        if post is None or name not in post.signs:
            raise _refused("no_reaction")
        post.signs.remove(name)
        return {}

    async def _open_conversation(self, asked: Json, _: str) -> Json:
        if asked.get("users") not in self.directs:
            raise _refused("user_not_found")
        return {"channel": {"id": self.directs[asked["users"]]}}

    async def _user_info(self, asked: Json, _: str) -> Json:
        await asyncio.sleep(self.slow_people_s)
        name = self.people.get(str(asked.get("user")))
        if name is None:
            raise _refused("user_not_found")
        return {"user": {"id": asked["user"], "name": name.lower(), "profile": {"display_name": name}}}

    async def _history(self, asked: Json, _: str) -> Json:
        found = [post for post in self._room(asked).posts.values() if post.thread in (None, post.ts)]
        return self._page(found, asked)

    async def _replies(self, asked: Json, _: str) -> Json:
        posts = self._room(asked).posts
        if asked.get("ts") not in posts:
            raise _refused("thread_not_found")
        return self._page([post for post in posts.values() if asked["ts"] in (post.thread, post.ts)], asked)

    def _page(self, posts: list[Post], asked: Json) -> Json:
        """Newest first for a history; the caller sorts."""
        after = float(asked.get("oldest") or 0)
        found = sorted((post for post in posts if float(post.ts) > after), key=lambda post: post.ts, reverse=True)
        told = [
            {
                "type": "message",
                **{k: v for k, v in (post.told or _bare(post)).items() if k not in ("channel", "channel_type")},
            }
            for post in found
        ]
        return {"messages": told, "has_more": False}

    async def _upload_url(self, asked: Json, _: str) -> Json:
        if not (asked.get("filename") and int(asked.get("length") or 0) > 0):
            raise _refused("invalid_arguments")
        told = self.put_file(str(asked["filename"]), b"", size=int(asked["length"]))
        return {"upload_url": f"{self.url}/upload/{told['id']}", "file_id": told["id"]}

    async def _take_upload(self, request: web.Request) -> web.Response:
        if "Authorization" in request.headers:
            self.tokens_seen.append(request.headers["Authorization"])
        told, _ = self.stored[request.match_info["file"]]
        data = await request.read()
        if len(data) != told["size"]:
            return web.Response(status=400, text="not as long as it was said to be")
        self.stored[told["id"]] = (told, data)
        return web.Response(text=f"OK - {len(data)}")

    async def _complete_upload(self, asked: Json, _: str) -> Json:
        listed = asked.get("files") or []
        files = json.loads(listed) if isinstance(listed, str) else listed
        room = self._room({"channel": asked.get("channel_id")})
        for one in files:
            if one["id"] not in self.stored or not self.stored[one["id"]][1]:
                raise _refused("file_not_found")
        post = self.add(room, BOT, "", thread=asked.get("thread_ts"))
        post.files = [self.stored[one["id"]][0] for one in files]
        return {"files": [{"id": one["id"], "title": one.get("title")} for one in files]}

    async def _file_info(self, asked: Json, _: str) -> Json:
        if asked.get("file") not in self.stored:
            raise _refused("file_not_found")
        return {"file": self.stored[asked["file"]][0]}

    async def _give_file(self, request: web.Request) -> web.StreamResponse:
        """Who has no token, or not the scope, is sent to the page where people log in."""
        if self.slow_file is not None:
            return await self.slow_file(request)
        self.tokens_seen.append(request.headers.get("Authorization", ""))
        if request.headers.get("Authorization") != f"Bearer {BOT_TOKEN}" or "files:read" not in self.scopes:
            raise web.HTTPFound(f"{self.url}/?redir=files")
        told, data = self.stored[request.match_info["file"]]
        return web.Response(body=data, content_type=told["mimetype"])

    # what people see

    async def press_button(self, message_id: str, label: str) -> None:
        room, post = next((room, room.posts[message_id]) for room in self.rooms.values() if message_id in room.posts)
        button = labels(post)[label]
        payload = {
            "type": "block_actions", "user": {"id": self.person}, "channel": {"id": room.id}, "trigger_id": "t.1",
            "container": {"type": "message", "message_ts": post.ts, "channel_id": room.id},
            "message": {"ts": post.ts, "text": post.text} | ({"thread_ts": post.thread} if post.thread else {}),
            "actions": [{**button, "action_ts": f"1770000000.{next(self._presses):06}", "block_id": "b"}],
        }  # fmt: skip
        await self.send("interactive", payload)

    def in_chat(self, chat: str) -> list[Post]:
        return [one for one in self.rooms[chat].posts.values() if one.user == BOT]

    def as_seen(self, post: Post) -> Shown:
        names = [file["name"] for file in post.files]
        return Shown(post.ts, text_of(post), names, thread_id=post.thread, edits=post.edits, buttons=[*labels(post)])

    def reactions_on(self, message_id: str) -> list[str]:
        found = [room.posts[message_id] for room in self.rooms.values() if message_id in room.posts]
        return found[0].signs

    # what goes wrong

    def acknowledged(self, message_id: str) -> bool:
        about = [one for one in self.envelopes if one.ts == message_id]
        return bool(about) and all(one.acknowledged for one in about)

    async def revoke(self) -> None:
        self.good_tokens.discard(BOT_TOKEN)
        await self.tell({"type": "tokens_revoked", "tokens": {"oauth": [], "bot": [BOT]}})
        await self.drop()


def _bare(post: Post) -> Json:
    told = {"user": post.user, "text": post.text, "ts": post.ts}
    return told | ({"bot_id": BOT_ID} if post.user == BOT else {}) | ({"thread_ts": post.thread} if post.thread else {})


def _blocks(asked: Json) -> list[Json]:
    """The blocks of a message. Raises RefusedError for what the Block Kit pages do not allow."""
    given = asked.get("blocks") or []
    blocks: list[Json] = json.loads(given) if isinstance(given, str) else given
    for block in blocks:
        if block["type"] == "section" and not 0 < len(block["text"]["text"]) <= 3000:
            raise _refused("invalid_blocks")
        if block["type"] == "actions":
            elements = block["elements"]
            names = [one["action_id"] for one in elements]
            if not 0 < len(elements) <= 25 or len(set(names)) < len(names):
                raise _refused("invalid_blocks")
            if any(not 0 < len(one["text"]["text"]) <= 75 or len(one["value"]) > 2000 for one in elements):
                raise _refused("invalid_blocks")
    return blocks


def text_of(post: Post) -> str:
    """What a person reads: the blocks where there are some; escapes undone, marks as they are."""
    texts = [block["text"]["text"] for block in post.blocks if block["type"] == "section"]
    text = "\n".join(texts) if texts else post.text
    text = re.sub(r"<(https?://[^|>]*)\|([^>]*)>", r"\2", text)
    return text.replace("\u200b", "").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def labels(post: Post) -> dict[str, Json]:
    """The buttons of a message, by their labels."""
    elements = [one for block in post.blocks if block["type"] == "actions" for one in block["elements"]]
    return {one["text"]["text"]: one for one in elements}
