"""The window of a long session survives a restart; with whatever stands in its place the session goes on."""

from pathlib import Path
from typing import Any

from nanobot.config.schema import Config
from nanobot.testing import open_bot
from tests.support.memory import KEY, store, turn, turns

DAMAGED: list[Any] = ["garbage", {"start": "x"}, {"start": 10**9, "at": [10**9, "never"]}, {"at": [1]}]


async def test_window_of_a_long_session_does_not_slide_also_over_a_restart(tmp_path: Path):
    await store(tmp_path, *turns(0, 1_000))
    async with open_bot(tmp_path, "zero", "one", "two") as bot:
        for question in ("well?", "and?", "and then?"):
            await bot.say(question)
        _, first, second = bot.requests
    async with open_bot(tmp_path, "three", *["fine"] * len(DAMAGED)) as bot:
        assert await bot.say("so?") == "three"
        [third] = bot.requests
        for damage in DAMAGED:
            bot.session(KEY).metadata["window"] = damage
            assert await bot.say("and still?") == "fine"

    assert 100 < len(first) < 1_000
    assert second[: len(first)] == first
    assert third[: len(second)] == second
    assert all("question 999" in str(request) for request in bot.requests)
    assert all(len(request) < 1_000 for request in bot.requests)


async def test_shrunk_results_stay_as_they_were_shown_over_a_restart(tmp_path: Path):
    rows: list[Any] = [row for number in range(40) for row in turn(number, steps=1)]
    long = {"content": "word " * 400}
    await store(tmp_path, *(row | long if row["role"] == "tool" else row for row in rows))
    config = Config.model_validate({"agents": {"defaults": {"contextWindowTokens": 16_000, "maxTokens": 1_000}}})
    async with open_bot(tmp_path, "one", "two", config=config) as bot:
        await bot.say("and?")
        await bot.say("and then?")
        first, second = bot.requests
    async with open_bot(tmp_path, "three", config=config) as bot:
        await bot.say("so?")
        [third] = bot.requests

    assert 0 < str(first).count("word " * 400) < 40
    assert second[: len(first)] == first
    assert third[: len(second)] == second


async def test_messages_that_went_into_memory_leave_the_window_and_the_rest_stays_as_it_was(tmp_path: Path):
    await store(tmp_path, *turns(0, 1_000))
    async with open_bot(tmp_path, "one") as bot:
        await bot.say("and?")
        [before] = bot.requests
    async with open_bot(tmp_path, "two") as bot:
        bot.session(KEY).last_consolidated = 1_900
        await bot.say("so?")
        [after] = bot.requests

    assert (after[1]["content"], after[1:-2]) == ("question 950", before[-len(after[1:-2]) :])
