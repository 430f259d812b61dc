"""A WhatsApp bridge on loopback, with the people behind it; in place of the one of ours on Node.js.

It speaks the protocol of nanobot/channels/whatsapp/connection.py as the real bridge does: tests/channels/whatsapp/
test_bridge.py sees that one do the same. `version` None makes it one of an earlier release, which says nothing when
somebody connects, knows two requests, and answers without ids.
"""

import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from nanobot.bus.queue import MessageBus
from nanobot.channels.whatsapp import WhatsAppChannel
from nanobot.config.channels import WhatsAppConfig
from nanobot.testing.platform import Platform, Shown

Json = dict[str, Any]

TOKEN = "s3cr3t-of-the-bridge"
ME, ME_LID = "4930123456@s.whatsapp.net", "111222333@lid"
ANNA, ANNA_LID = "4915112345678@s.whatsapp.net", "272700845121588@lid"
ZOE = "4915799999999@s.whatsapp.net"
HALL = "120363000000000001@g.us"
EDITABLE_S = 15 * 60


@dataclass
class Post:
    """A message of the bot as the chat shows it now."""

    id: str
    chat: str
    text: str = ""
    file: str = ""
    data: bytes = b""
    mimetype: str = ""
    is_voice: bool = False
    quoted: str | None = None
    edits: int = 0


@dataclass
class Refusal:
    """What the bridge answers to a request that WhatsApp does not take."""

    code: int | None
    error: str = "refused"


@dataclass(eq=False)
class Line:
    """An open connection."""

    socket: ServerConnection
    is_trusted: bool = False
    is_deaf: bool = False


class FakeBridge:
    """The people, what they wrote, and what the bot did."""

    def __init__(self, folder: Path, version: int | None = 2) -> None:
        self.folder = folder
        """Where it puts the files that people send."""
        self.version = version
        self.token = TOKEN
        self.url = ""
        self.is_linked = self.is_connected = True
        self.posts: list[Post] = []
        self.acknowledged: set[str] = set()
        self.reactions: list[tuple[str, str, str]] = []
        self.typing: list[str] = []
        self.reads: list[Json] = []
        self.requests: list[Json] = []
        self.refusals: deque[Refusal] = deque()
        self.loses_answers = 0
        self.lines: list[Line] = []
        self.sent: list[Json] = []
        """Messages of people, as frames."""
        self._server: Server | None = None
        self._ids = count(1)

    async def listen(self) -> None:
        """Serve, at the same address as before."""
        port = int(self.url.rpartition(":")[2] or 0)
        self._server = await serve(self._serve, "127.0.0.1", port, close_timeout=0.1, ping_interval=None)
        self.url = f"ws://127.0.0.1:{next(iter(self._server.sockets)).getsockname()[1]}"

    async def close(self) -> None:
        """Break every connection, and take no new ones."""
        self.drop()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def drop(self) -> None:
        """Break every connection."""
        for line in self.lines:
            line.socket.transport.abort()

    def half_open(self) -> None:
        """Keep every open connection, and neither read nor send there."""
        for line in self.lines:
            line.is_deaf = True
            line.socket.transport.pause_reading()

    # what people do

    async def says(
        self, text: str, *, sender: str = ANNA, chat: str | None = None, message_id: str = "", **more: Any
    ) -> str:
        """Send a message to the linked account. Return its id."""
        message_id = message_id or f"3A{next(self._ids):018X}"
        is_group = (chat or sender).endswith("@g.us")
        pn = {"pn": sender} if sender.endswith("@s.whatsapp.net") else {}
        frame = {
            "type": "message", "id": message_id, "chat": chat or sender, "sender": sender, **pn, "pushName": "Anna",
            "content": text, "timestamp": 1_700_000_000, "isGroup": is_group, "fromMe": False,
        }  # fmt: skip
        self.sent.append(frame | more)
        await self.again(message_id)
        return message_id

    async def again(self, message_id: str) -> None:
        """Deliver a message once more."""
        frame = next(one for one in self.sent if one["id"] == message_id)
        await self.tell(frame)

    async def tell(self, frame: Json) -> None:
        """Send a frame to everybody who is connected."""
        for line in self.lines:
            if line.is_trusted and not line.is_deaf:
                with suppress(ConnectionClosed):
                    await line.socket.send(json.dumps(frame))

    def put_file(self, name: str, data: bytes, **more: Any) -> Json:
        """A file that a person sends, as its message has it."""
        path = self.folder / name
        path.write_bytes(data)
        return {"path": str(path), "name": name} | more

    def in_chat(self, chat: str) -> list[Post]:
        """The bot's messages in this chat."""
        return [post for post in self.posts if post.chat == chat]

    # the protocol

    async def _serve(self, socket: ServerConnection) -> None:
        self.lines.append(line := Line(socket))
        try:
            if "Origin" in (socket.request.headers if socket.request else {}):
                await socket.close(4003, "Origin")
            async for text in socket:
                await self._receive(line, json.loads(text))
        except (ConnectionClosed, OSError):
            pass
        finally:
            self.lines.remove(line)

    async def _receive(self, line: Line, frame: Json) -> None:
        if not line.is_trusted:
            if frame.get("type") != "auth" or frame.get("token") != self.token:
                await line.socket.close(4003, "Invalid token")
                return
            line.is_trusted = True
            if self.version is not None:
                await self.tell_status()
            if not self.is_linked:
                await self.tell({"type": "qr", "qr": "2@ref,noise,identity,secret"})
            for message in [one for one in self.sent if one["id"] not in self.acknowledged and self.version]:
                await line.socket.send(json.dumps(message))
            return
        self.requests.append(frame)
        answer = self._do(frame)
        if self.loses_answers and answer is not None and answer["type"] == "sent" and not answer.pop("again", False):
            self.loses_answers -= 1
            line.socket.transport.abort()
        elif answer is not None:
            answer.pop("again", None)
            await line.socket.send(json.dumps(answer))

    async def tell_status(self) -> None:
        """Say how the connection to WhatsApp is."""
        status = "connected" if self.is_linked and self.is_connected else "disconnected"
        me = {"me": ME, "lid": ME_LID} if self.is_linked else {}
        await self.tell({"type": "status", "status": status, "version": self.version, **me})

    def _do(self, frame: Json) -> Json | None:
        kind, message_id, chat = frame["type"], frame.get("id"), frame.get("to", "")
        if self.version is None:
            assert kind in ("send", "send_media")  # it would say `sent` for anything else, too
            self.posts.append(Post(f"old-{next(self._ids)}", chat, frame.get("text", "")))
            return {"type": "sent", "to": chat}
        match kind:
            case "ack":
                self.acknowledged.add(frame["id"])
            case "typing":
                self.typing.append(chat)
            case "react":
                self.reactions.append((frame["id"], frame["sender"], frame["emoji"]))
            case "read":
                self.reads.append(frame)
            case "pair":
                return {"type": "code", "code": "ABCD-EFGH"}
            case "send" | "send_media" | "edit":
                assert isinstance(message_id, str)
                assert "@" in chat
                if self.refusals:
                    refusal = self.refusals.popleft()
                    return {"type": "failed", "id": message_id, "error": refusal.error, "code": refusal.code}
                is_again = any(post.id == message_id for post in self.posts) and kind != "edit"
                if not is_again:
                    self._take(kind, frame)
                return {"type": "sent", "id": message_id, "to": chat, "again": is_again}
            case _:
                raise AssertionError(frame)
        return None

    def _take(self, kind: str, frame: Json) -> None:
        if kind == "edit":
            post = next(post for post in self.posts if post.id == frame["id"])
            post.text, post.edits = frame["text"], post.edits + 1
            return
        post = Post(frame["id"], frame["to"], frame.get("text", ""), quoted=frame.get("quoted"))
        if kind == "send_media":
            post.file, post.data = frame["fileName"], Path(frame["filePath"]).read_bytes()
            post.mimetype, post.is_voice = frame["mimetype"], frame["ptt"]
        self.posts.append(post)


class WhatsAppPlatform(Platform):
    """The platform; `bridge` is for tests of what only WhatsApp has."""

    name = "whatsapp"
    beat_s = 0.1
    person, private = "+4915112345678", ANNA
    stranger, stranger_chat = "+4915799999999", ZOE
    group = HALL
    limit = 4096
    edits = files = quotes = dedupes = queues_messages = reacts = takes_back = types = loses_answers = True
    resumes_edits = rate_limits = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.bridge = FakeBridge(folder)
        self._last = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator["WhatsAppPlatform"]:
        await self.bridge.listen()
        try:
            yield self
        finally:
            await self.bridge.close()

    def channel(self, bus: MessageBus, **settings: Any) -> WhatsAppChannel:
        usual = {
            "enabled": True, "bridge_managed": False, "bridge_url": self.bridge.url, "bridge_token": TOKEN,
            "allow_from": [self.person], "group_policy": "mention", "streaming": True, "reply_to_message": True,
        }  # fmt: skip
        channel = WhatsAppChannel(WhatsAppConfig.model_validate(usual | settings), bus)
        channel.beat_s, channel.pause_s = self.beat_s, 0.0
        return channel

    # what people do and see

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
        author = ZOE if sender == self.stranger else ANNA
        more: dict[str, Any] = {}
        if chat == HALL and mention:
            text, more = f"@{ME.partition('@')[0]} {text}", {"wasMentioned": True}
        if file is not None:
            more["media"] = [self.bridge.put_file(file.name, file.read_bytes(), kind="image", mimetype="image/png")]
        self._last = await self.bridge.says(text, sender=author, chat=chat, **more)
        return self._last

    def shown(self, chat: str | None = None) -> list[Shown]:
        return [
            Shown(post.id, post.text, [post.file] if post.file else [], reply_to=post.quoted, edits=post.edits)
            for post in self.bridge.in_chat(chat or self.private)
        ]

    def reactions_on(self, message_id: str) -> list[str]:
        emojis = [emoji for reacted, _, emoji in self.bridge.reactions if reacted == message_id]
        return emojis[-1:] if any(emojis[-1:]) else []  # each replaces the one before; an empty one is none

    def typed(self, chat: str | None = None) -> int:
        return self.bridge.typing.count(chat or self.private)

    def acknowledged(self, message_id: str) -> bool:
        return message_id in self.bridge.acknowledged

    # what goes wrong

    async def repeat_last(self) -> None:
        await self.bridge.again(self._last)

    def refuse(self, times: int, *, status: int = 500, retry_after_s: float | None = None) -> None:
        self.bridge.refusals.extend([Refusal(status)] * times)

    def lose_answers(self, times: int) -> None:
        self.bridge.loses_answers = times

    async def drop(self) -> None:
        self.bridge.drop()

    async def gone(self, *, gone: bool) -> None:
        await (self.bridge.close() if gone else self.bridge.listen())

    async def half_open(self) -> None:
        self.bridge.half_open()

    async def revoke(self) -> None:
        self.bridge.token = "another"
        self.bridge.drop()
