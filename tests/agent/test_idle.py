"""A session nobody speaks in is consolidated, once, and never in anybody's way."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.events import Notice, TurnEnded
from nanobot.agent.memory.schedule import ConsolidationScheduler
from nanobot.agent.pipeline import pipeline
from nanobot.bus.events import InboundMessage
from nanobot.config.schema import Config
from nanobot.errors import ProviderError
from nanobot.messages.types import Origin
from nanobot.testing import Bot, Pause, RecordingSink, open_bot
from nanobot.utils.clock import FrozenClock
from tests.support.eventually import eventually
from tests.support.memory import archive_queue, cursor, saving, store, turns

HOUR = 3600.0
HOURLY = Config.model_validate({"agents": {"defaults": {"idleCompactAfterMinutes": 60}}})


class HeldTime(FrozenClock):
    """A clock that goes on when it is told to, and wakes those who sleep by it."""

    def __init__(self) -> None:
        super().__init__(datetime(2026, 2, 26, 13, 21, tzinfo=UTC))
        self.sleepers: list[tuple[float, asyncio.Event]] = []

    async def sleep(self, seconds: float) -> None:
        self.sleepers.append((self.monotonic() + seconds, woken := asyncio.Event()))
        await woken.wait()

    async def go_on(self, seconds: float) -> None:
        """Let time go by, and everybody do what is due by then."""
        self.advance(seconds)
        for due, woken in [*self.sleepers]:
            if due <= self.monotonic():
                self.sleepers.remove((due, woken))
                woken.set()
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
async def time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HeldTime:
    """A clock; nine turns were spoken until then."""
    time = HeldTime()
    monkeypatch.setattr(ConsolidationScheduler, "sleep", staticmethod(time.sleep))
    await store(tmp_path, *turns(0, 9, timestamp="2026-02-26T13:21:00"))
    return time


@pytest.fixture
async def watched(tmp_path: Path, time: HeldTime) -> AsyncIterator[Bot]:
    """A bot that has answered once, and consolidates after an hour without a message."""
    async with open_bot(tmp_path, "answer 9", config=HOURLY, clock=time) as bot:
        await bot.say("question 9")
        yield bot


async def test_idle_session_is_consolidated_and_the_person_notices_only_the_memory(
    watched: Bot, time: HeldTime, tmp_path: Path
):
    watched.provider.script(saving())
    await time.go_on(HOUR)
    await eventually(lambda: cursor(tmp_path))
    status = await watched.say("/status")
    watched.provider.script("eleven", "twelve", "thirteen")
    replies = [await watched.say(text) for text in ("and?", "then?", "so?")]

    before, _, *after = watched.provider.requests
    assert "Memory: 12 messages moved into memory at 2026-02-26 14:21" in status
    assert replies == ["eleven", "twelve", "thirteen"]
    assert "question 0" in str(before)
    assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(after))
    assert "Likes tea." in str(after[0][0])
    assert "question 5" not in str(after[0]) and "answer 6" in str(after[0])


async def test_message_that_comes_during_a_compaction_is_answered_at_once_without_a_notice(
    watched: Bot, time: HeldTime, tmp_path: Path
):
    pause, sink = Pause(), RecordingSink()
    watched.provider.script(pause, "here I am", saving(), "and here")
    await time.go_on(HOUR)
    await pause.reached.wait()

    message = InboundMessage.from_owner("cli", "direct", "quick!", session_key="cli:direct", origin=Origin.CLI)
    result = await asyncio.wait_for(watched.send(message, sink), 5)

    assert result.text == "here I am"
    assert "notice" not in sink.types
    assert cursor(tmp_path) == 0
    pause.resume.set()
    await eventually(lambda: cursor(tmp_path) == 12)
    await watched.say("still there?")
    assert "question 5" not in str(watched.provider.requests[-1])
    assert "quick!" in str(watched.provider.requests[-1])


async def test_wait_begins_anew_with_each_turn_and_a_silence_is_used_once(watched: Bot, time: HeldTime, tmp_path: Path):
    watched.provider.script(*["fine"] * 5, saving())
    for number in range(5):
        await time.go_on(HOUR / 2)
        await watched.say(f"again {number}")
    assert len(watched.provider.requests) == 6

    await time.go_on(HOUR)
    await eventually(lambda: cursor(tmp_path))
    for _ in range(24):
        await time.go_on(HOUR)
    assert len(watched.provider.requests) == 7


async def test_archived_session_whose_summary_failed_is_tried_again_though_nobody_speaks(
    tmp_path: Path, time: HeldTime
):
    async with open_bot(tmp_path, "no call", saving(), clock=time) as bot:
        await bot.say("/new")
        asked = []
        for seconds in (60, 600):  # a pause, the backoff
            await eventually(lambda: time.sleepers)
            asked.append(len(bot.provider.requests))
            await time.go_on(seconds)
        await eventually(lambda: archive_queue(tmp_path) == {})

    assert (asked, len(bot.provider.requests)) == ([0, 1], 2)


# --- what the next turn of a session does that another process left


@pytest.mark.parametrize(("config", "days"), [(Config(), 30), (HOURLY, 0.04)], ids=["not configured", "not so long"])
async def test_session_that_was_not_idle_for_so_long_is_left_as_it_is(
    tmp_path: Path, time: HeldTime, config: Config, days: float
):
    time.advance(days * 24 * HOUR)
    async with open_bot(tmp_path, "hello", config=config, clock=time) as bot:
        assert await bot.say("hello") == "hello"
        names = {task.get_name() for task in asyncio.all_tasks()}

    assert "question 0" in str(bot.provider.requests)
    assert any(name == "consolidation timer" for name in names) is (config is HOURLY)


async def test_idle_session_is_compacted_before_its_next_prompt_and_a_command_does_not_wait_for_it(
    tmp_path: Path, time: HeldTime
):
    time.advance(2 * HOUR)
    async with open_bot(tmp_path, saving(), "back again", "still here", config=HOURLY, clock=time) as bot:
        assert await bot.say("/history 1") == "bot: answer 8"  # waits for its turn in the lane, unlike /status
        assert bot.provider.requests == []
        assert await bot.say("hello again") == "back again"
        await bot.say("and now")

    _, first, second = bot.provider.requests
    phases = [[*event.phase_seconds] for event in bot.sink.events if isinstance(event, TurnEnded)]
    assert "question 4" not in str(first) and "question 5" in str(first)
    assert "Likes tea." in str(first[0])
    assert second[: len(first)] == first
    assert "compact" not in phases[0]
    assert phases[1] == ["restore", "command", "compact", "build", "run", "save"]


@pytest.mark.parametrize("failure", [ProviderError("down"), "I saved it.", Pause()], ids=["down", "no call", "slow"])
async def test_compaction_that_fails_or_takes_too_long_keeps_no_answer_back_and_rests(
    tmp_path: Path, time: HeldTime, monkeypatch: pytest.MonkeyPatch, failure: Any
):
    if isinstance(failure, Pause):
        monkeypatch.setattr(pipeline, "_COMPACT_S", 1.0)
        monkeypatch.setattr(pipeline, "_NOTICE_AFTER_S", 0.0)
    time.advance(2 * HOUR)
    async with open_bot(tmp_path, failure, "back again", config=HOURLY, clock=time) as bot:
        assert await bot.say("hello again") == "back again"
        notices = [event.text for event in bot.sink.events if isinstance(event, Notice)]
    assert "question 0" in str(bot.provider.requests[-1])
    if isinstance(failure, Pause):
        assert ["into memory" in notice for notice in notices] == [True]
        return

    async with open_bot(tmp_path, "still here", config=HOURLY, clock=time) as bot:
        time.advance(599)  # it is still idle, and the failure rests for ten minutes
        bot.session("cli:direct").last_message["timestamp"] = "2026-02-26T13:21:00"  # type: ignore[index]
        assert await bot.say("and now?") == "still here"
