"""Runs the hooks of a run: on calls before they are recorded, on results before the model reads them."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace

from nanobot.agent.hooks.api import CallSeen, Deny, ResultSeen, TurnFacts
from nanobot.agent.hooks.runner import HookRunner
from nanobot.agent.tools.base import ToolContext, ToolResult
from nanobot.agent.tools.hooks import Verdict
from nanobot.messages.types import Provenance, ToolFailure, least_trusted, text_of
from nanobot.providers.base import ToolCallRequest

HookVerdicts = Mapping[str, Verdict]
"""Verdicts of hooks by call id, before policies and approvals."""


def turn_facts(context: ToolContext) -> TurnFacts:
    """The turn as hooks see it."""
    to = context.address
    return TurnFacts(
        context.turn_id, context.session_key, to.channel, to.chat_id, context.sender_id, context.origin, context.asker
    )


def call_seen(call: ToolCallRequest, context: ToolContext) -> CallSeen:
    """A call as hooks see it, with a copy of its arguments."""
    return CallSeen(turn_facts(context), call.id, call.name, deepcopy(call.arguments))


async def filter_calls(
    calls: Sequence[ToolCallRequest], hook_runner: HookRunner, context: ToolContext, *, may_change: bool = True
) -> tuple[list[ToolCallRequest], HookVerdicts]:
    """Run the hooks on each call, in order. Return the calls as they changed them, and their verdicts.

    Calls that could not be parsed are not shown to hooks.
    """
    if not hook_runner.handles("before_tool"):
        return [*calls], {}
    remaining: list[ToolCallRequest] = []
    verdicts: dict[str, Verdict] = {}
    for call in calls:
        if call.problem is None:
            outcome = await hook_runner.before_tool(call_seen(call, context), may_change=may_change)
            if isinstance(outcome, Deny):
                verdicts[call.id] = Verdict(refusal=f"{call.name} was not run: {outcome.reason}")
            elif outcome.changed:
                verdicts[call.id] = Verdict(entered=outcome.provenance, original_arguments=call.arguments)
                call = replace(call, arguments=outcome.seen.arguments, arguments_text=None)  # noqa: PLW2901 as it runs
        remaining.append(call)
    return remaining, verdicts


async def filter_result(
    call: ToolCallRequest, result: ToolResult, hook_runner: HookRunner, context: ToolContext, seconds: float
) -> ToolResult:
    """Run the hooks on a result and return it as they changed it. Its provenance never rises."""
    if not hook_runner.handles("after_tool") or (result.error and result.failure is ToolFailure.NOT_RUN):
        return result
    own = result.provenance or Provenance.TOOL
    seen = ResultSeen(call_seen(call, context), text_of(result.content), not result.error, own, seconds)
    passed = await hook_runner.after_tool(seen)
    if not passed.changed:
        return result
    return replace(result, content=passed.seen.text, provenance=least_trusted([own, passed.provenance]), display=None)
