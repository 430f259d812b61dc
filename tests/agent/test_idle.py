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
from tests.support.memory import archive_queue, saving

IDLE_S = 600.0


class HeldTime(FrozenClock):
    """A clock that goes on when it is told to, and wakes those who sleep by it."""

    def __init__(self) -> None:
        super().__init__(datetime(2026, 2, 26, 13, 21, tzinfo=UTC))
        self._sleepers: list[tuple[float, asyncio.Event]] = []

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        self._sleepers.append((self.monotonic() + seconds, woken))
        await woken.wait()

    @property
    def sleepers(self) -> int:
        return len(self._sleepers)

    async def go_on(self, seconds: float) -> None:
        """Let time go by, and everybody do what is due by then."""
        self.advance(seconds)
        for due, woken in [*self._sleepers]:
            if due <= self.monotonic():
                self._sleepers.remove((due, woken))
                woken.set()
        await settle()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def time() -> HeldTime:
    return HeldTime()


@pytest.fixture
async def watched(tmp_path: Path, time: HeldTime, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bot]:
    """A bot that compacts idle sessions by a clock we hold."""
    monkeypatch.setattr(ConsolidationScheduler, "sleep", staticmethod(time.sleep))
    config = Config.model_validate({"agents": {"defaults": {"idleCompactAfterMinutes": int(IDLE_S / 60)}}})
    async with open_bot(tmp_path, config=config, clock=time) as bot:
        yield bot


async def talk(bot: Bot) -> None:
    bot.provider.script(*[f"answer {number}" for number in range(10)])
    for number in range(10):
        await bot.say(f"question {number}")


async def until_moved(bot: Bot, count: int) -> None:
    async with asyncio.timeout(5):
        while f"Memory: {count} messages moved" not in await bot.say("/status"):
            await asyncio.sleep(0.005)


def heads(requests: list[list[Any]]) -> list[bool]:
    """Whether each request is the head of the next."""
    return [later[: len(earlier)] == earlier for earlier, later in pairwise(requests)]


async def test_idle_session_is_consolidated_and_the_person_notices_only_the_memory(watched: Bot, time: HeldTime):
    await talk(watched)
    watched.provider.script(saving())

    await time.go_on(IDLE_S)
    await until_moved(watched, 12)
    watched.provider.script("eleven", "twelve", "thirteen")
    replies = [await watched.say(text) for text in ("and?", "then?", "so?")]
    status = await watched.say("/status")

    assert replies == ["eleven", "twelve", "thirteen"]
    turns = [
        request
        for request, tools in zip(watched.provider.requests, watched.provider.tools, strict=True)
        if len(tools) > 1
    ]
    assert heads(turns) == [True] * 9 + [False] + [True] * 2
    assert "Likes tea." in str(turns[-1][0])
    assert "question 5" not in str(turns[-1])
    assert "answer 6" in str(turns[-1])
    assert "Memory: 12 messages moved into memory at 2026-02-26 13:31" in status


async def test_message_that_comes_during_a_compaction_is_answered_at_once_without_a_notice(
    watched: Bot, time: HeldTime
):
    await talk(watched)
    pause, sink = Pause(), RecordingSink()
    watched.provider.script(pause, "here I am", saving(), "and here")
    await time.go_on(IDLE_S)
    await pause.reached.wait()

    message = InboundMessage.from_owner("cli", "direct", "quick!", session_key="cli:direct", origin=Origin.CLI)
    result = await asyncio.wait_for(watched.send(message, sink), 5)

    assert result.text == "here I am"
    assert "notice" not in sink.types
    assert watched.session("cli:direct").last_consolidated == 0
    pause.resume.set()
    await until_moved(watched, 12)
    await watched.say("still there?")
    assert "question 5" not in str(watched.provider.requests[-1])
    assert "quick!" in str(watched.provider.requests[-1])


async def test_wait_begins_anew_with_each_turn_and_a_silence_is_used_once(watched: Bot, time: HeldTime):
    watched.provider.script(*["fine"] * 20)
    for number in range(20):
        await watched.say(f"question {number}")
        await time.go_on(IDLE_S / 10)
    spoken = len(watched.provider.requests)
    watched.provider.script(saving())

    await time.go_on(IDLE_S)
    await until_moved(watched, 32)
    for _ in range(24):
        await time.go_on(3600)

    assert (spoken, len(watched.provider.requests)) == (20, 21)


async def test_archived_session_whose_summary_failed_is_tried_again_later_though_nobody_speaks(
    tmp_path: Path, time: HeldTime, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ConsolidationScheduler, "sleep", staticmethod(time.sleep))
    async with open_bot(tmp_path, "hello", "no call", saving(), clock=time) as bot:
        await bot.say("hi")
        await bot.say("/new")
        asked = []
        for seconds in (60, 600):  # a pause, the backoff
            await eventually(lambda: time.sleepers)
            asked.append(len(bot.provider.requests))
            await time.go_on(seconds)
        await eventually(lambda: archive_queue(tmp_path) == {})

    assert (asked, len(bot.provider.requests)) == ([1, 2], 3)


async def test_without_the_setting_nothing_waits_and_no_idle_session_is_consolidated(tmp_path: Path, time: HeldTime):
    async with open_bot(tmp_path, clock=time) as bot:
        await talk(bot)
        names = {task.get_name() for task in asyncio.all_tasks()}
        time.advance(30 * 86_400)
        bot.provider.script("hello")
        assert await bot.say("hello") == "hello"

    assert not [name for name in names if name.startswith("consolidation")]
    assert "question 0" in str(bot.provider.requests[-1])


# --- what the next turn of a session does


HOURLY = Config.model_validate({"agents": {"defaults": {"idleCompactAfterMinutes": 60}}})


@pytest.fixture
async def left_idle(tmp_path: Path, time: HeldTime) -> Path:
    """A conversation that another process left two hours ago."""
    async with open_bot(tmp_path, config=HOURLY, clock=time) as bot:
        await talk(bot)
        time.advance(3599)
        bot.provider.script("not yet")
        await bot.say("for less than an hour")
        assert "question 0" in str(bot.provider.requests[-1])
    time.advance(2 * 3600)
    return tmp_path


async def test_idle_session_is_compacted_before_its_next_prompt_and_a_command_does_not_wait_for_it(
    left_idle: Path, time: HeldTime
):
    async with open_bot(left_idle, saving(), "back again", "still here", config=HOURLY, clock=time) as bot:
        history = await bot.say("/history 1")  # waits for its turn in the lane, unlike /status
        asked_by_command = len(bot.provider.requests)
        reply = await bot.say("hello again")
        await bot.say("and now")

    _, first, second = bot.provider.requests
    phases = [[*event.phase_seconds] for event in bot.sink.events if isinstance(event, TurnEnded)]
    assert history == "bot: not yet"
    assert asked_by_command == 0
    assert reply == "back again"
    assert "question 6" not in str(first)
    assert "question 7" in str(first)
    assert "Likes tea." in str(first[0])
    assert second[: len(first)] == first
    assert "compact" not in phases[0]
    assert phases[1] == ["restore", "command", "compact", "build", "run", "save"]


@pytest.mark.parametrize("failure", [ProviderError("down"), "I saved it."])
async def test_compaction_that_fails_keeps_no_answer_back(left_idle: Path, time: HeldTime, failure: Any):
    async with open_bot(left_idle, failure, "back again", config=HOURLY, clock=time) as bot:
        reply = await bot.say("hello again")

    assert reply == "back again"
    assert "question 0" in str(bot.provider.requests[-1])

    async with open_bot(left_idle, "still here", config=HOURLY, clock=time) as bot:
        time.advance(599)  # it is still idle, and the failure rests for ten minutes
        bot.session("cli:direct").last_message["timestamp"] = "2026-02-26T13:21:00"  # type: ignore[index]
        assert await bot.say("and now?") == "still here"


async def test_compaction_that_takes_too_long_is_announced_and_given_up(
    left_idle: Path, time: HeldTime, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pipeline, "_COMPACT_S", 1.0)
    monkeypatch.setattr(pipeline, "_NOTICE_AFTER_S", 0.0)
    async with open_bot(left_idle, Pause(), "back again", config=HOURLY, clock=time) as bot:
        reply = await bot.say("hello again")

    assert reply == "back again"
    assert ["into memory" in event.text for event in bot.sink.events if isinstance(event, Notice)] == [True]
