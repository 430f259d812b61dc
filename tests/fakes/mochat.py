"""Mochat on loopback: REST and a Socket.IO server, which is python-socketio's own.

There is no specification. Imitated from Mochat's agent skill and the clients in github.com/HKUDS/MoChat: their
requests, events, and the fields that they read; it was never compared with the live service. A panel's message is told
twice, as an event of the panel and as a notification, and what the agent sends comes back to it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any

import socketio
from aiohttp import web

Json = dict[str, Any]

TOKEN, AGENT = "claw_02abe7edeccf467d", "698211ea99e79b91f1ee449f"
ANNA, ZOE, TOM = "6981b89f0a7b4c0012aa0001", "6981b89f0a7b4c0012aa0002", "6981b89f0a7b4c0012aa0003"
DM, ZOES, TRIO = "session_67a5f9f20001", "session_67a5f9f20002", "session_67a5f9f20003"
GENERAL, GROUP = "67b0c1d2e3f4a5b6", "6981b6c266c3b063b61427dc"
LONGEST = 4000


class RefusedError(Exception):
    """What Mochat answers to a request that it does not serve."""

    def __init__(self, code: int, message: str = "refused", **headers: str) -> None:
        super().__init__(message)
        self.code, self.message, self.headers = code, message, headers


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


class FakeMochat:
    """The people, what they wrote, and what the agent did."""

    def __init__(self, *, msgpack: bool = True) -> None:
        self.token = TOKEN
        self.sessions = {DM: Session([ANNA, AGENT]), ZOES: Session([ZOE, AGENT]), TRIO: Session([ANNA, TOM, AGENT])}
        self.panels: dict[str, list[Json]] = {GENERAL: []}
        self.posts: list[Post] = []
        self.calls: list[tuple[str, Json]] = []
        self.subscribed: list[Json] = []
        self.has_socket = True
        self.refusals: deque[RefusedError] = deque()
        self.loses_answers = 0
        self._ids = count(1)
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

    def attach(self, app: web.Application) -> None:
        """Serve all of it from this application."""
        self.io.attach(app)
        paths: dict[str, Callable[[Json], Awaitable[Json]]] = {
            "sessions/list": self._list_sessions,
            "sessions/watch": self._watch,
            "sessions/send": self._send_to_session,
            "groups/get": self._get_group,
            "groups/panels/messages": self._list_messages,
            "groups/panels/send": self._send_to_panel,
        }
        app.add_routes([web.post(f"/api/claw/{path}", self._answered(path, handle)) for path, handle in paths.items()])

    # what people do

    async def says(self, content: Any, *, sender: str = ANNA, chat: str = DM, **more: Any) -> str:
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

    def in_chat(self, chat: str) -> list[Post]:
        """The agent's messages in this chat or panel."""
        return [post for post in self.posts if post.chat == chat]

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

    def make_deaf(self) -> None:
        """Send nothing more on the open sockets, not even pings, and leave them open."""

        async def nothing(*_: object, **__: object) -> bool:
            return True

        for socket in self.io.eio.sockets.values():
            socket.send = socket.check_ping_timeout = nothing

    # requests

    def _answered(
        self, path: str, handle: Callable[[Json], Awaitable[Json]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            body = await request.json()
            self.calls.append((path, body))
            is_send = path.endswith("/send")
            try:
                if request.headers.get("X-Claw-Token") != self.token:
                    raise RefusedError(401, "invalid token")
                if self.refusals and is_send:
                    raise self.refusals.popleft()
                data = await handle(body)
            except RefusedError as error:
                refused = {"code": error.code, "message": error.message}
                return web.json_response(refused, status=error.code, headers=error.headers)
            if self.loses_answers and is_send and request.transport is not None:
                self.loses_answers -= 1
                request.transport.abort()
            return web.json_response({"code": 200, "data": data})

        return answer

    def refuse(self, times: int, code: int, retry_after_s: float | None = None) -> None:
        """Refuse the next so many messages of the agent."""
        headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
        self.refusals.extend(RefusedError(code, **headers) for _ in range(times))

    async def _list_sessions(self, _: Json) -> Json:
        listed = [
            {"sessionId": one, "converseId": one.removeprefix("session_"), "participants": session.participants}
            for one, session in self.sessions.items()
        ]
        return {"sessions": listed}

    async def _watch(self, body: Json) -> Json:
        session_id = body["sessionId"]
        if session_id not in self.sessions:
            raise RefusedError(404, "session not found")
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
            raise RefusedError(404, "panel not found")
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
            raise RefusedError(404, "not found")
        if not 0 < len(body["content"]) <= LONGEST:
            raise RefusedError(400, "content is empty or too long")
        message_id = f"msg_{next(self._ids)}"
        self.posts.append(Post(message_id, chat, body["content"], body.get("replyTo")))
        now = datetime.now(UTC).isoformat()
        echo = {"messageId": message_id, "author": AGENT, "content": body["content"], "meta": {}, "createdAt": now}
        await self._add(chat, echo)
        return {"messageId": message_id, "status": "active"}
