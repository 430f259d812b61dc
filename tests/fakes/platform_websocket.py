"""Clients of the WebSocket channel, as docs/formats.md has the frames: one for each name, which comes back by itself.

Here the channel is the server, so the platform is what people hold in their hands. A client drops what comes with an
id it knows, keeps what it said until that is acknowledged, and reads on from the last number it saw.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from nanobot.bus.queue import MessageBus
from nanobot.channels.websocket.channel import WebSocketChannel
from nanobot.config.channels import WebSocketConfig
from nanobot.testing.platform import Platform, Shown
from tests.support.toy_gateway import free_port

AGAIN_S = 0.02


def token_of(name: str) -> str:
    """The token of this client."""
    return f"the token of {name}"


def clients_section(*names: str) -> dict[str, dict[str, str]]:
    """`channels.websocket.clients` for these."""
    return {name: {"token": token_of(name)} for name in names}


class Client:
    """One person's end of the line. `shown` is what it shows, `receipts` the signs on its own messages."""

    def __init__(self, port: int, name: str) -> None:
        self.url = f"ws://127.0.0.1:{port}"
        self.name = name
        self.shown: list[Shown] = []
        self.receipts: dict[str, list[str]] = {}
        self.acknowledged: set[str] = set()
        self.frames: list[dict[str, Any]] = []
        self.away = False
        self.socket: ClientConnection | None = None
        self._unsent: dict[str, str] = {}
        self._growing: dict[str, Shown] = {}
        self._known: set[str] = set()
        self._seen: int | None = None
        self._epoch = ""
        self._back = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._old: list[asyncio.Task[None]] = []

    def open(self) -> None:
        """Begin, and come back after each break."""
        self._task = self._task or asyncio.create_task(self._live())

    async def close(self) -> None:
        """Leave for good."""
        for task in [*self._old, self._task]:
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def cut(self) -> None:
        """Lose the connection without a goodbye."""
        if self.socket is not None:
            self.socket.transport.abort()
            await self.socket.wait_closed()

    def fall_asleep(self) -> None:
        """Stop answering on this connection, pings included, and open another."""
        assert self.socket is not None
        assert self._task is not None
        self.socket.transport.pause_reading()
        self._old.append(self._task)
        self._task = None
        self.open()

    async def say(self, message_id: str, frame: dict[str, Any]) -> None:
        """Send a message; again after each break, until it is acknowledged."""
        self.open()
        self._unsent[message_id] = json.dumps({"type": "message", "id": message_id, **frame})
        await self.send_again(message_id)

    async def send_again(self, message_id: str, text: str | None = None) -> None:
        """Send it, if there is a connection."""
        if self.socket is not None:
            with suppress(ConnectionClosed):
                await self.socket.send(text or self._unsent[message_id])

    async def _live(self) -> None:
        while True:
            while self.away:
                await asyncio.sleep(AGAIN_S)
            with suppress(OSError, WebSocketException):
                async with connect(self.url, compression=None, ping_interval=None, close_timeout=0.5) as connection:
                    await self._talk(connection)
            await asyncio.sleep(AGAIN_S)

    async def _talk(self, connection: ClientConnection) -> None:
        hello = {"type": "hello", "token": token_of(self.name), "epoch": self._epoch, "after": self._seen}
        await connection.send(json.dumps(hello))
        try:
            async for raw in connection:
                frame = json.loads(raw)
                self.frames.append(frame)
                if frame["type"] == "welcome":
                    self.socket = connection
                    if frame["epoch"] != self._epoch:
                        self._epoch, self._seen = frame["epoch"], frame["last"]
                    for text in [*self._unsent.values()]:
                        await connection.send(text)
                self._take(frame)
        finally:
            if self.socket is connection:
                self.socket = None

    def _take(self, frame: dict[str, Any]) -> None:
        self._seen = frame.get("seq", self._seen)
        if frame["type"] == "ack":
            self.acknowledged.add(frame["id"])
            self._unsent.pop(frame["id"], None)
        elif frame["type"] == "receipt":
            self.receipts.setdefault(frame["reply_to"], []).append(frame["text"])
        elif frame["type"] == "delta":
            self._grow(frame)
        elif frame["type"] == "delta_end":
            self._growing[frame["turn"]].text = frame["text"]
        elif frame["type"] in ("reply", "notice", "progress", "tool_hint") and frame.get("id") not in self._known:
            self._known |= {frame["id"]} if "id" in frame else set()
            self._show(frame)

    def _grow(self, frame: dict[str, Any]) -> None:
        shown = self._growing.get(frame["turn"])
        if shown is None:
            shown = self._growing[frame["turn"]] = Shown("", "", thread_id=frame.get("thread"))
            self.shown.append(shown)
        shown.text += frame["text"]
        shown.edits += 1

    def _show(self, frame: dict[str, Any]) -> None:
        """A reply takes the place of what grew towards it."""
        shown = self._growing.pop(frame.get("turn", ""), None) if frame["type"] == "reply" else None
        if shown is None:
            self.shown.append(shown := Shown("", ""))
        shown.id, shown.text = frame.get("id", ""), frame.get("text", "")
        shown.files = [one["name"] for one in frame.get("files", [])]
        shown.reply_to, shown.thread_id = frame.get("reply_to"), frame.get("thread")
        shown.buttons = [one["label"] for one in frame.get("buttons", [])]


class WebSocketPlatform(Platform):
    """All clients there are."""

    name = "websocket"
    person, private = "anna", "anna"
    stranger, stranger_chat = "zoe", "zoe"
    limit = 0
    edits = threads = files = quotes = dedupes = queues_messages = buttons = reacts = True
    refuses = rate_limits = has_token = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_port()
        self.clients: dict[str, Client] = {}
        self._ids = count(1)
        self._last: tuple[Client, str, str] | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator["WebSocketPlatform"]:
        for name in (self.person, self.stranger):
            self.clients[name] = Client(self.port, name)
        self.clients[self.person].open()
        try:
            yield self
        finally:
            for client in self.clients.values():
                await client.close()

    def channel(self, bus: MessageBus, **settings: Any) -> WebSocketChannel:
        usual: dict[str, Any] = {"enabled": True, "port": self.port, "allow_from": [self.person]}
        usual |= {"clients": clients_section(self.person, self.stranger, "bert")}
        usual |= {"ping_interval_s": 0.2, "ping_timeout_s": 0.2}
        return WebSocketChannel(WebSocketConfig.model_validate(usual | settings), bus)

    async def says(
        self,
        text: str,
        *,
        sender: str | None = None,
        chat: str | None = None,
        thread: str | None = None,
        mention: bool = False,
        file: Path | None = None,
        reply_to: str | None = None,
    ) -> str:
        client, message_id = self.clients[sender or self.person], f"m{next(self._ids)}"
        frame: dict[str, Any] = {"text": text} | ({"thread": thread} if thread else {})
        if file is not None:
            frame["media"] = [{"name": file.name, "data": base64.b64encode(file.read_bytes()).decode()}]
        self._last = (client, message_id, json.dumps({"type": "message", "id": message_id, **frame}))
        await client.say(message_id, frame)
        return message_id

    async def press_button(self, message_id: str, label: str) -> None:
        frame = next(one for one in self.clients[self.person].frames if one.get("id") == message_id)
        await self.says(next(one["value"] for one in frame["buttons"] if one["label"] == label))

    def shown(self, chat: str | None = None) -> list[Shown]:
        return self.clients[chat or self.private].shown

    def reactions_on(self, message_id: str) -> list[str]:
        return self.clients[self.person].receipts.get(message_id, [])

    async def repeat_last(self) -> None:
        assert self._last is not None
        client, message_id, text = self._last
        await client.send_again(message_id, text)

    def acknowledged(self, message_id: str) -> bool:
        return any(message_id in client.acknowledged for client in self.clients.values())

    def refuse(self, times: int, *, status: int = 500, retry_after_s: float | None = None) -> None:
        raise AssertionError("a client takes what it gets")

    async def drop(self) -> None:
        for client in self.clients.values():
            await client.cut()

    async def gone(self, *, gone: bool) -> None:
        for client in self.clients.values():
            client.away = gone
        if gone:
            await self.drop()

    async def half_open(self) -> None:
        self.clients[self.person].fall_asleep()

    async def revoke(self) -> None:
        raise AssertionError("the token is the channel's own")
