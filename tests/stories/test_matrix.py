"""Two models, and all the ways in which the first may fail: who answers, after how long, and what the person reads.

Everything but the waits between two tries is real: the config, the bot, HTTP, two model servers.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.events import TurnOutcome
from nanobot.testing.model_server import Calls, Fail, FakeModels
from tests.support.failing_models import FAILURES, two_models, with_fallback
from tests.support.home import Home
from tests.support.sample_requests import results

LITELLM = [pytest.mark.xdist_group("litellm"), pytest.mark.timeout(180)]  # a busy machine takes long to import it
SHORT = {"connectTimeoutS": 2, "firstTokenTimeoutS": 0.4, "idleTimeoutS": 0.4, "totalTimeoutS": 0.8}
PAUSE_S = 60
NOBODY_HOME = "http://127.0.0.1:9/v1"


def direct(a: FakeModels, b: FakeModels, limits: dict[str, Any], **defaults: Any) -> dict[str, Any]:
    return with_fallback(a, b, limits, **defaults)


def responses(a: FakeModels, b: FakeModels, limits: dict[str, Any], **defaults: Any) -> dict[str, Any]:
    return with_fallback(a, b, {"apiType": "responses", **limits}, **defaults)


def claude(a: FakeModels, b: FakeModels, limits: dict[str, Any], **defaults: Any) -> dict[str, Any]:
    config = with_fallback(a, b, {}, model="claude-opus-4-5", provider="anthropic", **defaults)
    config["providers"]["anthropic"] = {"apiKey": "sk-a", "apiBase": a.url, **limits}
    return config


CASES = [
    *((direct, name, True) for name in FAILURES),
    *((direct, name, False) for name, row in FAILURES.items() if row.answers == "B"),
    *((responses, name, False) for name in ("401", "429 without, for good", "mid-stream stall")),
    *((claude, name, True) for name in ("refused", "529", "first-token stall")),
    *((claude, name, False) for name in ("401", "429 without, for good", "mid-stream stall")),
]


@pytest.mark.parametrize(
    ("wire", "name", "has_other"),
    [
        pytest.param(*case, id=f"{case[0].__name__}-{case[1]}{'' if case[2] else '-alone'}",
                     marks=LITELLM if case[0] is claude else [])
        for case in CASES
    ],
)  # fmt: skip
async def test_the_first_model_fails(tmp_path: Path, wire: Callable[..., dict[str, Any]], name: str, has_other: bool):
    row, provider = FAILURES[name], "anthropic" if wire is claude else "openai"
    waits = row.waits if has_other or row.alone is None else row.alone
    with two_models() as (a, b):
        config = wire(a, b, SHORT if row.slow else {}, **({} if has_other else {"fallbackModels": []}))
        if row.step is None:
            config["providers"][provider]["apiBase"] = NOBODY_HOME
        home = Home(tmp_path, **config)

        async with home.hasty() as bot:
            if wire is claude and row.slow:
                await litellm_loaded(tmp_path / "before", config, a)
            if row.step is not None:
                a.script(*[row.step] * (1 if row.once else 1 + len(waits)))
            told = await bot.say("hi")
            taken, asked = tuple(bot.waits.taken), len(a.chats)
            is_skipped = row.step is None or row.slow  # then its own short limits would hold, or nobody is there
            following = "This is A." if is_skipped else (await bot.say("and now?")).result.text

    text, says = told.result.text, row.says.replace("openai", provider)
    print(f"{name}: {told.seconds:.1f} s, A asked {asked} times, B {len(b.chats)}", *told.notices, text, sep="\n    ")
    assert taken == waits
    assert asked == (1 + len(waits) if row.step is not None else 0)
    assert told.seconds < (30 if has_other else 100)
    assert a.problems == b.problems == []
    assert not any("sk-" in line for line in (text, *told.notices))
    answers = row.answers if has_other or row.answers == "A" else "nobody"
    if answers == "nobody":
        assert told.result.outcome is TurnOutcome.FAILED
        assert f"[{provider}, model " in text and says.lower() in text.lower() and "\n" not in text
        assert (row.step is not None) or "Is the server running?" in text
        assert len(told.notices) == len(waits)
        assert b.chats == []
    else:
        assert (told.result.outcome, text) == (TurnOutcome.ANSWERED, f"This is {answers}.")
        assert says in told.notices[-1]
        assert len(told.notices) == len(waits) + (answers == "B"), "a line a wait, and one for the switch"
        assert told.notices[-1].startswith("deepseek-chat (deepseek) answers instead of") == (answers == "B")
    assert following == "This is A."


async def litellm_loaded(folder: Path, config: dict[str, Any], server: FakeModels) -> None:
    """Its first call in a process takes seconds, which is no matter of a server's limits."""
    config = {**config, "providers": {"anthropic": {"apiKey": "sk-a", "apiBase": server.url}}}
    async with Home(folder, **config).hasty() as bot:
        await bot.say("hi")
    server.requests.clear()


def anthropic_second(a: FakeModels, b: FakeModels) -> dict[str, Any]:
    config = with_fallback(a, b, {}, fallbackModels=[{"model": "claude-opus-4-5", "provider": "anthropic"}])
    config["providers"]["anthropic"] = {"apiKey": "sk-ant", "apiBase": b.url}
    return config


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(lambda a, b: with_fallback(a, b, {}), id="both direct"),
        pytest.param(anthropic_second, id="the second is Claude", marks=LITELLM),
        pytest.param(lambda a, b: claude(a, b, {}), id="the first is Claude", marks=LITELLM),
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
            told = [await bot.say("hi", f"s{index % 2}") for index in range(8)]
            asked = len(a.chats)
            status = (await bot.say("/status")).result.text
            bot.waits.advance(PAUSE_S)
            back = [await bot.say("hi", f"s{index}") for index in range(2)]
            well = (await bot.say("/status")).result.text

    switches = [any("answers instead of" in notice for notice in one.notices) for one in told]
    assert [one.result.text for one in told] == ["This is B."] * 8
    assert switches == [True, True, *[False] * 6], "told once a session"
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
            bot.waits.advance(PAUSE_S)
            following = await bot.say("hi")

    assert len(a.chats) == 13
    assert refused.result.outcome is TurnOutcome.FAILED
    assert "no request was sent" in refused.result.text and "Try again in 60 s." in refused.result.text
    assert "its last failure was that the provider is overloaded or failing (HTTP 503)" in refused.result.text
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
