"""A Matrix homeserver on loopback, for faults that Synapse does not have and for machines without it.

Imitated from spec.matrix.org/v1.16/client-server-api: login, sync with limited timelines, /messages, transaction ids,
edits, receipts, typing, media. Positions in the one stream of all events are the tokens: `s5` is behind five of them.
tests/channels/test_matrix_synapse.py runs the same channel against Synapse.
"""

import asyncio
import json
import mimetypes
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from nanobot.bus.queue import MessageBus
from nanobot.channels.matrix import MatrixChannel
from nanobot.config.channels import MatrixConfig
from nanobot.testing.platform import Shown
from tests.fakes.served import Json, RefusedError, Said, ServedPlatform

BOT, ANNA, ZOE = "@nanobot:example.org", "@anna:example.org", "@zoe:example.org"
DIRECT, STRANGE, KITCHEN = "!direct:example.org", "!strange:example.org", "!kitchen:example.org"
TOKEN, PASSWORD, DEVICE = "syt_bot_token", "s3cr3t-passw0rd", "BOTDEVICE"
LARGEST_EVENT = 65_536
V3 = "/_matrix/client/v3"
REFUSALS = {500: "M_UNKNOWN", 403: "M_FORBIDDEN", 429: "M_LIMIT_EXCEEDED"}


@dataclass
class Room:
    """A room, and who is in it."""

    id: str
    name: str = ""
    members: dict[str, str] = field(default_factory=dict)
    """Their membership, by user."""
    typed: int = 0


class MatrixPlatform(ServedPlatform):
    """The rooms, what people wrote, and what the bot did."""

    name = "matrix"
    stall_s = 0.6
    poll_s = 0.2
    person, private = ANNA, DIRECT
    stranger, stranger_chat = ZOE, STRANGE
    group, thread = KITCHEN, "$root-of-a-thread"
    limit = 16_000
    edits = threads = files = quotes = dedupes = queues_messages = reacts = types = loses_answers = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.token = TOKEN
        self.password = PASSWORD
        self.logins: list[Json] = []
        self.rooms: dict[str, Room] = {}
        self.stream: list[Json] = []
        self.receipts: list[tuple[str, str]] = []
        self.read_to = 0
        """The position behind which the bot has asked for more."""
        self.timeline_limit = 50
        self.history_pages = 0
        self.deaf: set[object] = set()
        """Connections that are open, but answer nothing."""
        self.connections: set[asyncio.Transport] = set()
        self._sent: dict[tuple[str, str], str] = {}
        self.was_there = asyncio.Event()
        """Set once the bot has made its first sync, which is no conversation."""
        self._news = asyncio.Condition()
        for room, name, people in (
            (DIRECT, "", [ANNA, BOT]), (STRANGE, "", [ZOE, BOT]), (KITCHEN, "kitchen", [ANNA, ZOE, BOT]),
        ):  # fmt: skip
            self.rooms[room] = Room(room, name)
            for person in people:
                self._join(self.rooms[room], person)

    async def send_said(self, said: Said) -> str:
        await self.was_there.wait()
        body = f"Nanobot: {said.text}" if said.mention else said.text
        content: Json = {"msgtype": "m.text", "body": body, "m.mentions": {"user_ids": [BOT]} if said.mention else {}}
        if said.file is not None:
            kind = mimetypes.guess_type(said.file.name)[0] or "application/octet-stream"
            content |= {
                "msgtype": "m.image", "filename": said.file.name, "url": self.upload(said.file.read_bytes(), kind),
                "info": {"mimetype": kind, "size": said.file.stat().st_size},
            }  # fmt: skip
        if said.thread is not None:
            answered = {"m.in_reply_to": {"event_id": said.thread}, "is_falling_back": True}
            content["m.relates_to"] = {"rel_type": "m.thread", "event_id": said.thread, **answered}
        if said.reply_to is not None:
            content["m.relates_to"] = {"m.in_reply_to": {"event_id": said.reply_to}}
        return await self.writes(said.chat, said.sender, content)

    async def writes(self, room: str, sender: str, content: Json, kind: str = "m.room.message") -> str:
        event = self._add(room, sender, kind, content)
        await self._tell()
        return str(event["event_id"])

    async def again(self, event_id: str) -> None:
        """Send an event a second time."""
        self.stream.append(next(event for event in self.stream if event["event_id"] == event_id))
        await self._tell()

    async def invites(self, room: str, inviter: str) -> None:
        """Somebody opens a room and invites the bot."""
        self.rooms[room] = Room(room)
        self._join(self.rooms[room], inviter)
        self._member(self.rooms[room], inviter, BOT, "invite")
        await self._tell()

    def upload(self, data: bytes, kind: str = "application/octet-stream") -> str:
        media = f"media{next(self._ids)}"
        self.stored[media] = (data, kind)
        return f"mxc://example.org/{media}"

    def position_of(self, event_id: str) -> int:
        """The position behind the first time that an event was sent."""
        return next(at for at, event in enumerate(self.stream, 1) if event["event_id"] == event_id)

    def of_bot(self, room: str, kind: str = "m.room.message") -> list[Json]:
        return [
            event for event in self.stream if (event["room_id"], event["sender"], event["type"]) == (room, BOT, kind)
        ]

    async def revoke(self) -> None:
        self.token = "another"
        await self._tell()

    async def half_open(self) -> None:
        self.deaf |= self.connections

    # the server

    def app(self) -> web.Application:
        app = super().app()
        app.middlewares.append(self._connection)
        return app

    def routes(self) -> list[web.RouteDef]:
        rooms = f"{V3}/rooms/{{room}}"
        routes: dict[tuple[str, str], Callable[[web.Request], Any]] = {
            ("GET", f"{V3}/login"): self._login_flows,
            ("POST", f"{V3}/login"): self._login,
            ("POST", f"{V3}/logout"): self._logout,
            ("GET", f"{V3}/account/whoami"): self._whoami,
            ("GET", f"{V3}/sync"): self._sync,
            ("GET", f"{rooms}/messages"): self._messages,
            ("GET", f"{rooms}/event/{{event}}"): self._event,
            ("PUT", f"{rooms}/send/{{kind}}/{{txn}}"): self._send,
            ("PUT", f"{rooms}/typing/{{user}}"): self._typing,
            ("POST", f"{rooms}/receipt/{{kind}}/{{event}}"): self._receipt,
            ("POST", f"{V3}/join/{{room}}"): self._accept,
            ("POST", f"{V3}/createRoom"): self._create,
            ("GET", f"{V3}/directory/room/{{alias}}"): self._resolve,
            ("POST", "/_matrix/media/v3/upload"): self._upload,
            ("GET", "/_matrix/client/v1/media/download/{server}/{media}"): self._download,
            ("GET", "/_matrix/client/v1/media/config"): self._config,
        }
        return [web.route(*route, self.answered(handle, raw=True)) for route, handle in routes.items()]

    @web.middleware
    async def _connection(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        assert request.transport is not None
        self.connections.add(request.transport)
        response = await handler(request)
        if request.transport in self.deaf:
            await asyncio.Event().wait()
        return response

    def check(self, request: web.Request) -> None:
        if request.path == f"{V3}/login":
            return
        if request.headers.get("Authorization") != f"Bearer {self.token}" or "access_token" in request.query:
            raise RefusedError("M_UNKNOWN_TOKEN", "Invalid access token passed.", 401)

    def is_send(self, request: web.Request) -> bool:
        return "/send/" in request.path

    def is_refusable(self, request: web.Request) -> bool:
        return self.is_send(request) and request.match_info["kind"] != "m.reaction"

    def body_of(self, error: RefusedError) -> Json:
        return {"errcode": error.code, "error": error.message, **error.more}

    def refusal(self, status: int, retry_after_s: float | None) -> RefusedError:
        more: Json = {} if retry_after_s is None else {"retry_after_ms": int(retry_after_s * 1000)}
        return RefusedError(REFUSALS[status], status=status, **more)

    async def _logout(self, _: web.Request) -> Json:
        return {}

    async def _login_flows(self, _: web.Request) -> Json:
        return {"flows": [{"type": "m.login.password"}]}

    async def _login(self, request: web.Request) -> Json:
        asked = await request.json()
        self.logins.append(asked)
        if asked.get("password") != self.password:
            raise RefusedError("M_FORBIDDEN", "Invalid username or password", 403)
        device = asked.get("device_id") or f"DEVICE{len(self.logins)}"
        return {"user_id": BOT, "device_id": device, "access_token": self.token}

    async def _whoami(self, _: web.Request) -> Json:
        return {"user_id": BOT, "device_id": DEVICE}

    async def _sync(self, request: web.Request) -> Json:
        since = request.query.get("since")
        start = int(since.removeprefix("s")) if since else 0
        is_full = since is None or request.query.get("full_state") == "true"
        self.read_to = max(self.read_to, start)
        wait_s = int(request.query.get("timeout", "0")) / 1000
        token = self.token
        if since is not None and not is_full:
            async with self._news:
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._news.wait_for(lambda: len(self.stream) > start or self.token != token)
        if self.token != token:
            raise RefusedError("M_UNKNOWN_TOKEN", "Invalid access token passed.", 401)
        self.was_there.set()
        joined, invited = {}, {}
        for room in self.rooms.values():
            membership = room.members.get(BOT)
            news = [
                (at, event) for at, event in enumerate(self.stream, 1) if at > start and event["room_id"] == room.id
            ]
            if membership == "join" and (news or is_full):
                joined[room.id] = self._joined(room, news, start, is_full=is_full)
            elif membership == "invite" and (news or since is None):
                invited[room.id] = {"invite_state": {"events": self._state_of(room)}}
        return {
            "next_batch": f"s{len(self.stream)}",
            "rooms": {"join": joined, "invite": invited, "leave": {}},
            "to_device": {"events": []},
            "device_lists": {"changed": [], "left": []},
            "device_one_time_keys_count": {},
            "presence": {"events": []},
            "account_data": {"events": []},
        }

    def _joined(self, room: Room, news: list[tuple[int, Json]], start: int, *, is_full: bool) -> Json:
        shown = news[-self.timeline_limit :]
        is_limited = len(news) > len(shown)
        first = shown[0][0] - 1 if shown else len(self.stream)
        return {
            "summary": {
                "m.joined_member_count": [*room.members.values()].count("join"),
                "m.invited_member_count": [*room.members.values()].count("invite"),
            },
            "state": {"events": self._state_of(room) if is_full or is_limited else []},
            "timeline": {"events": [event for _, event in shown], "limited": is_limited, "prev_batch": f"s{first}"},
            "ephemeral": {"events": []},
            "account_data": {"events": []},
            "unread_notifications": {},
        }

    def _state_of(self, room: Room) -> list[Json]:
        state = {
            (event["type"], event["state_key"]): event
            for event in self.stream
            if event["room_id"] == room.id and "state_key" in event
        }
        return [*state.values()]

    async def _messages(self, request: web.Request) -> Json:
        start, end = (int(request.query.get(name, "s0").removeprefix("s")) for name in ("from", "to"))
        room = request.match_info["room"]
        self.history_pages += 1
        before = [at for at in range(start, end, -1) if self.stream[at - 1]["room_id"] == room]
        page = before[: int(request.query["limit"])]
        answer = {"chunk": [self.stream[at - 1] for at in page], "start": f"s{start}"}
        if len(page) < len(before):
            answer["end"] = f"s{page[-1] - 1}"
        return answer

    async def _event(self, request: web.Request) -> Json:
        wanted = request.match_info["event"]
        found = next((event for event in self.stream if event["event_id"] == wanted), None)
        if found is None:
            raise RefusedError("M_NOT_FOUND", status=404)
        return found

    async def _send(self, request: web.Request) -> Json:
        room, kind, txn = (request.match_info[name] for name in ("room", "kind", "txn"))
        if self.rooms.get(room, Room("")).members.get(BOT) != "join":
            raise RefusedError("M_FORBIDDEN", "not in the room", 403)
        content = await request.json()
        if len(json.dumps(content, ensure_ascii=False).encode()) > LARGEST_EVENT:
            raise RefusedError("M_TOO_LARGE", "event too large", 413)
        is_again = (room, txn) in self._sent  # that of a repeated one tells the id
        if not is_again:
            self._sent[room, txn] = self._add(room, BOT, kind, content)["event_id"]
            await self._tell()
        return {"event_id": self._sent[room, txn], "again": is_again}

    async def _typing(self, request: web.Request) -> Json:
        self.rooms[request.match_info["room"]].typed += 1
        return {}

    async def _receipt(self, request: web.Request) -> Json:
        self.receipts.append((request.match_info["room"], request.match_info["event"]))
        return {}

    async def _accept(self, request: web.Request) -> Json:
        room = self.rooms.get(request.match_info["room"])
        if room is None or BOT not in room.members:
            raise RefusedError("M_FORBIDDEN", "You are not invited to this room.", 403)
        self._join(room, BOT)
        await self._tell()
        return {"room_id": room.id}

    async def _create(self, request: web.Request) -> Json:
        asked = await request.json()
        room = self.rooms.setdefault(f"!new{next(self._ids)}:example.org", Room(""))
        room.id = next(one for one, known in self.rooms.items() if known is room)
        self._join(room, BOT)
        for person in asked.get("invite", []):
            self._member(room, BOT, person, "invite")
        await self._tell()
        return {"room_id": room.id}

    async def _resolve(self, request: web.Request) -> Json:
        name = request.match_info["alias"].removeprefix("#").partition(":")[0]
        room = next((room for room in self.rooms.values() if room.name and room.name == name), None)
        if room is None:
            raise RefusedError("M_NOT_FOUND", "Room alias not found", 404)
        return {"room_id": room.id, "servers": ["example.org"]}

    async def _upload(self, request: web.Request) -> Json:
        return {"content_uri": self.upload(await request.read(), request.content_type)}

    async def _download(self, request: web.Request) -> web.Response:
        data, kind = self.stored[request.match_info["media"]]
        return web.Response(body=data, content_type=kind)

    async def _config(self, _: web.Request) -> Json:
        return {"m.upload.size": 10 << 20}

    # the stream

    def _add(self, room: str, sender: str, kind: str, content: Json, **more: Any) -> Json:
        number = next(self._ids)
        event = {
            "event_id": f"$event{number}", "room_id": room, "sender": sender, "type": kind, "content": content,
            "origin_server_ts": int(time.time() * 1000) + number, "unsigned": {}, **more,
        }  # fmt: skip
        self.stream.append(event)
        return event

    def _member(self, room: Room, sender: str, user: str, membership: str) -> None:
        before = room.members.get(user)
        unsigned = {"prev_content": {"membership": before}} if before else {}
        room.members[user] = membership
        name = user.removeprefix("@").partition(":")[0].title()
        content = {"membership": membership, "displayname": name}
        self._add(room.id, sender, "m.room.member", content, state_key=user, unsigned=unsigned)

    def _join(self, room: Room, user: str) -> None:
        self._member(room, user, user, "join")

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    # what people see

    def shown(self, chat: str | None = None) -> list[Shown]:
        messages = shown_texts(self.of_bot(chat or self.private))
        return [as_seen(event_id, content, edits) for event_id, (content, edits) in messages.items()]

    def reactions_on(self, message_id: str) -> list[str]:
        events = [event for room in self.rooms for event in self.of_bot(room, "m.reaction")]
        relations = [event["content"]["m.relates_to"] for event in events]
        return [relation["key"] for relation in relations if relation["event_id"] == message_id]

    def typed(self, chat: str | None = None) -> int:
        return self.rooms[chat or self.private].typed

    def acknowledged(self, message_id: str) -> bool:
        return self.read_to >= self.position_of(message_id)

    def channel(self, bus: MessageBus, **settings: Any) -> MatrixChannel:
        usual = {
            "enabled": True, "homeserver": self.url, "user_id": BOT, "access_token": TOKEN, "e2ee_enabled": False,
            "allow_from": [self.person],
        }  # fmt: skip
        if "password" in settings:
            del usual["access_token"]
        channel = MatrixChannel(MatrixConfig.model_validate(usual | settings), bus)
        channel.poll_s = self.poll_s
        return channel


def as_seen(event_id: str, content: Json, edits: int) -> Shown:
    """A message as a person sees it."""
    relation = content.get("m.relates_to", {})
    files = [content["filename"]] if "filename" in content else []
    answered = relation.get("m.in_reply_to", {}).get("event_id")
    return Shown(
        event_id,
        "" if files else content["body"],
        files,
        None if relation.get("is_falling_back") else answered,
        relation.get("event_id") if relation.get("rel_type") == "m.thread" else None,
        edits,
    )


def shown_texts(events: list[Json]) -> dict[str, tuple[Json, int]]:
    """Messages by id, as they are shown now: their content with edits applied, and how often they were edited."""
    shown: dict[str, tuple[Json, int]] = {}
    edits: defaultdict[str, int] = defaultdict(int)
    for event in events:
        relation = event["content"].get("m.relates_to", {})
        if relation.get("rel_type") == "m.replace":
            original = relation["event_id"]
            edits[original] += 1
            content = {**shown[original][0], **event["content"]["m.new_content"]}
            shown[original] = (content, edits[original])
        else:
            shown[event["event_id"]] = (event["content"], 0)
    return shown
