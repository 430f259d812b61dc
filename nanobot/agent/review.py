"""Reviews: fresh eyes on a result, before the owner gets it.

A reviewer is a subagent that only reads; its verdict is the first line of its answer and is read here, by code. What
cannot be read, or did not come to its end, is no verdict: it never counts as a pass.
"""

import re
from dataclasses import dataclass
from typing import Protocol

from nanobot.agent.roles import Role
from nanobot.agent.subagent_ports import Subagents
from nanobot.agent.task_words import not_done, quoted
from nanobot.agent.tasks import Task, TaskState
from nanobot.agent.tools.base import ToolContext
from nanobot.errors import NanobotError
from nanobot.messages.types import Provenance

_ASKED = """\
Review this. What was asked:

{asked}

What is said to have come of it:

{result}
"""
_CHECKED = """
The check that passed:

{check}
"""
_VERDICT = re.compile(r"[\W_]*verdict[\W_]+(?:(pass(?:ed)?)|send[ _-]?back|fail(?:ed)?)[\W_]*", re.IGNORECASE)
"""A pass is told by its group. Marks around the words, as of Markdown, say nothing."""
_NO_REASONS = "No reasons were given."
_BABBLED = "The reviewer gave no verdict that could be read."


@dataclass(frozen=True, slots=True)
class Review:
    """What a review came to."""

    passed: bool | None
    """None: there is no verdict; `reasons` says why."""
    reasons: str
    """The reviewer's, so at most as trusted as `provenance`; where there is no verdict, ours."""
    cost_usd: float | None = None
    tokens: int = 0
    provenance: Provenance = Provenance.TOOL
    """The least trusted words that the reviewer has seen."""


class Reviewer(Protocol):
    """Looks at results."""

    async def review(self, asked: str, result: str, *, check: str = "", ctx_of: ToolContext) -> Review:
        """Judge whether `result` is what was `asked`; `check` is what was tried and passed already, and `ctx_of` is
        of the turn that wants to know. Never raises: what cannot be reviewed has no verdict. Cancelled, it stops.
        """
        ...


class SubagentReviewer:
    """Has a subagent review: with its transcript, limits and costs, and its place in `/tasks`."""

    def __init__(self, subagents: Subagents) -> None:
        self._subagents = subagents

    async def review(self, asked: str, result: str, *, check: str = "", ctx_of: ToolContext) -> Review:
        """See `Reviewer`. Each review is a new one, also of the same words: what they tell of may have changed."""
        words = _ASKED.format(asked=quoted(asked), result=quoted(result))
        if check:
            words += _CHECKED.format(check=quoted(check))
        try:
            ended = await self._subagents.see_through(words, f"review: {asked}", role=Role.REVIEWER, ctx=ctx_of)
        except NanobotError as error:
            return Review(None, f"There was no review: {error}")
        passed, reasons = _verdict_of(ended)
        return Review(passed, reasons, ended.cost_usd, ended.tokens, ended.seen)


def _verdict_of(task: Task) -> tuple[bool | None, str]:
    if task.state is not TaskState.DONE:
        return None, f"The review {not_done(task)}"
    lines = task.result.splitlines()
    first = next((at for at, line in enumerate(lines) if re.search(r"\w", line)), 0)
    found = _VERDICT.fullmatch(lines[first]) if lines else None
    if found is None:
        return None, _BABBLED
    return found[1] is not None, "\n".join(lines[first + 1 :]).strip() or _NO_REASONS
