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
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

Json = dict[str, Any]

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


class RefusedError(Exception):
    """What Slack answers to a call that it does not serve: `ok` false, and a word for it."""

    def __init__(self, error: str, *, status: int = 200, **more: Any) -> None:
        super().__init__(error)
        self.status = status
        self.body = {"ok": False, "error": error, **more}


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
    line: "Line | None" = None


@dataclass(eq=False)
class Line:
    """An open WebSocket."""

    socket: web.WebSocketResponse
    is_deaf: bool = False
    is_leaving: bool = False


class Workspace:
    """The rooms, the people, and what the bot did there."""

    def __init__(self) -> None:
        self.url = ""
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
        self.calls: list[str] = []
        self.tokens_seen: list[str] = []
        """Whatever came as a token with a download."""
        self.refusals: deque[RefusedError] = deque()
        self.headers: deque[dict[str, str]] = deque()
        self.broken: dict[str, int] = {}
        """Methods behind which something is broken, and what is answered in their place."""
        self.loses_answers = 0
        """How many messages it takes without the bot being answered."""
        self.limited: dict[str, int] = {}
        """Methods that were called too often, and how many more calls are refused."""
        self.envelopes: list[Envelope] = []
        self.lines: list[Line] = []
        self.opened = 0
        self.files: dict[str, tuple[Json, bytes]] = {}
        self.tickets_are_good = True
        self.slow_file: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None
        """Serves the next download instead."""
        self._tickets: set[str] = set()
        self._ids = count(1)
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

    def routes(self) -> list[web.RouteDef]:
        """All that it serves."""
        return [
            web.route("*", "/api/{method}", self._call),
            web.get("/link", self._serve_line),
            web.post("/upload/{file}", self._take_upload),
            web.get("/files/{file}/{name}", self._give_file),
        ]

    # what people do

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
        self.files[number] = (told, data)
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
            line.is_leaving = True
            await line.socket.send_json({"type": "disconnect", "reason": reason, "debug_info": {"host": "applink"}})
            if close:
                await line.socket.close()

    # the socket

    async def _deliver(self, envelope: Envelope) -> None:
        line = next((one for one in reversed(self.lines) if not one.is_leaving), None)
        if line is not None and envelope.line is None:
            envelope.line = line
            if not line.is_deaf:
                try:
                    await line.socket.send_json(envelope.told)
                except OSError:
                    envelope.line = None

    async def _serve_line(self, request: web.Request) -> web.WebSocketResponse:
        ticket = request.query.get("ticket", "")
        if ticket not in self._tickets or not self.tickets_are_good:
            raise web.HTTPForbidden
        self._tickets.remove(ticket)
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        self.lines.append(line := Line(socket))
        self.opened += 1
        try:
            await socket.send_json(
                {"type": "hello", "num_connections": len(self.lines), "connection_info": {"app_id": "A0"}}
            )
            await socket.ping(b"Ping from applink")
            for envelope in self.envelopes:
                if not envelope.acknowledged:
                    await self._deliver(envelope)
            async for frame in socket:
                if line.is_deaf:
                    continue
                if frame.type is WSMsgType.PING:
                    await socket.pong(frame.data)
                elif frame.type is WSMsgType.TEXT:
                    self._acknowledge(json.loads(frame.data))
        except OSError:
            pass
        finally:
            self.lines.remove(line)
            for envelope in self.envelopes:
                if envelope.line is line:
                    envelope.line = None
        return socket

    def _acknowledge(self, told: Json) -> None:
        for envelope in self.envelopes:
            if envelope.told["envelope_id"] == told["envelope_id"]:
                envelope.acknowledged = True

    # the Web API

    async def _call(self, request: web.Request) -> web.Response:
        method = request.match_info["method"]
        self.calls.append(method)
        asked: Json = dict(request.query)
        if request.content_type == "application/json":
            asked |= await request.json()
        else:
            asked |= {name: value for name, value in (await request.post()).items() if isinstance(value, str)}
        headers = {"x-oauth-scopes": ",".join(sorted(self.scopes))}
        try:
            if method not in self._methods:
                raise RefusedError("unknown_method")
            token = request.headers.get("Authorization", "").removeprefix("Bearer ")
            self._check_token(token, method)
            if method in self.broken:
                return web.Response(status=self.broken[method], text="<html>", content_type="text/html")
            if self.limited.get(method):
                self.limited[method] -= 1
                headers["Retry-After"] = "0.05"
                raise RefusedError("ratelimited", status=429)
            if self.refusals and method in ("chat.postMessage", "chat.update", "files.completeUploadExternal"):
                headers |= self.headers.popleft()
                raise self.refusals.popleft()
            answer = await self._methods[method](asked, token)
            if self.loses_answers and method == "chat.postMessage" and request.transport is not None:
                self.loses_answers -= 1
                request.transport.abort()
        except RefusedError as error:
            return web.json_response(error.body, status=error.status, headers=headers)
        return web.json_response({"ok": True, **answer}, headers=headers)

    def refuse(self, times: int, status: int, retry_after_s: float | None) -> None:
        """Refuse the next so many sendings."""
        for _ in range(times):
            self.refusals.append(RefusedError(_REFUSALS[status], status=200 if status == 403 else status))
            self.headers.append({"Retry-After": str(retry_after_s)} if retry_after_s is not None else {})

    def _check_token(self, token: str, method: str) -> None:
        if not token:
            raise RefusedError("not_authed")
        if token not in self.good_tokens:
            raise RefusedError("invalid_auth")
        if token.startswith("xapp-") is not (method == "apps.connections.open"):
            raise RefusedError("not_allowed_token_type")
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
            raise RefusedError("missing_scope", needed=needed, provided=",".join(sorted(scopes)))

    async def _auth_test(self, _: Json, token: str) -> Json:
        if token == PERSON_TOKEN:
            return {"user": "anna", "user_id": ANNA, "team_id": "T0"}
        return {"user": BOT_NAME, "user_id": BOT, "bot_id": BOT_ID, "team_id": "T0"}

    async def _open_connection(self, _: Json, __: str) -> Json:
        if not self.socket_mode:
            raise RefusedError("socket_mode_not_enabled")
        self._tickets.add(ticket := f"t{next(self._ids)}")
        return {"url": f"{self.url.replace('http', 'ws')}/link?ticket={ticket}&app_id=A0"}

    def _room(self, asked: Json) -> Room:
        room = self.rooms.get(self.directs.get(str(asked.get("channel")), str(asked.get("channel"))))
        if room is None:
            raise RefusedError("channel_not_found")
        if room.is_archived:
            raise RefusedError("is_archived")
        if not room.is_open:
            raise RefusedError("not_in_channel")
        return room

    async def _post_message(self, asked: Json, token: str) -> Json:
        room, blocks = self._room(asked), _blocks(asked)
        text = str(asked.get("text") or "")
        if not (text or blocks):
            raise RefusedError("no_text")
        if len(text) > _LIMIT:
            raise RefusedError("msg_too_long")
        thread = asked.get("thread_ts")
        if thread and thread not in room.posts:
            raise RefusedError("thread_not_found")
        post = self.add(room, ANNA if token == PERSON_TOKEN else BOT, text, thread=thread)
        post.blocks = blocks
        post.has_preview = str(asked.get("unfurl_links", 1)).lower() not in ("0", "false")
        await self._tell_of_own(room, post)
        return {"channel": room.id, "ts": post.ts, "message": {"text": text}}

    async def _update(self, asked: Json, _: str) -> Json:
        post = self._room(asked).posts.get(str(asked.get("ts")))
        if post is None:
            raise RefusedError("message_not_found")
        if post.user != BOT:
            raise RefusedError("cant_update_message")
        if len(asked["text"]) > _LIMIT:
            raise RefusedError("msg_too_long")
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
            raise RefusedError("invalid_name")
        if post is None:
            raise RefusedError("message_not_found")
        if name in post.signs:
            raise RefusedError("already_reacted")
        post.signs.append(name)
        return {}

    async def _remove_reaction(self, asked: Json, _: str) -> Json:
        post, name = self._room(asked).posts.get(str(asked.get("timestamp"))), str(asked.get("name"))
        if post is None or name not in post.signs:
            raise RefusedError("no_reaction")
        post.signs.remove(name)
        return {}

    async def _open_conversation(self, asked: Json, _: str) -> Json:
        if asked.get("users") not in self.directs:
            raise RefusedError("user_not_found")
        return {"channel": {"id": self.directs[asked["users"]]}}

    async def _user_info(self, asked: Json, _: str) -> Json:
        await asyncio.sleep(self.slow_people_s)
        name = self.people.get(str(asked.get("user")))
        if name is None:
            raise RefusedError("user_not_found")
        return {"user": {"id": asked["user"], "name": name.lower(), "profile": {"display_name": name}}}

    async def _history(self, asked: Json, _: str) -> Json:
        found = [post for post in self._room(asked).posts.values() if post.thread in (None, post.ts)]
        return self._page(found, asked)

    async def _replies(self, asked: Json, _: str) -> Json:
        posts = self._room(asked).posts
        if asked.get("ts") not in posts:
            raise RefusedError("thread_not_found")
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
            raise RefusedError("invalid_arguments")
        told = self.put_file(str(asked["filename"]), b"", size=int(asked["length"]))
        return {"upload_url": f"{self.url}/upload/{told['id']}", "file_id": told["id"]}

    async def _take_upload(self, request: web.Request) -> web.Response:
        if "Authorization" in request.headers:
            self.tokens_seen.append(request.headers["Authorization"])
        told, _ = self.files[request.match_info["file"]]
        data = await request.read()
        if len(data) != told["size"]:
            return web.Response(status=400, text="not as long as it was said to be")
        self.files[told["id"]] = (told, data)
        return web.Response(text=f"OK - {len(data)}")

    async def _complete_upload(self, asked: Json, _: str) -> Json:
        listed = asked.get("files") or []
        files = json.loads(listed) if isinstance(listed, str) else listed
        room = self._room({"channel": asked.get("channel_id")})
        for one in files:
            if one["id"] not in self.files or not self.files[one["id"]][1]:
                raise RefusedError("file_not_found")
        post = self.add(room, BOT, "", thread=asked.get("thread_ts"))
        post.files = [self.files[one["id"]][0] for one in files]
        return {"files": [{"id": one["id"], "title": one.get("title")} for one in files]}

    async def _file_info(self, asked: Json, _: str) -> Json:
        if asked.get("file") not in self.files:
            raise RefusedError("file_not_found")
        return {"file": self.files[asked["file"]][0]}

    async def _give_file(self, request: web.Request) -> web.StreamResponse:
        """Who has no token, or not the scope, is sent to the page where people log in."""
        if self.slow_file is not None:
            return await self.slow_file(request)
        self.tokens_seen.append(request.headers.get("Authorization", ""))
        if request.headers.get("Authorization") != f"Bearer {BOT_TOKEN}" or "files:read" not in self.scopes:
            raise web.HTTPFound(f"{self.url}/?redir=files")
        told, data = self.files[request.match_info["file"]]
        return web.Response(body=data, content_type=told["mimetype"])


def _bare(post: Post) -> Json:
    told = {"user": post.user, "text": post.text, "ts": post.ts}
    return told | ({"bot_id": BOT_ID} if post.user == BOT else {}) | ({"thread_ts": post.thread} if post.thread else {})


def _blocks(asked: Json) -> list[Json]:
    """The blocks of a message. Raises RefusedError for what the Block Kit pages do not allow."""
    given = asked.get("blocks") or []
    blocks: list[Json] = json.loads(given) if isinstance(given, str) else given
    for block in blocks:
        if block["type"] == "section" and not 0 < len(block["text"]["text"]) <= 3000:
            raise RefusedError("invalid_blocks")
        if block["type"] == "actions":
            elements = block["elements"]
            names = [one["action_id"] for one in elements]
            if not 0 < len(elements) <= 25 or len(set(names)) < len(names):
                raise RefusedError("invalid_blocks")
            if any(not 0 < len(one["text"]["text"]) <= 75 or len(one["value"]) > 2000 for one in elements):
                raise RefusedError("invalid_blocks")
    return blocks


def as_seen(post: Post) -> str:
    """What a person reads: the blocks where there are some; escapes undone, marks as they are."""
    texts = [block["text"]["text"] for block in post.blocks if block["type"] == "section"]
    text = "\n".join(texts) if texts else post.text
    text = re.sub(r"<(https?://[^|>]*)\|([^>]*)>", r"\2", text)
    return text.replace("\u200b", "").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def labels(post: Post) -> dict[str, Json]:
    """The buttons of a message, by their labels."""
    elements = [one for block in post.blocks if block["type"] == "actions" for one in block["elements"]]
    return {one["text"]["text"]: one for one in elements}


def names_in(post: Post) -> list[str]:
    """The names of its files."""
    return [file["name"] for file in post.files]


def named(path: Path) -> tuple[str, bytes]:
    """A file of the disk, to be put here."""
    return path.name, path.read_bytes()
