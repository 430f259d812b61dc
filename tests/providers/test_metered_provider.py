"""The meter: one row for every request sent, equal to the server's own count, and no request above a limit."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from nanobot.errors import ProviderError
from nanobot.messages.tokens import estimate_tokens
from nanobot.providers.base import (
    Delta,
    Finished,
    LLMProvider,
    LLMResponse,
    TextDelta,
)
from nanobot.providers.custom_provider import CustomProvider
from nanobot.providers.endpoint import Timeouts
from nanobot.providers.errors import StreamCutError
from nanobot.providers.litellm_provider import LiteLLMProvider
from nanobot.providers.metering import MeteredProvider, ProviderPrices
from nanobot.testing import Pause, ScriptedProvider
from nanobot.testing.model_server import CutStream, Fail, FakeModels, Hang, Raw, Say, Step
from nanobot.usage.budget import Budget, SpendingLimits
from nanobot.usage.ledger import SCHEMA, Ledger
from nanobot.usage.prices import Price, price_per_million
from nanobot.utils.clock import FrozenClock
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
        self.table = self.folder / "table.json"
        self.table.write_text(json.dumps(TABLE), encoding="utf-8")
        self.ledger = Ledger(Database(self.folder / "state" / "nanobot.db", SCHEMA))
        opened.append(self.ledger.database)
        self.clock = FrozenClock(datetime(2026, 11, 22, 12, tzinfo=UTC))
        self.budget = Budget(self.limits, self.ledger, self.clock)

    def meter(self, inner: LLMProvider, name: str = "custom") -> MeteredProvider:
        prices = ProviderPrices(name, self.own_prices, self.table)
        return MeteredProvider(inner, name, self.ledger, self.budget, prices, self.clock)

    def direct(self, server: FakeModels, **settings: Any) -> MeteredProvider:
        return self.meter(CustomProvider("k", server.v1, "m", **settings))

    async def rows(self) -> list[dict[str, Any]]:
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


@pytest.mark.parametrize(
    ("step", "outcome", "estimated", "said"),
    [
        (CutStream("The answer is forty-two"), "StreamCutError", True, "The answer is forty-two"),
        (Hang("The answer is forty-two"), "ProviderTimeoutError", True, "The answer is forty-two"),
        (Hang(), "ProviderTimeoutError", True, ""),  # the prompt was read
        (Fail(429), "RateLimitedError", False, None),
        (Say("four words of answer", usage=None), None, True, "four words of answer"),
    ],
)
async def test_a_request_without_a_count_is_estimated_if_a_model_read_it(
    desk: Desk, server: FakeModels, step: Step, outcome: str | None, estimated: bool, said: str | None
):
    server.script(step)
    meter = desk.direct(server, timeouts=Timeouts(first_token_s=0.2 if step == Hang() else 30, idle_s=0.2))

    with suppress(ProviderError):
        await meter.chat(HELLO, [LIST_DIR])
    await meter.close()

    (row,) = await desk.rows()
    prompt, completion = row["prompt_tokens"], row["completion_tokens"]
    assert (row["error"], row["estimated"]) == (outcome, estimated)
    assert (prompt > estimate_tokens(HELLO)) == estimated and completion == estimate_tokens(said or "")
    assert row["usd"] == pytest.approx(prompt * 1e-03 + completion * 2e-03)


class Streamed(LLMProvider):
    """A provider of somebody's own."""

    def __init__(self, *lines: Delta | BaseException) -> None:
        super().__init__()
        self.lines = lines

    async def chat_stream(self, *_: Any, **__: Any) -> AsyncIterator[Delta]:
        for line in self.lines:
            if isinstance(line, BaseException):
                raise line
            yield line


@pytest.mark.parametrize(
    ("lines", "last", "outcome"),
    [
        ([TextDelta("one"), TextDelta("two")], TextDelta, "stopped"),
        ([TextDelta("hi"), Finished(LLMResponse("hi"))], Finished, "ok"),
        ([TextDelta("and then nothing")], None, "failed"),
        ([TextDelta("and"), asyncio.CancelledError()], None, "stopped"),  # its own doing: no stop of the turn
    ],
)
async def test_a_stream_has_its_outcome_wherever_the_caller_stops_reading(
    desk: Desk, lines: list[Delta], last: type[Delta] | None, outcome: str
):
    with suppress(StreamCutError):
        async with aclosing(desk.meter(Streamed(*lines)).chat_stream(HELLO, model="m")) as deltas:  # type: ignore[type-var]
            async for delta in deltas:
                if last is not None and isinstance(delta, last):
                    break

    assert [row["outcome"] for row in await desk.rows()] == [outcome]


PLAIN = {"prompt_tokens": 200, "completion_tokens": 0}
ODD: dict[str, Any] = {"prompt_tokens": 100, "completion_tokens": None, "cached_tokens": "4", "reasoning_tokens": -1}


@pytest.mark.parametrize(
    ("provider", "model", "response", "usd"),
    [
        ("custom", "nobody-knows", LLMResponse("hi", usage=PLAIN), None),
        ("ollama", "nobody-knows", LLMResponse("hi", usage=PLAIN), 0.0),
        ("github_copilot", "m", LLMResponse("hi", usage=PLAIN), 0.0),
        ("custom", "maker/m", LLMResponse("hi", usage=PLAIN), 0.2),
        ("custom", "m", LLMResponse("hi", usage=ODD), 0.1),  # what is no count counts as nothing
        ("custom", "nobody-knows", LLMResponse("hi", cost_usd=0.5), 0.5),  # somebody's own provider knows its cost
    ],
)
async def test_what_a_response_costs(desk: Desk, provider: str, model: str, response: LLMResponse, usd: float | None):
    answer = await desk.meter(ScriptedProvider(response), provider).chat(HELLO, model=model)

    assert answer.cost_usd == (usd if usd is None else pytest.approx(usd))
    assert [row["usd"] for row in await desk.rows()] == [answer.cost_usd]


@pytest.mark.parametrize(("provider", "usd"), [("openrouter", 0.75), ("custom", 0.014)])
async def test_only_openrouter_is_believed_what_it_says_an_answer_cost(
    desk: Desk, server: FakeModels, provider: str, usd: float
):
    server.script(Say("hi", usage=usage(10, 2) | {"cost": 0.75}))
    meter = desk.meter(CustomProvider("k", server.v1, "m", name=provider), provider)

    assert (await meter.chat(HELLO)).cost_usd == pytest.approx(usd)
    await meter.close()


@pytest.mark.parametrize("model", ["house-large", "acme/house-large"])
async def test_price_from_the_config_goes_before_the_table(tmp_path: Path, model: str):
    prices = {"house-*": price_per_million(1_000, 2_000, 100), "m": price_per_million(0, 0)}
    used = {"prompt_tokens": 1000, "cached_tokens": 500, "completion_tokens": 250}
    meter = Desk(tmp_path, own_prices=prices).meter(ScriptedProvider(LLMResponse("hi", usage=used), "free"))

    assert (await meter.chat(HELLO, model=model)).cost_usd == pytest.approx(0.5 + 0.05 + 0.5)
    assert (await meter.chat(HELLO, model="m")).cost_usd == 0.0


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
    ("limits", "provider"),
    [
        (SpendingLimits(), "custom"),
        (SpendingLimits(turn_tokens=10_000), "custom"),
        (SpendingLimits(daily_usd=1.0, unknown_price=True), "custom"),
        (SpendingLimits(daily_usd=1.0), "openrouter"),  # which says what an answer cost
    ],
)
async def test_model_without_a_price_is_asked_where_no_dollars_are_counted(
    tmp_path: Path, limits: SpendingLimits, provider: str
):
    meter = Desk(tmp_path, limits).meter(ScriptedProvider("hi", model="nobody-knows"), provider)

    assert (await meter.chat(HELLO)).content == "hi"


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
