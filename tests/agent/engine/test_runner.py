"""The run: model and tools until an answer."""

import asyncio
import json
from pathlib import Path

import pytest

from nanobot.agent.events import TextEnded, ToolEnded, TurnOutcome
from nanobot.config.schema import Config
from nanobot.errors import ProviderError
from nanobot.providers.base import LLMResponse, ToolCallRequest
from nanobot.providers.errors import RateLimitedError, StreamCutError
from nanobot.testing import Bot, Pause, ScriptedProvider, calls, open_bot


async def test_a_tool_call_is_run_and_its_result_goes_back_to_the_model(bot: Bot):
    (bot.workspace / "notes.txt").write_text("the word is plum", encoding="utf-8")
    bot.provider.script(calls(("read_file", {"path": "notes.txt"})), "plum")

    reply = await bot.say("what is the word?")

    assert reply == "plum"
    assert "the word is plum" in str(bot.provider.requests[1][-1]["content"])


@pytest.mark.needs_sandbox
async def test_calls_of_one_step_run_together_and_answer_in_order(bot: Bot):
    bot.provider.script(
        calls(("exec", {"command": "sleep 0.3; echo slow"}), ("exec", {"command": "echo quick"})), "done"
    )

    await bot.say("both")

    results = [row for row in bot.provider.requests[1] if row["role"] == "tool"]
    assert [row["tool_call_id"] for row in results] == ["call_0", "call_1"]
    assert "slow" in str(results[0]["content"])
    ended = [event.call_id for event in bot.sink.events if isinstance(event, ToolEnded)]
    assert ended == ["call_1", "call_0"]


async def test_an_unknown_tool_is_a_result_that_names_the_nearest(bot: Bot):
    bot.provider.script(calls(("read_fil", {"path": "x"})), "sorry")

    await bot.say("go")

    assert "read_file" in str(bot.provider.requests[1][-1]["content"])


async def test_arguments_beyond_mending_do_not_run_and_the_model_is_told(bot: Bot):
    broken = ToolCallRequest.from_text("a", "exec", '["not", "an object"]')
    bot.provider.script(LLMResponse(None, [broken], "tool_calls"), "ok")

    await bot.say("go")

    result = bot.provider.requests[1][-1]
    assert "did not run" in str(result["content"])
    replayed = bot.provider.requests[1][-2]["tool_calls"][0]["function"]["arguments"]
    assert isinstance(json.loads(replayed), dict)


async def test_arguments_are_replayed_as_the_text_they_came_in(bot: Bot):
    text = '{ "path":   "." }'
    bot.provider.script(LLMResponse(None, [ToolCallRequest.from_text("a", "list_dir", text)], "tool_calls"), "ok")

    await bot.say("go")

    assert bot.provider.requests[1][-2]["tool_calls"][0]["function"]["arguments"] == text


async def test_calls_without_ids_or_with_the_same_are_told_apart(bot: Bot):
    same = [ToolCallRequest("", "list_dir", {"path": "."}), ToolCallRequest("", "list_dir", {"path": "memory"})]
    bot.provider.script(LLMResponse(None, same, "tool_calls"), "ok")

    await bot.say("go")

    ids = [row["tool_call_id"] for row in bot.provider.requests[1] if row["role"] == "tool"]
    assert len(set(ids)) == 2
    assert all(ids)


LOOK = calls(("list_dir", {"path": "."}))


def cut(text: str) -> LLMResponse:
    return LLMResponse(text, finish_reason="length")


@pytest.mark.parametrize(
    ("script", "steps", "outcome", "texts"),
    [
        (["", "here it is"], 40, TurnOutcome.ANSWERED, ["here it is"]),
        ([LOOK, "", ""], 40, TurnOutcome.PARTIAL, ["no answer, twice", "1 tool call ran (list_dir)", "(turn "]),
        ([cut("one "), cut("two "), "three"], 40, TurnOutcome.ANSWERED, ["one two three"]),
        ([cut(f"{n} ") for n in range(4)], 40, TurnOutcome.PARTIAL, ["0 1 2 3"]),
        ([LOOK, LOOK, "I listed it twice."], 2, TurnOutcome.PARTIAL, ["I listed it twice.", "limit of 2 steps"]),
        ([LOOK, LOOK], 1, TurnOutcome.PARTIAL, ["limit of 1 steps", "list_dir"]),
        ([cut("one "), cut("two")], 2, TurnOutcome.PARTIAL, ["one two", "limit of 2 steps"]),
    ],
    ids=[
        "empty",
        "empty twice",
        "cut off",
        "cut off again and again",
        "steps",
        "calls at the limit",
        "cut at the limit",
    ],
)
async def test_an_answer_that_is_not_whole_ends_as_well_as_it_can(tmp_path, script, steps, outcome, texts):
    config = Config.model_validate({"agents": {"defaults": {"maxToolIterations": steps}}})

    async with open_bot(tmp_path, *script, config=config) as bot:
        result = await bot.turn("go")

        assert len(bot.provider.requests) == len(script)

    assert result.outcome is outcome
    assert [text for text in texts if text not in result.text] == []


async def test_a_call_cut_by_length_is_not_run(bot: Bot):
    cut = ToolCallRequest.from_text("a", "write_file", '{"path": "x.txt", "content": "half of')
    bot.provider.script(LLMResponse(None, [cut], "length"), "ok")

    await bot.say("write")

    assert not (bot.workspace / "x.txt").exists()
    assert "length limit" in str(bot.provider.requests[1][-1]["content"])


@pytest.mark.parametrize("error", [RateLimitedError(status=429), StreamCutError("eof"), ProviderError("odd")])
async def test_a_failing_model_ends_the_turn_with_its_own_sentence(bot: Bot, error: ProviderError):
    bot.provider.script(error, "better now")

    failed = await bot.turn("hello")
    second = await bot.turn("again")

    assert failed.outcome is TurnOutcome.FAILED
    assert failed.text == str(error)
    assert failed.error == type(error).__name__
    assert second.text == "better now"


async def test_text_of_an_answer_that_broke_off_is_kept(bot: Bot):
    pause = Pause("the beginning of ")
    bot.provider.script(pause, StreamCutError("eof"), "fine")
    turn = asyncio.create_task(bot.turn("tell me"))
    await pause.reached.wait()

    pause.resume.set()
    await turn
    await bot.say("go on")

    assert "the beginning of" in str(bot.provider.requests[-1])


async def test_events_come_in_strict_pairs(bot: Bot):
    bot.provider.script(
        LLMResponse(
            "Looking.", [ToolCallRequest("a", "list_dir", {"path": "."})], "tool_calls", reasoning_content="hm"
        ),
        "done",
    )

    await bot.say("go")

    first = (
        "run_started step_started reasoning_started reasoning_delta reasoning_ended text_started text_delta text_ended"
    )
    calls_ = "tool_started tool_ended step_ended"
    last = "step_started text_started text_delta text_ended step_ended run_ended turn_ended"
    assert bot.sink.types == f"{first} {calls_} {last}".split()
    assert [event.seq for event in bot.sink.events] == list(range(len(bot.sink.events)))
    assert [event.final for event in bot.sink.events if isinstance(event, TextEnded)] == [False, True]


async def test_a_provider_that_fails_after_its_answer_was_whole_has_answered(tmp_path: Path):
    class Stumbling(ScriptedProvider):
        async def chat_stream(self, *args, **kwargs):
            async for delta in super().chat_stream(*args, **kwargs):
                yield delta
            raise StreamCutError("no good-bye")

    async with open_bot(tmp_path, provider=Stumbling("whole")) as bot:
        result = await bot.turn("hello")

    assert (result.outcome, result.text) == (TurnOutcome.ANSWERED, "whole")
    assert bot.sink.types.count("text_ended") == 1
