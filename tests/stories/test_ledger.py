"""The ledger against the servers' own count: a row for each request they saw, none twice, to the token.

One home, two model servers, and all that may become of a request, in one bot and in child processes.
"""

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.events import TurnOutcome
from nanobot.agent.memory.consolidation import Consolidator
from nanobot.agent.status import AgentStatus
from nanobot.config.loader import load_config
from nanobot.config.paths import DataPaths
from nanobot.providers.metering import Spending
from nanobot.providers.resilience import OPEN_S
from nanobot.testing.model_server import Calls, CutStream, Fail, FakeModels, Hang, Say
from nanobot.utils.clock import SystemClock
from tests.support.eventually import eventually, wait_until
from tests.support.failing_models import FAILURES, two_models, with_fallback
from tests.support.forkserver import started
from tests.support.home import NANOBOT, Hasty, Home
from tests.support.ledger_rows import rows_of

PRICES = {"openai": (2e-6, 5e-7, 8e-6), "deepseek": (2.8e-7, 2.8e-8, 4.2e-7)}
"""A token sent, one from the cache, one received."""
LIMITS = {"connectTimeoutS": 5, "firstTokenTimeoutS": 1.2, "idleTimeoutS": 1.2, "totalTimeoutS": 2}
"""Short, and long enough for a server on a busy machine: an answer that comes too late is on its bill alone."""
OVERFLOW = Fail(400, "too long", "context_length_exceeded")
SAVING = Calls(("save_memory", {"history_entry": "[2026-02-26 13:21] Talked.", "memory_update": "Talks."}))

Row = Mapping[str, Any]


def say(prompt: int, completion: int, cached: int = 0) -> Say:
    """An answer that counts for itself."""
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return Say("Well.", usage={**usage, "prompt_tokens_details": {"cached_tokens": cached}})


def billed(server: FakeModels) -> Counter[tuple[int, ...]]:
    return Counter(
        (one["prompt_tokens"], one["prompt_tokens_details"]["cached_tokens"], one["completion_tokens"])
        for one in server.bill
    )


def counted(rows: Iterable[Row]) -> Counter[tuple[int, ...]]:
    told = (row for row in rows if row["prompt_tokens"] and not row["estimated"])
    return Counter((row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"]) for row in told)


def price_of(row: Row) -> float:
    fresh, cached, out = PRICES[row["provider"]]
    sent = (row["prompt_tokens"] - row["cached_tokens"]) * fresh + row["cached_tokens"] * cached
    return float(sent + row["completion_tokens"] * out)


async def all_the_ways_to_fail(bot: Hasty, a: FakeModels) -> None:
    """Each of the matrix that a server sees, on a model that was well before; then one that is out."""
    for name, row in FAILURES.items():
        if row.step is not None and "trickle" not in name:  # which are stalls to the ledger, and take long
            a.default = row.step if not row.once else a.default
            a.script(*[row.step] * row.once)
            await bot.say(name, f"matrix:{name}")
            a.default = say(40, 4)
            bot.waits.advance(OPEN_S)
            await bot.say("and now?", f"matrix:{name}")
    a.default = Fail(500)
    for _ in range(4):
        await bot.say("hi", "matrix:out")
    a.default = say(60, 6, cached=20)
    bot.waits.advance(OPEN_S)


async def all_that_is_asked_again(bot: Hasty, a: FakeModels) -> None:
    """A field that is refused, an answer that breaks off, a request that is too long, and a task."""
    a.unknown = ["temperature"]
    await bot.say("mend it", "again")
    a.script(CutStream("Half of"), say(101, 11), *[say(5000, 5)] * 8, OVERFLOW)
    for _ in range(11):
        await bot.say("a long story " * 300, "again")
    a.script(Calls(("list_dir", {"path": "."}), ("list_dir", {"path": "memory"})), say(300, 30, cached=200))
    await bot.say("look", "cli:direct")


async def stopped_in_the_middle(bot: Hasty, a: FakeModels) -> None:
    asked = len(a.chats)
    a.script(Hang("Half of"))
    turn = asyncio.create_task(bot.say("go on", "stopped"))
    await eventually(lambda: len(a.chats) > asked)
    await bot.say("/stop", "stopped")

    assert (await turn).result.outcome is TurnOutcome.STOPPED


async def compacted_while_idle(bot: Hasty, a: FakeModels) -> None:
    made, clock = bot.runtime, SystemClock()
    a.script(SAVING)
    consolidator = Consolidator(made.context.memory, made.sessions, made.models, AgentStatus(clock), clock)
    await consolidator.consolidate("again", lambda session: 8)


def killed_in_the_middle(home: Home, a: FakeModels) -> None:
    asked = len(a.chats)
    a.script(Hang("Half of"))
    child = started(
        [*NANOBOT, "agent", "-m", "go on", "--session", "killed"],
        env={"PATH": "", "HOME": str(home.path), "USERPROFILE": str(home.path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: len(a.chats) > asked, 20)
    child.send_signal(signal.SIGKILL)
    child.wait(10)


@pytest.mark.timeout(100)
def test_the_ledger_equals_the_servers_own_count_whatever_becomes_of_a_request(tmp_path: Path):
    with two_models() as (a, b):
        config = with_fallback(a, b, LIMITS)
        home = Home(tmp_path, **config)

        async def one_life() -> None:
            spending = Spending(load_config(home.config_path), DataPaths(home.data), SystemClock())
            async with spending, home.hasty(spending.add_meter) as bot:
                await all_the_ways_to_fail(bot, a)
                await all_that_is_asked_again(bot, a)
                await stopped_in_the_middle(bot, a)
                await compacted_while_idle(bot, a)

        asyncio.run(one_life())
        home.configure(**with_fallback(a, b, {}))
        if sys.platform != "win32":
            killed_in_the_middle(home, a)
        done = [
            home.run("replay", "cli:direct", "--against", "gpt-4.1"),
            home.run("status", "--probe"),
            home.run("onboard", "--yes", "--provider", "openai", "--model", "gpt-4.1", "--api-base", a.v1),
            home.ask("good bye"),
        ]
        used = json.loads(home.run("usage", "--by", "cause", "--json").out)

    rows = rows_of(home.data)
    print(Counter((row["provider"], row["cause"], row["outcome"], row["error"]) for row in rows))
    assert [one.code for one in done] == [0] * 4, [one.aside for one in done]
    for name, server in {"openai": a, "deepseek": b}.items():
        mine = [row for row in rows if row["provider"] == name]
        assert len(mine) == len(server.chats)
        assert counted(mine) == billed(server)
        assert server.bill
    priced = [row for row in rows if row["usd"] is not None or row["session"] != "killed"]  # killed before it knew one
    assert [row["usd"] for row in priced] == pytest.approx([price_of(row) for row in priced])
    assert used["month"]["calls"] == len(rows) == sum(group["calls"] for group in used["rows"])
    assert used["month"]["usd"] == pytest.approx(sum(row["usd"] or 0 for row in priced))
    assert {row["cause"] for row in rows} == {"turn", "consolidation", "replay", "trial"}
    assert [row["session"] for row in rows if row["outcome"] == "stopped"] == ["stopped"]
    assert [row["session"] for row in rows if row["outcome"] == "unfinished"] == ["killed"]
