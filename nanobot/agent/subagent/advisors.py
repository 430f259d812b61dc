"""Read-only subagents: a planner writes a task list before the work starts, a reviewer judges a result.

Both are subagents with transcript, limits, costs and an entry in `/tasks`. Neither raises; a failure is in the result.
Cancelling stops the subagent.
"""

import re
from dataclasses import dataclass

from nanobot.agent.engine.answer_review import parse_verdict
from nanobot.agent.subagent.manager import SubagentManager
from nanobot.agent.subagent.roles import TaskRole
from nanobot.agent.subagent.tasks import TaskState
from nanobot.agent.subagent.texts import describe_failure
from nanobot.agent.tools.base import ToolContext
from nanobot.errors import NanobotError
from nanobot.messages.types import Provenance
from nanobot.utils.text import clip_line, quote_lines

MAX_STEPS = 20
_MAX_STEP_CHARS = 300
_STEP = re.compile(r"^[^\S\n]*(?:[-*+]|\d+[.)])[^\S\n]+\[ ?\][^\S\n]+(\S.*)$", re.MULTILINE)
_NO_LIST = "The planner's answer has no readable task list."
_PLAN_PROMPT = "Plan this:\n\n{request}"
_REVIEW_PROMPT = """\
Review this. The request:

{request}

The reported result:

{result}
"""
_PASSED_CHECK = """
The check that passed:

{check}
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of planning."""

    steps: tuple[str, ...]
    """Empty without a plan; then `problem` says why."""
    problem: str = ""
    provenance: Provenance = Provenance.TOOL
    """The least trusted content that the planner read."""


@dataclass(frozen=True, slots=True)
class Review:
    """The result of a review."""

    passed: bool | None
    """None without a verdict; `reasons` says why."""
    reasons: str
    """The reviewer's text, at most as trusted as `provenance`; without a verdict, ours."""
    provenance: Provenance = Provenance.TOOL
    """The least trusted content that the reviewer read."""


async def make_plan(subagents: SubagentManager, request: str, *, ctx: ToolContext) -> Plan:
    """Plan the request, for the turn of `ctx`."""
    prompt = _PLAN_PROMPT.format(request=quote_lines(request))
    try:
        ended = await subagents.run_to_end(prompt, f"plan: {request}", role=TaskRole.PLANNER, ctx=ctx)
    except NanobotError as error:
        return Plan((), f"There is no plan: {error}")
    if ended.state is not TaskState.DONE:
        return Plan((), f"The planning {describe_failure(ended)}", ended.seen)
    steps = tuple(clip_line(step.strip(), _MAX_STEP_CHARS) for step in _STEP.findall(ended.result)[:MAX_STEPS])
    return Plan(steps, "" if steps else _NO_LIST, ended.seen)


async def review_result(
    subagents: SubagentManager, request: str, result: str, *, check: str = "", ctx: ToolContext
) -> Review:
    """Judge whether `result` does what was requested, for the turn of `ctx`. `check` passed already.

    Each call is a new review, since the files behind the same words may have changed. An unreadable or missing verdict
    never counts as a pass.
    """
    prompt = _REVIEW_PROMPT.format(request=quote_lines(request), result=quote_lines(result))
    if check:
        prompt += _PASSED_CHECK.format(check=quote_lines(check))
    try:
        ended = await subagents.run_to_end(prompt, f"review: {request}", role=TaskRole.REVIEWER, ctx=ctx)
    except NanobotError as error:
        return Review(None, f"There was no review: {error}")
    if ended.state is not TaskState.DONE:
        return Review(None, f"The review {describe_failure(ended)}", ended.seen)
    return Review(*parse_verdict(ended.result), ended.seen)
