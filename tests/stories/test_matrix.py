"""Two models, and all the ways in which the first may fail: who answers, after how long, and what the person reads.

Everything but the waits between two tries is real: the config, the bot, HTTP, two model servers.
"""

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.events import TurnOutcome
from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers.base import Delta, LLMProvider
from nanobot.providers.limits import FALLBACK_FIRST_TOKEN_S
from nanobot.providers.resilience import OPEN_S
from nanobot.testing.model_server import Calls, CutStream, Fail, FakeModels, Hang
from tests.support.failing_models import FAILURES, two_models, with_fallback
from tests.support.home import Home, Told
from tests.support.sample_requests import results

LITELLM = pytest.mark.xdist_group("litellm")
SHORT = {"connectTimeoutS": 2, "firstTokenTimeoutS": 0.4, "idleTimeoutS": 0.4, "totalTimeoutS": 0.8}
NOBODY_HOME = "http://127.0.0.1:9/v1"


class Counting(LLMProvider):
    """Counts the calls, where the ledger will."""

    def __init__(self, inner: LLMProvider, name: str, calls: Counter[str]) -> None:
        super().__init__(inner.api_key, inner.api_base)
        self._inner, self._name, self._calls = inner, name, calls

    async def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> AsyncIterator[Delta]:
        self._calls[self._name] += 1
        async for delta in self._inner.chat_stream(messages, tools, model, max_tokens, temperature):
            yield delta

    async def close(self) -> None:
        await self._inner.close()


def described(name: str, told: Told, a: FakeModels, b: FakeModels) -> str:
    lines = [f"{name}: {told.seconds:.1f} s, A asked {len(a.chats)} times, B {len(b.chats)}"]
    return "\n".join([*lines, *(f"    ({notice})" for notice in told.notices), f"    {told.result.text}"])


@pytest.mark.parametrize("name", FAILURES)
async def test_the_first_model_fails(tmp_path: Path, name: str):
    row = FAILURES[name]
    calls: Counter[str] = Counter()
    with two_models() as (a, b):
        config = with_fallback(a, b, SHORT if row.slow else {})
        if row.step is None:
            config["providers"]["openai"]["apiBase"] = NOBODY_HOME
        else:
            a.script(*[row.step] * (1 if row.once else 20))
        home = Home(tmp_path, **config)

        async with home.hasty(lambda inner, provider: Counting(inner, provider, calls)) as bot:
            told = await bot.say("hi")
            waits = bot.waits.taken

    print(described(name, told, a, b))
    assert tuple(waits) == row.waits
    assert calls["openai"] == row.requests
    assert len(a.chats) == (row.requests if row.step is not None else 0)
    assert len(b.chats) == calls["deepseek"] == (1 if row.answers == "B" else 0)
    assert told.seconds < 30
    assert a.problems == b.problems == []
    if row.answers == "nobody":
        assert told.result.outcome is TurnOutcome.FAILED
        assert row.says in told.result.text
        assert told.notices == []
    else:
        assert (told.result.outcome, told.result.text) == (TurnOutcome.ANSWERED, f"This is {row.answers}.")
        assert row.says in told.notices[-1]
        assert len(told.notices) == len(row.waits) + (row.answers == "B"), "a line a wait, and one for the switch"
        assert told.notices[-1].startswith("deepseek-chat (deepseek) answers instead of") == (row.answers == "B")


@pytest.mark.parametrize(("cuts", "reply"), [(1, "Half ofThis is A."), (2, "The answer broke off in the middle")])
async def test_an_answer_that_breaks_off_is_finished_by_the_model_that_began_it_or_not_at_all(
    tmp_path: Path, cuts: int, reply: str
):
    with two_models() as (a, b):
        home = Home(tmp_path, **with_fallback(a, b, {}))
        a.script(*[CutStream("Half of")] * cuts)

        async with home.hasty() as bot:
            told = await bot.say("hi")

    print(described("cut in the text", told, a, b))
    assert told.result.text.startswith(reply)
    assert (len(a.chats), b.chats) == (2, []), "nobody is switched in silence"
    assert bot.waits.taken == []


@pytest.mark.xdist_group("litellm")
@pytest.mark.parametrize(
    "name", ["429 without, for good", "529", "refused", "reset", "cut before text", "first-token stall", "401"]
)
async def test_the_first_model_fails_behind_litellm(tmp_path: Path, name: str):
    row = FAILURES[name]
    with two_models() as (a, b):
        config = with_fallback(a, b, {}, model="claude-opus-4-5", provider="anthropic")
        limits = {"firstTokenTimeoutS": 0.4} if row.slow else {}
        base = a.url if row.step is not None else NOBODY_HOME
        config["providers"]["anthropic"] = {"apiKey": "sk-ant", "apiBase": base, **limits}
        home = Home(tmp_path, **config)
        if row.step is not None:
            a.script(*[row.step] * 4)

        async with home.hasty() as bot:
            told = await bot.say("hi")
            waits = bot.waits.taken

    print(described(f"LiteLLM, {name}", told, a, b))
    assert told.result.text == "This is B."
    assert tuple(waits) == row.waits
    assert len(a.chats) == (row.requests if row.step is not None else 0), "LiteLLM retries nothing by itself"
    assert row.says.replace("openai", "anthropic") in told.notices[-1]


@pytest.mark.parametrize(
    "name", [name for name, row in FAILURES.items() if row.answers == "B" and row.step is not None]
)
async def test_the_only_model_fails(tmp_path: Path, name: str):
    row = FAILURES[name]
    waits = row.waits if row.alone is None else row.alone
    with two_models() as (a, b):
        home = Home(tmp_path, **with_fallback(a, b, SHORT if row.slow else {}, fallbackModels=[]))
        assert row.step is not None
        a.script(*[row.step] * (1 + len(waits)))

        async with home.hasty() as bot:
            told = await bot.say("hi")
            following = await bot.say("and now?")

    print(described(name, told, a, b))
    assert told.result.outcome is TurnOutcome.FAILED
    assert "[openai, model gpt-4.1" in told.result.text and "\n" not in told.result.text
    assert tuple(bot.waits.taken) == waits
    assert len(told.notices) == len(waits)
    assert following.result.text == "This is A."


def anthropic_second(a: FakeModels, b: FakeModels) -> dict[str, Any]:
    config = with_fallback(a, b, {}, fallbackModels=[{"model": "claude-opus-4-5", "provider": "anthropic"}])
    config["providers"]["anthropic"] = {"apiKey": "sk-ant", "apiBase": b.url}
    return config


def anthropic_first(a: FakeModels, b: FakeModels) -> dict[str, Any]:
    config = with_fallback(a, b, {}, model="claude-opus-4-5", provider="anthropic")
    config["providers"]["anthropic"] = {"apiKey": "sk-ant", "apiBase": a.url}
    return config


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(lambda a, b: with_fallback(a, b, {}), id="both direct"),
        pytest.param(anthropic_second, id="the second is Claude", marks=LITELLM),
        pytest.param(anthropic_first, id="the first is Claude", marks=LITELLM),
    ],
)
async def test_a_switch_in_the_middle_of_a_task_repeats_nothing_and_its_history_is_legal_for_the_other(
    tmp_path: Path, config: Callable[[FakeModels, FakeModels], dict[str, Any]]
):
    with two_models() as (a, b):
        home = Home(tmp_path, **config(a, b))
        write = ("write_file", {"path": "a.txt", "content": "once"})
        a.script(Calls(write, text="I write it.", reasoning="A file is wanted."), *[Fail(503)] * 4)

        async with home.hasty() as bot:
            told = await bot.say("write a.txt")
            following = await bot.say("and now?")

    assert told.result.text == "This is B."
    assert following.result.text == "This is A."
    assert a.problems == b.problems == []
    assert len(results(b.chats[0])) == 1, "what A did, B knows"
    assert (home.workspace / "a.txt").read_text() == "once"
    assert len(b.chats) == 1


async def test_the_first_model_is_left_alone_for_a_minute_and_used_again_when_it_is_well(tmp_path: Path):
    with two_models() as (a, b):
        home = Home(tmp_path, **with_fallback(a, b, {}))
        a.script(*[Fail(500)] * 12)

        async with home.hasty() as bot:
            replies = [(await bot.say("hi", f"s{index % 2}")).result.text for index in range(8)]
            asked = len(a.chats)
            status = (await bot.say("/status")).result.text
            bot.waits.advance(OPEN_S)
            back = [await bot.say("hi", f"s{index}") for index in range(2)]
            well = (await bot.say("/status")).result.text

    assert replies == ["This is B."] * 8
    assert asked == 12, "three calls of four requests"
    assert "gpt-4.1 (openai) is paused for 60 s: the provider is overloaded or failing (HTTP 500)." in status
    assert "deepseek-chat (deepseek) is used instead." in status
    assert [told.result.text for told in back] == ["This is A."] * 2
    assert [told.notices for told in back] == [["gpt-4.1 (openai) answers again."]] * 2
    assert "is paused" not in well


async def test_a_model_alone_that_is_out_is_not_asked_and_says_until_when(tmp_path: Path):
    with two_models() as (a, b):
        home = Home(tmp_path, **with_fallback(a, b, {}, fallbackModels=[]))
        a.script(*[Fail(503)] * 12)

        async with home.hasty() as bot:
            for _ in range(3):
                await bot.say("hi")
            refused = await bot.say("hi")
            bot.waits.advance(OPEN_S)
            following = await bot.say("hi")

    assert len(a.chats) == 13
    assert refused.result.outcome is TurnOutcome.FAILED
    assert "no request was sent" in refused.result.text and "Try again in 60 s." in refused.result.text
    assert following.result.text == "This is A."


async def test_a_persistent_bot_goes_on_until_somebody_answers(tmp_path: Path):
    with two_models() as (a, b):
        home = Home(tmp_path, **with_fallback(a, b, {}, providerRetryMode="persistent"))
        a.script(*[Fail(500)] * 20)
        b.script(*[Fail(429, "slow")] * 6)

        async with home.hasty() as bot:
            told = await bot.say("hi")

    assert told.result.text == "This is B."
    assert max(bot.waits.taken) <= 60
    assert "Retrying until it answers" in told.notices[0]


async def test_a_preset_has_a_chain_of_its_own_and_knows_who_is_out(tmp_path: Path):
    with two_models() as (a, b):
        config = with_fallback(a, b, {}, fallbackModels=["spare"])
        config["modelPresets"] = {
            "spare": {"model": "deepseek-chat", "provider": "deepseek"},
            "again": {"model": "gpt-4.1", "provider": "openai", "temperature": 0.9},
        }
        home = Home(tmp_path, **config)
        a.script(*[Fail(500)] * 12)

        async with home.hasty() as bot:
            for _ in range(3):
                await bot.say("hi")
            await bot.say("/model again", "other")
            told = await bot.say("hi", "other")
            await bot.say("/model spare", "third")
            spare = await bot.say("hi", "third")

    assert len(a.chats) == 12, "who is out is out for every preset"
    assert told.result.text == "This is B."
    assert (spare.result.text, spare.notices) == ("This is B.", [])


REAL = {"429": Fail(429, "slow"), "503": Fail(503), "refused": None, "read stall": Hang()}


@pytest.mark.bench
@pytest.mark.timeout(180)
async def test_how_long_a_person_waits_for_the_second_model(tmp_path: Path):
    """With real waits; the aim is 30 s."""
    for name, step in REAL.items():
        with two_models() as (a, b):
            config = with_fallback(a, b, {"firstTokenTimeoutS": FALLBACK_FIRST_TOKEN_S})
            config["providers"]["openai"]["apiBase"] = a.v1 if step is not None else NOBODY_HOME
            a.script(*[step] * 4 if step is not None else [])
            began = time.monotonic()
            async with Home(tmp_path / name, **config).open() as bot:
                result = await bot.run("hi")
            seconds = time.monotonic() - began
            assert result.text == "This is B."
            print(f"{name:12} {seconds:5.1f} s  A asked {len(a.chats)} times, B {len(b.chats)}: {result.text}")
