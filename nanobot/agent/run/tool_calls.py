"""One step's tool calls: run together, recorded as each ends, handed back in the order they were asked for."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from nanobot.agent.hook_wall import HookWall
from nanobot.agent.run.hooked import Ruled, passed_result
from nanobot.agent.run.hooks import PlannedCall, ToolHook, Verdict, judged
from nanobot.agent.run.loop_guard import LoopGuard
from nanobot.agent.run.shrink import stub_for
from nanobot.agent.tools.base import Effect, ToolContext, ToolResult
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.tools.spill import clip_result
from nanobot.agent.turn import Emitter, ToolDelta, ToolEnded, ToolStarted
from nanobot.messages.types import ChatMessage, Provenance, ToolFailure, is_outside, least_trusted, text_of
from nanobot.providers.base import ToolCallRequest
from nanobot.security.vault import masked, masked_json
from nanobot.utils.aio import all_or_first_error, finish
from nanobot.utils.clock import timestamp

Record = Callable[[ChatMessage], Awaitable[None]]
"""Keeps a row for good. What it raises ends the run."""

UNKNOWN = (
    "Outcome unknown: nanobot was interrupted while this call ran. It may or may not have had its effect. {advice}"
)
_ADVICE = {
    Effect.READ: "Call it again if you need it.",
    Effect.REPEATABLE: "It is safe to call it again.",
    Effect.ONCE: "Check what is there before you call it again.",
}


class CallsStart(Protocol):
    """Writes down that calls begin to run. What it raises ends the run before they do."""

    async def __call__(self, call_ids: Sequence[str], *, durable: bool) -> None:
        """Return once that is written; `durable`: on the disk, since one of them must not run twice."""
        ...


async def nobody_asks(call_ids: Sequence[str], *, durable: bool) -> None:
    """For runs that no crash is to take up again."""


@dataclass(frozen=True, slots=True)
class ToolBench:
    """What a run's tool calls share."""

    tools: ToolRegistry
    context: ToolContext
    emit: Emitter
    record: Record
    max_result_chars: int
    guard: LoopGuard
    calls_start: CallsStart = nobody_asks
    shown: Sequence[ChatMessage] = ()
    """The last request: what stands there whole need not be shown again."""
    hooks: Sequence[ToolHook] = ()
    hook_wall: HookWall = field(default_factory=HookWall)
    ruled: Ruled = field(default_factory=dict)
    """What the hooks behind that wall have said of the calls already."""
    rows: Sequence[ChatMessage] = ()
    """What stands in the window when the step begins."""
    entered: Callable[[Provenance], None] = field(default=lambda provenance: None)
    """Told where the words of each result come from, whatever else it was made of."""
    told: Sequence[ChatMessage] = ()
    """What the system prompt holds of others' words, as rows of no turn."""

    def effect_of(self, call: ToolCallRequest) -> Effect:
        """What a crash may repeat of this call; of a tool that is gone, nothing."""
        tool = self.tools.get(call.name)
        return tool.effect if tool is not None else Effect.ONCE


async def run_calls(calls: Sequence[ToolCallRequest], bench: ToolBench) -> list[ChatMessage]:
    """A tool row for each call, in their order. Never raises for a tool's failure: that is a result too.

    Calls run side by side; one whose tool must be alone waits for those before it, and those behind it wait for it.
    The hooks have judged all of them before the first begins. Cancelling stops every call of the step.
    """
    verdicts = {call.id: await _judged(call, bench) for call in calls}
    rows: list[ChatMessage] = []
    for group in _groups(calls, bench.tools):
        once = any(bench.effect_of(call) is Effect.ONCE for call in group)
        await bench.calls_start([call.id for call in group], durable=once)
        rows += await all_or_first_error([_run_call(call, bench, verdicts[call.id]) for call in group])
    return rows


async def _judged(call: ToolCallRequest, bench: ToolBench) -> Verdict:
    ruled = bench.ruled.get(call.id, Verdict())
    bench.entered(ruled.entered)
    if ruled.refusal is not None or not bench.hooks or call.problem is not None:
        return ruled
    if (advice := bench.guard.foreseen(call, bench.tools.get(call.name))) is not None:
        return replace(ruled, refusal=advice)
    context = replace(bench.context, entered=least_trusted([bench.context.entered, ruled.entered]))
    reaches = await bench.tools.reaches(call.name, call.arguments, context)
    told = [*bench.told, *(_told_by_others(call, bench) if reaches else ())]
    verdict = await judged(bench.hooks, PlannedCall(call, reaches, context, bench.rows, bench.emit, told=told))
    bench.entered(verdict.entered)
    return replace(verdict, entered=least_trusted([ruled.entered, verdict.entered]))


def _told_by_others(call: ToolCallRequest, bench: ToolBench) -> list[ChatMessage]:
    """What others say of the tools they offer: in each request, and where the model looked for a tool."""
    own = bench.tools.get(call.name)
    told = [_words(source, text) for source, text in bench.tools.told_by_others(call.name).items()]
    for row in bench.rows:
        tool = bench.tools.get(str(row.get("name"))) if row["role"] == "tool" else None
        known = row.get("own_provenance") or row.get("provenance", Provenance.TOOL)
        if tool is not None and tool.source and not is_outside(known) and (own is None or tool.source != own.source):
            told.append(_words(tool.source, text_of(row["content"])))
    return told


def _words(source: str, text: str) -> ChatMessage:
    return {"role": "tool", "name": f"what {source} says of its tools", "content": text, "provenance": Provenance.MCP}


async def outcome_unknown(call: ToolCallRequest, bench: ToolBench) -> ChatMessage:
    """The row for a call that was running when the process died and must not run again."""
    text = UNKNOWN.format(advice=_ADVICE[bench.effect_of(call)])
    result = ToolResult(text, error=True, provenance=Provenance.SYSTEM, failure=ToolFailure.UNKNOWN)
    return await _kept(call, result, text, bench)


def _groups(calls: Sequence[ToolCallRequest], tools: ToolRegistry) -> list[list[ToolCallRequest]]:
    groups: list[list[ToolCallRequest]] = [[]]
    for call in calls:
        tool = tools.get(call.name)
        if tool is not None and tool.alone:
            groups += [[call], []]
        else:
            groups[-1].append(call)
    return [group for group in groups if group]


async def _run_call(call: ToolCallRequest, bench: ToolBench, verdict: Verdict) -> ChatMessage:
    started = bench.context.clock.monotonic()

    def ended(result: ToolResult, text: str) -> None:
        seconds = bench.context.clock.monotonic() - started
        bench.emit(
            ToolEnded(
                call_id=call.id,
                name=call.name,
                ok=not result.error,
                content=text,
                seconds=seconds,
                display=result.display,
            )
        )

    asked = bench.ruled[call.id].asked if call.id in bench.ruled else None
    bench.emit(
        ToolStarted(
            call_id=call.id,
            name=call.name,
            arguments=masked_json(call.arguments),
            asked=masked_json(asked) if asked is not None else None,
        )
    )
    try:
        result = await _guarded(call, bench, verdict)
        seconds = bench.context.clock.monotonic() - started
        result = await passed_result(call, result, bench.hook_wall, bench.context, seconds)
        if is_outside(verdict.entered) and verdict.refusal is None:
            own = result.provenance or Provenance.TOOL
            result = replace(result, provenance=least_trusted([own, verdict.entered]))
        for afterwards in () if result.error else verdict.when_done:
            await finish(asyncio.to_thread(afterwards))
    except BaseException:
        ended(ToolResult("stopped", error=True), "stopped")
        raise
    content = result.content
    if isinstance(content, str) and len(content) > bench.max_result_chars:
        words = result.provenance or Provenance.TOOL
        content = await asyncio.to_thread(clip_result, content, bench.max_result_chars, bench.context, words)
    ended(result, text_of(content))
    return await _kept(call, result, _as_shown(call, content, bench), bench)


def _as_shown(
    call: ToolCallRequest, content: "str | list[dict[str, object]]", bench: ToolBench
) -> "str | list[dict[str, object]]":
    """The result as the model gets it: of what it has read already and can still see, a word that nothing changed."""
    tool = bench.tools.get(call.name)
    if tool is None or tool.effect is not Effect.READ or tool.polls:
        return content
    return stub_for(call, content, bench.shown) or content


async def _kept(
    call: ToolCallRequest, result: ToolResult, content: "str | list[dict[str, object]]", bench: ToolBench
) -> ChatMessage:
    row: ChatMessage = {
        "role": "tool",
        "tool_call_id": call.id,
        "name": call.name,
        "content": content,
        "timestamp": timestamp(bench.context.clock),
        "provenance": _stored_provenance(call, result, bench),
        "turn_id": bench.context.turn_id,
    }
    own = result.provenance or Provenance.TOOL
    bench.entered(own)
    if own != row["provenance"]:
        row["own_provenance"] = own
    if result.error:
        row["failure"] = result.failure.value
    await bench.record(row)
    return row


def _stored_provenance(call: ToolCallRequest, result: ToolResult, bench: ToolBench) -> Provenance:
    """Where the words came from; what may be made of anything in the window is trusted as little as that."""
    own = result.provenance or Provenance.TOOL
    tool = bench.tools.get(call.name)
    made_of_all = tool is not None and getattr(tool, "derives", False)
    return least_trusted([own, bench.context.provenance]) if made_of_all else own


async def _guarded(call: ToolCallRequest, bench: ToolBench, verdict: Verdict) -> ToolResult:
    """The result of a call, or why it was not made: a hook forbade it, or it was made again and again to no end."""
    tool = bench.tools.get(call.name)
    advice = bench.guard.before(call, tool)
    if advice is None and verdict.refusal is not None:
        bench.guard.after(call, tool, verdict.refusal, ok=False)
    if (why_not := advice or verdict.refusal) is not None:
        return replace(ToolResult.failed(why_not, ToolFailure.NOT_RUN), provenance=Provenance.SYSTEM)
    result = await _result_of(call, bench, verdict)
    bench.guard.after(call, tool, text_of(result.content), ok=not result.error)
    return result


async def _result_of(call: ToolCallRequest, bench: ToolBench, verdict: Verdict) -> ToolResult:
    if call.problem is not None:
        return ToolResult.failed(f"{call.name} did not run: {call.problem}. Send the call again, whole.")

    def told(text: str) -> None:
        bench.emit(ToolDelta(call_id=call.id, text=masked(text)))

    entered = least_trusted([bench.context.entered, verdict.entered])
    context = replace(bench.context, granted=verdict.granted, entered=entered, emit=told)
    return await bench.tools.call(call.name, call.arguments, context)
