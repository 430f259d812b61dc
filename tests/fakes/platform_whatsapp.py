"""WhatsApp for the contract suite: a bridge on loopback, to which the channel is pointed by `bridgeUrl`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from nanobot.bus.queue import MessageBus
from nanobot.channels.whatsapp import WhatsAppChannel
from nanobot.config.channels import WhatsAppConfig
from nanobot.testing.platform import Platform, Shown
from tests.fakes.whatsapp import ANNA, HALL, ME, TOKEN, ZOE, FakeBridge, Refusal


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
