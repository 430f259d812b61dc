"""Replays a recorded turn with another model, the recorded prompt and the recorded tool results.

No tool or hook runs and nothing is written: each call gets the result of the same call in the recording. A call that
was not recorded has no result; finding such differences is the purpose.
"""

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

from nanobot.agent.engine.runner import run
from nanobot.agent.engine.spec import Model, RunSpec
from nanobot.agent.events import Emitter, TurnEnded, TurnOutcome
from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.tools.validation import repair_arguments
from nanobot.agent.trace.reader import RecordedCall, RecordedPrompt, RecordedStep, RecordedTurn, merge_turn
from nanobot.agent.trace.store import Facts, TurnTrace
from nanobot.agent.window.fit import RequestBuilder, RequestRoom
from nanobot.bus.events import Address, InboundMessage
from nanobot.errors import NanobotError
from nanobot.messages.tokens import estimate_tokens
from nanobot.messages.types import ChatMessage, Provenance, ToolFailure, ToolSchema
from nanobot.providers.base import CallContext, call_context_scope
from nanobot.providers.wire.rows import wire_text
from nanobot.utils.clock import Clock

EXTRA_STEPS = 3
"""Steps that the model may take beyond the recorded ones."""
_NOT_RECORDED = (
    "This call was not run: the turn is being replayed, and the recording has no such call. "
    "Make no similar calls; answer with what you know."
)
_NO_LIMIT = 1 << 40


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference. `step` counts from 1."""

    step: int
    what: str
    recorded: str
    replayed: str


@dataclass(slots=True)
class Replay:
    """A replayed turn. `unrecorded` are the calls without a recorded result."""

    turn: RecordedTurn
    unrecorded: list[RecordedCall]


async def replay(
    recorded: RecordedTurn, prompt: RecordedPrompt, model: Model, *, clock: Clock, workspace: Path
) -> Replay:
    """Run the turn again with this model. A failing model ends it as FAILED. Cancelling is safe."""
    rows: list[ChatMessage] = []
    events: list[Facts] = []
    unrecorded: list[RecordedCall] = []
    message = InboundMessage("cli", "owner", "replay", recorded.message, session_key_override=recorded.session)
    trace = TurnTrace(message, clock, events.append)
    emit = Emitter(recorded.turn_id, trace)
    tools = ToolRegistry()
    for schema in prompt.tools:
        tools.register(_ReplayTool(schema, recorded.steps, unrecorded))
    boundaries = deque(step.joined for before, step in pairwise(recorded.steps) if before.calls)

    async def record(row: ChatMessage) -> None:
        rows.append(row)

    async def joining() -> list[ChatMessage]:
        joined = boundaries.popleft() if boundaries else []
        rows.extend(joined)
        return joined

    steps = min(model.limits.max_steps, len(recorded.steps) + EXTRA_STEPS)
    # results were clipped when they were recorded
    limits = replace(model.limits, max_steps=steps, max_result_chars=_NO_LIMIT)
    spec = RunSpec(
        model=replace(model, limits=limits),
        system=prompt.system,
        history=[*prompt.history],
        tools=tools,
        context=ToolContext(recorded.session, Address("cli", "replay"), recorded.turn_id, workspace, clock),
        emit=emit,
        record=record,
        joining=joining,
    )
    trace.record_request(spec)
    try:
        with call_context_scope(CallContext("replay", recorded.session, recorded.turn_id)):
            result = await run(spec)
        emit(TurnEnded(outcome=result.outcome, text=result.text, usage=result.usage, cost_usd=result.cost_usd))
    except Exception as error:  # isolate the failure, as the pipeline does
        text = str(error) if isinstance(error, NanobotError) else f"{type(error).__name__}: {error}"
        emit(TurnEnded(outcome=TurnOutcome.FAILED, text=text, error=type(error).__name__))
    return Replay(merge_turn(recorded, rows, events), unrecorded)


def first_request(recorded: RecordedTurn, prompt: RecordedPrompt) -> list[ChatMessage]:
    """Return the messages of the turn's first request, fitted into the window and repaired. Raises
    RequestTooLongError.
    """
    limits, tools_tokens = prompt.limits, estimate_tokens(json.dumps(prompt.tools)) if prompt.tools else 0
    room = RequestRoom(
        recorded.model, limits.window_tokens, limits.max_tokens, prompt.system, tools_tokens, limits.window_messages
    )
    return RequestBuilder(room).build(prompt.history)


def request_facts(recorded: RecordedTurn, prompt: RecordedPrompt) -> dict[str, Any]:
    """Return the turn's first request as JSON data, for programs and the page. Not redacted."""
    request = first_request(recorded, prompt)
    rows = [{**row, "content": wire_text(row)} for row in request if row["role"] != "system"]
    return {"system": prompt.system, "tools": prompt.tools, "limits": asdict(prompt.limits), "messages": rows}


class _ReplayTool(Tool):
    """A stand-in that answers with the recorded results; equal calls get theirs in the recorded order."""

    effect = Effect.READ

    def __init__(self, schema: ToolSchema, steps: Sequence[RecordedStep], unrecorded: list[RecordedCall]) -> None:
        function = schema["function"]
        self.name = function["name"]
        self.description = function.get("description", "")
        self.parameters = function.get("parameters") or {"type": "object", "properties": {}}
        self._schema = schema
        self._waiting = [
            (repair_arguments(call.requested, self.parameters), call)
            for step in steps
            for call in step.calls
            if call.name == self.name and call.content is not None
        ]
        self._unrecorded = unrecorded

    def to_schema(self) -> ToolSchema:
        return self._schema

    async def execute(self, /, **arguments: Any) -> ToolResult:
        for entry in self._waiting:
            requested, call = entry
            if requested == arguments:
                self._waiting.remove(entry)
                provenance = next((candidate for candidate in Provenance if candidate == call.provenance), None)
                failure = next((kind for kind in ToolFailure if kind == call.failure), ToolFailure.ENDED_BADLY)
                failed = call.ok is False or call.failure is not None
                return ToolResult(call.content or "", error=failed, provenance=provenance, failure=failure)
        self._unrecorded.append(RecordedCall("", self.name, arguments))
        return ToolResult.failed(_NOT_RECORDED)


def first_difference(recorded: Sequence[RecordedStep], replayed: Sequence[RecordedStep]) -> Difference | None:
    """Return the first difference in the calls, else the first in the texts; None if there is none."""
    steps = [*enumerate(zip_longest(recorded, replayed, fillvalue=RecordedStep()), 1)]
    for number, (then, now) in steps:
        missing, added = _subtract(then.calls, now.calls), _subtract(now.calls, then.calls)
        if missing or added:
            what = "other calls" if missing and added else "a call less" if missing else "a call more"
            return Difference(number, what, missing or then.text.strip(), added or now.text.strip())
    for number, (then, now) in steps:
        if then.text.strip() != now.text.strip():
            return Difference(number, "other words", then.text.strip(), now.text.strip())
    return None


def _subtract(calls: Sequence[RecordedCall], others: Sequence[RecordedCall]) -> str:
    """Name the calls that the others do not include."""
    made = [(call.name, call.requested) for call in others]
    missing = []
    for call in calls:
        if (call.name, call.requested) in made:
            made.remove((call.name, call.requested))
        else:
            missing.append(call.summary)
    return ", ".join(missing)
