"""The idle watch: a session nobody speaks in is compacted, once, and never in anybody's way."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.agent.events import Notice, TurnEnded
from nanobot.agent.memory.idle import IdleWatch
from nanobot.agent.pipeline import pipeline
from nanobot.bus.events import InboundMessage
from nanobot.config.schema import Config
from nanobot.errors import ProviderError
from nanobot.messages.types import Origin
from nanobot.providers.base import LLMResponse
from nanobot.testing import Bot, Pause, RecordingSink, calls, open_bot
from nanobot.utils.clock import FrozenClock

IDLE_S = 600.0


class HeldTime(FrozenClock):
    """A clock that goes on when it is told to, and wakes those who sleep by it."""

    def __init__(self) -> None:
        super().__init__(datetime(2026, 2, 26, 13, 21, tzinfo=UTC))
        self._sleepers: list[tuple[float, asyncio.Event]] = []
        self.naps = 0

    async def sleep(self, seconds: float) -> None:
        self.naps += 1
        woken = asyncio.Event()
        self._sleepers.append((self.monotonic() + seconds, woken))
        await woken.wait()

    async def go_on(self, seconds: float) -> None:
        """Let time go by, and everybody do what is due by then."""
        self.advance(seconds)
        for due, woken in [*self._sleepers]:
            if due <= self.monotonic():
                self._sleepers.remove((due, woken))
                woken.set()
        await settle()

    @property
    def sleepers(self) -> int:
        return len(self._sleepers)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class Compactions:
    """Notes which sessions were compacted, and how each ended; `blocked` ones wait for `go`."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.broken_off: list[str] = []
        self.blocked: set[str] = set()
        self.go = asyncio.Event()

    async def __call__(self, session_key: str) -> None:
        self.begun.append(session_key)
        try:
            if session_key in self.blocked:
                await self.go.wait()
        except asyncio.CancelledError:
            await settle()  # a goodbye takes its time
            self.broken_off.append(session_key)
            raise
        self.ended.append(session_key)


@pytest.fixture
def time() -> HeldTime:
    return HeldTime()


@pytest.fixture
def compactions() -> Compactions:
    return Compactions()


@pytest.fixture
async def watch(time: HeldTime, compactions: Compactions) -> AsyncIterator[IdleWatch]:
    watch = IdleWatch(compactions, IDLE_S, time, time.sleep)
    yield watch
    await watch.close()


async def turn(watch: IdleWatch, session_key: str) -> None:
    watch.turn_begins(session_key)
    watch.turn_ended(session_key)
    await settle()


async def test_a_session_is_compacted_once_when_nobody_spoke_for_so_long(watch, time, compactions):
    await turn(watch, "a")

    await time.go_on(IDLE_S - 1)
    assert compactions.begun == []
    await time.go_on(1)
    assert compactions.ended == ["a"]

    for _ in range(24):
        await time.go_on(3600)
    assert compactions.ended == ["a"]
    assert time.sleepers == 0


async def test_each_turn_begins_the_waiting_anew_with_one_timer(watch, time, compactions):
    for _ in range(50):
        await turn(watch, "a")
        await time.go_on(IDLE_S / 10)

    assert compactions.begun == []
    assert time.sleepers == 1
    assert time.naps <= 6
    await time.go_on(IDLE_S)
    assert compactions.ended == ["a"]


async def test_sessions_come_in_the_order_in_which_they_fell_silent(watch, time, compactions):
    for session_key in ("a", "b", "c", "a"):
        await turn(watch, session_key)
        await time.go_on(10)

    assert time.sleepers == 1
    await time.go_on(IDLE_S - 30)
    assert compactions.ended == ["b"]
    await time.go_on(10)
    await time.go_on(10)
    assert compactions.ended == ["b", "c", "a"]


async def test_a_session_whose_turn_is_running_is_not_idle(watch, time, compactions):
    watch.turn_begins("a")
    watch.turn_begins("a")
    watch.turn_ended("a")

    await time.go_on(10 * IDLE_S)
    assert compactions.begun == []

    watch.turn_ended("a")
    await settle()
    await time.go_on(IDLE_S)
    assert compactions.ended == ["a"]


async def test_a_session_that_falls_silent_while_another_is_compacted_has_its_turn_after_it(watch, time, compactions):
    compactions.blocked = {"a"}
    await turn(watch, "a")
    await time.go_on(IDLE_S)

    await turn(watch, "b")
    compactions.go.set()
    await settle()

    assert compactions.ended == ["a"]
    await time.go_on(IDLE_S)
    assert compactions.ended == ["a", "b"]


async def test_one_that_breaks_does_not_keep_the_others_from_theirs(time, caplog):
    done: list[str] = []

    async def compact(session_key: str) -> None:
        if session_key == "a":
            raise RuntimeError("broken")
        done.append(session_key)

    watch = IdleWatch(compact, IDLE_S, time, time.sleep)
    await turn(watch, "a")
    await turn(watch, "b")

    await time.go_on(IDLE_S)

    assert done == ["b"]
    assert "Session a could not be compacted" in caplog.text


async def test_closing_ends_what_is_at_work_and_nothing_begins_after_it(watch, time, compactions):
    compactions.blocked = {"a"}
    await turn(watch, "a")
    await turn(watch, "b")
    watch.turn_begins("c")
    await time.go_on(IDLE_S)

    await watch.close()
    watch.turn_ended("c")
    await turn(watch, "d")
    await time.go_on(IDLE_S)

    assert compactions.broken_off == compactions.begun == ["a"]
    assert len(asyncio.all_tasks()) == 1


async def test_with_zero_seconds_there_is_no_timer_and_no_task(time, compactions):
    watch = IdleWatch(compactions, 0, time, time.sleep)
    await turn(watch, "a")

    await time.go_on(24 * 3600)

    assert compactions.begun == []
    assert time.naps == 0
    assert len(asyncio.all_tasks()) == 1
    await watch.close()


_KEYS = st.sampled_from("abc")
_MOVES = st.one_of(
    st.tuples(st.just("begin"), _KEYS),
    st.tuples(st.just("end"), _KEYS),
    st.tuples(st.just("wait"), st.sampled_from([1.0, IDLE_S / 2, IDLE_S, 3 * IDLE_S])),
    st.tuples(st.just("let go"), st.none()),
)


@given(st.lists(_MOVES, max_size=25))
def test_whatever_happens_nobody_is_disturbed_and_every_silence_is_used_once(moves: list[tuple[str, Any]]):
    async def story() -> None:
        time, running, working = HeldTime(), Counter[str](), set[str]()
        silent_since: dict[str, float] = {}
        begun: list[tuple[bool, bool, float]] = []
        go = asyncio.Event()

        async def compact(session_key: str) -> None:
            begun.append((not working, not running[session_key], time.monotonic() - silent_since.pop(session_key)))
            working.add(session_key)
            try:
                await go.wait()
            finally:
                working.discard(session_key)

        watch = IdleWatch(compact, IDLE_S, time, time.sleep)

        async def end(session_key: str) -> None:
            running[session_key] -= 1
            if not running[session_key]:
                silent_since[session_key] = time.monotonic()
            watch.turn_ended(session_key)

        for move, what in moves:
            if move == "begin":
                running[what] += 1
                silent_since.pop(what, None)
                watch.turn_begins(what)
            elif move == "end" and running[what]:
                await end(what)
            elif move == "wait":
                await time.go_on(what)
            elif move == "let go":
                go.set()
            await settle()
            go.clear()
        for session_key in running.elements():
            await end(session_key)
        go.set()
        await settle()
        await time.go_on(IDLE_S)
        await time.go_on(IDLE_S)
        assert all(alone and idle and waited >= IDLE_S for alone, idle, waited in begun)
        assert silent_since == {}
        assert time.sleepers == 0
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(story())


# --- in a whole bot


def saving(entry: str = "[2026-02-26 13:21] Counted.", update: str = "Likes to count.") -> LLMResponse:
    return calls(("save_memory", {"history_entry": entry, "memory_update": update}))


@pytest.fixture
async def watched(tmp_path: Path, time: HeldTime, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bot]:
    """A bot that compacts idle sessions by a clock we hold."""
    monkeypatch.setattr(IdleWatch.__init__, "__defaults__", (time.sleep,))
    config = Config.model_validate({"agents": {"defaults": {"idleCompactAfterMinutes": int(IDLE_S / 60)}}})
    async with open_bot(tmp_path, config=config, clock=time) as bot:
        yield bot


async def until_moved(bot: Bot, count: int) -> None:
    async with asyncio.timeout(5):
        while f"Memory: {count} messages moved" not in await bot.say("/status"):
            await asyncio.sleep(0.005)


def heads(requests: list[list[Any]]) -> list[bool]:
    """Whether each request is the head of the next."""
    return [later[: len(earlier)] == earlier for earlier, later in pairwise(requests)]


async def test_the_person_notices_nothing_but_the_memory(watched: Bot, time: HeldTime):
    watched.provider.script(*[f"answer {number}" for number in range(10)])
    for number in range(10):
        await watched.say(f"question {number}")
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
    assert "Likes to count." in str(turns[-1][0])
    assert "question 5" not in str(turns[-1])
    assert "answer 6" in str(turns[-1])
    assert "Memory: 12 messages moved into memory at 2026-02-26 13:31" in status


async def test_a_message_that_comes_while_it_is_compacted_is_answered_at_once_and_the_next_prompt_is_shorter(
    watched: Bot, time: HeldTime
):
    watched.provider.script(*["fine"] * 10)
    for number in range(10):
        await watched.say(f"question {number}")
    pause = Pause()
    watched.provider.script(pause, "here I am", saving())
    await time.go_on(IDLE_S)
    await pause.reached.wait()

    reply = await asyncio.wait_for(watched.say("quick!"), 5)

    assert reply == "here I am"
    assert watched.session("cli:direct").last_consolidated == 0
    pause.resume.set()
    await until_moved(watched, 12)
    watched.provider.script("and here")
    await watched.say("still there?")
    assert "question 5" not in str(watched.provider.requests[-1])
    assert "quick!" in str(watched.provider.requests[-1])


async def test_a_message_from_the_bus_is_not_told_to_wait_for_a_compaction(watched: Bot, time: HeldTime):
    watched.provider.script(*["fine"] * 10)
    for number in range(10):
        await watched.say(f"question {number}")
    pause, sink = Pause(), RecordingSink()
    watched.provider.script(pause, "here I am")
    await time.go_on(IDLE_S)
    await pause.reached.wait()

    message = InboundMessage.from_owner("cli", "direct", "quick!", session_key="cli:direct", origin=Origin.CLI)
    result = await asyncio.wait_for(watched.send(message, sink), 5)

    assert result.text == "here I am"
    assert "notice" not in sink.types


async def test_24_idle_hours_after_a_short_talk_cost_no_token(watched: Bot, time: HeldTime):
    watched.provider.script("hello")
    await watched.say("hi")

    for _ in range(24 * 6):
        await time.go_on(600)

    assert len(watched.provider.requests) == 1


def idle_tasks() -> int:
    return sum(task.get_name() == "idle watch" for task in asyncio.all_tasks())


@pytest.mark.parametrize(("minutes", "tasks"), [(0, 0), (30, 1)])
async def test_the_key_sets_the_watch_and_the_runtime_closes_it(tmp_path: Path, minutes: int, tasks: int):
    config = Config.model_validate({"agents": {"defaults": {"idleCompactAfterMinutes": minutes}}})

    async with open_bot(tmp_path, "hello", config=config) as bot:
        await bot.say("hi")
        assert idle_tasks() == tasks

    assert idle_tasks() == 0


# --- what the next turn of a session does


HOURLY = Config.model_validate({"agents": {"defaults": {"idleCompactAfterMinutes": 60}}})


@pytest.fixture
async def left_idle(tmp_path: Path, time: HeldTime) -> Path:
    """A conversation that another process left two hours ago."""
    async with open_bot(tmp_path, *["fine"] * 10, config=HOURLY, clock=time) as bot:
        for number in range(10):
            await bot.say(f"question {number}")
    time.advance(2 * 3600)
    return tmp_path


async def test_an_idle_session_is_compacted_before_its_next_prompt_and_a_command_does_not_wait_for_it(
    left_idle: Path, time: HeldTime
):
    async with open_bot(left_idle, saving(), "back again", "still here", config=HOURLY, clock=time) as bot:
        history = await bot.say("/history 1")  # waits for its turn in the lane, unlike /status
        asked_by_command = len(bot.provider.requests)
        reply = await bot.say("hello again")
        await bot.say("and now")

    _, first, second = bot.provider.requests
    phases = [[*event.phase_seconds] for event in bot.sink.events if isinstance(event, TurnEnded)]
    assert history == "bot: fine"
    assert asked_by_command == 0
    assert reply == "back again"
    assert "question 5" not in str(first)
    assert "question 6" in str(first)
    assert "Likes to count." in str(first[0])
    assert second[: len(first)] == first
    assert "compact" not in phases[0]
    assert phases[1] == ["restore", "command", "compact", "build", "run", "save"]


async def test_a_session_that_was_not_idle_for_so_long_is_left_as_it_is(left_idle: Path):
    time = HeldTime()
    time.advance(3599)
    async with open_bot(left_idle, "back again", config=HOURLY, clock=time) as bot:
        assert await bot.say("hello again") == "back again"

    assert "question 0" in str(bot.provider.requests)


@pytest.mark.parametrize("failure", [ProviderError("down"), "I saved it."])
async def test_a_compaction_that_fails_keeps_no_answer_back(left_idle: Path, time: HeldTime, failure: Any):
    async with open_bot(left_idle, failure, "back again", config=HOURLY, clock=time) as bot:
        reply = await bot.say("hello again")

    assert reply == "back again"
    assert "question 0" in str(bot.provider.requests[-1])


async def test_a_compaction_that_takes_too_long_is_announced_and_given_up(
    left_idle: Path, time: HeldTime, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pipeline, "_COMPACT_S", 1.0)
    monkeypatch.setattr(pipeline, "_NOTICE_AFTER_S", 0.0)
    async with open_bot(left_idle, Pause(), "back again", config=HOURLY, clock=time) as bot:
        reply = await bot.say("hello again")

    assert reply == "back again"
    assert ["into memory" in event.text for event in bot.sink.events if isinstance(event, Notice)] == [True]
