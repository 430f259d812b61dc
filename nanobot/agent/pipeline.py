"""One turn, phase by phase: RESTORE, COMMAND, BUILD, RUN, SAVE, RESPOND.

A phase does its part and names the next. The wall around them turns whatever goes wrong into an outcome: a turn ends
with a result, always, and its session works on the next message.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from nanobot.agent.context import with_attachments
from nanobot.agent.run.runner import Model, RunSpec, run
from nanobot.agent.run.window import Window
from nanobot.agent.session_window import keep_window, open_window
from nanobot.agent.slash_commands import Command, Models, SlashCommands, SystemPrompt, parse_command
from nanobot.agent.tools.base import ToolContext
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.turn import (
    Emitter,
    EventSink,
    Notice,
    StepEnded,
    TurnEnded,
    TurnEvent,
    TurnOutcome,
    TurnPhase,
    TurnResult,
)
from nanobot.agent.vitals import Vitals
from nanobot.bus.events import InboundMessage
from nanobot.errors import NanobotError, RequestTooLongError
from nanobot.messages.types import ChatMessage, Origin, Provenance, text_of
from nanobot.providers.base import CallContext, calling_for
from nanobot.session.checkpoint import Checkpoint
from nanobot.session.manager import Session, SessionManager
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock, timestamp

log = logging.getLogger(__name__)

_NO_ANSWER = {
    TurnOutcome.FAILED: "(No answer: the turn failed.)",
    TurnOutcome.STOPPED: "(No answer: the turn was stopped.)",
    TurnOutcome.REFUSED: "(No answer: the message was too long.)",
}


class PromptBuilder(SystemPrompt, Protocol):
    """Where the words around a message come from."""

    def runtime_context(self, channel: str, chat_id: str, history: Sequence[ChatMessage]) -> str:
        """What changes from message to message: time, channel, chat, today's note where `history` has not shown it."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """What a pipeline works with."""

    sessions: SessionManager
    models: Models
    prompt: PromptBuilder
    tools: ToolRegistry
    commands: SlashCommands
    vitals: Vitals
    clock: Clock
    workspace: Path
    turns_folder: Path


@dataclass(slots=True)
class Turn:
    """One message and all that comes of it."""

    message: InboundMessage
    emit: Emitter
    turn_id: str
    resources: AsyncExitStack = field(default_factory=AsyncExitStack)
    stop_requested: bool = False
    command: Command | None = None
    model: Model | None = None
    checkpoint: Checkpoint | None = None
    history: list[ChatMessage] = field(default_factory=list)
    window: Window = field(default_factory=Window)
    usage: dict[str, int] = field(default_factory=dict)
    cost_usd: float | None = None
    outcome: TurnOutcome = TurnOutcome.FAILED
    text: str = ""
    error: str | None = None
    phase_seconds: dict[str, float] = field(default_factory=dict)
    opened: Session | None = None

    @property
    def session(self) -> Session:
        """The session, from RESTORE on."""
        assert self.opened is not None, "a turn has its session from RESTORE on"  # noqa: S101
        return self.opened


def new_turn(message: InboundMessage, sink: EventSink | None, parts: Parts) -> Turn:
    """A turn about to begin."""
    turn_id = secrets.token_hex(6)

    def watched(event: TurnEvent) -> None:
        if isinstance(event, StepEnded):
            parts.vitals.used(message.session_key, event.usage)
        if sink is not None:
            sink(event)

    return Turn(message, Emitter(turn_id, watched), turn_id)


class Pipeline:
    """The table of phases."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._phases: dict[TurnPhase, Callable[[Turn], Awaitable[TurnPhase]]] = {
            TurnPhase.RESTORE: self._restore,
            TurnPhase.COMMAND: self._command,
            TurnPhase.BUILD: self._build,
            TurnPhase.RUN: self._run,
            TurnPhase.SAVE: self._save,
            TurnPhase.RESPOND: self._respond,
        }

    async def run(self, turn: Turn) -> TurnResult:
        """Run the turn to its end.

        Never raises for a failure of a model, a tool or the disk. Cancelled with `stop_requested` it ends as STOPPED;
        cancelled otherwise it cleans up, keeps what was said and raises.
        """
        try:
            await self._through(turn, TurnPhase.RESTORE)
        except asyncio.CancelledError:
            if not turn.stop_requested:
                await finish(turn.resources.aclose())
                raise
            task = asyncio.current_task()
            while task is not None and task.cancelling():
                task.uncancel()
            await self._end(turn, TurnOutcome.STOPPED, self._said(turn))
        except RequestTooLongError as error:
            turn.error = type(error).__name__
            await self._end(turn, TurnOutcome.REFUSED, str(error))
        except NanobotError as error:
            await self._failed(turn, error, str(error))
        except Exception as error:  # the wall of a turn
            log.exception("turn %s broke", turn.turn_id)
            await self._failed(turn, error, f"Something broke inside nanobot: {type(error).__name__}: {error}.")
        return TurnResult(turn.outcome, turn.text, turn.error, turn.turn_id, dict(turn.usage), turn.cost_usd)

    async def _through(self, turn: Turn, phase: TurnPhase) -> None:
        while phase is not TurnPhase.DONE:
            started = self._parts.clock.monotonic()
            following = await self._phases[phase](turn)
            turn.phase_seconds[phase] = self._parts.clock.monotonic() - started
            phase = following

    async def _restore(self, turn: Turn) -> TurnPhase:
        """Hold the session; take up what a crash left of its last turn."""
        key = turn.message.session_key

        def waiting() -> None:
            turn.emit(Notice(text="Another nanobot is working in this session; waiting for it."))

        turn.opened = await turn.resources.enter_async_context(self._parts.sessions.hold(key, waiting))
        turn.checkpoint = Checkpoint(self._parts.turns_folder, key)
        left = turn.checkpoint.load()
        if left.strip():
            await self._parts.sessions.append(turn.session, _interrupted(left))
        turn.checkpoint.discard()
        return TurnPhase.COMMAND

    async def _command(self, turn: Turn) -> TurnPhase:
        turn.command = parse_command(turn.message.content)
        if turn.command is None:
            return TurnPhase.BUILD
        turn.text = await self._parts.commands.answer(turn.command, turn.session)
        turn.outcome = TurnOutcome.ANSWERED
        return TurnPhase.SAVE

    async def _build(self, turn: Turn) -> TurnPhase:
        """Keep the message before any model is asked, with the context that is sent with it."""
        parts, message = self._parts, turn.message
        history = turn.session.get_history()
        row: ChatMessage = {
            "role": "user",
            "content": with_attachments(message.content, message.media),
            "runtime_context": parts.prompt.runtime_context(message.channel, message.chat_id, history),
            "sender_id": message.sender_id,
            "origin": message.origin,
            "provenance": message.provenance,
        }
        if message.media:
            row["media"] = list(message.media)
        await self._record(turn, row)
        turn.history, turn.window = open_window(turn.session)
        turn.model = await parts.models.get(turn.session.metadata.get("model"))
        turn.model.provider.prepare()
        return TurnPhase.RUN

    async def _run(self, turn: Turn) -> TurnPhase:
        parts, message = self._parts, turn.message
        assert turn.model is not None and turn.checkpoint is not None  # noqa: S101 BUILD made them

        async def record(row: ChatMessage) -> None:
            await self._record(turn, row)

        first = turn.session.message_count - len(turn.history)
        context = ToolContext(
            session_key=message.session_key,
            address=message.address,
            turn_id=turn.turn_id,
            workspace=parts.workspace,
            clock=parts.clock,
        )
        spec = RunSpec(
            model=turn.model,
            system=parts.prompt.build_system_prompt(),
            history=turn.history,
            tools=parts.tools,
            context=context,
            emit=turn.emit,
            record=record,
            partial=turn.checkpoint.partial,
            window=turn.window,
            keep_window=lambda window: keep_window(turn.session, first, window),
        )
        with calling_for(_call_context(turn)):
            result = await run(spec)
        turn.outcome, turn.text, turn.usage, turn.cost_usd = result.outcome, result.text, result.usage, result.cost_usd
        return TurnPhase.SAVE

    async def _save(self, turn: Turn) -> TurnPhase:
        """Everything is on disk already; let go of the session."""
        if turn.checkpoint is not None:
            turn.checkpoint.discard()
        await turn.resources.aclose()
        return TurnPhase.RESPOND

    async def _respond(self, turn: Turn) -> TurnPhase:
        turn.emit(
            TurnEnded(
                outcome=turn.outcome,
                text=turn.text,
                error=turn.error,
                usage=dict(turn.usage),
                cost_usd=turn.cost_usd,
                model=turn.model.name if turn.model else None,
                phase_seconds=dict(turn.phase_seconds),
            )
        )
        return TurnPhase.DONE

    async def _failed(self, turn: Turn, error: Exception, text: str) -> None:
        turn.error = type(error).__name__
        self._parts.vitals.last_error = text
        await self._end(turn, TurnOutcome.FAILED, text)

    async def _end(self, turn: Turn, outcome: TurnOutcome, text: str) -> None:
        """The way out for turns that did not come to RESPOND by themselves."""
        turn.outcome, turn.text = outcome, text
        await finish(self._close(turn, outcome))

    async def _close(self, turn: Turn, outcome: TurnOutcome) -> None:
        """Where the model gave no answer, keep one of ours, so that roles alternate and the prefix stays."""
        history = turn.opened.get_history() if turn.opened is not None else []
        last = history[-1] if history else None
        if last is not None and last.get("turn_id") == turn.turn_id and not _is_answer(last):
            row: ChatMessage = {"role": "assistant", "content": _NO_ANSWER[outcome], "error": turn.error or outcome}
            try:
                await self._record(turn, row)
            except NanobotError as error:
                log.warning("turn %s: its end could not be kept: %s", turn.turn_id, error)
        await self._through(turn, TurnPhase.SAVE)

    async def _record(self, turn: Turn, row: ChatMessage) -> None:
        row.setdefault("timestamp", timestamp(self._parts.clock))
        row.setdefault("turn_id", turn.turn_id)
        row.setdefault("provenance", Provenance.SYSTEM)
        await finish(self._parts.sessions.append(turn.session, row))
        if row["role"] == "assistant" and turn.checkpoint is not None:
            turn.checkpoint.step_ended()

    def _said(self, turn: Turn) -> str:
        """What the model had said when the turn was stopped."""
        if turn.opened is None:
            return ""
        mine = [row for row in turn.session.get_history() if row.get("turn_id") == turn.turn_id]
        said = [text_of(row["content"]) for row in mine if row["role"] == "assistant"]
        return "\n\n".join(text for text in said if text)


def _call_context(turn: Turn) -> CallContext:
    message = turn.message
    cause = message.origin if message.origin in (Origin.CRON, Origin.HEARTBEAT, Origin.SUBAGENT) else "turn"
    return CallContext(cause, message.session_key, turn.turn_id, notify=lambda text: turn.emit(Notice(text=text)))


def _is_answer(row: ChatMessage) -> bool:
    return row["role"] == "assistant" and not row.get("tool_calls")


def _interrupted(text: str) -> ChatMessage:
    """What a model was saying when the process died: of a turn that is not this one."""
    return {"role": "assistant", "content": text, "error": "interrupted", "provenance": Provenance.SYSTEM}
