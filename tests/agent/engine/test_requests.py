"""Every request of a run fits the model's window and begins with the one before, whatever tools return."""

import base64
import json
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.events import ToolEnded, TurnOutcome
from nanobot.agent.window.fit import RequestBuilder, RequestRoom
from nanobot.agent.window.state import Calibration, Window
from nanobot.config.schema import Config
from nanobot.messages.types import ChatMessage, text_of
from nanobot.providers.base import Delta, Finished
from nanobot.providers.errors import ContextOverflowError
from nanobot.providers.wire.rows import RequestDialect, encode, wire_messages
from nanobot.testing import Bot, ScriptedProvider, calls, open_bot
from nanobot.testing.protocol_rules import anthropic_problems, openai_problems
from tests.support.histories import asks, words
from tests.support.tokenizer import tokenizer

DICE = random.Random(3)
DENSE = {
    "hex": DICE.randbytes(200_000).hex(),
    "base64": base64.b64encode(DICE.randbytes(200_000)).decode(),
    "digits": "\n".join(",".join(f"{DICE.random():.5f}" for _ in range(8)) for _ in range(4_000)),
    "chinese": "今天天气很好，我们一起去公园散步吧。机器学习模型的上下文窗口有限，需要压缩历史记录。\n" * 4_000,
    "gibberish": "\n".join("".join(DICE.choices("abcdefghijklmnopqrstuvwxyz", k=60)) for _ in range(4_000)),
}


def small(tokens: int, **more: Any) -> Config:
    return Config.model_validate({"agents": {"defaults": {"contextWindowTokens": tokens, **more}}})


def lines(text: str) -> str:
    """The text in lines of a usual length."""
    return "\n".join(text[at : at + 90] for at in range(0, len(text), 90))


def real_tokens(messages: Sequence[ChatMessage], tools: Sequence[Any]) -> int:
    count = tokenizer()
    assert count is not None
    return int(
        sum(count(json.dumps(row, ensure_ascii=False)) for row in [*wire_messages(messages, RequestDialect()), *tools])
    )


class CountingProvider(ScriptedProvider):
    """A model with a window of its own: it counts, says what it counted, and refuses what is longer."""

    window = 32_768

    def __init__(self, *lines: Any) -> None:
        super().__init__(*lines)
        self.counted: list[int] = []
        self.refused = 0

    async def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Any] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> AsyncIterator[Delta]:
        self.counted.append(real_tokens(messages, tools or []))
        if self.counted[-1] + max_tokens > self.window:
            self.refused += 1
            raise ContextOverflowError("too long")
        async for delta in super().chat_stream(messages, tools, model, max_tokens, temperature):
            if isinstance(delta, Finished):
                delta.response.usage.update(prompt_tokens=self.counted[-1], completion_tokens=5)
            yield delta


# --- within the window


@pytest.mark.needs_sandbox
async def test_two_megabytes_of_output_leave_the_turn_alive_and_stay_in_reach(tmp_path: Path):
    provider = CountingProvider()
    async with open_bot(tmp_path, config=small(32_768), provider=provider) as bot:
        provider.script(calls(("exec", {"command": "head -c 2000000 /dev/zero | tr '\\0' 'a'"})), "done")

        result = await bot.turn("print it")

    shown = text_of(provider.requests[1][-1]["content"])
    assert (result.outcome, result.text) == (TurnOutcome.ANSWERED, "done")
    assert ".nanobot" in shown
    assert len(shown) <= 16_000
    assert provider.refused == 0


@pytest.mark.parametrize("kind", DENSE)
async def test_dense_files_do_not_break_a_small_window(tmp_path: Path, kind: str):
    provider = CountingProvider()
    async with open_bot(tmp_path, config=small(32_768), provider=provider) as bot:
        for number in range(4):
            (bot.workspace / f"{number}.txt").write_text(lines(DENSE[kind][number * 20_000 :]), encoding="utf-8")
        reads = [calls(*[("read_file", {"path": f"{number}.txt"}) for number in group]) for group in ([0], [1, 2], [3])]
        provider.script(*reads, "read", *reads, "read again")

        first = await bot.turn("read these")
        second = await bot.turn("and again")

    assert (first.outcome, second.outcome) == (TurnOutcome.ANSWERED, TurnOutcome.ANSWERED)
    assert provider.refused <= 1
    assert max(provider.counted[-3:]) < provider.window


async def test_a_message_too_long_for_the_model_is_refused_and_the_session_goes_on(tmp_path: Path):
    async with open_bot(tmp_path, "hi", "fine", config=small(32_768)) as bot:
        await bot.turn("hello")

        refused = await bot.turn(words(300_000))
        asked = len(bot.provider.requests)
        after = await bot.turn("and now?")

        request = bot.provider.requests[-1]

    assert refused.outcome is TurnOutcome.REFUSED
    assert "parts" in refused.text
    assert asked == 1
    assert after.text == "fine"
    assert "hello" in str(request[1]["content"])
    assert openai_problems(request) == anthropic_problems(request) == []


# --- overflow


async def test_an_overflow_is_answered_by_one_smaller_request_and_remembered(tmp_path: Path):
    async with open_bot(tmp_path, config=small(65_536)) as bot:
        (bot.workspace / "big.txt").write_text(lines(words(400_000)), encoding="utf-8")
        reads = [calls(("read_file", {"path": "big.txt", "limit": 1_000 + number})) for number in range(4)]
        bot.provider.script(*reads, ContextOverflowError("too long"), "done", "and on")

        result = await bot.turn("read")
        await bot.turn("more")

        sizes = [len(str(request)) for request in bot.provider.requests]

    assert result.text == "done"
    assert sizes[5] < 0.75 * sizes[4]
    assert sizes[6] < 0.8 * sizes[4]


async def test_a_second_overflow_goes_up(tmp_path: Path):
    async with open_bot(tmp_path, config=small(65_536)) as bot:
        (bot.workspace / "big.txt").write_text(lines(words(400_000)), encoding="utf-8")
        overflow = ContextOverflowError("too long")
        bot.provider.script(calls(("read_file", {"path": "big.txt"})), overflow, overflow)

        result = await bot.turn("read")

        assert len(bot.provider.requests) == 3
    assert result.outcome is TurnOutcome.FAILED
    assert "/new" in result.text


# --- the head of the next


async def test_over_forty_turns_with_tools_and_a_skill_each_request_is_the_head_of_the_next(tmp_path: Path):
    script: list[Any] = []
    for number in range(40):
        script += [calls(("list_dir", {"path": "."}), text="looking"), f"answer {number}"]
    script[20:20] = [calls(("read_file", {"path": "skills/plum/SKILL.md"}))]
    config = Config.model_validate({"agents": {"defaults": {"memoryWindow": 1_000}}})
    async with open_bot(tmp_path, *script[:41], config=config) as bot:
        skill = bot.workspace / "skills" / "plum" / "SKILL.md"
        skill.parent.mkdir(parents=True)
        skill.write_text("---\nname: plum\ndescription: about plums\n---\n" + words(3_000), encoding="utf-8")
        for number in range(20):
            await bot.say(f"message {number}")
        requests = bot.provider.requests
    async with open_bot(tmp_path, *script[41:], config=config) as again:
        for number in range(20, 40):
            await again.say(f"message {number}")
        requests = [*requests, *again.provider.requests]

    bodies = [encode(wire_messages(request, RequestDialect()))[:-1] for request in requests]
    assert len(bodies) == 81
    assert [at for at in range(80) if not bodies[at + 1].startswith(bodies[at])] == []


async def test_what_was_shrunk_stays_as_it_was_sent_over_a_restart(tmp_path: Path):
    reads = [calls(("read_file", {"path": "big.txt", "limit": 1_000 + number})) for number in range(9)]
    async with open_bot(tmp_path, *reads, "one", config=small(34_500)) as bot:
        (bot.workspace / "big.txt").write_text(lines(words(400_000)), encoding="utf-8")
        await bot.say("read")
        before = bot.provider.requests[-1]
    async with open_bot(tmp_path, "two", config=small(34_500)) as again:
        await again.say("and?")
        after = again.provider.requests[-1]

    assert "left out to make room" in str(before)
    assert after[: len(before)] == before


# --- what was read already


async def test_a_file_read_again_unchanged_is_a_short_word_and_a_changed_one_is_shown(bot: Bot):
    file = bot.workspace / "notes.txt"
    file.write_text(lines(words(4_000)), encoding="utf-8")
    read = calls(("read_file", {"path": "notes.txt"}))
    bot.provider.script(read, read, "one", read, "two")

    await bot.say("read it twice")
    file.write_text(lines(words(4_000)) + "\nmore", encoding="utf-8")
    await bot.say("and again")

    first, second, third = (text_of(row["content"]) for row in bot.provider.requests[-1] if row["role"] == "tool")
    assert len(first) > 4_000
    assert len(second) < 100
    assert third.startswith(first)
    shown = [event.content for event in bot.sink.events if isinstance(event, ToolEnded)]
    assert shown[0] == shown[1]


# --- cost


async def test_words_that_fit_the_window_are_sent_although_less_than_them_was_refused_once():
    window = Window().with_calibration("m", Calibration().after_refusal(9_000, 2_000, 4_096))
    requests = RequestBuilder(RequestRoom("m", 16_384, 4_096, words(8_000)), window)
    long = asks(words(28_000), "a")

    request = requests.build([long])

    assert text_of(request[-1]["content"]) == long["content"]
    assert requests.window.model("m") == window.model("m")
