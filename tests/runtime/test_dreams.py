"""When memories are tidied: at their hour, from what is new, each by itself; and whenever somebody says so."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.memory.revisions import ChangeSource
from nanobot.agent.memory.store import MemoryStore
from nanobot.agent.scope import Scope
from nanobot.bus.events import InboundMessage
from nanobot.config.schema import Config
from nanobot.messages.types import Origin, Provenance
from nanobot.runtime.build import Runtime, build_runtime
from nanobot.session.manager import SessionManager
from nanobot.testing import Bot, Pause, ScriptedProvider
from nanobot.utils.clock import FrozenClock
from tests.support.ledger_rows import rows_of
from tests.support.memory import FACTS, learn, replace_, tidying

GROUP = Scope("telegram:-100")
MERGED = tidying(replace_("f1 f2", "Lives in Berlin."))


class Life:
    """A bot whose time is told by the test."""

    def __init__(self, runtime: Runtime, provider: ScriptedProvider, clock: FrozenClock) -> None:
        self.bot = Bot(runtime, provider)
        self.dreams = runtime.memory.dreams
        self.clock = clock

    @property
    def memory(self) -> MemoryStore:
        return MemoryStore(self.bot.workspace, clock=self.clock)

    def learns(self, entry: str = "Talked.", facts: str = FACTS, scope: Scope | None = None) -> None:
        memory = self.memory.of(scope) if scope else self.memory
        learn(memory, entry, facts, ChangeSource("cli:direct"))

    async def live(self, hours: float) -> None:
        """So many hours of a gateway, with nothing but its timer."""
        end = self.clock.now().timestamp() + hours * 3600

        async def sleep(seconds: float) -> None:
            left = end - self.clock.now().timestamp()
            self.clock.advance(min(seconds, left))
            if seconds >= left:
                raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await self.dreams.run(sleep)

    @property
    def asked(self) -> int:
        return len(self.bot.provider.requests)

    @property
    def text(self) -> str:
        return self.memory.read_long_term()


@asynccontextmanager
async def life(
    home: Path, *script: Any, at: str = "2026-02-26T13:21", config: dict[str, Any] | None = None, **dream: Any
) -> AsyncIterator[Life]:
    clock, provider = FrozenClock(datetime.fromisoformat(at).replace(tzinfo=UTC)), ScriptedProvider(*script)
    settings = Config.model_validate({"agents": {"defaults": {"dream": dream}}, **(config or {})})
    async with build_runtime(
        settings, data_dir=home, workspace=home / "workspace", provider=provider, environ={}, clock=clock
    ) as runtime:
        yield Life(runtime, provider, clock)


async def test_a_usual_day_costs_one_call_at_four_in_the_morning(tmp_path: Path):
    async with life(tmp_path, MERGED, tidying()) as day:
        for number in range(5):
            day.learns(f"Talked of {number}.")
        await day.live(14.6)
        assert day.asked == 0

        await day.live(0.2)
        day.learns("Talked again.", day.text)
        await day.live(23)
        assert (day.asked, day.clock.now().hour) == (1, 3)

        await day.live(2)

    assert day.asked == 2
    assert "Home" not in day.text
    rows = rows_of(tmp_path)
    assert [(row["cause"], row["session"], row["outcome"]) for row in rows] == [("dream", "dream", "ok")] * 2


@pytest.mark.parametrize(
    ("dream", "hours"), [({"intervalH": 2, "cron": None}, 2), ({"cron": "30 * * * *", "intervalH": 9}, 0.2)]
)
async def test_the_keys_of_the_original_say_when(tmp_path: Path, dream: dict[str, Any], hours: float):
    async with life(tmp_path, tidying(), **dream) as day:
        day.learns()

        await day.live(hours - 0.1)
        assert day.asked == 0
        await day.live(0.2)

    assert day.asked == 1


async def test_what_was_slept_over_is_done_once_soon_after_the_next_start(tmp_path: Path):
    async with life(tmp_path) as day:
        day.learns()
        await day.live(1)

    async with life(tmp_path, tidying(), at="2026-03-02T09:00") as later:
        await later.live(0.1)
        await later.live(12)

    assert later.asked == 1


def test_a_time_that_is_none_is_refused():
    with pytest.raises(ValueError, match="cron expression"):
        Config.model_validate({"agents": {"defaults": {"dream": {"cron": "at night"}}}})


async def test_a_failure_is_not_tried_again_every_two_hours(tmp_path: Path):
    async with life(tmp_path, *["no"] * 20, intervalH=2) as day:
        day.learns()

        await day.live(7 * 24)

        assert "tidy_memory 0 times" in str(day.dreams.problem)

    assert 3 <= day.asked <= 8


async def test_every_chat_is_tidied_by_itself_and_what_stands_in_one_reaches_no_other(tmp_path: Path):
    odd = Scope("matrix:!room:server.org")
    async with life(tmp_path, tidying(), tidying(), tidying()) as day:
        day.learns("Canary of the owner.", "- Owner's secret.\n")
        day.learns("Talked in the group.", "- The group meets on Fridays.\n", GROUP)
        day.learns("Talked elsewhere.", "- Elsewhere.\n", odd)
        (sessions := SessionManager(day.bot.workspace)).save(sessions.get_or_create(odd.chat))

        await day.dreams.run_all()

    texts = [str(request[1]["content"]) for request in day.bot.provider.requests]
    words = ("secret", "Fridays", "Elsewhere")
    assert sorted([word for word in words if word in text] for text in texts) == sorted([word] for word in words)
    assert sum("Canary" in text for text in texts) == 1


async def test_said_in_a_chat_it_tidies_now_shows_what_changed_and_takes_it_back(tmp_path: Path):
    async with life(tmp_path, MERGED) as day:
        day.learns()
        before = day.text

        told = await day.bot.say("/dream")
        again = await day.bot.say("/dream")
        log = await day.bot.say("/dream-log")
        back = await day.bot.say("/dream-restore 1")

    assert told.splitlines()[0] == "Pass 1, 2026-02-26 13:21: 1 change, 109 to 93 bytes"
    assert "  - Home: Berlin.\n  + Lives in Berlin.\n" in told
    assert "900 tokens in, 60 out" in told
    assert again == "Nothing new since 2026-02-26 13:21 that could change this memory; no model was called."
    assert log in told
    assert "restored to before pass 1" in back
    assert day.text == before
    assert day.asked == 1


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("/dream", "no model was called"),
        ("/dream-log", "Dream has tidied nothing here yet."),
        ("/dream-log some", "'some' is not a number"),
        ("/dream-restore", "There is no Dream pass to restore."),
        ("/dream-restore first", "'first' is not one"),
        ("/dream-restore 7", "There is no Dream pass to restore."),
    ],
)
async def test_where_there_is_nothing_that_is_said(tmp_path: Path, said: str, told: str):
    async with life(tmp_path) as day:
        assert told in await day.bot.say(said)


async def test_it_waits_for_no_lane_and_no_turn_waits_for_it(tmp_path: Path):
    pause = Pause()
    async with life(tmp_path, pause, "Hello.") as day:
        day.learns()
        dreaming = asyncio.create_task(day.bot.say("/dream"))
        await pause.reached.wait()

        reply = await day.bot.say("hello")
        busy = await day.bot.say("/dream")
        cleared = await day.bot.say("/reset --all")

        assert reply == "Hello."
        assert "already running" in busy
        assert "Cleared" in cleared
        assert await dreaming == "It was cancelled."
        assert "no model was called" in await day.bot.say("/dream")


async def test_in_a_group_its_own_memory_is_tidied_and_only_an_owner_or_who_asked_takes_it_back(tmp_path: Path):
    telegram = {"channels": {"telegram": {"enabled": True, "token": "1:a", "allowFrom": ["*"]}}}

    async def say(day: Life, text: str, who: str, **more: Any) -> str:
        message = InboundMessage("telegram", who, "-100", text, in_group=True, **more)
        return (await day.bot.run_turn(message)).text

    merge = tidying(replace_("f1 f2", "The group meets on Fridays."))
    async with life(tmp_path, merge, config=telegram) as day:
        day.learns("Owner's.", "- A secret.\n")
        day.learns("Talked.", "- The group meets on Fridays.\n- Meets on Fridays: the group.\n", GROUP)

        by_job = await say(day, "/dream", "zoe", origin=Origin.CRON)
        told = await say(day, "/dream", "zoe")
        others = await say(day, "/dream-restore", "ben")
        owners = await say(day, "/dream-restore", "ann", provenance=Provenance.OWNER)

    assert by_job == "/dream has to be typed by a person."
    assert "+ The group meets on Fridays." in told
    assert "only an owner may restore it" in others
    assert "restored to before pass 1" in owners
    assert "secret" not in str(day.bot.provider.requests)
