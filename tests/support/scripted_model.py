"""A model that plays several parts: the agent has its lines, and each subagent has those of its task."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from nanobot.agent.tools.base import Tool
from nanobot.bus.events import InboundMessage, OutboundKind, OutboundMessage
from nanobot.bus.journal import open_journal
from nanobot.bus.queue import MessageBus
from nanobot.config.schema import Config
from nanobot.messages.types import ChatMessage, Origin, Provenance, ToolSchema, text_of
from nanobot.providers.base import Delta, LLMProvider
from nanobot.runtime.build import Runtime, build_runtime
from nanobot.testing import Bot, Line, ScriptedProvider
from tests.support.eventually import eventually
from tests.support.work import open_tasks

TASK = "Your task:\n"


class Cast(LLMProvider):
    """Who asks is told by the words of the task that a subagent was given."""

    def __init__(self, *lines: Line, **children: Any) -> None:
        super().__init__()
        self.agent = ScriptedProvider(*lines)
        self.children = {task: ScriptedProvider(*says) for task, says in children.items()}

    def get_default_model(self) -> str:
        return "cast"

    async def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> AsyncIterator[Delta]:
        async for delta in self._part(messages).chat_stream(messages, tools, model, max_tokens, temperature):
            yield delta

    def _part(self, messages: Sequence[ChatMessage]) -> ScriptedProvider:
        for row in messages:
            said = text_of(row["content"])
            if row["role"] == "user" and said.startswith(TASK):
                return next(part for task, part in self.children.items() if f"{TASK}{task}" in said)
        return self.agent


class Stage(Bot):
    """A bot whose loop serves the bus, and what it sends."""

    def __init__(self, runtime: Runtime, cast: Cast) -> None:
        super().__init__(runtime, cast.agent)
        self.runtime = runtime
        self.cast = cast
        self.sent: list[OutboundMessage] = []

    def replies(self, chat_id: str = "direct") -> list[str]:
        return [one.content for one in self.sent if one.kind is OutboundKind.REPLY and one.chat_id == chat_id]

    def notices(self) -> list[str]:
        return [one.content for one in self.sent if one.kind is OutboundKind.NOTICE]

    async def hear(
        self, text: str, *, chat: str = "direct", sender: str = "owner", channel: str = "cli", **more: Any
    ) -> None:
        """Somebody writes; who writes as the owner is one."""
        whose = Provenance.OWNER if sender == "owner" else Provenance.PERSON
        origin = Origin.CLI if channel == "cli" else Origin.USER
        message = InboundMessage(channel, sender, chat, text, **{"origin": origin, "provenance": whose, **more})
        await self.runtime.bus.publish_inbound(message)

    def rows(self, session: str = "cli:direct") -> list[ChatMessage]:
        return self.session(session).messages

    def reports(self, session: str = "cli:direct") -> list[ChatMessage]:
        return [row for row in self.rows(session) if row.get("origin") == Origin.SUBAGENT]

    async def quiet(self) -> None:
        """Until nothing runs, nothing waits, and all of it was told."""
        bus, status, background = self.runtime.bus, self.runtime.status, self.runtime.background
        await eventually(
            lambda: not (bus.inbound_size or bus.unsettled() or status.running or background.list_running())
        )
        await eventually(lambda: not bus.outbound_size and not open_tasks(self.home))


@asynccontextmanager
async def on_stage(
    home: Path, cast: Cast, *, config: Config | Mapping[str, Any] | None = None, clock: Any = None
) -> AsyncIterator[Stage]:
    """The bot as a gateway has it, with a journal; what it sends arrives at once."""
    config = config if isinstance(config, Config) else Config.model_validate(config or {})
    async with (
        open_journal(home / "state" / "journal.db") as journal,
        MessageBus(journal).open() as bus,
        build_runtime(
            config, data_dir=home, workspace=home / "workspace", provider=cast, environ={}, bus=bus, clock=clock
        ) as runtime,
    ):
        stage = Stage(runtime, cast)
        living = [asyncio.create_task(runtime.loop.run()), asyncio.create_task(_deliver(stage))]
        try:
            yield stage
        finally:
            await runtime.loop.stop()
            for task in living:
                task.cancel()
            await asyncio.wait(living)


async def play(
    home: Path, cast: Cast, *words: str, config: Mapping[str, Any] | None = None, tools: Sequence[Tool] = ()
) -> Stage:
    """Say these words, each when all is quiet; return the stage when it is over."""
    async with on_stage(home, cast, config=config) as stage:
        for tool in tools:
            stage.register(tool)
        for text in words:
            await stage.hear(text)
            await stage.quiet()
    return stage


def results(rows: Sequence[ChatMessage]) -> list[str]:
    """What the calls in these rows brought, in the order of the calls: they are kept as they end."""
    found: list[str] = []
    for at, row in enumerate(rows):
        mine = [call["id"] for call in row.get("tool_calls", ())]
        after = {
            one["tool_call_id"]: text_of(one["content"])
            for one in rows[at + 1 : at + 1 + len(mine)]
            if one["role"] == "tool"
        }
        found += [after[call] for call in mine]
    return found


async def _deliver(stage: Stage) -> None:
    bus = stage.runtime.bus
    while (message := await bus.consume_outbound()) is not None:
        stage.sent.append(message)
        await bus.record_sent(message, ())


def defaults(**settings: Any) -> dict[str, Any]:
    """A config of the agent's."""
    return {"agents": {"defaults": settings}}
