"""Whatever is said, stopped, cut off, typed meanwhile and answered by a model on some day, with hooks and subagents and
while old messages are moved into memory: each request is legal, below the window and holds what the person said last,
each message is kept once, and events come in pairs."""

import asyncio
import json
import random
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.events import TurnOutcome, TurnResult
from nanobot.agent.hooks import AnswerSeen, CallSeen, Deny, Hook, MessageSeen, NewResult, RequestSeen, ResultSeen
from nanobot.agent.tools.base import Effect, Tool
from nanobot.bus.events import InboundMessage
from nanobot.config.schema import Config
from nanobot.messages.tokens import estimate_tokens
from nanobot.messages.types import ChatMessage, Origin
from nanobot.providers.base import Delta, Finished, LLMResponse, ToolCallRequest
from nanobot.providers.errors import ContextOverflowError, ModelOverloadedError, StreamCutError
from nanobot.testing import Bot, Line, Pause, RecordingSink, ScriptedProvider, calls, open_bot
from nanobot.testing.event_rules import turn_problems
from nanobot.testing.protocol_rules import anthropic_problems, openai_problems

KEY = "cli:direct"
WINDOWS = {"scripted": 12_000, "narrow-model": 9_000, "wide-model": 30_000}
STOPPED = (TurnOutcome.STOPPED, TurnOutcome.FAILED)
WORDS = ["the", "quick", "brown", "fox", "狐狸", "jumps", "0123", "over_the", "lazy", "dog", "{}[]"]


class Long(Tool):
    """Says as much as is asked for, and something else each time."""

    name, description, effect = "long", "says much", Effect.READ
    parameters = {"type": "object", "properties": {"chars": {"type": "integer"}}}  # noqa: RUF012

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    async def execute(self, chars: int) -> str:
        return " ".join(self._chance.choices(WORDS, k=chars // 6 + 1))


class Odd(Tool):
    """Breaks."""

    name, description = "odd", "breaks"
    parameters = {"type": "object", "properties": {}}  # noqa: RUF012

    async def execute(self) -> str:
        raise RuntimeError("odd")


class Sleepy(Tool):
    """Runs until it is stopped."""

    name, description = "sleepy", "sleeps"
    parameters = {"type": "object", "properties": {}}  # noqa: RUF012

    def __init__(self) -> None:
        self.asleep = asyncio.Event()

    async def execute(self) -> str:
        self.asleep.set()
        await asyncio.Event().wait()
        return ""


class Meddling(Hook):
    """Takes a while, fails, forbids, and changes what it may change."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    async def on_message(self, message: MessageSeen) -> None:
        await self._a_while()

    async def on_request(self, request: RequestSeen) -> None:
        await self._a_while()

    async def on_answer(self, answer: AnswerSeen) -> None:
        await self._a_while()

    async def before_tool(self, call: CallSeen) -> Deny | None:
        await self._a_while()
        return Deny("not today") if self._chance.random() < 0.1 else None

    async def after_tool(self, result: ResultSeen) -> NewResult | None:
        await self._a_while()
        return NewResult(f"{result.text} (seen)") if self._chance.random() < 0.5 else None

    async def _a_while(self) -> None:
        for _ in range(self._chance.randint(0, 3)):
            await asyncio.sleep(0)
        if self._chance.random() < 0.02:
            raise RuntimeError("a hook with a bug")


class Asked(ScriptedProvider):
    """Remembers which model each request was for. Subagents, their reports and memory have no script."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.models: list[str] = []
        self.aside: Counter[str] = Counter()
        self.problems: list[str] = []
        self._chance = chance

    async def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        tools: Any = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> AsyncIterator[Delta]:
        if [tool["function"]["name"] for tool in tools or ()] == ["save_memory"]:  # no turn: old messages are summed up
            yield Finished(self._summed_up())
            return
        of_a_subagent = any(str(row["content"]).startswith("Your task:") for row in messages)
        if of_a_subagent or "[A subagent has ended." in str(messages[-1]["content"]):
            self.problems += openai_problems(messages) + anthropic_problems(messages)
            yield Finished(self._of_a_subagent(messages) if of_a_subagent else self._told())
            return
        self.models.append(model or "")
        async for delta in super().chat_stream(messages, tools, model, max_tokens, temperature):
            yield delta

    def _summed_up(self) -> LLMResponse:
        self.aside["asked for memory"] += 1
        entry = {"history_entry": "[2026-02-26 13:21] Talked of foxes.", "memory_update": "- The fox is quick.\n"}
        return calls(("save_memory", entry)) if self._chance.random() < 0.7 else LLMResponse("Nothing to keep.")

    def _told(self) -> LLMResponse:
        self.aside["reports"] += 1
        return LLMResponse("It has ended.")

    def _of_a_subagent(self, messages: Sequence[ChatMessage]) -> LLMResponse:
        self.aside["asked for subagents"] += 1
        if self._chance.random() < 0.1:
            raise ModelOverloadedError(status=500)
        done = sum(row["role"] == "tool" for row in messages)
        return calls(("list_dir", {"path": "."})) if done < self._chance.randint(0, 3) else LLMResponse("found")


def a_line(chance: random.Random) -> Line:
    """Something a model may do."""
    text = chance.choice(["fine", "well, ", "", "  ", "ünï 中文 \u2028", "I have written the file done.txt for you."])
    chars = chance.choice([10, 3_000, 12_000, 40_000])
    some = [
        ToolCallRequest.from_text(chance.choice(["", "a", "a", "b c"]), name, arguments)
        for name, arguments in chance.sample(
            [
                ("list_dir", '{"path": "."}'),
                ("nope", "{}"),
                ("glob", "[1]"),
                ("read_file", '{"path": "x'),
                ("write_file", '{"path": "w.txt", "content": "' + "w " * (chars // 8) + '"}'),
                ("long", f'{{"chars": {chars}}}'),
                ("odd", "{}"),
            ],
            chance.randint(1, 5),
        )
    ]
    lines: list[Line] = [
        text,
        LLMResponse(text or None, some, "tool_calls", reasoning_content=chance.choice([None, "hm"])),
        LLMResponse(text, finish_reason="length"),
        LLMResponse(None, some, "length"),
        calls(("list_dir", {"path": "."})),
        calls(("long", {"chars": chars}), ("long", {"chars": chars + 1})),
        calls(("spawn", {"task": f"look at {chars}", "wait": chance.random() < 0.5}), ("list_dir", {"path": "."})),
        calls(("session_search", {"query": "fox message"})),
        ModelOverloadedError(status=500),
        ContextOverflowError(status=400),
        StreamCutError("eof"),
        ValueError("a provider with a bug"),
    ]
    return chance.choice(lines[:8] * 3 + lines[8:])


FATES = (
    *("end", "end", "end", "end", "loop", "stop", "stop twice", "stop in a tool", "abandon", "steer", "steer"),
    *("stop anywhere", "stop anywhere"),
    *("join and end nanobot", "end nanobot", "crash", "new while it works"),
)
ENDS_NANOBOT = ("join and end nanobot", "end nanobot", "crash")


@dataclass
class Day:
    """A bot's day: what was said, and what is asked of every request."""

    home: Path
    chance: random.Random
    outcomes: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    said: list[str] = field(default_factory=list)
    """What the session must hold, once each."""

    async def spend(self, starts: int, turns: int) -> None:
        for start in range(starts):
            async with self.a_life() as bot:
                bot.provider.script(*["taken up"] * 4)
                by_itself = self.chance.random() < 0.6
                if by_itself and await bot.resume(KEY, bot.sink) is not None:
                    self.outcomes["taken up"] += 1
                    self.check(bot, self.said[-1] if self.said else "")
                for number in range(turns):
                    text = f"message {start}-{number}-end" + " and more" * self.chance.choice(
                        [0] * 12 + [500, 500, 9000]
                    )
                    bot.provider.clear()
                    fate = self.chance.choice(FATES)
                    self.outcomes[f"{fate}: {await self.turn(bot, text, fate)}"] += 1
                    self.check(bot, text[:20].split(" and")[0])
                    if fate in ENDS_NANOBOT:
                        break
                    if self.chance.random() < 0.2:
                        words = ["/model narrow", "/model wide", "/model default", "/context", "/history", "/status"]
                        await bot.say(self.chance.choice(words))
                        self.check(bot, "")
                    if self.chance.random() < 0.03:
                        await self.begin_anew(bot)
            crashed = self.home.with_name(f"{self.home.name}-crashed")
            if crashed.exists():
                shutil.rmtree(self.home)
                crashed.rename(self.home)

    @asynccontextmanager
    async def a_life(self) -> AsyncIterator[Bot]:
        presets = {
            name.removesuffix("-model"): {"model": name, "contextWindowTokens": window, "maxTokens": 1000}
            for name, window in WINDOWS.items()
        }
        defaults = {"contextWindowTokens": WINDOWS["scripted"], "maxTokens": 1000, "memoryWindow": 30}
        config = Config(agents={"defaults": defaults}, model_presets=presets)  # type: ignore[arg-type]
        provider = Asked(self.chance)
        async with open_bot(self.home, config=config, provider=provider, own_hooks=[Meddling(self.chance)]) as bot:
            bot.consolidate_after(0)
            for tool in (Long(self.chance), Odd()):
                bot.register(tool)
            yield bot
        assert provider.problems == []
        self.outcomes += provider.aside
        self.outcomes["moved into memory"] += (self.home / "workspace" / "memory" / "HISTORY.md").exists()

    async def begin_anew(self, bot: Bot) -> None:
        await bot.say("/new")
        self.said.clear()
        self.outcomes["new"] += 1
        self.check(bot, "")

    async def turn(self, bot: Bot, text: str, fate: str) -> str:
        """One turn of up to six lines, with its fate in the middle of it."""
        chance = self.chance
        bot.provider.script(*[a_line(chance) for _ in range(chance.randint(0, 4))])
        if fate == "end":
            bot.provider.script(*["the end"] * 8)
            return await self.ended(bot.turn(text), text)
        if fate == "loop":
            bot.provider.script(*[calls(("list_dir", {"path": "."})) for _ in range(6)], *["the end"] * 8)
            return await self.ended(bot.turn(text), text)
        if fate == "stop anywhere":
            return await self.stopped_anywhere(bot, text)
        pause, sleepy = Pause(chance.choice(["", "I was saying "])), Sleepy()
        bot.register(sleepy)
        bot.provider.script(calls(("sleepy", {})) if fate == "stop in a tool" else pause)
        turn = asyncio.create_task(bot.turn(text))
        await self.until(turn, pause.reached, sleepy.asleep)
        if turn.done():
            return await self.ended(turn, text)
        self.said.append(text)
        match fate:
            case "steer":
                await self.steered(bot, text, turn, pause)
            case "stop" | "stop in a tool":
                await bot.say("/stop")
            case "stop twice":
                await asyncio.gather(bot.say("/stop"), bot.stop(KEY), bot.say("/stop"))
            case "join and end nanobot":
                await self.joined_and_cut(bot, text, turn, pause)
            case "end nanobot":
                await bot.shut_down()
            case "crash":
                crashed = self.home.with_name(f"{self.home.name}-crashed")
                shutil.copytree(self.home, crashed, copy_function=copied_if_there)
                turn.cancel()
            case "new while it works":
                await self.new_while_it_works(bot, text, turn, pause)
            case _:
                turn.cancel()
        await asyncio.wait([turn])
        return "cancelled" if turn.cancelled() else turn.result().outcome

    async def stopped_anywhere(self, bot: Bot, text: str) -> str:
        bot.provider.script(*["the end"] * 8)
        turn = asyncio.create_task(bot.turn(text))
        for _ in range(self.chance.randint(1, 120)):
            await asyncio.sleep(0)
        await bot.say("/stop")
        result = await turn
        kept = any(row["content"] == text for row in bot.session(KEY).messages)
        self.said += [text] * kept
        assert kept or result.outcome is TurnOutcome.STOPPED
        return result.outcome

    async def until(self, turn: "asyncio.Task[TurnResult]", *signs: asyncio.Event) -> None:
        waiting = [asyncio.create_task(sign.wait()) for sign in signs]
        await asyncio.wait([turn, *waiting], return_when=asyncio.FIRST_COMPLETED)
        for one in waiting:
            one.cancel()

    async def ended(self, turn: Any, text: str) -> str:
        result: TurnResult = await turn
        self.said.append(text)
        return result.outcome

    async def steered(self, bot: Bot, text: str, turn: "asyncio.Task[TurnResult]", pause: Pause) -> None:
        """Two more messages come; sometimes the turn is stopped before it can read them."""
        more = [f"{text[:20]} and {word}" for word in ("this", "that")]
        sinks = [RecordingSink(), RecordingSink()]
        told = [
            asyncio.create_task(bot.send(of_the_person(said), sink)) for said, sink in zip(more, sinks, strict=True)
        ]
        await asyncio.sleep(0)
        bot.provider.script(calls(("list_dir", {"path": "."})), *["the end"] * 12)
        if self.chance.random() < 0.3:
            await bot.say("/stop")
        else:
            pause.resume.set()
        await turn
        results = await asyncio.gather(*told)
        self.said += more
        requested = str(bot.provider.requests)
        assert all(said in requested for said in more) or TurnOutcome.REFUSED in {one.outcome for one in results}
        assert all(result.outcome is not TurnOutcome.STOPPED for result in results) or turn.result().outcome in STOPPED
        assert [turn_problems(sink.events) for sink in sinks] == [[], []]

    async def joined_and_cut(self, bot: Bot, text: str, turn: "asyncio.Task[TurnResult]", pause: Pause) -> None:
        """A message joins, then nanobot ends."""
        again, more = Pause("As for "), f"{text[:20]} and this"
        bot.provider.script(calls(("list_dir", {"path": "."})), again)
        sink = RecordingSink()
        told = asyncio.create_task(bot.send(of_the_person(more), sink))
        await asyncio.sleep(0)
        pause.resume.set()
        await self.until(turn, again.reached)
        bot.provider.clear()
        await bot.shut_down()
        result = await told
        kept = any(row["content"] == more for row in bot.session(KEY).messages)
        self.said += [more] * kept
        assert kept or result.outcome in (TurnOutcome.STOPPED, TurnOutcome.FAILED), "lost without a word"
        assert turn_problems(sink.events) == []

    async def new_while_it_works(self, bot: Bot, text: str, turn: "asyncio.Task[TurnResult]", pause: Pause) -> None:
        """A fresh session is asked for while the old one works, and something is said behind it."""
        more = f"{text[:20]} and this"
        new = asyncio.create_task(bot.send(of_the_person("/new")))
        await asyncio.sleep(0)
        told = asyncio.create_task(bot.send(of_the_person(more)))
        await asyncio.sleep(0)
        bot.provider.script(calls(("list_dir", {"path": "."})), *["the end"] * 12)
        pause.resume.set()
        await asyncio.wait([turn, new, told])
        assert (await new).text.startswith("Started a new session")
        assert "message" not in str(bot.provider.requests[-1]).replace(more, "").partition("Runtime")[0]
        self.said[:] = [more]

    def check(self, bot: Bot, text: str) -> None:
        """Each request is legal, below the window, and holds what the person said last; all is kept once."""
        asked = zip(bot.requests, bot.provider.tools, bot.provider.models, strict=True)  # type: ignore[attr-defined]
        for request, tools, model in asked:
            self.requests += 1
            assert openai_problems(request) + anthropic_problems(request) == []
            assert any(row["role"] == "user" and text in str(row["content"]) for row in request), f"{text} is missing"
            assert estimate_tokens(request) + estimate_tokens(json.dumps(tools)) <= WINDOWS[model]
        bot.provider.requests.clear()
        bot.provider.tools.clear()
        bot.provider.models.clear()  # type: ignore[attr-defined]
        by_turn: dict[str, list[Any]] = {}
        for event in bot.sink.events:
            by_turn.setdefault(event.turn_id, []).append(event)
        assert [problem for told in by_turn.values() for problem in turn_problems(told)] == []
        bot.sink.events.clear()
        rows = bot.session(KEY).messages
        kept = [str(row["content"]) for row in rows if row["role"] == "user" and row.get("origin") != "system"]
        assert sorted(text for text in kept if not text.startswith("[A subagent")) == sorted(self.said)


def copied_if_there(source: str, target: str) -> None:
    """What works beside the turn moves its files meanwhile."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


def of_the_person(text: str) -> InboundMessage:
    return InboundMessage.from_owner("cli", "direct", text, session_key=KEY, origin=Origin.USER)


async def any_day(home: Path, seed: int, starts: int = 4, turns: int = 8) -> Day:
    day = Day(home, random.Random(seed))
    await day.spend(starts, turns)
    return day


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))])
async def test_every_request_is_legal_and_holds_the_last_message(tmp_path: Path, seed: int):
    day = await any_day(tmp_path, seed)

    assert len(day.outcomes) >= 3


@pytest.mark.slow
@pytest.mark.timeout(3000)
async def test_ten_thousand_turns_of_any_kind(tmp_path: Path):
    seen: Counter[str] = Counter()
    for seed in range(1000, 1460):
        day = await any_day(tmp_path / str(seed), seed, starts=5, turns=12)
        seen += day.outcomes
        seen["requests"] += day.requests

    print(dict(seen))
    assert seen.total() - seen["requests"] > 10_000
