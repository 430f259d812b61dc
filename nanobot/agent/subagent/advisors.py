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
_NOUNS = {TaskRole.PLANNER: "planning", TaskRole.REVIEWER: "review"}
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
    problem: str
    provenance: Provenance
    """The least trusted content that the planner read."""


@dataclass(frozen=True, slots=True)
class Review:
    """The result of a review."""

    passed: bool | None
    """None without a verdict; `reasons` says why."""
    reasons: str
    """The reviewer's text, at most as trusted as `provenance`; without a verdict, ours."""
    provenance: Provenance
    """The least trusted content that the reviewer read."""


async def make_plan(subagents: SubagentManager, request: str, *, ctx: ToolContext) -> Plan:
    """Plan the request, for the turn of `ctx`."""
    prompt = _PLAN_PROMPT.format(request=quote_lines(request))
    answer, problem, provenance = await _ask_role(subagents, TaskRole.PLANNER, prompt, f"plan: {request}", ctx)
    steps = tuple(clip_line(step.strip(), _MAX_STEP_CHARS) for step in _STEP.findall(answer)[:MAX_STEPS])
    return Plan(steps, "" if steps else problem or _NO_LIST, provenance)


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
    answer, problem, provenance = await _ask_role(subagents, TaskRole.REVIEWER, prompt, f"review: {request}", ctx)
    passed, reasons = (None, problem) if problem else parse_verdict(answer)
    return Review(passed, reasons, provenance)


async def _ask_role(
    subagents: SubagentManager, role: TaskRole, prompt: str, label: str, ctx: ToolContext
) -> tuple[str, str, Provenance]:
    """Return the answer of a subagent of this role, or why there is none, and the least trusted content it read."""
    noun = _NOUNS[role]
    try:
        task = await subagents.run_to_end(prompt, label, role=role, ctx=ctx)
    except NanobotError as error:
        return "", f"There was no {noun}: {error}", Provenance.TOOL
    if task.state is TaskState.DONE:
        return task.result, "", task.seen
    return "", f"The {noun} {describe_failure(task)}", task.seen
