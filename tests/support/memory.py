"""Consolidation and Dream with a scripted model: what the model says, and a workspace that has one of them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nanobot.agent.memory.edits import edits_of_update
from nanobot.agent.memory.facts import parse_facts
from nanobot.agent.memory.revisions import UNKNOWN_SOURCE, ChangedBy, ChangeSource
from nanobot.agent.memory.save_memory import read_for_model, store_edits
from nanobot.agent.memory.schedule import Due, DueTimes
from nanobot.agent.memory.store import MemoryStore
from nanobot.agent.scope import Scope
from nanobot.config.schema import Config
from nanobot.messages.types import ChatMessage
from nanobot.providers.base import Finished, LLMResponse
from nanobot.runtime.build import Runtime, build_runtime
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


def learn(
    memory: MemoryStore, entry: str, update: str, source: ChangeSource = UNKNOWN_SOURCE, seen: str | None = None
) -> None:
    """A consolidation brings this log entry and this text of MEMORY.md, which stood as `seen` before; the first one
    brings it as it is.
    """
    known = read_for_model(memory.revisions) if seen is None else seen
    if seen is not None or parse_facts(known):
        store_edits(memory.revisions, entry, edits_of_update(known, update), source)
    else:
        memory.append_history(entry)
        memory.revisions.change({"MEMORY.md": update.encode()}, ChangedBy.CONSOLIDATION, source)


class MemoryBot:
    """A bot whose time is told by the test, and its memory."""

    def __init__(self, runtime: Runtime, provider: ScriptedProvider, clock: FrozenClock) -> None:
        self.bot = Bot(runtime, provider)
        self.model = provider
        self.say = self.bot.say
        self.dreams = runtime.memory.dreams
        self.clock = clock
        self.memory = MemoryStore(runtime.workspace, clock=clock, database=runtime.data_dir / "state" / "nanobot.db")

    def of(self, chat: str) -> MemoryStore:
        return self.memory.of(Scope(chat))

    def learns(
        self, facts: str = FACTS, entry: str = "Talked of home.", chat: str = "", said: str = "", **source: Any
    ) -> None:
        """A consolidation brings these facts and this entry of the log, from what somebody just `said`."""
        row: Any = {"role": "user", "content": said, "turn_id": "t1", "provenance": "owner", "sender_id": "ann"}
        row["timestamp"] = self.clock.now().isoformat()
        source = {"rows": [row] if said else [], **source}
        learn(self.of(chat) if chat else self.memory, entry, facts, ChangeSource("cli:direct", **source))

    def learns_lesson(self, line: str) -> None:
        """A failure that came again brings this line."""
        self.memory.revisions.change({"MEMORY.md": f"{self.text}{line}".encode()}, ChangedBy.LESSON)

    def writes(self, text: str) -> None:
        """A person changes MEMORY.md in an editor."""
        self.memory.memory_dir.mkdir(parents=True, exist_ok=True)
        self.memory.memory_file.write_bytes(text.encode("utf-8", "surrogateescape"))

    async def dream(self, *script: Any) -> str:
        """What `/dream` says, with these answers of the model."""
        self.model.clear()
        self.model.script(*script)
        return await self.say("/dream")

    @asynccontextmanager
    async def thinking(self, *script: Any) -> AsyncIterator[None]:
        """`/dream` with a model that thinks while the block runs, and then answers with this script."""
        pause = Pause()
        self.model.clear()
        work = asyncio.create_task(self.dream(pause, *script))
        await pause.reached.wait()
        yield
        pause.resume.set()
        await work

    async def dream_by_day(self, hours: float) -> int:
        """So many hours of a gateway with nothing but Dream's timer. Return how often that woke up."""
        end, slept = self.clock.now().timestamp() + hours * 3600, 0

        async def sleep(seconds: float) -> None:
            nonlocal slept
            slept += 1
            left = end - self.clock.now().timestamp()
            self.clock.advance(min(seconds, left))
            if seconds >= left:
                raise asyncio.CancelledError

        with suppress(asyncio.CancelledError):
            await self.dreams.run(sleep)
        return slept

    @property
    def text(self) -> str:
        return self.memory.memory_file.read_bytes().decode("utf-8", "surrogateescape")

    @property
    def archive(self) -> str:
        return self.memory.file_text(self.memory.archive_file)

    @property
    def asked(self) -> str:
        """What the model was shown last."""
        return str(self.model.requests[-1][1]["content"])


@asynccontextmanager
async def remembering(
    home: Path, *script: Any, at: str = "2026-02-26T13:21", config: dict[str, Any] | None = None, **dream: Any
) -> AsyncIterator[MemoryBot]:
    """A bot with this script and these settings of Dream."""
    clock, provider = FrozenClock(datetime.fromisoformat(at).replace(tzinfo=UTC)), ScriptedProvider(*script)
    settings = Config.model_validate({"agents": {"defaults": {"dream": dream}}, **(config or {})})
    async with build_runtime(
        settings, data_dir=home, workspace=home / "workspace", provider=provider, environ={}, clock=clock
    ) as runtime:
        runtime.memory.consolidation.pause_s = 60.0
        yield MemoryBot(runtime, provider, clock)


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


class Minded(ScriptedProvider):
    """Answers every turn with a word; for `save_memory` and `tidy_memory` it follows its script."""

    async def chat_stream(self, messages: Sequence[ChatMessage], tools: Any = None, *others: Any, **more: Any) -> Any:
        if [tool["function"]["name"] for tool in tools or ()] in (["save_memory"], ["tidy_memory"]):
            async for delta in super().chat_stream(messages, tools, *others, **more):
                yield delta
        else:
            self.turns.append(list(messages))
            yield Finished(LLMResponse(self.answers))

    def __init__(self, *lines: Any) -> None:
        super().__init__(*lines)
        self.turns: list[list[ChatMessage]] = []
        self.answers = "Fine."

    @property
    def asked(self) -> str:
        """The material of the last consolidation."""
        return str(self.requests[-1][1]["content"])


@asynccontextmanager
async def bot_with(
    home: Path,
    minded: Minded,
    pause_s: float = 0,
    window: int = 20,
    clock: Clock | None = None,
    more: dict[str, Any] | None = None,
    **defaults: Any,
) -> AsyncIterator[Bot]:
    config = Config.model_validate({"agents": {"defaults": {"memoryWindow": window, **defaults}}, **(more or {})})
    async with open_bot(home, provider=minded, config=config, clock=clock) as bot:
        bot.consolidate_after(pause_s)
        yield bot


async def store(home: Path, *rows: ChatMessage, key: str = KEY, **metadata: Any) -> None:
    """Have these messages in a session."""
    sessions = SessionManager(home / "workspace")
    async with sessions.hold(key) as session:
        session.metadata.update(metadata)
        await sessions.append(session, *rows)


def turns(first: int, last: int, **fields: Any) -> list[ChatMessage]:
    return [row for number in range(first, last) for row in turn(number, **fields)]


def cursor(home: Path, key: str = KEY) -> int:
    """How many messages are in memory."""
    return SessionManager(home / "workspace").get_or_create(key).last_consolidated


async def talk(bot: Bot, turns: int, first: int = 0) -> None:
    for number in range(first, first + turns):
        await bot.say(f"question {number}")


def log_of(memory: MemoryStore) -> list[str]:
    """The entries of HISTORY.md without their times."""
    entries = memory.file_text(memory.history_file).split("\n\n")
    return [entry.partition("] ")[2] for entry in entries if entry]


def archive_queue(home: Path) -> dict[str, Due]:
    """The archived sessions that wait for consolidation."""
    return DueTimes(home / "state" / "nanobot.db", "archive").all()
