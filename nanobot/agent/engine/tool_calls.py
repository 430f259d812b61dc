"""The tool calls of one step: run concurrently, recorded as each ends, returned in the order of the calls."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from nanobot.agent.engine.loop_guard import LoopGuard
from nanobot.agent.events import Emitter, ToolDelta, ToolEnded, ToolStarted
from nanobot.agent.hooks.runner import HookRunner, HookVerdicts, filter_result
from nanobot.agent.tools.base import Effect, ToolContext, ToolResult
from nanobot.agent.tools.hooks import PlannedCall, ToolPolicy, Verdict, judge_calls
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.tools.spill import clip_result
from nanobot.agent.window.shrink import stub_for
from nanobot.messages.types import ChatMessage, Provenance, ToolFailure, is_outside, least_trusted, text_of
from nanobot.providers.base import ToolCallRequest
from nanobot.security.secrets import redact_known, redact_texts
from nanobot.utils.aio import finish, gather_or_raise
from nanobot.utils.clock import timestamp

Record = Callable[[ChatMessage], Awaitable[None]]
"""Stores a row. An error it raises ends the run."""

UNKNOWN = (
    "Outcome unknown: nanobot was interrupted while this call ran. It may or may not have had its effect. {advice}"
)
_ADVICE = {
    Effect.READ: "Call it again if you need it.",
    Effect.REPEATABLE: "It is safe to call it again.",
    Effect.ONCE: "Check what is there before you call it again.",
}


class StartCalls(Protocol):
    """Records that calls start. An error it raises ends the run before they do."""

    async def __call__(self, call_ids: Sequence[str], *, durable: bool) -> None:
        """Return once recorded; with `durable`, once synced to the disk, since one of them must not run twice."""
        ...


async def ignore_calls_start(call_ids: Sequence[str], *, durable: bool) -> None:
    """The `on_calls_start` of runs that are never resumed."""


@dataclass(frozen=True, slots=True)
class ToolCallContext:
    """What the tool calls of a step share."""

    tools: ToolRegistry
    context: ToolContext
    emit: Emitter
    record: Record
    max_result_chars: int
    guard: LoopGuard
    on_calls_start: StartCalls = ignore_calls_start
    request_rows: Sequence[ChatMessage] = ()
    """The rows of the last request: a result that is still among them is not repeated."""
    tool_policies: Sequence[ToolPolicy] = ()
    hook_runner: HookRunner = field(default_factory=HookRunner)
    hook_verdicts: HookVerdicts = field(default_factory=dict)
    """What the hooks decided about these calls already."""
    rows: Sequence[ChatMessage] = ()
    """The transcript when the step begins."""
    on_provenance: Callable[[Provenance], None] = field(default=lambda provenance: None)
    """Called with the provenance of each result."""
    untrusted_rows: Sequence[ChatMessage] = ()
    """Untrusted content in the system prompt, as rows without a turn."""

    def effect_of(self, call: ToolCallRequest) -> Effect:
        """The effect of this call's tool; ONCE if the tool no longer exists."""
        tool = self.tools.get(call.name)
        return tool.effect if tool is not None else Effect.ONCE


async def run_calls(calls: Sequence[ToolCallRequest], ctx: ToolCallContext) -> list[ChatMessage]:
    """Run the calls and return a tool row for each, in order. A tool's failure is a result, not an exception.

    Calls run concurrently; a tool marked `alone` runs after those before it and before those behind it. Policies judge
    all calls before the first starts. Cancelling stops every call of the step.
    """
    verdicts = {call.id: await _judge(call, ctx) for call in calls}
    rows: list[ChatMessage] = []
    for group in _groups(calls, ctx.tools):
        once = any(ctx.effect_of(call) is Effect.ONCE for call in group)
        await ctx.on_calls_start([call.id for call in group], durable=once)
        rows += await gather_or_raise([_run_call(call, ctx, verdicts[call.id]) for call in group])
    return rows


async def _judge(call: ToolCallRequest, ctx: ToolCallContext) -> Verdict:
    hook_verdict = ctx.hook_verdicts.get(call.id, Verdict())
    ctx.on_provenance(hook_verdict.entered)
    if hook_verdict.refusal is not None or not ctx.tool_policies or call.problem is not None:
        return hook_verdict
    if (advice := ctx.guard.preview(call, ctx.tools.get(call.name))) is not None:
        return replace(hook_verdict, refusal=advice)
    context = replace(ctx.context, entered=least_trusted([ctx.context.entered, hook_verdict.entered]))
    reaches = await ctx.tools.required_access(call.name, call.arguments, context)
    untrusted_rows = [*ctx.untrusted_rows, *(_untrusted_tool_texts(call, ctx) if reaches else ())]
    verdict = await judge_calls(
        ctx.tool_policies, PlannedCall(call, reaches, context, ctx.rows, ctx.emit, untrusted_rows=untrusted_rows)
    )
    ctx.on_provenance(verdict.entered)
    return replace(verdict, entered=least_trusted([hook_verdict.entered, verdict.entered]))


def _untrusted_tool_texts(call: ToolCallRequest, ctx: ToolCallContext) -> list[ChatMessage]:
    """Tool descriptions written by other servers: those in the request, and those found by tool search."""
    own = ctx.tools.get(call.name)
    rows = [_tool_text_row(source, text) for source, text in ctx.tools.third_party_texts(call.name).items()]
    for row in ctx.rows:
        tool = ctx.tools.get(str(row.get("name"))) if row["role"] == "tool" else None
        provenance = row.get("own_provenance") or row.get("provenance", Provenance.TOOL)
        if tool is None or not tool.source or is_outside(provenance):
            continue
        if own is None or tool.source != own.source:
            rows.append(_tool_text_row(tool.source, text_of(row["content"])))
    return rows


def _tool_text_row(source: str, text: str) -> ChatMessage:
    return {"role": "tool", "name": f"what {source} says of its tools", "content": text, "provenance": Provenance.MCP}


async def outcome_unknown(call: ToolCallRequest, ctx: ToolCallContext) -> ChatMessage:
    """The row for a call that was running when the process died and must not run again."""
    text = UNKNOWN.format(advice=_ADVICE[ctx.effect_of(call)])
    result = ToolResult(text, error=True, provenance=Provenance.SYSTEM, failure=ToolFailure.UNKNOWN)
    return await _record_result(call, result, text, ctx)


def _groups(calls: Sequence[ToolCallRequest], tools: ToolRegistry) -> list[list[ToolCallRequest]]:
    groups: list[list[ToolCallRequest]] = [[]]
    for call in calls:
        tool = tools.get(call.name)
        if tool is not None and tool.alone:
            groups += [[call], []]
        else:
            groups[-1].append(call)
    return [group for group in groups if group]


async def _run_call(call: ToolCallRequest, ctx: ToolCallContext, verdict: Verdict) -> ChatMessage:
    started = ctx.context.clock.monotonic()

    def emit_ended(result: ToolResult, text: str) -> None:
        seconds = ctx.context.clock.monotonic() - started
        ctx.emit(
            ToolEnded(
                call_id=call.id,
                name=call.name,
                ok=not result.error,
                content=text,
                seconds=seconds,
                display=result.display,
            )
        )

    asked = ctx.hook_verdicts[call.id].original_arguments if call.id in ctx.hook_verdicts else None
    ctx.emit(
        ToolStarted(
            call_id=call.id,
            name=call.name,
            arguments=redact_texts(call.arguments, redact_known),
            asked=redact_texts(asked, redact_known) if asked is not None else None,
        )
    )
    try:
        result = await _call_or_refuse(call, ctx, verdict)
        seconds = ctx.context.clock.monotonic() - started
        result = await filter_result(call, result, ctx.hook_runner, ctx.context, seconds)
        if is_outside(verdict.entered) and verdict.refusal is None:
            own = result.provenance or Provenance.TOOL
            result = replace(result, provenance=least_trusted([own, verdict.entered]))
        for callback in () if result.error else verdict.on_success:
            await finish(asyncio.to_thread(callback))
        content = result.content
        if isinstance(content, str) and len(content) > ctx.max_result_chars:
            provenance = result.provenance or Provenance.TOOL
            content = await asyncio.to_thread(clip_result, content, ctx.max_result_chars, ctx.context, provenance)
    except BaseException:
        emit_ended(ToolResult("stopped", error=True), "stopped")
        raise
    emit_ended(result, text_of(content))
    return await _record_result(call, result, _shown_content(call, content, ctx), ctx)


def _shown_content(
    call: ToolCallRequest, content: "str | list[dict[str, object]]", ctx: ToolCallContext
) -> "str | list[dict[str, object]]":
    """The content for the model: a stub if it would repeat an unchanged result that the model still sees."""
    tool = ctx.tools.get(call.name)
    if tool is None or tool.effect is not Effect.READ or tool.polls:
        return content
    return stub_for(call, content, ctx.request_rows) or content


async def _record_result(
    call: ToolCallRequest, result: ToolResult, content: "str | list[dict[str, object]]", ctx: ToolCallContext
) -> ChatMessage:
    row: ChatMessage = {
        "role": "tool",
        "tool_call_id": call.id,
        "name": call.name,
        "content": content,
        "timestamp": timestamp(ctx.context.clock),
        "provenance": _stored_provenance(call, result, ctx),
        "turn_id": ctx.context.turn_id,
    }
    own = result.provenance or Provenance.TOOL
    ctx.on_provenance(own)
    if own != row["provenance"]:
        row["own_provenance"] = own
    if result.error:
        row["failure"] = result.failure.value
    await ctx.record(row)
    return row


def _stored_provenance(call: ToolCallRequest, result: ToolResult, ctx: ToolCallContext) -> Provenance:
    """The provenance of a result; a tool that derives from the conversation is trusted no more than the transcript."""
    own = result.provenance or Provenance.TOOL
    tool = ctx.tools.get(call.name)
    derives = tool is not None and getattr(tool, "derives", False)
    return least_trusted([own, ctx.context.provenance]) if derives else own


async def _call_or_refuse(call: ToolCallRequest, ctx: ToolCallContext, verdict: Verdict) -> ToolResult:
    """Call the tool, unless the loop guard or a policy refuses."""
    tool = ctx.tools.get(call.name)
    advice = ctx.guard.before(call, tool)
    if advice is None and verdict.refusal is not None:
        ctx.guard.after(call, tool, verdict.refusal, ok=False)
    if (refusal_text := advice or verdict.refusal) is not None:
        return replace(ToolResult.failed(refusal_text, ToolFailure.NOT_RUN), provenance=Provenance.SYSTEM)
    result = await _call_tool(call, ctx, verdict)
    ctx.guard.after(call, tool, text_of(result.content), ok=not result.error)
    return result


async def _call_tool(call: ToolCallRequest, ctx: ToolCallContext, verdict: Verdict) -> ToolResult:
    if call.problem is not None:
        return ToolResult.failed(f"{call.name} did not run: {call.problem}. Send the complete call again.")

    def emit_progress(text: str) -> None:
        ctx.emit(ToolDelta(call_id=call.id, text=redact_known(text)))

    entered = least_trusted([ctx.context.entered, verdict.entered])
    context = replace(ctx.context, granted=verdict.granted, entered=entered, emit=emit_progress)
    return await ctx.tools.call(call.name, call.arguments, context)
