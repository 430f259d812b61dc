"""The meter: one row for every request sent, equal to the server's own count, and no request above a limit."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from nanobot.errors import BudgetExceededError, ProviderError
from nanobot.messages.tokens import estimate_tokens
from nanobot.providers.base import (
    CallContext,
    Delta,
    Finished,
    LLMProvider,
    LLMResponse,
    TextDelta,
    call_context_scope,
)
from nanobot.providers.custom_provider import CustomProvider
from nanobot.providers.errors import StreamCutError
from nanobot.providers.limits import Timeouts
from nanobot.providers.litellm_provider import LiteLLMProvider
from nanobot.providers.metering import MeteredProvider, ProviderPrices
from nanobot.testing import Pause, ScriptedProvider
from nanobot.testing.model_server import Calls, CutStream, Fail, FakeModels, Garbage, Hang, Raw, Reset, Say, Step
from nanobot.usage.budget import Budget, SpendingLimits
from nanobot.usage.ledger import SCHEMA, Ledger
from nanobot.usage.prices import Price, PriceTable, price_per_million
from nanobot.usage.types import LedgerRow
from nanobot.utils.clock import FrozenClock, SystemClock
from nanobot.utils.database import Database
from tests.support.ledger_rows import rows_of
from tests.support.sample_requests import HELLO, LIST_DIR

TABLE = {
    "m": {
        "mode": "chat",
        "input_cost_per_token": 1e-03,
        "cache_read_input_token_cost": 1e-04,
        "output_cost_per_token": 2e-03,
    }
}


opened: list[Database] = []


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    yield
    while opened:
        await opened.pop().close()


@dataclass
class Desk:
    """What a meter counts with, in a folder of its own."""

    folder: Path
    limits: SpendingLimits = field(default_factory=SpendingLimits)
    own_prices: dict[str, Price] = field(default_factory=dict)

    def __post_init__(self) -> None:
        table = self.folder / "table.json"
        table.write_text(json.dumps(TABLE), encoding="utf-8")
        self.ledger = Ledger(Database(self.folder / "state" / "nanobot.db", SCHEMA))
        opened.append(self.ledger.database)
        self.prices = PriceTable(None, table)
        self.clock = FrozenClock(datetime(2026, 11, 22, 12, tzinfo=UTC))
        self.budget = Budget(self.limits, self.ledger, self.clock)

    def meter(self, inner: LLMProvider, name: str = "custom") -> MeteredProvider:
        prices = ProviderPrices(name, self.prices, self.own_prices)
        return MeteredProvider(inner, name, self.ledger, self.budget, prices, self.clock)

    def direct(self, server: FakeModels, **settings: Any) -> MeteredProvider:
        return self.meter(CustomProvider("k", server.v1, "m", **settings))

    async def rows(self) -> list[LedgerRow]:
        await self.ledger.flush()
        return rows_of(self.folder)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def usage(prompt: int, completion: int, cached: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


async def test_a_row_says_who_asked_whom_for_what_and_what_it_cost(desk: Desk, server: FakeModels):
    server.script(Say("hi", usage=usage(1000, 100, cached=600)))
    meter = desk.direct(server)

    with call_context_scope(CallContext("cron", "cron:1", "turn-7")):
        response = await meter.chat(HELLO)
    await meter.close()

    assert response.cost_usd == pytest.approx(400 * 1e-03 + 600 * 1e-04 + 100 * 2e-03)
    assert await desk.rows() == [
        {
            "id": f"{desk.ledger.process}-1",
            "sent_at": "2026-11-22T12:00:00.000+00:00",
            "cause": "cron",
            "session": "cron:1",
            "turn": "turn-7",
            "provider": "custom",
            "model": "m",
            "outcome": "ok",
            "error": None,
            "prompt_tokens": 1000,
            "cached_tokens": 600,
            "cache_written_tokens": 0,
            "completion_tokens": 100,
            "reasoning_tokens": 0,
            "usd": response.cost_usd,
            "ms": 0,
            "estimated": False,
            "process": desk.ledger.process,
        }
    ]


async def test_the_ledger_equals_the_server_s_own_count_to_the_token(desk: Desk, server: FakeModels):
    counted = [usage(100 + number, 7 * number, cached=number) for number in range(1, 9)]
    answers: list[Step] = [Say(f"answer {number}", usage=one) for number, one in enumerate(counted)]
    troubles = [Fail(429), Fail(500), Reset(), CutStream(), Garbage(), Fail(401), Hang("I am"), Hang()]
    steps = [step for number, answer in enumerate(answers) for step in (answer, troubles[number % len(troubles)])]
    server.script(*steps)
    meter = desk.direct(server, timeouts=Timeouts(first_token_s=1, idle_s=1))

    for _ in steps:
        with suppress(ProviderError):
            await meter.chat(HELLO)
    await meter.close()

    rows = await desk.rows()
    told = [row for row in rows if not row["estimated"]]
    assert len(rows) == len(server.chats) == len(steps)
    assert sum(row["prompt_tokens"] for row in told) == sum(one["prompt_tokens"] for one in counted)
    assert sum(row["completion_tokens"] for row in told) == sum(one["completion_tokens"] for one in counted)
    assert sum(row["cached_tokens"] for row in told) == sum(range(1, 9))
    assert {row["error"] for row in rows} == {
        None, "RateLimitedError", "ModelOverloadedError", "ConnectionFailedError", "StreamCutError",
        "MalformedResponseError", "AuthenticationError", "ProviderTimeoutError",
    }  # fmt: skip


@pytest.mark.parametrize("step", [CutStream("The answer is forty-two"), Hang("The answer is forty-two")])
async def test_an_answer_that_broke_off_is_estimated_and_says_so(desk: Desk, server: FakeModels, step: Step):
    server.script(step)
    meter = desk.direct(server, timeouts=Timeouts(idle_s=0.2))

    with pytest.raises(ProviderError):
        await meter.chat(HELLO, [LIST_DIR])
    await meter.close()

    (row,) = await desk.rows()
    assert (row["outcome"], row["estimated"]) == ("failed", True)
    assert row["prompt_tokens"] > estimate_tokens(HELLO)
    assert row["completion_tokens"] == estimate_tokens("The answer is forty-two")
    assert row["usd"] == pytest.approx(row["prompt_tokens"] * 1e-03 + row["completion_tokens"] * 2e-03)


async def test_a_model_that_says_nothing_in_time_has_read_the_prompt(desk: Desk, server: FakeModels):
    server.script(Hang())
    meter = desk.direct(server, timeouts=Timeouts(first_token_s=0.1))

    with pytest.raises(ProviderError):
        await meter.chat(HELLO)
    await meter.close()

    (row,) = await desk.rows()
    assert (row["error"], row["estimated"]) == ("ProviderTimeoutError", True)
    assert (row["prompt_tokens"], row["completion_tokens"]) == (estimate_tokens(HELLO), 0)


async def test_a_request_that_was_refused_cost_nothing(desk: Desk, server: FakeModels):
    server.script(Fail(429))
    meter = desk.direct(server)

    with pytest.raises(ProviderError):
        await meter.chat(HELLO)
    await meter.close()

    (row,) = await desk.rows()
    assert (row["prompt_tokens"], row["usd"], row["estimated"]) == (0, 0.0, False)


async def test_a_call_that_is_stopped_has_its_row(desk: Desk, server: FakeModels):
    server.script(Hang("The answer"))
    meter = desk.direct(server)
    first = asyncio.Event()

    async def ask() -> None:
        async for _ in meter.chat_stream(HELLO):
            first.set()

    asking = asyncio.create_task(ask())
    await asyncio.wait_for(first.wait(), 10)
    asking.cancel()
    await asyncio.wait([asking])
    await meter.close()

    (row,) = await desk.rows()
    assert asking.cancelled()
    assert (row["outcome"], row["error"], row["estimated"]) == ("stopped", None, True)


async def test_an_answer_that_is_stopped_while_its_price_is_looked_up_is_no_stop(desk: Desk, monkeypatch):
    asked, go_on = threading.Event(), threading.Event()
    load = desk.prices.load

    def load_slowly() -> None:
        asked.set()
        go_on.wait(10)
        load()

    monkeypatch.setattr(desk.prices, "load", load_slowly)
    used = {"prompt_tokens": 200, "completion_tokens": 3}
    asking = asyncio.create_task(desk.meter(ScriptedProvider(LLMResponse("hi", usage=used), model="m")).chat(HELLO))
    await asyncio.to_thread(asked.wait, 10)
    asking.cancel()
    go_on.set()
    await asyncio.wait([asking])

    (row,) = await desk.rows()
    assert (row["outcome"], row["prompt_tokens"], row["estimated"]) == ("ok", 200, False)


async def test_a_call_in_flight_has_its_row_for_the_day_the_process_is_killed(desk: Desk):
    pause = Pause()
    asking = asyncio.create_task(desk.meter(ScriptedProvider(pause, "hi", model="m")).chat(HELLO))
    await pause.reached.wait()

    (row,) = await desk.rows()
    pause.resume.set()
    await asking

    assert (row["outcome"], row["estimated"], row["prompt_tokens"]) == ("unfinished", True, estimate_tokens(HELLO))
    assert [row["outcome"] for row in await desk.rows()] == ["ok"]


async def test_a_stream_that_nobody_reads_to_its_end_is_a_stop(desk: Desk):
    meter = desk.meter(ScriptedProvider("one\ntwo"))

    async with aclosing(meter.chat_stream(HELLO)) as deltas:  # type: ignore[type-var]
        async for _ in deltas:
            break

    assert [row["outcome"] for row in await desk.rows()] == ["stopped"]


async def test_call_is_ok_in_the_ledger_for_whoever_stops_reading_at_its_response(desk: Desk):
    meter = desk.meter(ScriptedProvider("hi"))

    async for delta in meter.chat_stream(HELLO):
        if isinstance(delta, Finished):
            break

    assert [row["outcome"] for row in await desk.rows()] == ["ok"]


async def test_a_request_that_is_mended_has_a_row_for_each_time_it_was_sent(desk: Desk):
    with FakeModels(unknown=["stream_options"]) as server:
        meter = desk.direct(server)
        await meter.chat(HELLO)
        await meter.close()

        rows = await desk.rows()
        assert len(rows) == len(server.chats) == 2
    assert {(row["outcome"], row["error"]) for row in rows} == {("failed", "InvalidRequestError"), ("ok", None)}


async def test_a_server_that_tells_no_usage_is_estimated(desk: Desk, server: FakeModels):
    server.script(Say("four words of answer", usage=None))
    meter = desk.direct(server)

    response = await meter.chat(HELLO)
    await meter.close()

    (row,) = await desk.rows()
    assert (row["outcome"], row["estimated"]) == ("ok", True)
    assert row["completion_tokens"] == estimate_tokens("four words of answer")
    assert response.usage == {}
    assert response.cost_usd == row["usd"]


@pytest.mark.parametrize(
    ("provider", "model", "usd"),
    [
        ("custom", "nobody-knows", None),
        ("ollama", "nobody-knows", 0.0),
        ("offline", "offline", 0.0),
        ("github_copilot", "m", 0.0),
        ("custom", "maker/m", 0.2),
    ],
)
async def test_what_has_no_price_and_what_is_free(desk: Desk, provider: str, model: str, usd: float | None):
    meter = desk.meter(
        ScriptedProvider(LLMResponse("hi", usage={"prompt_tokens": 200, "completion_tokens": 0})), provider
    )

    response = await meter.chat(HELLO, model=model)

    assert response.cost_usd == (usd if usd is None else pytest.approx(usd))


@pytest.mark.parametrize(("provider", "usd"), [("openrouter", 0.75), ("custom", 0.014)])
async def test_only_openrouter_is_believed_what_it_says_an_answer_cost(
    desk: Desk, server: FakeModels, provider: str, usd: float
):
    server.script(Say("hi", usage=usage(10, 2) | {"cost": 0.75}))
    meter = desk.meter(CustomProvider("k", server.v1, "m", name=provider), provider)

    response = await meter.chat(HELLO)
    await meter.close()

    assert response.cost_usd == pytest.approx(usd)


async def test_what_is_no_count_counts_as_nothing(desk: Desk):
    odd: dict[str, Any] = {
        "prompt_tokens": 100,
        "completion_tokens": None,
        "cached_tokens": "4",
        "reasoning_tokens": -1,
    }

    await desk.meter(ScriptedProvider(LLMResponse("hi", usage=odd), model="m")).chat(HELLO)

    (row,) = await desk.rows()
    assert (row["prompt_tokens"], row["completion_tokens"], row["cached_tokens"]) == (100, 0, 0)


async def test_a_provider_of_one_s_own_may_know_the_cost_itself(desk: Desk):
    meter = desk.meter(ScriptedProvider(LLMResponse("hi", cost_usd=0.5)))

    assert (await meter.chat(HELLO, model="nobody-knows")).cost_usd == 0.5
    assert (await desk.rows())[0]["usd"] == 0.5


async def test_a_tool_loop_stops_within_one_call_of_the_limit(tmp_path: Path, server: FakeModels):
    desk = Desk(tmp_path, SpendingLimits(daily_usd=0.1))  # three calls of 12 tokens in, 4 of them cached, and 5 out
    server.default = Calls(("list_dir", {"path": "."}))
    meter = desk.direct(server)
    told: list[str] = []

    with (
        call_context_scope(CallContext(notify=told.append)),
        pytest.raises(BudgetExceededError, match=r"limits\.dailyUsd"),
    ):
        for _ in range(100):
            await meter.chat(HELLO, [LIST_DIR])
    await meter.close()

    cost = (await desk.rows())[0]["usd"] or 0
    assert 0.1 <= len(server.chats) * cost < 0.1 + cost
    assert len(await desk.rows()) == len(server.chats), "what was not sent has no row"
    assert len(told) == 2


async def test_failures_and_stops_give_back_what_was_set_aside(tmp_path: Path):
    desk = Desk(tmp_path, SpendingLimits(daily_usd=1.0))
    pause = Pause()
    meter = desk.meter(ScriptedProvider(pause, model="m"))
    stopped = asyncio.create_task(meter.chat(HELLO))
    await pause.reached.wait()
    waiting = asyncio.create_task(desk.meter(ScriptedProvider("hi", model="m")).chat(HELLO))

    stopped.cancel()

    assert (await asyncio.wait_for(waiting, 10)).content == "hi"


@pytest.mark.parametrize(
    "limits", [SpendingLimits(daily_usd=1.0), SpendingLimits(monthly_usd=1.0)], ids=["daily", "monthly"]
)
async def test_model_without_a_price_is_refused_under_a_limit_in_dollars(tmp_path: Path, limits: SpendingLimits):
    desk = Desk(tmp_path, limits)
    inner = ScriptedProvider("hi", model="nobody-knows")

    with pytest.raises(BudgetExceededError) as refused:
        await desk.meter(inner).chat(HELLO)

    assert inner.requests == [] and await desk.rows() == []
    assert "nobody-knows of custom" in str(refused.value)
    assert "providers.custom.prices" in str(refused.value) and "limits.unknownPrice" in str(refused.value)


@pytest.mark.parametrize(
    "limits", [SpendingLimits(), SpendingLimits(turn_tokens=10_000), SpendingLimits(daily_usd=1.0, unknown_price=True)]
)
async def test_model_without_a_price_is_asked_where_no_dollars_are_counted(tmp_path: Path, limits: SpendingLimits):
    meter = Desk(tmp_path, limits).meter(ScriptedProvider("hi", model="nobody-knows"))

    assert (await meter.chat(HELLO)).content == "hi"


@pytest.mark.parametrize("model", ["house-large", "acme/house-large"])
async def test_price_from_the_config_counts_against_the_limit_and_goes_before_the_table(tmp_path: Path, model: str):
    prices = {"house-*": price_per_million(1_000, 2_000, 100), "m": price_per_million(0, 0)}
    desk = Desk(tmp_path, SpendingLimits(daily_usd=1.0), prices)
    used = {"prompt_tokens": 1000, "cached_tokens": 500, "completion_tokens": 250}
    meter = desk.meter(ScriptedProvider(LLMResponse("hi", usage=used), "free", "no more"))

    response = await meter.chat(HELLO, model=model)
    free = await meter.chat(HELLO, model="m")
    with pytest.raises(BudgetExceededError, match=r"limits\.dailyUsd"):
        await meter.chat(HELLO, model=model)

    assert response.cost_usd == pytest.approx(0.5 + 0.05 + 0.5)
    assert free.cost_usd == 0.0


async def test_provider_that_cancels_its_own_call_has_failed(desk: Desk):
    class Gone(LLMProvider):
        def get_default_model(self) -> str:
            return "m"

        async def chat_stream(self, *_: Any, **__: Any) -> AsyncIterator[Delta]:
            yield TextDelta("and")
            raise asyncio.CancelledError

    with pytest.raises(StreamCutError, match="cancelled its own call"):
        await desk.meter(Gone()).chat(HELLO)


async def test_what_the_inner_provider_offers_is_offered():
    class Inner(LLMProvider):
        closed = False

        def get_default_model(self) -> str:
            return "inner"

        def notes(self) -> list[str]:
            return ["it limps"]

        async def close(self) -> None:
            self.closed = True

        async def chat_stream(self, *_: Any, **__: Any) -> AsyncIterator[Delta]:
            yield TextDelta("and then nothing")

    inner = Inner("key", "base")
    ledger = Ledger(Database(Path("nowhere"), SCHEMA))
    meter = MeteredProvider(
        inner,
        "x",
        ledger,
        Budget(SpendingLimits(), ledger, SystemClock()),
        ProviderPrices("x", PriceTable()),
        SystemClock(),
    )

    await meter.close()

    assert (meter.get_default_model(), meter.notes(), inner.closed) == ("inner", ["it limps"], True)
    assert (meter.api_key, meter.api_base) == ("key", "base")


async def test_a_stream_without_an_end_is_a_failure_in_the_ledger(desk: Desk):
    class Endless(LLMProvider):
        async def chat_stream(self, *_: Any, **__: Any) -> AsyncIterator[Delta]:
            yield TextDelta("and then nothing")

    deltas = [delta async for delta in desk.meter(Endless()).chat_stream(HELLO, model="m")]

    (row,) = await desk.rows()
    assert len(deltas) == 1
    assert (row["outcome"], row["error"], row["estimated"]) == ("failed", "StreamCutError", True)


@pytest.mark.xdist_group("litellm")
async def test_anthropic_through_litellm_tells_what_was_read_from_and_written_to_its_cache(
    desk: Desk, server: FakeModels
):
    told = {"input_tokens": 8, "cache_read_input_tokens": 400, "cache_creation_input_tokens": 90, "output_tokens": 1}
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": told}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**head, "stop_reason": None, "stop_sequence": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {**told, "output_tokens": 5},
        },
        {"type": "message_stop"},
    ]
    server.script(Raw([f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in events]))
    meter = desk.meter(LiteLLMProvider("k", server.url, "claude-x", litellm_prefix="anthropic"), "anthropic")

    await meter.chat(HELLO)
    await meter.close()

    (row,) = await desk.rows()
    assert (row["prompt_tokens"], row["cached_tokens"], row["cache_written_tokens"]) == (498, 400, 90)
    assert row["completion_tokens"] == 5
