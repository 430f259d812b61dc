"""A WhatsApp bridge on loopback, with the people behind it; in place of the one of ours on Node.js.

It speaks the protocol of nanobot/channels/whatsapp/bridge.py as the real bridge does: tests/channels/whatsapp/
test_bridge.py sees that one do the same. `version` None makes it one of an earlier release, which says nothing when
somebody connects, knows two requests, and answers without ids.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from nanobot.bus.queue import MessageBus
from nanobot.channels.whatsapp import WhatsAppChannel
from nanobot.config.channels import WhatsAppConfig
from nanobot.testing.platform import Shown
from tests.fakes.served import Json, Line, RefusedError, Said, ServedPlatform

TOKEN = "s3cr3t-of-the-bridge"
ME, ME_LID = "4930123456@s.whatsapp.net", "111222333@lid"
ANNA, ANNA_LID = "4915112345678@s.whatsapp.net", "272700845121588@lid"
ZOE = "4915799999999@s.whatsapp.net"
HALL = "120363000000000001@g.us"


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


class WhatsAppPlatform(ServedPlatform):
    """The people, what they wrote, and what the bot did. Files that people send are put into its folder."""

    name = "whatsapp"
    scheme = "ws"
    secret = TOKEN
    autoping = False
    beat_s = 0.1
    person, private = "+4915112345678", ANNA
    stranger, stranger_chat = "+4915799999999", ZOE
    group = HALL
    limit = 4096
    edits = files = quotes = dedupes = queues_messages = reacts = takes_back = types = loses_answers = True
    resumes_edits = rate_limits = False

    def __init__(self, folder: Path, port: int = 0) -> None:
        super().__init__(folder)
        self._port = port
        self.version: int | None = 2
        self.is_linked = self.is_connected = True
        self.acks: set[str] = set()
        self.reactions: list[tuple[str, str, str]] = []
        self.reads: list[Json] = []
        self.sent: list[Json] = []
        """Messages of people, as frames."""

    @property
    def bridge(self) -> "WhatsAppPlatform":
        """For tests that ask for the bridge behind it."""
        return self

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/", self.serve_line)]

    def channel(self, bus: MessageBus, **settings: Any) -> WhatsAppChannel:
        usual = {
            "enabled": True, "bridge_managed": False, "bridge_url": self.url, "bridge_token": TOKEN,
            "allow_from": [self.person], "group_policy": "mention", "streaming": True, "reply_to_message": True,
        }  # fmt: skip
        channel = WhatsAppChannel(WhatsAppConfig.model_validate(usual | settings), bus)
        channel.beat_s, channel.pause_s = self.beat_s, 0.0
        return channel

    # what people do

    async def send_said(self, said: Said) -> str:
        text = said.text
        more: Json = {}
        if said.group and said.mention:
            text, more = f"@{ME.partition('@')[0]} {text}", {"wasMentioned": True}
        if said.file is not None:
            file = self.put_file(said.file.name, said.file.read_bytes(), kind="image", mimetype="image/png")
            more["media"] = [file]
        author = ZOE if said.sender == self.stranger else ANNA
        return await self.writes(text, sender=author, chat=said.chat, **more)

    async def writes(
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
        await self.tell(next(one for one in self.sent if one["id"] == message_id))

    async def tell(self, frame: Json) -> None:
        """Send a frame to everybody who is connected."""
        for line in self.lines:
            if line.session and not line.is_deaf:
                with suppress(OSError):
                    await line.socket.send_json(frame)

    def put_file(self, name: str, data: bytes, **more: Any) -> Json:
        """A file that a person sends, as its message has it."""
        path = self.folder / name
        path.write_bytes(data)
        return {"path": str(path), "name": name} | more

    # the protocol

    def refusal(self, status: int, retry_after_s: float | None) -> RefusedError:
        return RefusedError(status)

    async def receive(self, line: Line, frame: Any) -> None:
        frame = json.loads(frame)
        if not line.session:
            if frame.get("type") != "auth" or frame.get("token") != self.secret:
                await line.socket.close(code=4003, message=b"Invalid token")
                return
            line.session = "trusted"
            if self.version is not None:
                await self.tell_status()
            if not self.is_linked:
                await self.tell({"type": "qr", "qr": "2@ref,noise,identity,secret"})
            for message in [one for one in self.sent if one["id"] not in self.acks and self.version]:
                await line.socket.send_json(message)
            return
        self.calls.append(frame)
        answer = self._do(frame)
        if answer is None:
            return
        if not answer.pop("again", False) and self.lost and answer["type"] == "sent":
            self.lost -= 1
            line.transport.abort()
        else:
            await line.socket.send_json(answer)

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
                self.acks.add(frame["id"])
            case "typing":
                self.typed_in.append(chat)
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
                    code = refusal.code or None
                    return {"type": "failed", "id": message_id, "error": refusal.message, "code": code}
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

    # what people see

    def as_seen(self, post: Post) -> Shown:
        return Shown(post.id, post.text, [post.file] if post.file else [], reply_to=post.quoted, edits=post.edits)

    def reactions_on(self, message_id: str) -> list[str]:
        emojis = [emoji for reacted, _, emoji in self.reactions if reacted == message_id]
        return emojis[-1:] if any(emojis[-1:]) else []  # each replaces the one before; an empty one is none

    def acknowledged(self, message_id: str) -> bool:
        return message_id in self.acks
