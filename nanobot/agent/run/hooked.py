"""What passes the wall of hooks in a run: calls before they are kept, results before they are read."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace

from nanobot.agent.hook_wall import HookWall
from nanobot.agent.hooks import CallSeen, Deny, ResultSeen, TurnFacts
from nanobot.agent.run.hooks import Verdict
from nanobot.agent.tools.base import ToolContext, ToolResult
from nanobot.messages.types import Provenance, ToolFailure, least_trusted, text_of
from nanobot.providers.base import ToolCallRequest

Ruled = Mapping[str, Verdict]
"""What hooks said of calls, by id, before anybody else judges them."""


def facts_of(context: ToolContext) -> TurnFacts:
    """The turn, as hooks are told of it."""
    to = context.address
    return TurnFacts(
        context.turn_id, context.session_key, to.channel, to.chat_id, context.sender_id, context.origin, context.asker
    )


def seen_call(call: ToolCallRequest, context: ToolContext) -> CallSeen:
    """A call, as hooks are told of it: what they do to its arguments touches nothing."""
    return CallSeen(facts_of(context), call.id, call.name, deepcopy(call.arguments))


async def passed_calls(
    calls: Sequence[ToolCallRequest], wall: HookWall, context: ToolContext, *, may_change: bool = True
) -> tuple[list[ToolCallRequest], Ruled]:
    """The calls as hooks leave them, one after the other, and which they deny. What cannot be read is not shown."""
    if not wall.minds("before_tool"):
        return [*calls], {}
    left: list[ToolCallRequest] = []
    ruled: dict[str, Verdict] = {}
    for call in calls:
        if call.problem is None:
            said = await wall.before_tool(seen_call(call, context), may_change=may_change)
            if isinstance(said, Deny):
                ruled[call.id] = Verdict(refusal=f"{call.name} was not run: {said.reason}")
            elif said.changed:
                ruled[call.id] = Verdict(entered=said.provenance, asked=call.arguments)
                call = replace(call, arguments=said.seen.arguments, arguments_text=None)  # noqa: PLW2901 as it runs
        left.append(call)
    return left, ruled


async def passed_result(
    call: ToolCallRequest, result: ToolResult, wall: HookWall, context: ToolContext, seconds: float
) -> ToolResult:
    """The result as hooks leave it; its words are trusted no more than they were."""
    if not wall.minds("after_tool") or (result.error and result.failure is ToolFailure.NOT_RUN):
        return result
    own = result.provenance or Provenance.TOOL
    seen = ResultSeen(seen_call(call, context), text_of(result.content), not result.error, own, seconds)
    passed = await wall.after_tool(seen)
    if not passed.changed:
        return result
    return replace(result, content=passed.seen.text, provenance=least_trusted([own, passed.provenance]), display=None)
