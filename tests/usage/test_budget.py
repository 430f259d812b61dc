"""Budgets: held before the call, by all who call at once, across restarts and processes; the owner is told once."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanobot.errors import BudgetExceededError
from nanobot.usage.budget import Budget, BudgetedCall, SpendingLimits
from nanobot.usage.ledger import SCHEMA, Ledger
from nanobot.utils.clock import FrozenClock
from nanobot.utils.database import Database
from tests.support.ledger_rows import row, rows_in

SHANGHAI = ZoneInfo("Asia/Shanghai")
opened: list[Database] = []


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    yield
    while opened:
        await opened.pop().close()


class Spender:
    """A process that calls models, each call for so many dollars."""

    def __init__(self, folder: Path, limits: SpendingLimits, clock: FrozenClock | None = None) -> None:
        self.clock = clock or FrozenClock(datetime(2026, 11, 22, 12, tzinfo=SHANGHAI))
        self.file = folder / "nanobot.db"
        self.ledger = Ledger(Database(self.file, SCHEMA))
        opened.append(self.ledger.database)
        self.budget = Budget(limits, self.ledger, self.clock)
        self.told: list[str] = []
        self.calls = 0

    async def spend(self, usd: float | None, *, turn: str = "t", tokens: int = 10, most: float | None = None) -> None:
        """One call, told of by `usd` and `tokens` when it is over."""
        planned = BudgetedCall(turn, tokens, 0, usd if most is None else most, self.told.append)
        await self.budget.reserve(planned)
        self.calls += 1
        await asyncio.sleep(0)
        await self.end(planned, usd, tokens)
        await self.budget.notify_limits(planned)

    async def end(self, planned: BudgetedCall, usd: float | None, tokens: int = 2) -> None:
        when, process = self.clock.now().isoformat(timespec="milliseconds"), self.ledger.process
        self.budget.settle(planned)
        await self.ledger.write(
            row(when, usd=usd, turn=planned.turn_id, prompt_tokens=tokens, completion_tokens=0, process=process)
        )

    async def until_refused(self, usd: float) -> str:
        for _ in range(1000):
            try:
                await self.spend(usd)
            except BudgetExceededError as error:
                return str(error)
        raise AssertionError("nobody stopped it")


async def test_call_that_ends_without_limits_leaves_nothing_reserved(tmp_path: Path):
    spender = Spender(tmp_path, SpendingLimits(daily_usd=1.0))
    planned = BudgetedCall("t", 10, 0, 1.0)
    await spender.budget.reserve(planned)
    spender.budget.limits = SpendingLimits()
    await spender.end(planned, 0.1)
    spender.budget.limits = SpendingLimits(daily_usd=1.0)

    async with asyncio.timeout(5):
        await spender.spend(0.5)

    assert spender.calls == 1


async def test_a_runaway_stops_within_one_call_of_the_limit(tmp_path: Path):
    spender = Spender(tmp_path, SpendingLimits(daily_usd=1.0))

    refusal = await spender.until_refused(0.3)

    assert spender.calls == 4
    assert "$1.20 of $1.00" in refusal
    assert "limits.dailyUsd in the config" in refusal
    assert "2026-11-23 00:00 (Asia/Shanghai)" in refusal


@settings(max_examples=25)
@given(
    costs=st.lists(st.tuples(st.floats(0.001, 0.5), st.floats(1, 20)), min_size=1, max_size=40),
    limit=st.floats(0.01, 3),
    lanes=st.integers(1, 8),
)
def test_whatever_runs_side_by_side_passes_no_limit_by_more_than_one_call(
    tmp_path_factory: pytest.TempPathFactory, costs: list[tuple[float, float]], limit: float, lanes: int
):
    spender = Spender(tmp_path_factory.mktemp("usage"), SpendingLimits(daily_usd=limit))

    async def lane(number: int) -> None:
        for usd, over_estimated in costs[number::lanes]:
            with suppress(BudgetExceededError):
                await spender.spend(usd, most=usd * over_estimated)

    async def all_lanes() -> None:
        await asyncio.gather(*(lane(number) for number in range(lanes)))
        await spender.ledger.database.close()

    asyncio.run(all_lanes())

    spent = sum(found["usd"] or 0 for found in rows_in(spender.file))
    wanted = sum(usd for usd, _ in costs)
    assert spent < limit + max(usd for usd, _ in costs)
    assert spent >= min(limit, wanted) - 1e-9, "nobody was refused while something was left"


async def test_calls_under_way_that_may_use_up_all_that_is_left_make_the_next_one_wait(tmp_path: Path):
    spender = Spender(tmp_path, SpendingLimits(daily_usd=1.0))
    budget = spender.budget
    halves = [BudgetedCall("t", 1, 1, 0.5) for _ in range(3)]
    await budget.reserve(halves[0])
    await budget.reserve(halves[1])

    third = asyncio.create_task(budget.reserve(halves[2]))
    await asyncio.sleep(0)
    await budget.reserve(BudgetedCall("t", 1, 1, None))  # the gate is first come, first served
    waited = not third.done()
    await spender.end(halves[0], 0.1)
    await asyncio.wait_for(third, 5)

    assert waited


async def test_call_in_flight_counts_by_its_reservation_and_not_by_its_row_too(tmp_path: Path):
    spender = Spender(tmp_path, SpendingLimits(daily_usd=1.0))
    await spender.budget.reserve(BudgetedCall("t", 1, 1, 0.5))
    when, process = spender.clock.now().isoformat(timespec="milliseconds"), spender.ledger.process
    await spender.ledger.write(row(when, usd=1.0, outcome="unfinished", process=process))

    await asyncio.wait_for(spender.spend(0.1), 5)


async def test_who_stops_waiting_leaves_nothing_set_aside(tmp_path: Path):
    spender = Spender(tmp_path, SpendingLimits(daily_usd=1.0))
    first = BudgetedCall("t", 1, 1, 5.0)
    await spender.budget.reserve(first)
    waiting = asyncio.create_task(spender.spend(0.1))
    await asyncio.sleep(0.05)

    waiting.cancel()
    await asyncio.wait([waiting])
    await spender.end(first, 0.1)

    await asyncio.wait_for(spender.spend(0.1), 5)


async def test_what_another_process_spends_counts_at_once(tmp_path: Path):
    ours, theirs = Spender(tmp_path, SpendingLimits(daily_usd=1.0)), Spender(tmp_path, SpendingLimits(daily_usd=1.0))
    await ours.spend(0.1)

    await theirs.until_refused(0.6)

    with pytest.raises(BudgetExceededError, match=re.escape("$1.30")):
        await ours.spend(0.1)


async def test_a_turn_may_use_so_many_tokens_also_after_a_crash_and_the_next_one_as_many_again(tmp_path: Path):
    limits = SpendingLimits(daily_usd=0, turn_tokens=1000)
    await Spender(tmp_path, limits).spend(None, turn="a", tokens=600)
    spender = Spender(tmp_path, limits)

    with pytest.raises(BudgetExceededError, match=r"600 of 1,000 tokens.*limits\.turnTokens in the config"):
        await spender.spend(None, turn="a", tokens=600)
    with pytest.raises(BudgetExceededError, match=r"takes about 1,001\. Raise limits\.turnTokens") as refused:
        await spender.spend(None, turn="b", tokens=1001)
    with pytest.raises(BudgetExceededError, match=r"limits\.dailyUsd"):
        await spender.spend(0.01, turn="c")
    await spender.spend(None, turn="b", tokens=600)
    await spender.spend(None, turn="", tokens=6000)

    assert "next message" not in str(refused.value)


async def test_told_once_holds_over_restarts_until_the_period_or_the_limit_changes(tmp_path: Path):
    first = Spender(tmp_path, SpendingLimits(daily_usd=1.0))
    for _ in range(3):
        await first.until_refused(0.05)
    same = Spender(tmp_path, SpendingLimits(daily_usd=1.0))
    await same.until_refused(0.4)
    raised = Spender(tmp_path, SpendingLimits(daily_usd=1.3))
    await raised.spend(0.1)
    same.clock.advance(timedelta(days=1).total_seconds())
    await same.until_refused(0.4)

    assert [re.findall(r"^\d+%|reached", text) for text in first.told] == [["80%"], ["reached"]]
    assert ["reached" in text for text in same.told] == [False, True], "those of the next day"
    assert len(raised.told) == 1
    assert "limits.dailyUsd" in raised.told[0]


async def test_what_nobody_could_hear_stays_news_for_whoever_can(tmp_path: Path):
    spender = Spender(tmp_path, SpendingLimits(daily_usd=1.0))
    alone = BudgetedCall("idle", 10, 0, 0.9)
    await spender.budget.reserve(alone)
    await spender.end(alone, 0.9)
    await spender.budget.notify_limits(alone)

    await spender.spend(0.01)

    assert len(spender.told) == 1
    assert spender.told[0].startswith("90% of today's limit is spent")


async def test_a_refusal_is_told_once_by_itself(tmp_path: Path):
    await Spender(tmp_path, SpendingLimits(daily_usd=1.0)).until_refused(0.6)
    restarted = Spender(tmp_path, SpendingLimits(daily_usd=0.5))

    with pytest.raises(BudgetExceededError, match="is reached"):
        await restarted.spend(0.1)

    assert restarted.told == []


async def test_on_a_disk_that_refuses_the_limit_holds_within_the_process(tmp_path: Path):
    place = tmp_path / "usage"
    place.write_text("no folder", encoding="utf-8")
    spender = Spender(place, SpendingLimits(daily_usd=1.0))

    await spender.until_refused(0.3)

    assert spender.calls == 4
    assert len(spender.told) == 2


async def test_an_owner_lets_a_stopped_bot_go_on_for_the_day_also_over_a_restart(tmp_path: Path):
    limits = SpendingLimits(daily_usd=1.0, monthly_usd=100.0)
    spender = Spender(tmp_path, limits)
    refusal = await spender.until_refused(0.5)

    raised = await spender.budget.raise_by(2.0)
    await spender.spend(0.5)
    later = Spender(tmp_path, limits, spender.clock)
    await later.spend(0.5)
    near = await later.budget.raise_by()
    now = await later.budget.limits_now()
    spender.clock.advance(86400)

    assert "/raise" in refusal
    assert raised == ["Today's limit is $3.00 now; $1.00 of it is spent."]
    assert near == [], "$2.00 of $3.00 is not near"
    assert (now.daily_usd, now.monthly_usd) == (3.0, 100.0)
    assert (await later.budget.limits_now()).daily_usd == 1.0
