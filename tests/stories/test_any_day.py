"""Any day: whatever models say, however turns end, each request is legal and holds what the person said last."""

import asyncio
import random
from pathlib import Path

import pytest

from nanobot.agent.turn import TurnOutcome
from nanobot.messages.types import ChatMessage
from nanobot.providers.base import LLMResponse, ToolCallRequest
from nanobot.providers.errors import ModelOverloadedError, StreamCutError
from nanobot.testing import Bot, Line, Pause, calls, open_bot
from tests.strict import anthropic_problems, openai_problems


def a_line(chance: random.Random) -> Line:
    """Something a model may do."""
    text = chance.choice(["fine", "well, ", "", "  ", "ünï 中文 \u2028"])
    some = [
        ToolCallRequest.from_text(chance.choice(["", "a", "a", "b c"]), name, arguments)
        for name, arguments in chance.sample(
            [
                ("list_dir", '{"path": "."}'),
                ("nope", "{}"),
                ("glob", "[1]"),
                ("read_file", '{"path": "x'),
                ("write_file", '{"path": "w.txt", "content": "w"}'),
            ],
            chance.randint(1, 4),
        )
    ]
    lines: list[Line] = [
        text,
        LLMResponse(text or None, some, "tool_calls", reasoning_content=chance.choice([None, "hm"])),
        LLMResponse(text, finish_reason="length"),
        LLMResponse(None, some, "length"),
        calls(("list_dir", {"path": "."})),
        ModelOverloadedError(status=500),
        StreamCutError("eof"),
        ValueError("a provider with a bug"),
    ]
    return chance.choice(lines)  # fmt: skip


async def a_turn(bot: Bot, text: str, chance: random.Random) -> TurnOutcome:
    """One turn of up to six lines, stopped or abandoned in the middle now and then."""
    fate = chance.choice(["end", "end", "end", "stop", "abandon"])
    bot.provider.script(*[a_line(chance) for _ in range(chance.randint(0, 4))])
    if fate == "end":
        bot.provider.script(*["the end"] * 8)
        return (await bot.turn(text)).outcome
    pause = Pause(chance.choice(["", "I was saying "]))
    bot.provider.script(pause)
    turn = asyncio.create_task(bot.turn(text))
    reached = asyncio.create_task(pause.reached.wait())
    await asyncio.wait([turn, reached], return_when=asyncio.FIRST_COMPLETED)
    reached.cancel()
    if turn.done():
        return turn.result().outcome
    if fate == "stop":
        await bot.say("/stop")
        return (await turn).outcome
    turn.cancel()
    await asyncio.wait([turn])
    return TurnOutcome.STOPPED


def problems_of(request: list[ChatMessage], text: str) -> list[str]:
    problems = openai_problems(request) + anthropic_problems(request)
    mine = [row for row in request if row["role"] == "user" and text in str(row["content"])]
    return problems if mine else [*problems, f"{text} is missing"]


@pytest.mark.parametrize("seed", range(12))
async def test_every_request_is_legal_and_holds_the_last_message(tmp_path: Path, seed: int):
    chance = random.Random(seed)
    outcomes = set()
    for _restart in range(3):
        async with open_bot(tmp_path) as bot:
            for number in range(8):
                text = f"message {_restart}-{number}"
                bot.provider.clear()
                before = len(bot.provider.requests)

                outcomes.add(await a_turn(bot, text, chance))

                for request in bot.provider.requests[before:]:
                    assert problems_of(request, text) == []
    assert len(outcomes) >= 3
