"""What it costs, from the message to the bill: whole bots, a server that counts for itself."""

import asyncio
import json
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from nanobot.agent.events import Notice, StepEnded, TurnOutcome
from nanobot.bus.events import InboundMessage
from nanobot.config.loader import load_config
from nanobot.config.paths import DataPaths
from nanobot.config.schema import Config
from nanobot.messages.types import Origin
from nanobot.providers.base import LLMResponse
from nanobot.providers.metering import Spending
from nanobot.runtime.build import Runtime, build_runtime
from nanobot.testing import RecordingSink, ScriptedProvider, calls, open_bot
from nanobot.testing.model_server import Calls, Fail, FakeModels, Say, Slow
from nanobot.utils.clock import Clock, FrozenClock, SystemClock
from tests.support.failing_models import two_models, with_fallback
from tests.support.home import Home
from tests.support.ledger_rows import rows_of

GPT = {"provider": "custom", "model": "gpt-4o"}
USED = {"prompt_tokens": 1_000_000, "completion_tokens": 100_000}
"""2.50 and 1.00 dollars."""


def config_for(server: FakeModels, **limits: float) -> Config:
    return Config.model_validate(
        {"agents": {"defaults": GPT}, "providers": {"custom": {"apiBase": server.v1}}, "limits": limits}
    )


def metered(home: Home, clock: Clock | None = None) -> Spending:
    return Spending(load_config(home.config_path), DataPaths(home.data), clock or SystemClock())


async def say(runtime: Runtime, text: str, session: str = "cli:direct", sink: RecordingSink | None = None) -> Any:
    message = InboundMessage.from_owner("cli", "direct", text, session_key=session, origin=Origin.CLI)
    return await runtime.loop.run_turn(message, sink)


async def test_each_step_of_a_turn_is_a_row_and_the_turn_knows_its_cost(tmp_path: Path):
    sink = RecordingSink()
    with FakeModels() as server:
        server.script(Calls(("list_dir", {"path": "."})), Say("done", usage={**USED, "total_tokens": 1_100_000}))
        async with build_runtime(
            config_for(server), data_dir=tmp_path, workspace=tmp_path / "w", environ={}
        ) as runtime:
            result = await say(runtime, "look", sink=sink)
            status = (await say(runtime, "/status")).text
            told = (await say(runtime, "/usage")).text

    rows = rows_of(tmp_path)
    steps = [event.cost_usd or 0 for event in sink.events if isinstance(event, StepEnded)]
    who = {"cause": "turn", "session": "cli:direct", "turn": result.turn_id, "provider": "custom", "model": "gpt-4o"}
    how = {"outcome": "ok", "error": None, "estimated": False, "cached_tokens": 4, "completion_tokens": 5}
    assert [{name: row[name] for name in who} for row in rows] == [who] * 2
    assert {name: rows[0][name] for name in how} == how
    assert [row["usd"] for row in rows] == steps
    assert result.cost_usd == sum(steps) > 3.5
    assert "out, $3.50" in status
    assert "This session: 2 calls, 1,000,012 in" in told
    assert "Today: 2 calls" in told


async def test_fifty_chats_in_a_rage_stop_at_the_limit_each_with_an_answer_and_the_owner_is_told_once(tmp_path: Path):
    sink = RecordingSink()
    with FakeModels(default=Slow(Calls(("list_dir", {"path": "."})), 0.005)) as server:
        async with build_runtime(
            config_for(server, dailyUsd=0.001), data_dir=tmp_path, workspace=tmp_path / "w", environ={}
        ) as runtime:
            ends = await asyncio.gather(*(say(runtime, "go on for ever", f"cli:{n}", sink) for n in range(50)))

    costs = [row["usd"] or 0 for row in rows_of(tmp_path)]
    one_call, spent = costs[0], sum(costs)
    notices = [event.text for event in sink.events if isinstance(event, Notice)]
    assert 0.001 <= spent < 0.001 + one_call * 1.001
    assert len(server.chats) == len(rows_of(tmp_path))
    assert {end.outcome for end in ends} == {TurnOutcome.REFUSED, TurnOutcome.PARTIAL}
    assert all("limits.dailyUsd" in end.text and end.error == "BudgetExceededError" for end in ends)
    assert sum("is reached" in text for text in notices) == 1


async def test_model_without_a_price_is_refused_until_the_config_has_one(tmp_path: Path):
    talks = {"agents": {"defaults": {"provider": "custom", "model": "house-1"}}, "limits": {"dailyUsd": 0.001}}
    prices = {"house-*": {"input": 2, "cached": 0.5, "output": 8}}
    ends = []
    with FakeModels() as server:
        for own in ({}, {"prices": prices}):
            config = Config.model_validate({**talks, "providers": {"custom": {"apiBase": server.v1, **own}}})
            async with build_runtime(config, data_dir=tmp_path, workspace=tmp_path / "w", environ={}) as runtime:
                ends.append(await say(runtime, "hi"))

    refused, answered = ends
    assert refused.outcome is TurnOutcome.REFUSED
    assert "providers.custom.prices" in refused.text and "limits.unknownPrice" in refused.text
    assert answered.outcome is TurnOutcome.ANSWERED
    assert len(server.chats) == 1
    assert answered.cost_usd == rows_of(tmp_path)[0]["usd"] == pytest.approx((8 * 2 + 4 * 0.5 + 5 * 8) / 1e6)


async def test_a_turn_stops_at_its_tokens_and_the_next_one_begins_afresh(tmp_path: Path):
    config = Config.model_validate({"limits": {"turnTokens": 30_000}})
    step = calls(("list_dir", {"path": "."}))
    step.usage = {"prompt_tokens": 20_000, "completion_tokens": 100}
    async with open_bot(tmp_path, step, step, step, config=config) as bot:
        stopped = await bot.turn("go on for ever")
        asked = len(bot.provider.requests)
        bot.provider.clear()
        bot.provider.script("hello")
        next_one = await bot.say("hi")

    assert stopped.error == "BudgetExceededError"
    assert "limits.turnTokens" in stopped.text
    assert asked == 2
    assert next_one == "hello"


async def test_a_provider_that_is_handed_in_is_counted_too(tmp_path: Path):
    answer = LLMResponse("hi", usage={"prompt_tokens": 1000, "completion_tokens": 10})
    provider = ScriptedProvider(answer, model="gpt-4o")
    async with open_bot(tmp_path, provider=provider) as bot:
        result = await bot.turn("hi")

    (row,) = rows_of(tmp_path)
    assert (row["provider"], row["model"], row["session"]) == ("ScriptedProvider", "gpt-4o", "cli:direct")
    assert result.cost_usd == row["usd"] == 0.0026


async def test_a_bot_that_is_only_opened_and_asked_for_commands_leaves_no_ledger(tmp_path: Path):
    async with open_bot(tmp_path) as bot:
        told = await bot.say("/usage")

    assert told == "No model calls this month."
    assert not (tmp_path / "state" / "nanobot.db").exists()


@pytest.mark.parametrize("mode", ["standard", "persistent"])
async def test_a_limit_is_no_failure_of_a_model(tmp_path: Path, mode: str):
    with two_models() as (a, b):
        a.script(*[Fail(500)] * 8)
        spare = with_fallback(a, b, {}, providerRetryMode=mode, fallbackModels=[])
        home = Home(tmp_path, **spare, limits={"dailyUsd": 0.00001})

        async with metered(home) as spending, home.hasty(spending.add_meter) as bot:
            if mode == "standard":
                for _ in range(2):
                    await bot.say("hi")  # twice it fails: once more and it is out
            answered = await bot.say("hi")
            asked, waited = len(a.chats), len(bot.waits.taken)
            refused = [await bot.say("hi", f"s{number}") for number in range(4)]
            status = (await bot.say("/status")).result.text

    assert answered.result.outcome is TurnOutcome.ANSWERED
    assert sum("limit is reached" in notice for notice in answered.notices) == 1
    assert {told.result.outcome for told in refused} == {TurnOutcome.REFUSED}
    assert all("limits.dailyUsd" in told.result.text and told.notices == [] for told in refused)
    assert (len(a.chats), b.chats, len(bot.waits.taken)) == (asked, [], waited), "nobody is asked, nothing tried again"
    assert "out of order" not in status


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "America/St_Johns"])
async def test_a_day_and_a_month_end_at_the_owner_s_midnight(tmp_path: Path, zone: str):
    clock = FrozenClock(datetime(2026, 11, 30, 23, 59, 50, tzinfo=ZoneInfo(zone)))
    with FakeModels(default=Say("hi", usage=USED)) as server:
        home = Home(
            tmp_path, **config_for(server, dailyUsd=2, monthlyUsd=2).model_dump(by_alias=True, exclude_unset=True)
        )

        async def ask() -> str:
            """In a life of its own."""
            async with metered(home, clock) as spending, home.hasty(spending.add_meter) as bot:
                return (await bot.say("hi")).result.text

        before = [await ask(), await ask()]
        clock.advance(20)
        after = [await ask(), await ask()]

    assert (before[0], after[0]) == ("hi", "hi")
    assert "until 2026-12-01 00:00" in before[1]
    assert "until 2026-12-02 00:00" in after[1]
    assert [row["sent_at"][:10] for row in rows_of(home.data)] == ["2026-11-30", "2026-12-01"]


async def test_a_limit_that_is_set_while_the_bot_runs_counts_what_was_spent_before(tmp_path: Path):
    with FakeModels(default=Say("hi", usage=USED)) as server:
        home = Home(tmp_path, **config_for(server).model_dump(by_alias=True, exclude_unset=True))
        async with metered(home) as spending, home.hasty(spending.add_meter) as bot:
            before = (await bot.say("hi")).result.text
            spending.renew(config_for(server, dailyUsd=2))
            after = (await bot.say("hi")).result.text

    assert before == "hi"
    assert "Today's limit is reached" in after


async def test_an_owner_raises_a_limit_and_the_stopped_bot_goes_on(tmp_path: Path):
    with FakeModels(default=Say("hi", usage=USED)) as server:
        config = config_for(server, dailyUsd=2)
        async with build_runtime(config, data_dir=tmp_path, workspace=tmp_path / "w", environ={}) as runtime:
            told = [(await say(runtime, text)).text for text in ("hi", "hi", "/raise 5", "hi")]

    assert "send `/raise` (owner only)" in told[1]
    assert (told[0], told[2], told[3]) == ("hi", "Today's limit is $7.00 now; $3.50 of it is spent.", "hi")


def test_a_review_shows_no_draft_at_the_terminal_and_is_a_cause_of_its_own_on_the_bill(
    served: Home, server: FakeModels
):
    config = json.loads((served.data / "config.json").read_text("utf-8"))
    config["agents"]["defaults"]["review"] = True
    (served.data / "config.json").write_text(json.dumps(config), "utf-8")
    server.script(Say("A draft."), Say("VERDICT: SEND BACK\nIt is empty."), Say("It is 7."), Say("VERDICT: PASS"))

    result = served.ask("what is the total?")
    bill = json.loads(served.run("usage", "--by", "cause", "--json").out)["rows"]

    assert (result.code, result.out) == (0, "It is 7.\n")
    assert {row["cause"]: row["calls"] for row in bill} == {"turn": 2, "review": 2}
    assert "A draft" not in served.run("sessions", "show", "cli:direct").out
    assert "A draft." in served.run("replay", "cli:direct").out
