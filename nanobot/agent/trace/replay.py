"""A recorded turn again: with another model, on the recorded prompt and the recorded results of tools.

No tool runs and nothing is written: each call is answered with what the same call gave when the turn was recorded. A
call that was not made then has no answer; it is the difference that one looks for.
"""

from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

from nanobot.agent.hook_wall import HookWall
from nanobot.agent.hooks import CallSeen, Hook, NewArguments
from nanobot.agent.run.runner import run
from nanobot.agent.run.spec import Model, RunLimits, RunResult, RunSpec
from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.tools.validation import mended
from nanobot.agent.trace.recorded import RecordedCall, RecordedPrompt, RecordedStep, RecordedTurn, merged_turn
from nanobot.agent.trace.turn_trace import Piece, TurnTrace
from nanobot.agent.turn import Emitter, TurnEnded, TurnOutcome
from nanobot.bus.events import Address, InboundMessage
from nanobot.errors import NanobotError
from nanobot.messages.types import ChatMessage, Provenance, ToolFailure, ToolSchema
from nanobot.providers.base import CallContext, Delta, Finished, LLMProvider, LLMResponse, calling_for
from nanobot.utils.clock import Clock

STEPS_MORE = 3
"""How many steps more than were recorded another model may take."""
_NOT_RECORDED = (
    "This call was not run: the turn is being replayed, and then nobody made this call. "
    "Make no other calls like it; answer with what you know."
)
_NEVER = 1 << 40


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that was done otherwise. `step` counts from 1."""

    step: int
    what: str
    recorded: str
    replayed: str


@dataclass(slots=True)
class Replay:
    """A turn run again. `unrecorded` are the calls that had no recorded result."""

    turn: RecordedTurn
    unrecorded: list[RecordedCall]


async def replay(
    recorded: RecordedTurn, prompt: RecordedPrompt, model: Model, *, clock: Clock, workspace: Path
) -> Replay:
    """Run the turn again with this model. A model that fails ends it as FAILED; cancelling is safe."""
    rows: list[ChatMessage] = []
    pieces: list[Piece] = []
    message = InboundMessage("cli", "owner", "replay", recorded.message, session_key_override=recorded.session)
    trace = TurnTrace(recorded.turn_id, message, clock, pieces.append)
    emit = Emitter(recorded.turn_id, trace)
    tools = RecordedTools(prompt.tools, [call for step in recorded.steps for call in step.calls])
    boundaries = deque(step.heard for before, step in pairwise(recorded.asked) if before.calls)

    async def record(row: ChatMessage) -> None:
        rows.append(row)

    async def joining() -> list[ChatMessage]:
        joined = boundaries.popleft() if boundaries else []
        rows.extend(joined)
        return joined

    spec = RunSpec(
        model=replace(model, limits=_limits(model, recorded)),
        system=prompt.system,
        history=[*prompt.history],
        tools=tools,
        context=ToolContext(recorded.session, Address("cli", "replay"), recorded.turn_id, workspace, clock),
        emit=emit,
        record=record,
        joining=joining,
        hook_wall=HookWall().and_these([_RecordedChanges(recorded)]),
    )
    trace.runs(spec)
    try:
        with calling_for(CallContext("replay", recorded.session, recorded.turn_id)):
            emit(_ended(await run(spec)))
    except Exception as error:  # the wall of a turn, as in the pipeline
        text = str(error) if isinstance(error, NanobotError) else f"{type(error).__name__}: {error}"
        emit(TurnEnded(outcome=TurnOutcome.FAILED, text=text, error=type(error).__name__))
    return Replay(merged_turn(recorded, rows, [piece.facts for piece in pieces]), tools.unrecorded)


async def first_request(recorded: RecordedTurn, prompt: RecordedPrompt, *, clock: Clock) -> list[ChatMessage]:
    """The messages the turn began with, as they were sent: fitted into the window and made legal."""
    listener = _Listener()
    model = Model(listener, "recorded", recorded.model, limits=prompt.limits)
    await replay(replace(recorded, steps=[]), prompt, model, clock=clock, workspace=Path())
    return listener.request


class _RecordedChanges(Hook):
    """Changes a call as a hook did when the turn was recorded; no hook of today's runs."""

    def __init__(self, recorded: RecordedTurn) -> None:
        self._changed = [call for step in recorded.steps for call in step.calls if call.asked is not None]

    async def before_tool(self, call: CallSeen) -> NewArguments | None:
        """The recorded arguments for those that were asked for."""
        found = next((one for one in self._changed if (one.name, one.asked) == (call.name, call.arguments)), None)
        return NewArguments(found.arguments) if found is not None else None


class RecordedTools(ToolRegistry):
    """A stand-in for each tool of the turn."""

    def __init__(self, schemas: Sequence[ToolSchema], calls: Sequence[RecordedCall]) -> None:
        super().__init__()
        self.unrecorded: list[RecordedCall] = []
        for schema in schemas:
            stand_in = _StandIn(schema, self.unrecorded)
            stand_in.remember([call for call in calls if call.name == stand_in.name])
            self.register(stand_in)


class _StandIn(Tool):
    """Answers as the tool did, in the order in which it answered where the same was asked more than once."""

    effect = Effect.READ

    def __init__(self, schema: ToolSchema, unrecorded: list[RecordedCall]) -> None:
        function = schema["function"]
        self.name = function["name"]
        self.description = function.get("description", "")
        self.parameters = function.get("parameters") or {"type": "object", "properties": {}}
        self._schema = schema
        self._waiting: list[tuple[dict[str, Any], RecordedCall]] = []
        self._unrecorded = unrecorded

    def remember(self, calls: Sequence[RecordedCall]) -> None:
        """These are the calls it has answers to."""
        self._waiting = [(mended(call.arguments, self.parameters), call) for call in calls if call.content is not None]

    def to_schema(self) -> ToolSchema:
        """As it was sent, whatever else stood in it."""
        return self._schema

    async def execute(self, /, **arguments: Any) -> ToolResult:
        """The recorded result of this call."""
        for entry in self._waiting:
            given, call = entry
            if given == arguments:
                self._waiting.remove(entry)
                provenance = next((one for one in Provenance if one == call.provenance), None)
                failure = next((one for one in ToolFailure if one == call.failure), ToolFailure.ENDED_BADLY)
                failed = call.ok is False or call.failure is not None
                return ToolResult(call.content or "", error=failed, provenance=provenance, failure=failure)
        self._unrecorded.append(RecordedCall("", self.name, arguments))
        return ToolResult.failed(_NOT_RECORDED)


def first_difference(recorded: Sequence[RecordedStep], replayed: Sequence[RecordedStep]) -> Difference | None:
    """What was done otherwise first; where the same was done, what was said otherwise first. None where all is one."""
    for number, (then, now) in enumerate(zip_longest(recorded, replayed), 1):
        before, after = _unlike(then, now), _unlike(now, then)
        if before or after:
            return _difference(number, then, now, before, after)
    for number, (then, now) in enumerate(zip_longest(recorded, replayed), 1):
        said, says = then.text.strip() if then else "", now.text.strip() if now else ""
        if said != says:
            return Difference(number, "other words", said, says)
    return None


def _difference(
    number: int,
    then: RecordedStep | None,
    now: RecordedStep | None,
    before: Sequence[RecordedCall],
    after: Sequence[RecordedCall],
) -> Difference:
    if not after:
        what = "no call" if now is None or not now.calls else "a call less"
        return Difference(number, what, before[0].in_words, now.text.strip() if now else "")
    if not before:
        return Difference(number, "a call more", then.text.strip() if then else "", after[0].in_words)
    same_tool = next(((a, b) for a in before for b in after if a.name == b.name), None)
    a, b = same_tool or (before[0], after[0])
    return Difference(number, "other arguments" if same_tool else "another tool", a.in_words, b.in_words)


def _unlike(step: RecordedStep | None, other: RecordedStep | None) -> list[RecordedCall]:
    """The calls of a step that the other did not make."""
    theirs = [(call.name, call.arguments) for call in other.calls] if other else []
    mine = []
    for call in step.calls if step else ():
        if (call.name, call.arguments) in theirs:
            theirs.remove((call.name, call.arguments))
        else:
            mine.append(call)
    return mine


class _Listener(LLMProvider):
    """Hears what a model would be asked."""

    def __init__(self) -> None:
        super().__init__()
        self.request: list[ChatMessage] = []

    async def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> AsyncIterator[Delta]:
        """Keep the request and end the run."""
        self.request = [*messages]
        yield Finished(LLMResponse("heard"))


def _limits(model: Model, recorded: RecordedTurn) -> RunLimits:
    steps = min(model.limits.max_steps, len(recorded.steps) + STEPS_MORE)
    return replace(model.limits, max_steps=steps, max_result_chars=_NEVER)  # results were cut when they were recorded


def _ended(result: RunResult) -> TurnEnded:
    return TurnEnded(outcome=result.outcome, text=result.text, usage=result.usage, cost_usd=result.cost_usd)
