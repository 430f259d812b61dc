"""The state of a running turn, the dependencies of the pipeline, and the watchdog that ends a turn that hangs."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from nanobot.agent import events
from nanobot.agent.approval.pending import ApprovalRouter
from nanobot.agent.command import Command, parse_command
from nanobot.agent.commands.table import SlashCommands
from nanobot.agent.engine.transcript import FINISH_RESUMED
from nanobot.agent.events import Emitter, EventSink, OpenEvents, TurnEvent, TurnOutcome, TurnPhase, TurnResult
from nanobot.agent.feed import Feed
from nanobot.agent.hooks import Hook, TurnFacts
from nanobot.agent.hooks.runner import HookRunner
from nanobot.agent.memory.service import MemoryService
from nanobot.agent.models import SessionModels
from nanobot.agent.pipeline.roll_over import RollOver
from nanobot.agent.scope import OWNERS, Scope
from nanobot.agent.status import AgentStatus
from nanobot.agent.tools.base import Tool
from nanobot.agent.tools.hooks import ToolPolicy
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.trace.store import TraceRecorder, TurnTrace
from nanobot.bus.events import InboundMessage
from nanobot.errors import NanobotError
from nanobot.messages.types import INTERRUPTED, ChatMessage, Origin
from nanobot.security.secrets import redact_known
from nanobot.session.checkpoint import Checkpoint, InterruptedTurns
from nanobot.session.file_format import is_temporary
from nanobot.session.manager import Session, SessionManager
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock

log = logging.getLogger(__name__)


class PromptBuilder(Protocol):
    """Builds the system prompt and the runtime context of a message."""

    def build_system_prompt(self, summary: str = "", *, scope: Scope = OWNERS, began: date | None = None) -> str:
        """Build the system prompt; see ContextBuilder."""

    def runtime_context(
        self,
        channel: str,
        chat_id: str,
        history: Sequence[ChatMessage],
        *,
        scope: Scope = OWNERS,
        note: str = "",
        folder: str = "",
    ) -> str:
        """The context sent with a message; see ContextBuilder."""


@dataclass(slots=True)
class TurnTimeouts:
    """Time limits of a turn, in seconds. They are extended when a changed config allows longer ones."""

    restore: float = 1800
    """Waiting for another process that works in the session; the person gets a notice."""
    run_silence: float = 900
    """Time in a run without any event; longer than the timeout of any tool or model."""
    other_phases: float = 120
    """Duration of any other phase."""
    cancel_grace: float = 0.6
    """Time for a cancelled run to end; after that it is abandoned."""

    def extend(self, other: "TurnTimeouts") -> None:
        """Raise each limit to the other's if that is longer: running turns may have begun under either config."""
        self.run_silence = max(self.run_silence, other.run_silence)
        self.other_phases = max(self.other_phases, other.other_phases)

    def of(self, phase: TurnPhase) -> float:
        """The limit of this phase, in seconds."""
        return {TurnPhase.RESTORE: self.restore, TurnPhase.RUN: self.run_silence}.get(phase, self.other_phases)

    @property
    def shortest(self) -> float:
        """The shortest limit of any phase, in seconds."""
        return min(self.restore, self.run_silence, self.other_phases)


class TurnGoals(Protocol):
    """The goals of sessions, as turns use them. Never raises; methods that are not async do not block."""

    def is_wanted(self, session_key: str) -> bool:
        """Whether the turn that this session's goal requested should still run."""

    async def adopt(self, message: InboundMessage, text: str, scope: Scope) -> str:
        """Keep an active goal of the original nanobot as a paused one. Return the notice for the person."""

    async def recall(self, session_key: str) -> None:
        """Load this session's goal that waits for its person, also one set by a previous process."""

    def note_for(self, message: InboundMessage) -> str:
        """What the model should know about the session's goal, sent with this message; empty if none is open."""

    def untrusted_rows(self, message: InboundMessage) -> Sequence[ChatMessage]:
        """The untrusted content in that note, as rows without a turn."""

    def record_usage(self, session_key: str, step: events.StepEnded) -> None:
        """Record the usage of a model call for this session's goal."""

    def stop_reason(self, session_key: str) -> str:
        """Why no further model call may be made for this session's goal; empty if one may."""


@dataclass(frozen=True, slots=True)
class TurnDeps:
    """The dependencies of a pipeline, shared by its turns."""

    sessions: SessionManager
    models: SessionModels
    prompt: PromptBuilder
    tools: ToolRegistry
    commands: SlashCommands
    status: AgentStatus
    clock: Clock
    workspace: Path
    turns_folder: Path
    traces: TraceRecorder
    timeouts: TurnTimeouts
    roll_over: RollOver
    """When a session is archived and continued in a fresh one."""
    tool_policies: Sequence[ToolPolicy]
    """Each sees every tool call before it starts."""
    hook_runner: HookRunner
    """Runs the hooks of plugins and programs."""
    approval_router: ApprovalRouter
    """Asks approval questions and receives the answers."""
    scope_of: Callable[[InboundMessage], Awaitable[Scope]]
    """The memory that a message's turn may read."""
    review: bool
    """Whether answers are reviewed before they are sent."""
    memory: MemoryService
    subagent_profile: Callable[[InboundMessage], "TurnProfile | None"]
    """Returns the profile of a subagent's turn; None for any other turn."""
    goals: TurnGoals
    feed: Feed | None
    """Gets the events of all turns; None in a process without other readers."""
    options_of: Callable[[InboundMessage], "TurnOptions"]
    """What the sender of a message asks of its turn, from `message.request`. Never raises."""
    reminder_answer: Callable[[InboundMessage], Awaitable[str | None]]
    """Returns the command meant by a word such as `snooze` right after a reminder; None for any other message."""

    def profile_of(self, message: InboundMessage) -> "TurnProfile":
        """The profile of a message's turn."""
        goal_session = message.session_key if message.origin is Origin.GOAL else ""
        return self.subagent_profile(message) or TurnProfile(self.prompt, self.tools, goal_session=goal_session)


class TurnEnding(Enum):
    """Why a running turn is cancelled."""

    STOP = "stop"
    """A person stopped it: text produced so far is kept, and the turn is not resumed."""
    INTERRUPT = "interrupt"
    """nanobot stops: the turn is resumed at the next start."""


MAX_JOINING = 3
"""Messages that may join one turn; further ones get turns of their own."""
Waiting = Callable[[int], Sequence[InboundMessage]]
"""Removes and returns at most this many messages that wait for this session."""


@dataclass(slots=True)
class TurnProfile:
    """What a turn is made of. Subagents have profiles of their own."""

    prompt: PromptBuilder
    tools: ToolRegistry
    max_steps: int | None = None
    """Maximum number of model calls; None: that of the model."""
    scope: Scope | None = None
    """The memory it may read; None: found by its message."""
    is_subagent: bool = False
    """Whether it waits for no slot and its session belongs to no conversation."""
    goal_session: str = ""
    """The session whose goal pays for it; empty if none."""
    note: Callable[[InboundMessage], str] | None = None
    """What the model should know beside a message; None: the goal of its session."""
    untrusted_rows: Callable[[], Sequence[ChatMessage]] = tuple
    """The untrusted content in that note, as rows without a turn."""
    waiting: Waiting = lambda limit: ()
    max_joining: int = MAX_JOINING
    joins_at_start: bool = False
    """Whether messages that wait at the start join with the turn's own message, not first at a tool boundary."""


@dataclass(frozen=True, slots=True)
class RestoredSession:
    """Result of RESTORE: the locked session, and what interrupted turns left in it."""

    session: Session
    checkpoint: Checkpoint
    interrupted: InterruptedTurns


class TurnProgress:
    """Where a turn is: its phases and what its events have started. It is the turn's first event sink."""

    def __init__(self, on_step_end: Callable[[events.StepEnded], None]) -> None:
        self._on_step_end = on_step_end
        self.phase = TurnPhase.RESTORE
        self.phase_began = 0.0
        """By the clock of the event loop, as `last_activity`."""
        self.phase_seconds: dict[str, float] = {}
        self.last_activity = 0.0
        """Time of the last event."""
        self.open = OpenEvents()
        self.partial_text: list[str] = []
        """Text deltas of the running step."""
        self.tool_count = 0
        """Tool calls that have started."""
        self.has_ended = False
        """Whether TurnEnded was emitted."""

    def begin(self, phase: TurnPhase) -> None:
        """Begin a phase, and record how long the last one took."""
        now = asyncio.get_running_loop().time()
        if self.phase_began:
            self.phase_seconds[self.phase] = now - self.phase_began
        self.phase, self.phase_began, self.last_activity = phase, now, now

    def touch(self) -> None:
        """Record that something happened now."""
        self.last_activity = asyncio.get_running_loop().time()

    def __call__(self, event: TurnEvent) -> None:
        self.touch()
        self.open.apply(event)
        match event:
            case events.TextDelta(text=text):
                self.partial_text.append(text)
            case events.TextEnded():
                self.partial_text.clear()
            case events.ToolStarted():
                self.tool_count += 1
            case events.StepEnded():
                self._on_step_end(event)
            case events.TurnEnded():
                self.has_ended = True


@dataclass(frozen=True, slots=True)
class TurnOptions:
    """What the caller of a single turn may ask for."""

    tools: Sequence[Tool] = ()
    """More tools. None has the name of another one."""
    instructions: str = ""
    """Added to the system prompt."""
    budget_usd: float | None = None
    """What its model calls may cost; those of its subagents do not count."""
    ephemeral: bool = False
    """Whether it has an empty session that is not stored. It leaves nothing but its trace and its ledger rows."""
    answer_format: str = ""
    """The form of the answer, described for the model."""
    format_problem: Callable[[str], str] | None = None
    """Returns what is wrong with the form of an answer, as an instruction to the model; empty if it fits."""
    model: str | None = None
    """A model or preset; overrides that of the session."""
    max_tokens: int | None = None
    """Where its answers are cut off. Such an answer is not continued."""
    temperature: float | None = None
    reasoning_effort: str | None = None
    waiting: Waiting | None = None
    """Takes lines that wait in the sender's terminal, to join it."""


@dataclass(slots=True)
class Joining:
    """The messages that join a running turn."""

    waiting: Waiting
    """Takes those that wait."""
    count: int = 0
    """Messages that have joined, also before a crash."""
    from_lane: list[InboundMessage] = field(default_factory=list)
    """Those that waited in its lane, in turns of their own."""
    unread: list[InboundMessage] = field(default_factory=list)
    """Those that were not read before the turn ended."""


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """What a turn is to do, and how."""

    message: InboundMessage
    turn_id: str
    command: Command | None
    """The slash command that the message is."""
    resumes: bool
    """Whether it resumes an interrupted turn, without a new message."""
    attended: bool
    """Whether the reader of its events may answer approval questions."""
    profile: TurnProfile
    options: TurnOptions
    hook_runner: HookRunner
    """The hooks of the bot and those of this turn."""

    @property
    def is_remembered(self) -> bool:
        """Whether its session stays, so that memory learns from it and work may go on in it."""
        return not self.options.ephemeral and not is_temporary(self.message.session_key)

    @property
    def facts(self) -> TurnFacts:
        """The turn as hooks see it."""
        message, to = self.message, self.message.address
        return TurnFacts(
            self.turn_id,
            message.session_key,
            to.channel,
            to.chat_id,
            message.sender_id,
            message.origin,
            message.provenance,
        )


@dataclass(slots=True)
class Turn:
    """One message and all that comes of it: what was requested, and how far it is."""

    request: TurnRequest
    emit: Emitter
    trace: TurnTrace
    progress: TurnProgress
    joining: Joining
    result: TurnResult
    """The result so far."""
    task: "asyncio.Task[TurnResult] | None" = None
    """Runs it, once the loop has started it."""
    ending: TurnEnding | None = None
    resources: AsyncExitStack = field(default_factory=AsyncExitStack)
    scope: Scope = OWNERS
    """The memory it may read; set by RESTORE."""
    restored: RestoredSession | None = None
    checkpoint: Checkpoint | None = None
    """Set by BUILD, or by RESTORE if the turn resumes itself; before that the file belongs to another turn."""
    for_model: bool = False
    """Whether it got as far as BUILD: then hooks see its end."""
    model_name: str | None = None
    """The model that was asked; set by BUILD."""
    pending_rows: list[ChatMessage] = field(default_factory=list)
    """Rows to store at the next boundary: calls of an interrupted run must get their results before them."""
    abandoned_text: str | None = None
    """Text of the running step when the run ignored its cancellation and was abandoned: from then on its events and
    rows are dropped. None if it was not.
    """
    failure: str = ""
    """Why it failed, for the log. Other people than the owner see less."""

    @property
    def message(self) -> InboundMessage:
        return self.request.message

    @property
    def turn_id(self) -> str:
        return self.request.turn_id

    @property
    def session(self) -> Session:
        """The session; only after RESTORE."""
        assert self.restored is not None, "a turn has its session from RESTORE on"  # noqa: S101
        return self.restored.session

    def check_not_abandoned(self) -> None:
        """Raise CancelledError in a run that was abandoned: it may store nothing more."""
        if self.abandoned_text is not None:
            raise asyncio.CancelledError("this run was abandoned")

    def set_result(
        self, outcome: TurnOutcome, text: str, error: str | None = None, *, later: bool = False, retryable: bool = True
    ) -> None:
        """Set how it ends. Usage and cost are kept; a later call overrides."""
        error = error or self.result.error
        self.result = replace(self.result, outcome=outcome, text=text, error=error, later=later, retryable=retryable)

    def release(self) -> None:
        """Break reference cycles so the turn is freed immediately instead of waiting for the GC."""
        self.emit.close()
        self.joining.waiting = lambda limit: ()


def new_turn(
    message: InboundMessage,
    sink: EventSink | None,
    deps: TurnDeps,
    *,
    options: TurnOptions | None = None,
    hooks: Sequence[Hook] = (),
    attended: bool = False,
    resumes: str = "",
) -> Turn:
    """Create a turn that has not started. `resumes`: the id of the interrupted turn that it continues.

    Raises TypeError for an object that is not a hook.
    """
    profile = deps.profile_of(message)

    def on_step_end(step: events.StepEnded) -> None:
        deps.status.record_usage(message.session_key, step.usage, step.cost_usd)
        if profile.goal_session:
            deps.goals.record_usage(profile.goal_session, step)
        if step.finish_reason not in (INTERRUPTED, FINISH_RESUMED):
            deps.status.model_error = None

    hook_runner = deps.hook_runner.with_hooks(hooks)
    turn_id = resumes or message.turn_id or secrets.token_hex(6)
    message.content = redact_known(message.content)  # a pasted configured secret must reach no model and no file
    trace = deps.traces.open_turn(turn_id, message)
    progress = TurnProgress(on_step_end)
    feed = deps.feed.open_turn(turn_id, message) if deps.feed is not None else None
    request = TurnRequest(
        message,
        turn_id,
        command=None if resumes else parse_command(message.content),
        resumes=bool(resumes),
        attended=attended or message.attended,
        profile=profile,
        options=options or deps.options_of(message),
        hook_runner=hook_runner,
    )
    return Turn(
        request,
        emit=Emitter(turn_id, progress, trace, feed, sink),
        trace=trace,
        progress=progress,
        joining=Joining(profile.waiting),
        result=TurnResult(TurnOutcome.FAILED, "", turn_id=turn_id),
    )


_abandoned: set[asyncio.Task[TurnResult]] = set()
"""Strong references to abandoned runs, so that they are not garbage collected while they run."""


class TurnHungError(NanobotError):
    """A phase of a turn exceeded its time limit and was cancelled."""

    def __init__(self, phase: TurnPhase, seconds: float) -> None:
        super().__init__(
            f"The turn hung: nothing happened in its phase {phase} for {seconds:g} s. It was stopped, so that this "
            "session can go on. Send the message again."
        )


class RunCancelledError(NanobotError):
    """The provider or a tool raised CancelledError although nobody stopped the turn."""

    def __init__(self) -> None:
        super().__init__(
            "The provider of the model, or a tool, cancelled this turn by itself. Send the message again; if it "
            "happens again, choose another model with `/model`, and report it."
        )


class Watchdog:
    """Cancels the task that created it when the turn hangs, and sets `hung`.

    One timer per turn checks how long the phase has lasted and, in a run, how long nothing has happened.
    """

    def __init__(self, turn: Turn, timeouts: TurnTimeouts) -> None:
        self.hung: TurnHungError | None = None
        self._progress = turn.progress
        self._timeouts = timeouts
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(timeouts.shortest, self._check)

    def _check(self) -> None:
        progress, loop = self._progress, asyncio.get_running_loop()
        limit_s = self._timeouts.of(progress.phase)
        if progress.open.has_question():
            progress.touch()  # approval questions have a timeout of their own
        since = progress.last_activity if progress.phase is TurnPhase.RUN else progress.phase_began
        remaining_s = since + limit_s - loop.time()
        if remaining_s > 0 or self._task is None:
            pause_s = min(max(remaining_s, 0.001), self._timeouts.shortest)
            self._timer = loop.call_later(pause_s, self._check)
        else:
            self.hung = TurnHungError(progress.phase, limit_s)
            self._task.cancel()

    def close(self) -> None:
        self._timer.cancel()


async def run_with_watchdog(turn: Turn, coroutine: Coroutine[Any, Any, TurnResult], grace_s: float) -> TurnResult:
    """Run the coroutine as a task and return its result. Cancelling this cancels the task.

    A task that does not end within `grace_s` is abandoned: its events and rows are dropped, and an end event is emitted
    for everything it had started.
    """
    run = asyncio.create_task(coroutine)
    try:
        await asyncio.wait((run,))
    except BaseException:
        run.cancel()
        try:
            await finish(asyncio.wait((run,), timeout=grace_s))
        finally:  # also if cancelled a second time
            if not run.done():
                _abandon(turn, run)
            elif not run.cancelled():
                run.exception()  # mark as retrieved; the cancellation is what gets raised
        raise
    if run.cancelled():
        raise RunCancelledError
    return run.result()


def _abandon(turn: Turn, run: asyncio.Task[TurnResult]) -> None:
    progress = turn.progress
    log.warning(
        "turn %s: %s ignored the cancellation and was abandoned",
        turn.turn_id,
        ", ".join(progress.open.names()) or "its model",
    )
    turn.abandoned_text = "".join(progress.partial_text)
    turn.emit = turn.emit.detach()
    for ended in progress.open.ends(turn.abandoned_text, "stopped"):
        turn.emit(ended)
    _abandoned.add(run)
    run.add_done_callback(_abandoned.discard)
