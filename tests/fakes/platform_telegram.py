"""Telegram, as the contract suite asks for it: people write to a fake Bot API server, and read what the bot sent."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from nanobot.bus.queue import MessageBus
from nanobot.channels.telegram import TelegramChannel
from nanobot.config.channels import TelegramConfig
from nanobot.testing.platform import Platform, Shown
from tests.fakes.telegram import BLOCKED, BOT, TOKEN, FakeTelegram, RefusedError, too_fast

ANNA, ZOE, HALL, TOPIC = 111, 222, -1001234567890, 7
QUICK = {"poll_s": 1.0, "busy_s": 0.05, "album_s": 0.05}
"""Polls of a second: Telegram counts whole ones."""


class TelegramPlatform(Platform):
    """Two people, one forum, one bot."""

    name = "telegram"
    stall_s = 1.3
    person, private = str(ANNA), str(ANNA)
    stranger, stranger_chat = str(ZOE), str(ZOE)
    group = str(HALL)
    thread = str(TOPIC)
    limit = 4096
    edits = threads = files = quotes = queues_messages = buttons = reacts = types = loses_answers = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = FakeTelegram(topics={TOPIC})
        for number, name in ((ANNA, "Anna"), (ZOE, "Zoe")):
            self.server.people[number] = {"id": number, "is_bot": False, "first_name": name}
            self.server.chats[number] = {"id": number, "type": "private", "first_name": name}
        self.server.chats[HALL] = {"id": HALL, "type": "supergroup", "title": "Hall", "is_forum": True}

    @asynccontextmanager
    async def open(self) -> AsyncIterator["TelegramPlatform"]:
        async with self.server.open():
            yield self

    def channel(self, bus: MessageBus, **settings: Any) -> TelegramChannel:
        usual = {
            "enabled": True,
            "token": TOKEN,
            "allow_from": [self.person],
            "api_base": self.server.url,
            "reply_to_message": True,
        }
        channel = TelegramChannel(TelegramConfig.model_validate(usual | settings), bus)
        vars(channel).update(QUICK)
        return channel

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
        said = f"@{BOT['username']} {text}" if mention else text
        more: dict[str, Any] = {}
        if thread is not None:
            more |= {"message_thread_id": int(thread), "is_topic_message": True}
        if reply_to is not None and (answered := self.server.posted.get(int(reply_to))):
            more["reply_to_message"] = answered.json
        where, who = int(chat or self.private), int(sender or self.person)
        if file is None:
            return str(await self.server.message(where, who, said, **more))
        told = self.server.file(file.read_bytes(), file.name)
        if file.suffix == ".png":
            more["photo"] = [told | {"width": 1, "height": 1}]
        else:
            more["document"] = told
        return str(await self.server.message(where, who, caption=said, **more))

    async def press_button(self, message_id: str, label: str) -> None:
        await self.server.press(int(message_id), label, ANNA)

    def shown(self, chat: str | None = None) -> list[Shown]:
        return [
            Shown(
                str(one.json["message_id"]),
                one.json.get("text", ""),
                [one.filename] if one.filename else [],
                str(one.json["reply_to_message"]["message_id"]) if "reply_to_message" in one.json else None,
                str(one.json["message_thread_id"]) if "message_thread_id" in one.json else None,
                one.edits,
                [b["text"] for row in one.json.get("reply_markup", {}).get("inline_keyboard", []) for b in row],
            )
            for one in self.server.shown(int(chat or self.private))
        ]

    def reactions_on(self, message_id: str) -> list[str]:
        return self.server.reactions.get(int(message_id), [])

    def typed(self, chat: str | None = None) -> int:
        return self.server.typing.count(int(chat or self.private))

    async def repeat_last(self) -> None:
        await self.server.again()

    def acknowledged(self, message_id: str) -> bool:
        return self.server.update_of(int(message_id)) < self.server.confirmed

    def refuse(self, times: int, *, status: int = 500, retry_after_s: float | None = None) -> None:
        known = {403: BLOCKED, 429: too_fast(retry_after_s or 1)}
        self.server.faults += [known.get(status, RefusedError(status, "Internal Server Error"))] * times

    def lose_answers(self, times: int) -> None:
        self.server.loses_answers = times

    async def drop(self) -> None:
        await self.server.cut()

    async def gone(self, *, gone: bool) -> None:
        await (self.server.hang_up() if gone else self.server.listen())

    async def half_open(self) -> None:
        self.server.deafen()

    async def revoke(self) -> None:
        await self.server.revoke()
