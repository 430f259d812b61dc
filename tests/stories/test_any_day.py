"""Any day: whatever models say, however turns end, each request is legal and holds what the person said last."""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nanobot.agent.turn import TurnOutcome, TurnResult
from nanobot.bus.events import InboundMessage
from nanobot.config.schema import Config
from nanobot.messages.tokens import estimate_tokens
from nanobot.messages.types import Origin
from nanobot.providers.base import LLMResponse, ToolCallRequest
from nanobot.providers.errors import ModelOverloadedError, StreamCutError
from nanobot.testing import Bot, Line, Pause, calls, open_bot
from tests.strict import anthropic_problems, openai_problems

KEY = "cli:direct"
WINDOW = 12_000
STOPPED = (TurnOutcome.STOPPED, TurnOutcome.FAILED)


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


FATES = ("end", "end", "end", "stop", "abandon", "steer", "steer", "end nanobot")


@dataclass
class Day:
    """A bot's day: what was said, and what is asked of every request."""

    home: Path
    chance: random.Random
    outcomes: Counter[str] = field(default_factory=Counter)
    requests: int = 0

    async def spend(self, starts: int, turns: int) -> None:
        for start in range(starts):
            config = Config(agents={"defaults": {"contextWindowTokens": WINDOW, "maxTokens": 1000}})  # type: ignore[arg-type]
            async with open_bot(self.home, config=config) as bot:
                bot.provider.script(*["taken up"] * 4)
                if await bot.runtime.loop.resume("cli:direct") is not None:
                    self.outcomes["taken up"] += 1
                    self.check(bot, "")
                for number in range(turns):
                    text = f"message {start}-{number}"
                    bot.provider.clear()
                    bot.provider.requests.clear()
                    fate = self.chance.choice(FATES)
                    self.outcomes[await self.turn(bot, text, fate)] += 1
                    self.check(bot, text)
                    if fate == "end nanobot":
                        break
                    if self.chance.random() < 0.1:
                        await bot.say(self.chance.choice(["/model other", "/model default", "/context", "/history"]))

    async def turn(self, bot: Bot, text: str, fate: str) -> str:
        """One turn of up to six lines, with its fate in the middle of it."""
        chance = self.chance
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
        if fate == "steer":
            return await self.steered(bot, text, turn, pause)
        if fate == "stop":
            await bot.say("/stop")
            return (await turn).outcome
        if fate == "end nanobot":
            await bot.runtime.loop.stop()
            await turn
            return fate
        turn.cancel()
        await asyncio.wait([turn])
        return fate

    async def steered(self, bot: Bot, text: str, turn: "asyncio.Task[TurnResult]", pause: Pause) -> str:
        """Two more messages come; sometimes the turn is stopped before it can read them."""
        more = [
            InboundMessage.from_owner(
                "cli", "direct", f"{text} and {word}", session_key="cli:direct", origin=Origin.USER
            )
            for word in ("this", "that")
        ]
        told = [asyncio.create_task(bot.runtime.loop.tell(message)) for message in more]
        await asyncio.sleep(0)
        bot.provider.script(calls(("list_dir", {"path": "."})), *["the end"] * 12)
        if self.chance.random() < 0.3:
            await bot.say("/stop")
        else:
            pause.resume.set()
        await turn
        results = await asyncio.gather(*told)
        said = str(bot.provider.requests)
        assert all(f"{text} and {word}" in said for word in ("this", "that")), "a message was lost"
        assert all(result.outcome is not TurnOutcome.STOPPED for result in results) or turn.result().outcome in STOPPED
        return "steered"

    def check(self, bot: Bot, text: str) -> None:
        """Each request is legal, below the window, and holds what the person said last."""
        for request in bot.provider.requests:
            self.requests += 1
            assert openai_problems(request) + anthropic_problems(request) == []
            assert any(row["role"] == "user" and text in str(row["content"]) for row in request), f"{text} is missing"
            assert estimate_tokens(request) <= WINDOW


async def any_day(home: Path, seed: int, starts: int = 4, turns: int = 8) -> Day:
    day = Day(home, random.Random(seed))
    await day.spend(starts, turns)
    return day


@pytest.mark.parametrize("seed", range(12))
async def test_every_request_is_legal_and_holds_the_last_message(tmp_path: Path, seed: int):
    day = await any_day(tmp_path, seed)

    assert len(day.outcomes) >= 3


@pytest.mark.slow
@pytest.mark.timeout(3000)
async def test_ten_thousand_turns_of_any_kind(tmp_path: Path):
    seen: Counter[str] = Counter()
    for seed in range(1000, 1400):
        day = await any_day(tmp_path / str(seed), seed, starts=5, turns=12)
        seen += day.outcomes
        seen["requests"] += day.requests

    print(dict(seen))
    assert seen.total() > 10_000
