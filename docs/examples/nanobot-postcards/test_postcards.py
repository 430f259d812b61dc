"""The plugin keeps what nanobot promises of channels and tools: `python -m pytest test_postcards.py`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nanobot_postcards import Postage, PostcardChannel

from nanobot.bus.queue import MessageBus
from nanobot.testing import Check
from nanobot.testing.channels import channel_checks
from nanobot.testing.platform import Platform, Shown
from nanobot.testing.tools import tool_checks


class Letterbox(Platform):
    """What people see of the channel. All that a platform may have and this one does not is said here."""

    name = "postcards"
    person = private = "anna"
    stranger = stranger_chat = "zoe"
    limit = 0
    queues_messages = True
    connects = refuses = rate_limits = has_token = shows_progress = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Letterbox"]:
        self.last = ("", "")
        (self.folder / "in").mkdir()
        yield self

    def channel(self, bus: MessageBus, **settings: Any) -> PostcardChannel:
        usual = {"folder": str(self.folder), "everyS": 0.01, "allow_from": [self.person]}
        return PostcardChannel(usual | settings, bus)

    async def says(self, text: str, *, sender: str | None = None, **where: Any) -> str:
        number = len([*self.folder.glob("written.*")])
        (self.folder / f"written.{number}").touch()
        self.last = (f"{sender or self.person}.{number}.txt", text)
        await self.repeat_last()
        return self.last[0]

    async def repeat_last(self) -> None:
        name, text = self.last
        (card := self.folder / name).write_text(text, encoding="utf-8")
        card.rename(self.folder / "in" / name)

    def acknowledged(self, message_id: str) -> bool:
        return not (self.folder / "in" / message_id).exists()

    def shown(self, chat: str | None = None) -> list[Shown]:
        cards = (self.folder / "out").glob(f"{chat or self.private}.*.txt")
        oldest_first = sorted(cards, key=lambda card: card.stat().st_mtime_ns)
        return [Shown(card.name, card.read_text(encoding="utf-8")) for card in oldest_first]


@pytest.mark.parametrize("check", channel_checks(Letterbox), ids=str)
def test_the_channel(check: Check, tmp_path: Path) -> None:
    check(tmp_path)


@pytest.mark.parametrize(
    "check", tool_checks(lambda folder: Postage({"prices": {"italy": 140}}), {"country": "Italy"}), ids=str
)
def test_the_tool(check: Check, tmp_path: Path) -> None:
    check(tmp_path)
