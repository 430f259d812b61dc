"""Many chats at once: their turns begin by and by, and the event loop looks after everybody else between them."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.events import TurnOutcome, TurnResult
from nanobot.bus.events import InboundMessage
from nanobot.providers.base import Delta
from nanobot.testing import Bot, ScriptedProvider, open_bot

CHATS = 60


class Slow(ScriptedProvider):
    """Takes all the time of a pass of the event loop, and counts how often it was asked in each."""

    def __init__(self) -> None:
        super().__init__(*["hi"] * CHATS)
        self.asked = Counter[int]()
        self._passes = 0

    def watch(self) -> None:
        self._passes += 1
        asyncio.get_running_loop().call_soon(self.watch)

    async def chat_stream(self, *args: Any, **more: Any) -> AsyncIterator[Delta]:
        self.asked[self._passes] += 1
        time.sleep(0.01)
        async for delta in super().chat_stream(*args, **more):
            yield delta


def begin(bot: Bot) -> list[asyncio.Task[TurnResult]]:
    messages = [InboundMessage("phone", "ann", str(chat), "hello") for chat in range(CHATS)]
    return [asyncio.create_task(bot.run_turn(message)) for message in messages]


async def test_many_turns_at_once_do_not_all_run_in_one_pass_of_the_loop(tmp_path: Path):
    provider = Slow()
    async with open_bot(tmp_path, provider=provider) as bot:
        provider.watch()
        results = await asyncio.gather(*begin(bot))

    assert {result.outcome for result in results} == {TurnOutcome.ANSWERED}
    assert provider.asked.total() == CHATS
    assert max(provider.asked.values()) < 40  # all of them, where nobody waits; some come back from the disk together


async def test_a_turn_that_waits_for_its_pass_is_stopped_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("nanobot.agent.loop.STOP_REPLY_S", 10.0)  # a busy machine is no tool that does not react
    provider = Slow()
    async with open_bot(tmp_path, provider=provider) as bot:
        turns = begin(bot)
        while not provider.asked:
            await asyncio.sleep(0)
        stopped = await bot.run_turn(InboundMessage("phone", "ann", str(CHATS - 1), "/stop"))
        results = await asyncio.gather(*turns)

    assert stopped.text == "Stopped."
    assert results.pop().outcome is TurnOutcome.STOPPED
    assert {result.outcome for result in results} == {TurnOutcome.ANSWERED}
