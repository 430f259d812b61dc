"""Read-only subagents: a planner writes a task list before the work starts, a reviewer judges a result.

Both are subagents with transcript, limits, costs and an entry in `/tasks`. Neither raises; a failure is in the result.
Cancelling stops the subagent.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from nanobot.agent.engine.answer_review import parse_verdict
from nanobot.agent.subagent.manager import SubagentManager
from nanobot.agent.subagent.roles import TaskRole
from nanobot.agent.subagent.tasks import TaskState
from nanobot.agent.subagent.texts import describe_failure
from nanobot.agent.tools.base import ToolContext
from nanobot.errors import NanobotError
from nanobot.messages.types import Provenance
from nanobot.utils.text import clip_line, quote_lines

T = TypeVar("T")

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


async def ask_role(
    subagents: SubagentManager,
    role: TaskRole,
    prompt: str,
    label: str,
    parse: Callable[[str, str, Provenance], T],
    *,
    ctx: ToolContext,
) -> T:
    """Ask a subagent of this role for the turn of `ctx`. `parse` gets its answer, or empty and why there is none, and
    the least trusted content that it read.
    """
    noun = _NOUNS[role]
    try:
        ended = await subagents.run_to_end(prompt, label, role=role, ctx=ctx)
    except NanobotError as error:
        return parse("", f"There was no {noun}: {error}", Provenance.TOOL)
    if ended.state is TaskState.DONE:
        return parse(ended.result, "", ended.seen)
    return parse("", f"The {noun} {describe_failure(ended)}", ended.seen)


async def make_plan(subagents: SubagentManager, request: str, *, ctx: ToolContext) -> Plan:
    """Plan the request, for the turn of `ctx`."""

    def parse(answer: str, problem: str, provenance: Provenance) -> Plan:
        steps = tuple(clip_line(step.strip(), _MAX_STEP_CHARS) for step in _STEP.findall(answer)[:MAX_STEPS])
        return Plan(steps, "" if steps else problem or _NO_LIST, provenance)

    prompt = _PLAN_PROMPT.format(request=quote_lines(request))
    return await ask_role(subagents, TaskRole.PLANNER, prompt, f"plan: {request}", parse, ctx=ctx)


async def review_result(
    subagents: SubagentManager, request: str, result: str, *, check: str = "", ctx: ToolContext
) -> Review:
    """Judge whether `result` does what was requested, for the turn of `ctx`. `check` passed already.

    Each call is a new review, since the files behind the same words may have changed. An unreadable or missing verdict
    never counts as a pass.
    """

    def parse(answer: str, problem: str, provenance: Provenance) -> Review:
        return Review(None, problem, provenance) if problem else Review(*parse_verdict(answer), provenance)

    prompt = _REVIEW_PROMPT.format(request=quote_lines(request), result=quote_lines(result))
    if check:
        prompt += _PASSED_CHECK.format(check=quote_lines(check))
    return await ask_role(subagents, TaskRole.REVIEWER, prompt, f"review: {request}", parse, ctx=ctx)
