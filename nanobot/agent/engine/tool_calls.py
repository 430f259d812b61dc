"""The tool calls of one step: run concurrently, recorded as each ends, returned in the order of the calls."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nanobot.agent.engine.loop_guard import LoopGuard
from nanobot.agent.engine.spec import RunSpec
from nanobot.agent.engine.transcript import Transcript
from nanobot.agent.events import ToolDelta, ToolEnded, ToolStarted
from nanobot.agent.hooks.runner import HookVerdicts, filter_result
from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult
from nanobot.agent.tools.hooks import PlannedCall, Verdict, judge_calls
from nanobot.agent.tools.spill import clip_result
from nanobot.agent.window.shrink import stub_for
from nanobot.messages.types import ChatMessage, Provenance, ToolFailure, is_outside, least_trusted, text_of
from nanobot.providers.base import ToolCallRequest
from nanobot.security.secrets import redact_known, redact_texts
from nanobot.utils.aio import finish, gather_or_raise
from nanobot.utils.clock import timestamp

UNKNOWN = (
    "Outcome unknown: nanobot was interrupted while this call ran. It may or may not have had its effect. {advice}"
)
_ADVICE = {
    Effect.READ: "Call it again if you need it.",
    Effect.REPEATABLE: "It is safe to call it again.",
    Effect.ONCE: "Check what is there before you call it again.",
}


@dataclass(frozen=True, slots=True)
class StepContext:
    """What the tool calls of a step share."""

    spec: RunSpec
    context: ToolContext
    guard: LoopGuard
    transcript: Transcript
    request_rows: Sequence[ChatMessage]
    """The rows of the last request: a result that is still among them is not repeated."""
    hook_verdicts: HookVerdicts
    """What the hooks decided about these calls already."""

    def tool(self, call: ToolCallRequest) -> Tool | None:
        return self.spec.tools.get(call.name)

    def effect_of(self, call: ToolCallRequest) -> Effect:
        """The effect of this call's tool; ONCE if the tool no longer exists."""
        tool = self.tool(call)
        return tool.effect if tool is not None else Effect.ONCE


async def run_calls(calls: Sequence[ToolCallRequest], ctx: StepContext) -> list[ChatMessage]:
    """Run the calls and return a tool row for each, in order. A tool's failure is a result, not an exception.

    Calls run concurrently; a tool marked `alone` runs after those before it and before those behind it. Policies judge
    all calls before the first starts. Cancelling stops every call of the step.
    """
    verdicts = {call.id: await _judge(call, ctx) for call in calls}
    groups: list[list[ToolCallRequest]] = [[]]
    for call in calls:
        tool = ctx.tool(call)
        if tool is not None and tool.alone:
            groups += [[call], []]
        else:
            groups[-1].append(call)
    rows: list[ChatMessage] = []
    for group in filter(None, groups):
        once = any(ctx.effect_of(call) is Effect.ONCE for call in group)
        await ctx.spec.on_calls_start([call.id for call in group], durable=once)
        rows += await gather_or_raise([_run_call(call, ctx, verdicts[call.id]) for call in group])
    return rows


async def outcome_unknown(call: ToolCallRequest, ctx: StepContext) -> ChatMessage:
    """The row for a call that was running when the process died and must not run again."""
    text = UNKNOWN.format(advice=_ADVICE[ctx.effect_of(call)])
    result = ToolResult(text, error=True, provenance=Provenance.SYSTEM, failure=ToolFailure.UNKNOWN)
    return await _record_result(call, result, text, ctx)


async def _judge(call: ToolCallRequest, ctx: StepContext) -> Verdict:
    spec, transcript = ctx.spec, ctx.transcript
    hook_verdict = ctx.hook_verdicts.get(call.id, Verdict())
    transcript.lower_entered(hook_verdict.entered)
    if hook_verdict.refusal is not None or not spec.tool_policies or call.problem is not None:
        return hook_verdict
    if (advice := ctx.guard.preview(call, ctx.tool(call))) is not None:
        return replace(hook_verdict, refusal=advice)
    context = replace(ctx.context, entered=least_trusted([ctx.context.entered, hook_verdict.entered]))
    reaches = await spec.tools.required_access(call.name, call.arguments, context)
    untrusted_rows = [*spec.untrusted_rows, *(_untrusted_tool_texts(call, ctx) if reaches else ())]
    planned = PlannedCall(call, reaches, context, transcript.all, spec.emit, untrusted_rows=untrusted_rows)
    verdict = await judge_calls(spec.tool_policies, planned)
    transcript.lower_entered(verdict.entered)
    return replace(verdict, entered=least_trusted([hook_verdict.entered, verdict.entered]))


def _untrusted_tool_texts(call: ToolCallRequest, ctx: StepContext) -> list[ChatMessage]:
    """Tool descriptions written by other servers: those in the request, and those found by tool search."""
    tools, own = ctx.spec.tools, ctx.tool(call)
    texts = [*tools.third_party_texts(call.name).items()]
    for row in ctx.transcript.all:
        tool = tools.get(str(row.get("name"))) if row["role"] == "tool" else None
        provenance = row.get("own_provenance") or row.get("provenance", Provenance.TOOL)
        if tool is None or not tool.source or is_outside(provenance):
            continue
        if own is None or tool.source != own.source:
            texts.append((tool.source, text_of(row["content"])))
    return [
        {
            "role": "tool",
            "name": f"what {source} says of its tools",
            "content": text,
            "provenance": Provenance.MCP,
        }
        for source, text in texts
    ]


async def _run_call(call: ToolCallRequest, ctx: StepContext, verdict: Verdict) -> ChatMessage:
    spec, clock, tool = ctx.spec, ctx.context.clock, ctx.tool(call)
    hook_verdict = ctx.hook_verdicts.get(call.id)
    asked = hook_verdict.original_arguments if hook_verdict is not None else None
    began, ok, text, display = clock.monotonic(), False, "stopped", None
    spec.emit(
        ToolStarted(
            call_id=call.id,
            name=call.name,
            arguments=redact_texts(call.arguments, redact_known),
            asked=redact_texts(asked, redact_known) if asked is not None else None,
        )
    )
    try:
        result = await _call_or_refuse(call, tool, ctx, verdict)
        result = await filter_result(call, result, spec.hook_runner, ctx.context, clock.monotonic() - began)
        if is_outside(verdict.entered) and verdict.refusal is None:
            own = result.provenance or Provenance.TOOL
            result = replace(result, provenance=least_trusted([own, verdict.entered]))
        for callback in () if result.error else verdict.on_success:
            await finish(asyncio.to_thread(callback))
        content, limit = result.content, spec.model.limits.max_result_chars
        if isinstance(content, str) and len(content) > limit:
            provenance = result.provenance or Provenance.TOOL
            content = await asyncio.to_thread(clip_result, content, limit, ctx.context, provenance)
        ok, text, display = not result.error, text_of(content), result.display
    finally:
        seconds = clock.monotonic() - began
        spec.emit(ToolEnded(call_id=call.id, name=call.name, ok=ok, content=text, seconds=seconds, display=display))
    if tool is not None and tool.effect is Effect.READ and not tool.polls:
        # a stub if it would repeat an unchanged result that the model still sees
        content = stub_for(call, content, ctx.request_rows) or content
    return await _record_result(call, result, content, ctx)


async def _call_or_refuse(call: ToolCallRequest, tool: Tool | None, ctx: StepContext, verdict: Verdict) -> ToolResult:
    """Call the tool, unless the loop guard or a policy refuses."""
    advice = ctx.guard.before(call, tool)
    if advice is None and verdict.refusal is not None:
        ctx.guard.after(call, tool, verdict.refusal, ok=False)
    if (refusal_text := advice or verdict.refusal) is not None:
        return replace(ToolResult.failed(refusal_text, ToolFailure.NOT_RUN), provenance=Provenance.SYSTEM)
    if call.problem is not None:
        result = ToolResult.failed(f"{call.name} did not run: {call.problem}. Send the complete call again.")
    else:

        def emit_progress(text: str) -> None:
            ctx.spec.emit(ToolDelta(call_id=call.id, text=redact_known(text)))

        entered = least_trusted([ctx.context.entered, verdict.entered])
        context = replace(ctx.context, granted=verdict.granted, entered=entered, emit=emit_progress)
        result = await ctx.spec.tools.call(call.name, call.arguments, context)
    ctx.guard.after(call, tool, text_of(result.content), ok=not result.error)
    return result


async def _record_result(
    call: ToolCallRequest, result: ToolResult, content: "str | list[dict[str, object]]", ctx: StepContext
) -> ChatMessage:
    """Record a result. That of a tool that derives from the conversation is trusted no more than the transcript."""
    tool, own = ctx.tool(call), result.provenance or Provenance.TOOL
    row: ChatMessage = {
        "role": "tool",
        "tool_call_id": call.id,
        "name": call.name,
        "content": content,
        "timestamp": timestamp(ctx.context.clock),
        "provenance": least_trusted([own, ctx.context.provenance]) if tool is not None and tool.derives else own,
        "turn_id": ctx.context.turn_id,
    }
    ctx.transcript.lower_entered(own)
    if own != row["provenance"]:
        row["own_provenance"] = own
    if result.error:
        row["failure"] = result.failure.value
    await ctx.spec.record(row)
    return row
