"""Many messages over the bus while people stop turns, tools sleep, the model dawdles and nanobot is restarted: each has
one visible end."""

import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.engine.transcript import is_answer
from nanobot.agent.pipeline.pipeline import RESUMES_LATER, SEND_AGAIN_LATER
from nanobot.agent.tools.base import Tool
from nanobot.bus.events import InboundMessage, OutboundKind, OutboundMessage
from nanobot.config.schema import Config
from nanobot.messages.types import text_of
from nanobot.providers.base import Delta, Finished, LLMProvider, LLMResponse, TextDelta, ToolCallRequest
from nanobot.providers.errors import ModelOverloadedError
from nanobot.runtime.build import Runtime, build_runtime
from nanobot.session.manager import SessionManager
from nanobot.testing.protocol_rules import anthropic_problems, openai_problems
from tests.bench.stalls import Stalls
from tests.support.eventually import eventually

CHATS = 20
STOP = "/stop"
_ENDS = ("stopped", "interrupted", "ModelOverloadedError", "partial")
"""How a message may end without a reply of its own: its person said stop, a later message went on with it, or it had
joined a turn whose reply said why there is no answer."""


class Nap(Tool):
    """Sleeps for a moment; never twice for the same call."""

    name, description = "nap", "sleeps"
    parameters = {"type": "object", "properties": {"ms": {"type": "integer"}}}  # noqa: RUF012

    async def execute(self, ms: int) -> str:
        await asyncio.sleep(ms / 1000)
        return "slept"


class Dawdling(LLMProvider):
    """Names the messages it answers: all since its last answer. Takes its time, calls tools, breaks down."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.problems: list[str] = []

    def get_default_model(self) -> str:
        return "dawdling"

    async def chat_stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Delta]:
        self.problems += openai_problems(messages) + anthropic_problems(messages)
        chance = self.chance
        if chance.random() < 0.5:
            await asyncio.sleep(chance.choice([0.001, 0.01, 0.03]))
        if chance.random() < 0.03:
            raise ModelOverloadedError(status=500)
        if chance.random() < 0.4:
            call = ToolCallRequest(f"c{chance.random()}", "nap", {"ms": chance.choice([0, 5, 30])})
            yield Finished(LLMResponse(None, [call], "tool_calls"))
            return
        answered = max(
            (at for at, row in enumerate(messages) if row["role"] == "assistant" and not row.get("tool_calls")),
            default=0,
        )
        numbers = re.findall(r"<(\d+)>", str([row["content"] for row in messages[answered:] if row["role"] == "user"]))
        text = "".join(f"[{number}]" for number in numbers)
        yield TextDelta(text)
        yield Finished(LLMResponse(text))


class Chats:
    """What the people see."""

    def __init__(self) -> None:
        self.sent: dict[str, str] = {}
        self.answers: Counter[str] = Counter()
        self.told: dict[str, list[str]] = {}
        self.stops: Counter[str] = Counter()
        self.shown: dict[str, list[str]] = {}
        """By chat, all that its people read."""

    async def listen(self, runtime: Runtime) -> None:
        while (out := await runtime.bus.consume_outbound()) is not None:
            self.see(out)

    def see(self, out: OutboundMessage) -> None:
        if out.kind in (OutboundKind.REPLY, OutboundKind.NOTICE):  # an answer that came too late is told so
            self.answers.update(re.findall(r"\[(\d+)\]", out.content))
            self.shown.setdefault(out.chat_id, []).append(out.content)
        if out.kind is not OutboundKind.REPLY or out.reply_to is None:
            return
        self.told.setdefault(out.reply_to, []).append(out.content)
        self.stops[out.chat_id] += out.content.startswith(("Stopped", "Stopping"))


async def live(home: Path, chats: Chats, chance: random.Random, messages: int, counts: Counter[str]) -> None:
    """A life of nanobot; it is ended while much is going on."""
    provider = Dawdling(chance)
    async with (
        build_runtime(Config(), data_dir=home, workspace=home / "w", provider=provider, environ={}) as runtime,
        Stalls() as stalls,
    ):
        runtime.tools.register(Nap())
        serving = asyncio.create_task(runtime.loop.run())
        listening = asyncio.create_task(chats.listen(runtime))
        for _ in range(messages):
            number, chat = str(len(chats.sent)), str(chance.randrange(CHATS))
            text = STOP if chance.random() < 0.1 else f"<{number}>"
            chats.sent[number] = text
            await runtime.bus.publish_inbound(InboundMessage("phone", "ann", chat, text, message_id=number))
            await asyncio.sleep(chance.choice([0, 0, 0.002, 0.01]))
        await runtime.loop.stop()
        await serving
        runtime.bus.close()
        await listening
        counts["stall ms"] = max(counts["stall ms"], int(stalls.longest * 1000))
        assert provider.problems == []


async def rest(home: Path, chats: Chats) -> None:
    """The last life: what was cut off is taken up, until there is nothing left to do."""
    async with build_runtime(
        Config(), data_dir=home, workspace=home / "w", provider=Dawdling(random.Random(0)), environ={}
    ) as runtime:
        runtime.tools.register(Nap())
        serving = asyncio.create_task(runtime.loop.run())
        listening = asyncio.create_task(chats.listen(runtime))
        await eventually(lambda: not [*(home / "state" / "turns").glob("*")], 60)
        runtime.bus.close()
        await serving
        await listening


def ends_of(sessions: SessionManager, chats: Chats) -> dict[str, str]:
    """What came of each message by its session: the error of the next answer, or `answered`.

    A run that the loop guard ended, and one whose model failed, has one reply for all messages that had joined it: that
    reply was read in their chat.
    """
    ends: dict[str, str] = {}
    for chat in map(str, range(CHATS)):
        rows = sessions.get_or_create(f"phone:{chat}").messages
        end = "nothing"
        for row in reversed(rows):
            if is_answer(row):
                end = str(row.get("error", "answered"))
                words = row.get("reply") or text_of(row["content"])
                was_read = any(words in text for text in chats.shown.get(chat, []))
                assert was_read or end not in ("partial", "ModelOverloadedError"), f"nobody in {chat} read {words!r}"
            for number in re.findall(r"<(\d+)>", str(row["content"]) if row["role"] == "user" else ""):
                assert number not in ends, f"{number} is kept twice"
                ends[number] = end
    return ends


async def chaos(home: Path, seed: int, lives: int, messages: int) -> Counter[str]:
    chance, chats, counts = random.Random(seed), Chats(), Counter[str]()
    for _ in range(lives):
        await live(home, chats, chance, messages, counts)
    await rest(home, chats)

    ends = ends_of(SessionManager(home / "w"), chats)
    for number, text in chats.sent.items():
        told = [one for one in chats.told.get(number, []) if one != RESUMES_LATER]
        if text == STOP:
            assert len(told) == 1
            counts["stops"] += 1
        elif chats.answers[number]:
            assert chats.answers[number] == 1, f"{number} was answered {chats.answers[number]} times"
            counts["answered"] += 1
        elif told:
            assert len(told) == 1, f"{number} was told {told}"
            counts["told to come back" if told == [SEND_AGAIN_LATER] else "told why not"] += 1
        elif number in ends:
            counts[f"in the session: {ends[number]}"] += 1
            assert ends[number] in _ENDS, f"{number}: {ends[number]}"
        else:
            counts["stopped before it began"] += 1
    counts["sent"] = len(chats.sent)
    return counts


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
async def test_each_of_hundreds_of_messages_has_one_visible_end(tmp_path: Path, seed: int):
    counts = await chaos(tmp_path, seed, lives=3, messages=100)

    assert counts["answered"] > 75  # fewer on a busy machine, where more join and more are stopped
    assert counts["stops"] > 10


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_each_of_ten_thousand_messages_has_one_visible_end(tmp_path: Path):
    counts: Counter[str] = Counter()
    for seed in range(10):
        counts += await chaos(tmp_path / str(seed), seed, lives=5, messages=200)

    print(dict(counts))
    assert counts["sent"] == 10_000
