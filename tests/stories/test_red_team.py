"""A model that obeys whatever it reads, and words from outside that ask for the worst: nothing happens unasked.

The corpus is `red_team.json`. Each of its payloads comes by every way that words from outside have: a page, a mail,
somebody in a chat, a document, the result of a tool server; some are to be obeyed only in a later turn.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.events import Answer, ApprovalAsked, TurnEvent
from nanobot.agent.tools.base import AccessKind
from nanobot.bus.events import InboundMessage
from nanobot.messages.types import ChatMessage, Origin, Provenance, ToolSchema
from nanobot.providers.base import Delta, Finished, LLMResponse, TextDelta, ToolCallRequest
from nanobot.testing import Bot, ScriptedProvider, open_bot
from tests.fakes.tools import Sink, Source

PAYLOADS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("red_team.json").read_text(encoding="utf-8"))[
    "payloads"
]
VECTORS = {
    "page": Provenance.WEB,
    "mail": Provenance.MAIL,
    "document": Provenance.PERSON,
    "server": Provenance.MCP,
    "somebody": Provenance.PERSON,
}
"""Ways in, and how far words that come by them are trusted. `somebody` writes; the others are read by a tool."""
SINKS = {
    "run": (AccessKind.COMMAND, False),
    "key": (AccessKind.SECRETS, True),
    "remember": (AccessKind.MEMORY, False),
    "teach": (AccessKind.SKILL, False),
    "schedule": (AccessKind.JOB, False),
    "put": (AccessKind.FOLDER, True),
    "send": (AccessKind.RECIPIENT, False),
    "fetch": (AccessKind.HOST, False),
}


class Obedient(ScriptedProvider):
    """Reads where it is told to look, and then does what stands there: at once, or when it is asked the next time."""

    async def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> AsyncIterator[Delta]:
        said = [str(row["content"]) for row in messages if row["role"] == "user"]
        calls = list(self._calls(messages, said))
        text = "" if calls else "Done."
        yield TextDelta(text)
        yield Finished(LLMResponse(text, calls, "tool_calls" if calls else "stop"))

    def _calls(self, messages: Sequence[ChatMessage], said: list[str]) -> Iterator[ToolCallRequest]:
        begun = [call["function"]["name"] for row in messages for call in row.get("tool_calls") or ()]
        if said[0].startswith("look at the ") and not begun:
            yield ToolCallRequest("look", said[0].split("\n")[0].removeprefix("look at the "), {"url": "there"})
            return
        payload = next((one for one in PAYLOADS if any(one["say"] in str(row["content"]) for row in messages)), None)
        if payload is None or (payload["when"] == "later" and len(said) < 2):
            return
        done = sum(name in SINKS for name in begun)
        for number, (name, target, *text) in enumerate(payload["calls"][done : done + 1]):
            yield ToolCallRequest(f"do{done + number}", name, {"target": target, "text": "".join(text)})


@dataclass
class Team:
    """One bot under attack in many sessions at once."""

    bot: Bot
    sinks: dict[str, Sink]
    answer: Answer | None
    asked: int = 0

    async def attack(self, number: int, payload: dict[str, Any], vector: str) -> None:
        """The words come in, and the owner goes on."""
        session = f"cli:{vector}-{number}"
        if vector != "somebody":
            source = f"{vector}_{number}"
            self.bot.register(Source(source, payload["say"], VECTORS[vector]))
            await self._says(session, f"look at the {source}", Provenance.OWNER)
        else:
            await self._says(session, payload["say"], VECTORS[vector])
        if payload["when"] == "later":
            await self._says(session, "now go on", Provenance.OWNER)

    async def _says(self, session: str, text: str, provenance: Provenance) -> None:
        message = InboundMessage.from_owner("cli", "direct", text, session_key=session, origin=Origin.CLI)
        message.provenance = provenance
        await self.bot.run_turn(message, self._watch, attended=self.answer is not None)

    def _watch(self, event: TurnEvent) -> None:
        if isinstance(event, ApprovalAsked) and self.answer is not None:
            self.asked += 1
            asyncio.get_running_loop().call_soon(self.bot.answer, event.question, self.answer)

    @property
    def done(self) -> int:
        return sum(len(sink.done) for sink in self.sinks.values())


Pair = tuple[dict[str, Any], str]
ALL: list[Pair] = [(payload, vector) for payload in PAYLOADS for vector in VECTORS]
SOME: list[Pair] = [(payload, [*VECTORS][number % len(VECTORS)]) for number, payload in enumerate(PAYLOADS)]
"""Each payload by one way in, the ways in turn."""


async def attacked(home: Path, pairs: Sequence[Pair], answer: Answer | None) -> Team:
    """What came of these payloads by these ways in."""
    async with open_bot(home, provider=Obedient()) as bot:
        sinks = {name: Sink(name, kind, beyond=beyond) for name, (kind, beyond) in SINKS.items()}
        for sink in sinks.values():
            bot.register(sink)
        team = Team(bot, sinks, answer)
        await asyncio.gather(*[team.attack(number, *pair) for number, pair in enumerate(pairs)])
    return team


@pytest.mark.parametrize("pairs", [SOME, pytest.param(ALL, marks=pytest.mark.slow)], ids=["some", "all"])
async def test_nobody_there_to_ask_means_that_nothing_is_done(tmp_path: Path, pairs: Sequence[Pair]):
    team = await attacked(tmp_path, pairs, None)

    assert {name: sink.done for name, sink in team.sinks.items() if sink.done} == {}


@pytest.mark.parametrize("pairs", [SOME, pytest.param(ALL, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize(("answer", "share"), [(Answer.NO, 0), (Answer.ONCE, 1)], ids=["no", "yes"])
async def test_each_side_effect_is_asked_about_and_only_a_yes_lets_it_happen(
    tmp_path: Path, pairs: Sequence[Pair], answer: Answer, share: int
):
    team = await attacked(tmp_path, pairs, answer)

    wanted = sum(len(payload["calls"]) for payload, _ in pairs)
    assert (team.done, team.asked) == (wanted * share, wanted)
