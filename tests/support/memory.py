"""Consolidation and Dream with a scripted model: what the model says, and a workspace that has one of them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nanobot.agent.engine.spec import Model, RunLimits
from nanobot.agent.memory.consolidation import ConsolidationResult, Consolidator
from nanobot.agent.memory.dream import Dream, DreamRun
from nanobot.agent.memory.due import Due, DueTimes
from nanobot.agent.memory.editor import MemoryEditor
from nanobot.agent.memory.edits import edits_of_update
from nanobot.agent.memory.facts import parse_facts
from nanobot.agent.memory.retention import read_for_model, store_edits
from nanobot.agent.memory.revisions import UNKNOWN_SOURCE, ChangedBy, ChangeSource, DreamPass
from nanobot.agent.memory.store import MemoryStore
from nanobot.agent.scope import Scope
from nanobot.agent.status import AgentStatus
from nanobot.config.schema import Config, DreamConfig
from nanobot.messages.types import ChatMessage
from nanobot.providers.base import Finished, LLMResponse, call_context
from nanobot.session.manager import SessionManager
from nanobot.testing import Bot, Pause, ScriptedProvider, calls, open_bot
from nanobot.utils.clock import Clock, FrozenClock

KEY = "cli:direct"
FACTS = (
    "# Memory\n\n## People\n- Lives in Berlin.\n- Home: Berlin.\n- Has a dog.\n\n"
    "## Plans\n- Flies to Oslo on 2026-01-05.\n"
)


def tidying(*edits: dict[str, Any], prompt: int = 900, completion: int = 60) -> LLMResponse:
    response = calls(("tidy_memory", {"edits": list(edits)}))
    return LLMResponse(
        None, response.tool_calls, "tool_calls", {"prompt_tokens": prompt, "completion_tokens": completion}
    )


def replace_(ids: str, text: str) -> dict[str, Any]:
    return {"action": "replace", "ids": ids.split(), "text": text}


MERGED = replace_("f1 f2", "Lives in Berlin.")
OVER = {"action": "archive", "ids": ["f4"], "why": "over"}


class CauseRecorder(ScriptedProvider):
    """Records the cause of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.causes: list[str] = []

    async def chat_stream(self, *args: Any, **kwargs: Any) -> Any:
        self.causes.append(call_context().cause)
        async for delta in super().chat_stream(*args, **kwargs):
            yield delta


@dataclass
class Models:
    """The one model, whatever is wanted."""

    provider: ScriptedProvider
    limits: RunLimits = field(default_factory=RunLimits)
    wanted: list[str | None] = field(default_factory=list)

    async def get(self, wanted: str | None) -> Model:
        self.wanted.append(wanted)
        return Model(self.provider, "scripted", wanted or "usual", limits=self.limits)


def learn(memory: MemoryStore, entry: str, update: str, source: ChangeSource = UNKNOWN_SOURCE) -> None:
    """A consolidation brings this log entry and this text of MEMORY.md; the first one brings it as it is."""
    known = read_for_model(memory.revisions)
    if parse_facts(known):
        store_edits(memory.revisions, entry, edits_of_update(known, update), source)
    else:
        memory.append_history(entry)
        memory.revisions.change({"MEMORY.md": update.encode()}, ChangedBy.CONSOLIDATION, source)


class DreamHarness:
    """A memory with some facts that a conversation brought, and who tidies it."""

    def __init__(
        self,
        folder: Path,
        *,
        scope: Scope | None = None,
        limits: RunLimits | None = None,
        limit_s: float = 60.0,
        **settings: Any,
    ) -> None:
        self.folder = folder
        self.clock = FrozenClock(datetime(2026, 2, 26, 13, 21, tzinfo=UTC))
        self.memory = MemoryStore(folder, clock=self.clock, scope=scope or Scope())
        self.model = CauseRecorder()
        self.models = Models(self.model, limits or RunLimits())
        self.editor = MemoryEditor(self.memory, self.clock)
        self.dream = Dream(self.memory, self.models, self.clock, DreamConfig(**settings), limit_s=limit_s)

    def learns(self, update: str = FACTS, entry: str = "Talked of home.", **source: Any) -> None:
        """A consolidation brings this."""
        learn(self.memory, entry, update, ChangeSource("cli:direct", **source))

    async def run(self, *lines: Any, by_hand: bool = False) -> DreamRun:
        self.model.script(*lines)
        return await self.dream.run(by_hand=by_hand)

    @asynccontextmanager
    async def thinking(self, *lines: Any) -> AsyncIterator[asyncio.Task[DreamRun]]:
        """A run whose model thinks, and says this when the block ends."""
        pause = Pause()
        self.model.script(pause, *lines)
        work = asyncio.create_task(self.dream.run())
        await pause.reached.wait()
        yield work
        pause.resume.set()
        await asyncio.wait([work])

    @property
    def text(self) -> str:
        return self.memory.memory_file.read_bytes().decode()

    @property
    def archive(self) -> str:
        return self.memory.archive_file.read_text(encoding="utf-8") if self.memory.archive_file.exists() else ""

    @property
    def asked(self) -> str:
        return str(self.model.requests[-1][1]["content"])

    def passes(self) -> list[DreamPass]:
        return self.memory.revisions.passes()

    @property
    def active(self) -> list[int]:
        """Numbers of the passes that can be restored, newest first."""
        return [*self.memory.revisions.active_passes()]


def turn(number: int, steps: int = 0, **fields: str) -> list[ChatMessage]:
    """A turn: a question, so many tool calls, an answer."""
    mine: Any = {"turn_id": f"t{number}", "provenance": "owner", **fields}
    rows: list[Any] = [{"role": "user", "content": f"question {number}", **mine}]
    for step in range(steps):
        call: Any = {"id": f"c{step}", "type": "function", "function": {"name": "exec", "arguments": "{}"}}
        rows.append({"role": "assistant", "content": None, "tool_calls": [call], **mine})
        rows.append({"role": "tool", "tool_call_id": f"c{step}", "name": "exec", "content": "fine", **mine})
    return [*rows, {"role": "assistant", "content": f"answer {number}", **mine}]


def saving(entry: str = "Talked.", update: str = "- Likes tea.", **more: Any) -> LLMResponse:
    return calls(("save_memory", {"history_entry": entry, "memory_update": update, **more}))


class ConsolidationHarness:
    """A workspace with one session, its memory, and who consolidates it."""

    def __init__(self, folder: Path, *, key: str = KEY, limits: RunLimits | None = None, **options: Any) -> None:
        self.key = key
        self.clock = FrozenClock(datetime(2026, 2, 26, 13, 21, tzinfo=UTC))
        self.sessions = SessionManager(folder)
        self.memory = MemoryStore(folder, clock=self.clock)
        self.model = ScriptedProvider()
        self.models = Models(self.model, limits or RunLimits())
        self.status = AgentStatus(self.clock)
        self.consolidator = Consolidator(self.memory, self.sessions, self.models, self.status, self.clock, **options)

    async def say(self, *rows: ChatMessage) -> None:
        async with self.sessions.hold(self.key) as session:
            await self.sessions.append(session, *rows)

    async def talk(self, first: int, last: int) -> None:
        await self.say(*(row for number in range(first, last) for row in turn(number)))

    async def consolidate(self, keep: int = 8) -> ConsolidationResult:
        """One call, with the session held."""
        async with self.sessions.hold(self.key) as session:
            return await self.consolidator.consolidate(self.key, lambda session: keep, held=session, max_calls=1)

    async def move(self) -> ConsolidationResult:
        """As many calls as are needed; turns of the session go on."""
        return await self.consolidator.consolidate(self.key, lambda session: 8)

    @property
    def cursor(self) -> int:
        """As another process sees it."""
        return SessionManager(self.sessions.folder.parent).get_or_create(KEY).last_consolidated

    @property
    def asked(self) -> str:
        """The material of the last request."""
        return str(self.model.requests[-1][1]["content"])

    @property
    def log(self) -> str:
        return self.memory.history_file.read_text(encoding="utf-8") if self.memory.history_file.exists() else ""


class Minded(ScriptedProvider):
    """Answers every turn with a word; for `save_memory` it follows its script."""

    async def chat_stream(self, messages: Sequence[ChatMessage], tools: Any = None, *others: Any, **more: Any) -> Any:
        if [tool["function"]["name"] for tool in tools or ()] == ["save_memory"]:
            async for delta in super().chat_stream(messages, tools, *others, **more):
                yield delta
        else:
            self.turns.append(list(messages))
            yield Finished(LLMResponse(self.answers))

    def __init__(self, *lines: Any) -> None:
        super().__init__(*lines)
        self.turns: list[list[ChatMessage]] = []
        self.answers = "Fine."


@asynccontextmanager
async def bot_with(
    home: Path, minded: Minded, pause_s: float = 0, window: int = 20, clock: Clock | None = None, **defaults: Any
) -> AsyncIterator[Bot]:
    config = Config.model_validate({"agents": {"defaults": {"memoryWindow": window, **defaults}}})
    async with open_bot(home, provider=minded, config=config, clock=clock) as bot:
        bot.consolidate_after(pause_s)
        yield bot


async def talk(bot: Bot, turns: int, first: int = 0) -> None:
    for number in range(first, first + turns):
        await bot.say(f"question {number}")


def archive_queue(home: Path) -> dict[str, Due]:
    """The archived sessions that wait for consolidation."""
    return DueTimes(home / "state" / "nanobot.db", "archive").all()
