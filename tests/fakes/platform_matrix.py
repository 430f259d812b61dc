"""Matrix for the contract suite: a small homeserver on loopback, to which the channel is pointed by `homeserver`."""

import mimetypes
from pathlib import Path
from typing import Any

from aiohttp import web

from nanobot.bus.queue import MessageBus
from nanobot.channels.matrix import MatrixChannel
from nanobot.config.channels import MatrixConfig
from nanobot.testing.platform import Shown
from tests.fakes.matrix import ANNA, BOT, DIRECT, KITCHEN, STRANGE, TOKEN, ZOE, FakeHomeserver, Json, shown_texts
from tests.fakes.served import ServedPlatform


class MatrixPlatform(ServedPlatform):
    """The platform; `server` is for tests of what only Matrix has."""

    server: FakeHomeserver
    name = "matrix"
    stall_s = 0.6
    poll_s = 0.2
    person, private = ANNA, DIRECT
    stranger, stranger_chat = ZOE, STRANGE
    group, thread = KITCHEN, "$root-of-a-thread"
    limit = 16_000
    edits = threads = files = quotes = dedupes = queues_messages = reacts = types = loses_answers = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, FakeHomeserver())

    def app(self) -> web.Application:
        return self.server.app()

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
        await self.server.was_there.wait()
        content: Json = {"msgtype": "m.text", "body": f"Nanobot: {text}" if mention else text, "m.mentions": {}}
        if mention:
            content["m.mentions"] = {"user_ids": [BOT]}
        if file is not None:
            kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
            content |= {
                "msgtype": "m.image", "filename": file.name, "url": self.server.upload(file.read_bytes(), kind),
                "info": {"mimetype": kind, "size": file.stat().st_size},
            }  # fmt: skip
        if thread is not None:
            answered = {"m.in_reply_to": {"event_id": thread}, "is_falling_back": True}
            content["m.relates_to"] = {"rel_type": "m.thread", "event_id": thread, **answered}
        if reply_to is not None:
            content["m.relates_to"] = {"m.in_reply_to": {"event_id": reply_to}}
        self._last = await self.server.says(chat or self.private, sender or self.person, content)
        return self._last

    def shown(self, chat: str | None = None) -> list[Shown]:
        messages = shown_texts(self.server.of_bot(chat or self.private))
        return [self._as_seen(event_id, content, edits) for event_id, (content, edits) in messages.items()]

    def _as_seen(self, event_id: str, content: Json, edits: int) -> Shown:
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

    def reactions_on(self, message_id: str) -> list[str]:
        relations = [
            event["content"]["m.relates_to"]
            for room in self.server.rooms
            for event in self.server.of_bot(room, "m.reaction")
        ]
        return [relation["key"] for relation in relations if relation["event_id"] == message_id]

    def typed(self, chat: str | None = None) -> int:
        return self.server.rooms[chat or self.private].typed

    # what goes wrong

    async def repeat_last(self) -> None:
        await self.server.says_again(self._last)

    def acknowledged(self, message_id: str) -> bool:
        return self.server.read_to >= self.server.position_of(message_id)

    def refuse(self, times: int, *, status: int = 500, retry_after_s: float | None = None) -> None:
        self.server.refusals += [(status, retry_after_s)] * times

    async def half_open(self) -> None:
        await self.server.turn_deaf()

    async def revoke(self) -> None:
        await self.server.revoke()
