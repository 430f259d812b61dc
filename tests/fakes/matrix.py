"""A Matrix homeserver on loopback, for faults that Synapse does not have and for machines without it.

Imitated from spec.matrix.org/v1.16/client-server-api: login, sync with limited timelines, /messages, transaction ids,
edits, receipts, typing, media. Positions in the one stream of all events are the tokens: `s5` is behind five of them.
tests/channels/matrix/test_synapse.py runs the same channel against Synapse.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from aiohttp import web

Json = dict[str, Any]

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
    is_encrypted: bool = False
    typed: int = 0


def error(status: int, code: str, said: str = "refused", more: Json | None = None) -> web.Response:
    return web.json_response({"errcode": code, "error": said, **(more or {})}, status=status)


class FakeHomeserver:
    """The rooms, what people wrote, and what the bot did."""

    def __init__(self) -> None:
        self.token = TOKEN
        self.password = PASSWORD
        self.logins: list[Json] = []
        self.logouts = 0
        self.rooms: dict[str, Room] = {}
        self.stream: list[Json] = []
        self.files: dict[str, tuple[bytes, str]] = {}
        self.receipts: list[tuple[str, str]] = []
        self.refusals: list[tuple[int, float | None]] = []
        self.loses_answers = 0
        self.read_to = 0
        """The position behind which the bot has asked for more."""
        self.timeline_limit = 50
        self.history_pages = 0
        self.deaf: set[object] = set()
        """Connections that are open, but answer nothing."""
        self.connections: set[asyncio.Transport] = set()
        self._sent: dict[tuple[str, str], str] = {}
        self._ids = count(1)
        self.was_there = asyncio.Event()
        """Set once the bot has made its first sync, which is no conversation."""
        self._news = asyncio.Condition()
        for room, name, people in (
            (DIRECT, "", [ANNA, BOT]), (STRANGE, "", [ZOE, BOT]), (KITCHEN, "kitchen", [ANNA, ZOE, BOT]),
        ):  # fmt: skip
            self.rooms[room] = Room(room, name)
            for person in people:
                self._join(self.rooms[room], person)

    # what people do

    async def says(self, room: str, sender: str, content: Json, kind: str = "m.room.message") -> str:
        event = self._add(room, sender, kind, content)
        await self._tell()
        return str(event["event_id"])

    async def says_again(self, event_id: str) -> None:
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
        self.files[media] = (data, kind)
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

    async def turn_deaf(self) -> None:
        self.deaf |= self.connections

    # the server

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._connection], client_max_size=64 << 20)
        rooms = f"{V3}/rooms/{{room}}"
        app.add_routes(
            [
                web.get(f"{V3}/login", self._login_flows),
                web.post(f"{V3}/login", self._login),
                web.post(f"{V3}/logout", self._authorized(self._logout)),
                web.get(f"{V3}/account/whoami", self._authorized(self._whoami)),
                web.get(f"{V3}/sync", self._authorized(self._sync)),
                web.get(f"{rooms}/messages", self._authorized(self._messages)),
                web.get(f"{rooms}/event/{{event}}", self._authorized(self._event)),
                web.put(f"{rooms}/send/{{kind}}/{{txn}}", self._authorized(self._send)),
                web.put(f"{rooms}/typing/{{user}}", self._authorized(self._typing)),
                web.post(f"{rooms}/receipt/{{kind}}/{{event}}", self._authorized(self._receipt)),
                web.post(f"{V3}/join/{{room}}", self._authorized(self._accept)),
                web.post(f"{V3}/createRoom", self._authorized(self._create)),
                web.get(f"{V3}/directory/room/{{alias}}", self._authorized(self._resolve)),
                web.post("/_matrix/media/v3/upload", self._authorized(self._upload)),
                web.get("/_matrix/client/v1/media/download/{server}/{media}", self._authorized(self._download)),
                web.get("/_matrix/client/v1/media/config", self._authorized(self._config)),
            ]
        )
        return app

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

    def _authorized(
        self, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def check(request: web.Request) -> web.StreamResponse:
            if request.headers.get("Authorization") != f"Bearer {self.token}" or "access_token" in request.query:
                return error(401, "M_UNKNOWN_TOKEN", "Invalid access token passed.")
            return await handler(request)

        return check

    async def _logout(self, _: web.Request) -> web.Response:
        self.logouts += 1
        return web.json_response({})

    async def _login_flows(self, _: web.Request) -> web.Response:
        return web.json_response({"flows": [{"type": "m.login.password"}]})

    async def _login(self, request: web.Request) -> web.Response:
        asked = await request.json()
        self.logins.append(asked)
        if asked.get("password") != self.password:
            return error(403, "M_FORBIDDEN", "Invalid username or password")
        device = asked.get("device_id") or f"DEVICE{len(self.logins)}"
        return web.json_response({"user_id": BOT, "device_id": device, "access_token": self.token})

    async def _whoami(self, _: web.Request) -> web.Response:
        return web.json_response({"user_id": BOT, "device_id": DEVICE})

    async def _sync(self, request: web.Request) -> web.StreamResponse:
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
            return error(401, "M_UNKNOWN_TOKEN", "Invalid access token passed.")
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
        return web.json_response(
            {
                "next_batch": f"s{len(self.stream)}",
                "rooms": {"join": joined, "invite": invited, "leave": {}},
                "to_device": {"events": []},
                "device_lists": {"changed": [], "left": []},
                "device_one_time_keys_count": {},
                "presence": {"events": []},
                "account_data": {"events": []},
            }
        )

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

    async def _messages(self, request: web.Request) -> web.Response:
        start, end = (int(request.query.get(name, "s0").removeprefix("s")) for name in ("from", "to"))
        room = request.match_info["room"]
        self.history_pages += 1
        before = [at for at in range(start, end, -1) if self.stream[at - 1]["room_id"] == room]
        page = before[: int(request.query["limit"])]
        answer = {"chunk": [self.stream[at - 1] for at in page], "start": f"s{start}"}
        if len(page) < len(before):
            answer["end"] = f"s{page[-1] - 1}"
        return web.json_response(answer)

    async def _event(self, request: web.Request) -> web.Response:
        wanted = request.match_info["event"]
        found = next((event for event in self.stream if event["event_id"] == wanted), None)
        return error(404, "M_NOT_FOUND") if found is None else web.json_response(found)

    async def _send(self, request: web.Request) -> web.Response:
        room, kind, txn = (request.match_info[name] for name in ("room", "kind", "txn"))
        if self.refusals and kind != "m.reaction":
            status, retry_after_s = self.refusals.pop(0)
            more = {"retry_after_ms": int(retry_after_s * 1000)} if retry_after_s is not None else {}
            return error(status, REFUSALS[status], more=more)
        if self.rooms.get(room, Room("")).members.get(BOT) != "join":
            return error(403, "M_FORBIDDEN", "not in the room")
        content = await request.json()
        if len(json.dumps(content, ensure_ascii=False).encode()) > LARGEST_EVENT:
            return error(413, "M_TOO_LARGE", "event too large")
        if (room, txn) not in self._sent:
            self._sent[room, txn] = self._add(room, BOT, kind, content)["event_id"]
            await self._tell()
            if self.loses_answers:  # those of new sends, so that a repeated one tells the id
                self.loses_answers -= 1
                assert request.transport is not None
                request.transport.abort()
        return web.json_response({"event_id": self._sent[room, txn]})

    async def _typing(self, request: web.Request) -> web.Response:
        self.rooms[request.match_info["room"]].typed += 1
        return web.json_response({})

    async def _receipt(self, request: web.Request) -> web.Response:
        self.receipts.append((request.match_info["room"], request.match_info["event"]))
        return web.json_response({})

    async def _accept(self, request: web.Request) -> web.Response:
        room = self.rooms.get(request.match_info["room"])
        if room is None or BOT not in room.members:
            return error(403, "M_FORBIDDEN", "You are not invited to this room.")
        self._join(room, BOT)
        await self._tell()
        return web.json_response({"room_id": room.id})

    async def _create(self, request: web.Request) -> web.Response:
        asked = await request.json()
        room = self.rooms.setdefault(f"!new{next(self._ids)}:example.org", Room(""))
        room.id = next(one for one, known in self.rooms.items() if known is room)
        self._join(room, BOT)
        for person in asked.get("invite", []):
            self._member(room, BOT, person, "invite")
        await self._tell()
        return web.json_response({"room_id": room.id})

    async def _resolve(self, request: web.Request) -> web.Response:
        name = request.match_info["alias"].removeprefix("#").partition(":")[0]
        room = next((room for room in self.rooms.values() if room.name and room.name == name), None)
        if room is None:
            return error(404, "M_NOT_FOUND", "Room alias not found")
        return web.json_response({"room_id": room.id, "servers": ["example.org"]})

    async def _upload(self, request: web.Request) -> web.Response:
        return web.json_response({"content_uri": self.upload(await request.read(), request.content_type)})

    async def _download(self, request: web.Request) -> web.Response:
        data, kind = self.files[request.match_info["media"]]
        return web.Response(body=data, content_type=kind)

    async def _config(self, _: web.Request) -> web.Response:
        return web.json_response({"m.upload.size": 10 << 20})

    # the stream

    def _add(self, room: str, sender: str, kind: str, content: Json, **more: Any) -> Json:
        number = next(self._ids)
        event = {
            "event_id": f"$event{number}", "room_id": room, "sender": sender, "type": kind, "content": content,
            "origin_server_ts": self._now() + number, "unsigned": {}, **more,
        }  # fmt: skip
        self.stream.append(event)
        return event

    @staticmethod
    def _now() -> int:
        import time

        return int(time.time() * 1000)

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
