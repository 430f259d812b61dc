"""A turn at work: its message, what is open in it, how it is to end; and what turns work with."""

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Protocol

from nanobot.agent import turn as events
from nanobot.agent.answering import Answering
from nanobot.agent.desk import Models, SystemPrompt
from nanobot.agent.hook_wall import HookWall
from nanobot.agent.hooks import TurnFacts
from nanobot.agent.pipeline.roll_over import RollOver
from nanobot.agent.run.cut import TAKEN_UP
from nanobot.agent.run.hooks import ToolHook
from nanobot.agent.run.spec import Model
from nanobot.agent.run.window import Window
from nanobot.agent.scope import OWNERS, Scope
from nanobot.agent.slash_commands import SlashCommands
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.trace.turn_trace import TurnTrace
from nanobot.agent.trace.writer import TraceWriter
from nanobot.agent.turn import Emitter, EventSink, TurnEvent, TurnOutcome, TurnPhase, TurnResult
from nanobot.agent.vitals import Vitals
from nanobot.bus.events import InboundMessage
from nanobot.messages.types import INTERRUPTED, ChatMessage
from nanobot.security.vault import masked
from nanobot.session.checkpoint import Checkpoint, HalfDone
from nanobot.session.manager import Session, SessionManager
from nanobot.utils.clock import Clock
from nanobot.utils.pace import Pace


class PromptBuilder(SystemPrompt, Protocol):
    """Where the words around a message come from."""

    def runtime_context(
        self, channel: str, chat_id: str, history: Sequence[ChatMessage], *, scope: Scope = OWNERS, goal: str = ""
    ) -> str:
        """What changes from message to message: time, channel, chat, today's note where `history` has not shown it,
        and what is to be said of the session's goal.
        """
        ...


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a turn is waited for, in seconds."""

    restore: float = 1800
    """Another process may be at work in the session; the person is told."""
    run_silence: float = 900
    """How long nothing at all may happen in a run: longer than any tool or model of ours may take by itself."""
    any_other: float = 120
    """What any other phase may take: it works for moments."""
    letting_go: float = 0.6
    """How long a run that was cancelled may take to end; then it is left behind, unheard."""

    def of(self, phase: TurnPhase) -> float:
        """How long this phase is waited for."""
        return {TurnPhase.RESTORE: self.restore, TurnPhase.RUN: self.run_silence}.get(phase, self.any_other)

    @property
    def shortest(self) -> float:
        """How long any phase is waited for at least."""
        return min(self.restore, self.run_silence, self.any_other)


class Children(Protocol):
    """The subagents of sessions, as the loop meets them."""

    async def take_up(self, session_key: str | None = None) -> None:
        """Go on with what an earlier life left, of one session or of all. Never raises."""
        ...

    async def stop_of(self, said: InboundMessage) -> Sequence[str]:
        """Stop what works for the session of this word, as far as its sender may; what each of it was called."""
        ...


class Goals(Protocol):
    """What sessions work at over many turns, as these turns and the loop meet it. Never raises; what is not awaited
    does not block.
    """

    def serves(self, message: InboundMessage) -> bool:
        """Whether the turn of this message works for a goal."""
        ...

    def is_wanted(self, message: InboundMessage) -> bool:
        """Whether the turn that a goal has asked for is still to run: much may have been said before it."""
        ...

    async def recall(self, session_key: str) -> None:
        """Know the goal of this session that waits for its person, also one that an earlier life has set."""
        ...

    def note_for(self, message: InboundMessage) -> str:
        """What the model is to know of the session's goal beside this message; empty where none is open."""
        ...

    def told(self, message: InboundMessage) -> Sequence[ChatMessage]:
        """What that holds of others' words, as rows of no turn."""
        ...

    def used(self, message: InboundMessage, step: events.StepEnded) -> None:
        """A model call of this message's turn, which works for a goal, has ended."""
        ...

    def why_enough(self, message: InboundMessage) -> str:
        """Why no further model call may be made in it; empty where one may."""
        ...

    async def take_up(self, session_key: str | None = None) -> None:
        """Go on with what an earlier life left, of one session or of all."""
        ...

    async def elsewhere(self, session_key: str) -> str:
        """That another process works at the goal of this session, in a sentence; empty where none does."""
        ...

    async def stop_of(self, said: InboundMessage) -> str:
        """Stop the goal of the session of this word, as far as its sender may; what it was called, empty for none."""
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
    traces: TraceWriter
    patience: Patience = field(default_factory=Patience)
    pace: Pace = field(default_factory=Pace)
    """What each phase of every turn passes before it begins."""
    roll_over: RollOver = field(default_factory=RollOver)
    """When a session begins afresh by itself."""
    hooks: Sequence[ToolHook] = ()
    """Asked about each tool call of every turn."""
    hook_wall: HookWall = field(default_factory=HookWall)
    """Behind it, the hooks of plugins and programs."""
    answering: Answering | None = None
    """Takes the answers to what turns ask; None where none asks."""
    scope_of: Callable[[InboundMessage], Scope] = field(default=lambda message: OWNERS)
    """Whose memory a message's turn may be told of."""
    saved: Callable[[Session, Scope], None] = field(default=lambda session, scope: None)
    """Told of each session that a turn has let go of, before the answer goes out. Neither blocks nor raises."""
    children: Children | None = None
    """None where no turn has subagents."""
    goals: Goals | None = None
    """None where no turn works at a goal."""
    news_of: Callable[[str], Sequence[str]] = field(default=lambda session_key: ())
    """What the people of a session should know, once."""
    failures_of: Callable[[str], int] = field(default=lambda session_key: 0)
    """How often in a row its old messages could not be summed up."""


class Ending(Enum):
    """Why a turn that runs is to end."""

    STOP = "stop"
    """The person wants it to: what was said is kept, and that was all."""
    INTERRUPT = "interrupt"
    """nanobot ends: the turn is taken up at the next start."""


MOST_JOINING = 3
"""Messages that may join one turn; the rest are turns of their own."""
Waiting = Callable[[int], Sequence[InboundMessage]]
"""Takes messages along that wait for this session, at most so many; they wait no more."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What RESTORE finds: the session, held from now on, and what is left in it of turns that were cut off."""

    session: Session
    checkpoint: Checkpoint
    left: HalfDone


@dataclass(frozen=True, slots=True)
class Built:
    """What BUILD makes for RUN: whom to ask, and what of the session is shown."""

    model: Model
    history: list[ChatMessage]
    window: Window


class Progress:
    """How far a turn is, as its events tell it."""

    def __init__(self, used: Callable[[events.StepEnded], None]) -> None:
        """`used` is told what each step has used."""
        self._used = used
        self.open: dict[str, TurnEvent] = {}
        """What has started and not ended, by its kind or the id of its call."""
        self.saying: list[str] = []
        """What the model says in the running step."""
        self.last_sign = 0.0
        """When something happened last, by `time.monotonic`, as when the phase began."""
        self.asks = False
        """Whether it waits for a person's answer, which may take as long as it takes."""
        self.over = False
        """Whether the end of the turn was told."""

    @property
    def running_tools(self) -> list[str]:
        """The names of the tools that run."""
        return [event.name for event in self.open.values() if isinstance(event, events.ToolStarted)]

    def __call__(self, event: TurnEvent) -> None:
        """Take in what happened."""
        self.last_sign = time.monotonic()
        match event:
            case events.RunStarted() | events.StepStarted() | events.TextStarted() | events.ReasoningStarted():
                self.open[_kind_of(event)] = event
            case events.TextDelta(text=text):
                self.saying.append(text)
            case events.ToolStarted(call_id=call_id):
                self.open[call_id] = event
            case events.ToolEnded(call_id=call_id):
                self.open.pop(call_id, None)
            case events.RunEnded() | events.StepEnded() | events.TextEnded() | events.ReasoningEnded():
                self.open.pop(_kind_of(event), None)
            case events.ApprovalAsked() | events.ApprovalAnswered():
                self.asks = isinstance(event, events.ApprovalAsked)
            case events.TurnEnded():
                self.over = True
        if isinstance(event, events.TextEnded):
            self.saying.clear()
        elif isinstance(event, events.StepEnded):
            self._used(event)


def _kind_of(event: TurnEvent) -> str:
    return event.type.partition("_")[0]


@dataclass(slots=True)
class Turn:
    """One message and all that comes of it."""

    message: InboundMessage
    emit: Emitter
    turn_id: str
    trace: TurnTrace
    progress: Progress
    result: TurnResult
    """How it ends, as far as is known by now."""
    waiting: Waiting = field(default_factory=lambda: _nobody)
    most_joining: int = MOST_JOINING
    joins_early: bool = False
    """Whether what waits when it begins anew is read with its own message, not first at a tool boundary."""
    resumes: bool = False
    """Whether it takes up a turn that was cut off, without a new message."""
    attended: bool = False
    """Whether who sees its events may answer what it asks."""
    scope: Scope = OWNERS
    """Whose memory it may be told of; from RESTORE on."""
    hook_wall: HookWall = field(default_factory=HookWall)
    """The hooks of the bot, and those of this turn alone."""
    model: str | None = None
    """The model of this turn alone, before that of its session."""
    for_model: bool = False
    """Whether it came as far as being meant for a model: then hooks hear of its end."""
    ending: Ending | None = None
    phase: TurnPhase = TurnPhase.RESTORE
    phase_began: float = 0.0
    phase_seconds: dict[str, float] = field(default_factory=dict)
    resources: AsyncExitStack = field(default_factory=AsyncExitStack)
    restored: Restored | None = None
    checkpoint: Checkpoint | None = None
    """Its own, from BUILD on, or from RESTORE on where it takes up itself: before, what is there is of another turn."""
    joined: int = 0
    taken_along: list[InboundMessage] = field(default_factory=list)
    """Messages out of its lane that it was to read."""
    unread: list[InboundMessage] = field(default_factory=list)
    """What it took and did not come to read."""
    joins: "Turn | None" = None
    """The turn that took its message along."""
    joining: list[ChatMessage] = field(default_factory=list)
    """Rows that are kept at the next boundary: before them, calls of a cut off run must get their results."""
    built: Built | None = None
    abandoned: bool = False
    """Whether its run did not let go: nothing of it counts any more."""
    left_unsaid: str = ""
    """What it had said when its run was left behind: that run does not keep it any more."""

    @property
    def session(self) -> Session:
        """The session, from RESTORE on."""
        assert self.restored is not None, "a turn has its session from RESTORE on"  # noqa: S101
        return self.restored.session

    @property
    def facts(self) -> TurnFacts:
        """The turn, as hooks are told of it."""
        said, to = self.message, self.message.address
        return TurnFacts(
            self.turn_id, said.session_key, to.channel, to.chat_id, said.sender_id, said.origin, said.provenance
        )

    def ends(self, outcome: TurnOutcome, text: str, error: str | None = None, *, later: bool = False) -> None:
        """So it ends, unless something comes between. What it has used stays."""
        self.result = replace(self.result, outcome=outcome, text=text, error=error or self.result.error, later=later)

    def let_go(self) -> None:
        """It is over. What it refers to refers to it no more, so that it goes at once and not with the next collection
        of garbage, which would stop all other turns for long.
        """
        self.emit.close()
        self.waiting = _nobody


def _nobody(most: int) -> Sequence[InboundMessage]:
    return ()


def new_turn(message: InboundMessage, sink: EventSink | None, parts: Parts, *, turn_id: str = "") -> Turn:
    """A turn about to begin; under an id of its own, unless it takes up another."""

    def used(step: events.StepEnded) -> None:
        parts.vitals.used(message.session_key, step.usage, step.cost_usd)
        if parts.goals is not None and parts.goals.serves(message):
            parts.goals.used(message, step)
        if step.finish_reason not in (INTERRUPTED, TAKEN_UP):
            parts.vitals.model_error = None

    turn_id = turn_id or secrets.token_hex(6)
    message.content = masked(message.content)  # whoever pastes a key of ours: no model and no file needs it
    trace = parts.traces.open_turn(turn_id, message)
    progress = Progress(used)
    emit = Emitter(turn_id, progress, trace, sink)
    result = TurnResult(TurnOutcome.FAILED, "", turn_id=turn_id)
    return Turn(message, emit, turn_id, trace, progress, result, hook_wall=parts.hook_wall)
