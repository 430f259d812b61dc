"""Reviews: a read-only subagent judges a result before the owner gets it.

The verdict is the first line of its answer. An unreadable or missing verdict never counts as a pass.
"""

from dataclasses import dataclass

from nanobot.agent.engine.answer_review import parse_verdict
from nanobot.agent.subagent.ports import SpawnsSubagents
from nanobot.agent.subagent.roles import TaskRole
from nanobot.agent.subagent.tasks import Task, TaskState
from nanobot.agent.subagent.texts import not_done
from nanobot.agent.tools.base import ToolContext
from nanobot.errors import NanobotError
from nanobot.messages.types import Provenance
from nanobot.utils.text import quote_lines

_ASKED = """\
Review this. The request:

{asked}

The reported result:

{result}
"""
_CHECKED = """
The check that passed:

{check}
"""


@dataclass(frozen=True, slots=True)
class Review:
    """The result of a review."""

    passed: bool | None
    """None without a verdict; `reasons` says why."""
    reasons: str
    """The reviewer's text, at most as trusted as `provenance`; without a verdict, ours."""
    cost_usd: float | None = None
    tokens: int = 0
    provenance: Provenance = Provenance.TOOL
    """The least trusted content that the reviewer read."""


class SubagentReviewer:
    """Runs reviews as subagents, with transcript, limits, costs and an entry in `/tasks`."""

    def __init__(self, subagents: SpawnsSubagents) -> None:
        self._subagents = subagents

    async def review(self, asked: str, result: str, *, check: str = "", ctx_of: ToolContext) -> Review:
        """Judge whether `result` does what was `asked`. `check` already passed; `ctx_of` is the turn that wants to
        know. Never raises; a failure is a review without a verdict. Cancelling stops the reviewer.

        Each call is a new review, since the files behind the same words may have changed.
        """
        words = _ASKED.format(asked=quote_lines(asked), result=quote_lines(result))
        if check:
            words += _CHECKED.format(check=quote_lines(check))
        try:
            ended = await self._subagents.see_through(words, f"review: {asked}", role=TaskRole.REVIEWER, ctx=ctx_of)
        except NanobotError as error:
            return Review(None, f"There was no review: {error}")
        passed, reasons = _verdict_of(ended)
        return Review(passed, reasons, ended.cost_usd, ended.tokens, ended.seen)


def _verdict_of(task: Task) -> tuple[bool | None, str]:
    if task.state is not TaskState.DONE:
        return None, f"The review {not_done(task)}"
    return parse_verdict(task.result)
