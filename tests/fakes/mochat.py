"""Mochat on loopback: REST and a Socket.IO server, which is python-socketio's own.

There is no specification. Imitated from Mochat's agent skill and the clients in github.com/HKUDS/MoChat: their
requests, events, and the fields that they read; it was never compared with the live service. A panel's message is told
twice, as an event of the panel and as a notification, and what the agent sends comes back to it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import socketio
from aiohttp import web

from nanobot.bus.queue import MessageBus
from nanobot.channels.mochat import MochatChannel
from nanobot.config.channels import MochatConfig
from nanobot.testing.platform import Shown
from tests.fakes.served import Handler, Json, RefusedError, Said, ServedPlatform

TOKEN, AGENT = "claw_02abe7edeccf467d", "698211ea99e79b91f1ee449f"
ANNA, ZOE, TOM = "6981b89f0a7b4c0012aa0001", "6981b89f0a7b4c0012aa0002", "6981b89f0a7b4c0012aa0003"
DM, ZOES, TRIO = "session_67a5f9f20001", "session_67a5f9f20002", "session_67a5f9f20003"
GENERAL, GROUP = "67b0c1d2e3f4a5b6", "6981b6c266c3b063b61427dc"
LONGEST = 4000


@dataclass
class Post:
    """A message of the agent."""

    id: str
    chat: str
    text: str
    reply_to: str | None


@dataclass
class Session:
    """A chat: its events, and the cursor that the agent named last."""

    participants: list[str]
    events: list[Json] = field(default_factory=list)
    cursor: int = 0


class MochatPlatform(ServedPlatform):
    """The people, what they wrote, and what the agent did."""

    name = "mochat"
    person, private = ANNA, DM
    stranger, stranger_chat = ZOE, ZOES
    group = GENERAL
    limit = LONGEST
    quotes = queues_messages = loses_answers = True

    def __init__(self, folder: Path, *, msgpack: bool = True) -> None:
        super().__init__(folder)
        self.token = TOKEN
        self.sessions = {DM: Session([ANNA, AGENT]), ZOES: Session([ZOE, AGENT]), TRIO: Session([ANNA, TOM, AGENT])}
        self.panels: dict[str, list[Json]] = {GENERAL: []}
        self.subscribed: list[Json] = []
        self.has_socket = True
        self._news = asyncio.Event()
        self.io = socketio.AsyncServer(
            async_mode="aiohttp",
            serializer="msgpack" if msgpack else "default",
            ping_interval=0.2,
            ping_timeout=0.3,
            monitor_clients=False,
        )
        self.io.on("connect", self._connect)
        self.io.on("com.claw.im.subscribeSessions", self._subscribe_sessions)
        self.io.on("com.claw.im.subscribePanels", self._subscribe_panels)

    def app(self) -> web.Application:
        app = super().app()
        self.io.attach(app)

        async def shut_down(_: web.Application) -> None:
            await self.io.shutdown()

        app.on_shutdown.append(shut_down)
        return app

    def routes(self) -> list[web.RouteDef]:
        handlers: dict[str, Callable[[Json], Awaitable[Json]]] = {
            "sessions/list": self._list_sessions,
            "sessions/watch": self._watch,
            "sessions/send": self._send_to_session,
            "groups/get": self._get_group,
            "groups/panels/messages": self._list_messages,
            "groups/panels/send": self._send_to_panel,
        }
        return [web.post(f"/api/claw/{path}", self._noted(path, handle)) for path, handle in handlers.items()]

    def channel(self, bus: MessageBus, **settings: Any) -> MochatChannel:
        is_open = settings.get("group_policy") == "open"
        usual = {
            "enabled": True, "claw_token": TOKEN, "agent_user_id": AGENT, "allow_from": [self.person],
            "base_url": self.url, "sessions": ["*"], "panels": ["*"], "refresh_interval_ms": 100,
            "socket_reconnect_delay_ms": 20, "socket_max_reconnect_delay_ms": 100, "watch_timeout_ms": 200,
            "socket_connect_timeout_ms": 1000,
            "reply_delay_mode": "off", "mention": {"require_in_groups": not is_open},
        }  # fmt: skip
        return MochatChannel(MochatConfig.model_validate(usual | settings), bus)

    # what people do

    async def send_said(self, said: Said) -> str:
        text = f"<@{AGENT}> {said.text}" if said.mention else said.text
        return await self.writes(text, sender=said.sender, chat=said.chat)

    async def writes(self, content: Any, *, sender: str = ANNA, chat: str = DM, **more: Any) -> str:
        """Write a message; the agent is told at once if it has subscribed. Return its id."""
        message_id = f"msg_{next(self._ids)}"
        meta = {"mentions": [AGENT]} if more.pop("mention", False) else {}
        message = {
            "messageId": message_id,
            "author": sender,
            "authorInfo": {"userId": sender, "nickname": f"Nick {sender[-1]}", "type": "user"},
            "content": content,
            "meta": meta,
            "createdAt": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            **more,
        }
        await self._add(chat, message)
        return message_id

    async def again(self, message_id: str) -> None:
        """Tell the agent of a message once more."""
        for session_id, session in self.sessions.items():
            for event in [*session.events]:
                if event["payload"]["messageId"] == message_id:
                    await self._add(session_id, {**event["payload"], "createdAt": event["timestamp"]})
        for panel, messages in self.panels.items():
            for message in messages:
                if message["messageId"] == message_id:
                    await self._tell_of_panel(panel, message)

    async def _add(self, chat: str, message: Json) -> None:
        if chat in self.panels:
            self.panels[chat].append(message)
            await self._tell_of_panel(chat, message)
            return
        session = self.sessions[chat]
        payload = {key: value for key, value in message.items() if key != "createdAt"}
        event = {
            "seq": len(session.events) + 1,
            "sessionId": chat,
            "type": "message.add",
            "timestamp": message["createdAt"],
            "payload": payload,
        }
        session.events.append(event)
        self._news.set()
        self._news = asyncio.Event()
        batch = {"sessionId": chat, "cursor": event["seq"], "events": [event]}
        await self.io.emit("claw.session.events", batch, room=chat)
        detail = {"converseId": chat, "messageId": message["messageId"], "messageAuthor": message["author"]}
        await self.io.emit("notify:chat.inbox.append", {"type": "message", "payload": detail})

    async def _tell_of_panel(self, panel: str, message: Json) -> None:
        told = {key: value for key, value in message.items() if key not in ("messageId", "createdAt")}
        payload = {**told, "messageId": message["messageId"], "groupId": GROUP}
        event = {"seq": 0, "type": "message.add", "timestamp": message["createdAt"], "payload": payload}
        await self.io.emit("claw.panel.events", {"sessionId": panel, "cursor": 0, "events": [event]}, room=panel)
        notice = {**told, "_id": message["messageId"], "groupId": GROUP, "converseId": panel}
        await self.io.emit("notify:chat.message.add", {**notice, "createdAt": message["createdAt"]}, room=panel)

    # the socket

    async def _connect(self, sid: str, environ: Json, auth: Json | None) -> None:
        if not self.has_socket or not auth or auth.get("token") != self.token:
            raise socketio.exceptions.ConnectionRefusedError("unauthorized")
        self.io.eio.ping_timeout = 60.0  # the client, not the server, is to notice that the other side is silent

    async def _subscribe_sessions(self, sid: str, data: Json) -> Json:
        self.subscribed.append(data)
        batches = []
        for session_id in data["sessionIds"]:
            if session_id not in self.sessions:
                return {"result": False, "message": f"no session {session_id}"}
            await self.io.enter_room(sid, session_id)
            batches.append(self._batch(session_id, data["cursors"].get(session_id, 0), data["limit"]))
        return {"result": True, "data": {"sessions": batches}}

    async def _subscribe_panels(self, sid: str, data: Json) -> Json:
        for panel in data["panelIds"] or self.panels:
            await self.io.enter_room(sid, panel)
        return {"result": True, "data": {"panelIds": data["panelIds"], "groupId": GROUP}}

    async def half_open(self) -> None:

        async def nothing(*_: object, **__: object) -> bool:
            return True

        for socket in self.io.eio.sockets.values():
            socket.send = socket.check_ping_timeout = nothing

    # requests

    def _noted(self, path: str, handle: Callable[[Json], Awaitable[Json]]) -> Handler:
        async def noted(body: Json) -> Json:
            self.calls.append((path, body))
            return {"code": 200, "data": await handle(body)}

        return self.answered(noted)

    def note(self, request: web.Request) -> None:
        pass  # with its body, by `_noted`

    def check(self, request: web.Request) -> None:
        if request.headers.get("X-Claw-Token") != self.token:
            raise RefusedError(401, "invalid token", 401)

    def is_send(self, request: web.Request) -> bool:
        return request.path.endswith("/send")

    def refusal(self, status: int, retry_after_s: float | None) -> RefusedError:
        return RefusedError(status, status=status).after("Retry-After", retry_after_s)

    async def _list_sessions(self, _: Json) -> Json:
        listed = [
            {"sessionId": one, "converseId": one.removeprefix("session_"), "participants": session.participants}
            for one, session in self.sessions.items()
        ]
        return {"sessions": listed}

    async def _watch(self, body: Json) -> Json:
        session_id = body["sessionId"]
        if session_id not in self.sessions:
            raise RefusedError(404, "session not found", 404)
        batch = self._batch(session_id, body["cursor"], body["limit"])
        if not batch["events"]:
            try:
                async with asyncio.timeout(body["timeoutMs"] / 1000):
                    while not batch["events"]:
                        await self._news.wait()
                        batch = self._batch(session_id, body["cursor"], body["limit"])
            except TimeoutError:
                pass
        return batch

    def _batch(self, session_id: str, cursor: int, limit: int) -> Json:
        session = self.sessions[session_id]
        session.cursor = max(session.cursor, cursor)
        events = session.events[cursor : cursor + limit]
        return {"sessionId": session_id, "cursor": cursor + len(events), "events": events}

    async def _get_group(self, _: Json) -> Json:
        panels = [{"id": panel, "name": f"general {number}", "type": 0} for number, panel in enumerate(self.panels)]
        folder = {"id": "67b0folder", "name": "Folder", "type": 1}
        return {"_id": GROUP, "panels": [folder, *panels]}

    async def _list_messages(self, body: Json) -> Json:
        if body["panelId"] not in self.panels:
            raise RefusedError(404, "panel not found", 404)
        messages = self.panels[body["panelId"]]
        ids = [message["messageId"] for message in messages]
        end = ids.index(body["beforeMessageId"]) if "beforeMessageId" in body else len(ids)
        page = messages[max(0, end - body["limit"]) : end]
        return {"groupId": GROUP, "panelId": body["panelId"], "messages": page[::-1]}

    async def _send_to_session(self, body: Json) -> Json:
        return await self._send(body, body["sessionId"], self.sessions)

    async def _send_to_panel(self, body: Json) -> Json:
        return await self._send(body, body["panelId"], self.panels)

    async def _send(self, body: Json, chat: str, places: Json) -> Json:
        if chat not in places:
            raise RefusedError(404, "not found", 404)
        if not 0 < len(body["content"]) <= LONGEST:
            raise RefusedError(400, "content is empty or too long")
        message_id = f"msg_{next(self._ids)}"
        self.posts.append(Post(message_id, chat, body["content"], body.get("replyTo")))
        now = datetime.now(UTC).isoformat()
        echo = {"messageId": message_id, "author": AGENT, "content": body["content"], "meta": {}, "createdAt": now}
        await self._add(chat, echo)
        return {"messageId": message_id, "status": "active"}

    # what people see

    def as_seen(self, post: Post) -> Shown:
        return Shown(post.id, post.text, reply_to=post.reply_to)

    def acknowledged(self, message_id: str) -> bool:
        """Whether a subscription or a poll named a cursor that is not before it."""
        session = self.sessions[DM]
        number = next(one["seq"] for one in session.events if one["payload"]["messageId"] == message_id)
        return session.cursor >= int(number)

    async def revoke(self) -> None:
        self.token = "another"
        await self.drop()
