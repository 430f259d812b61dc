"""Plans: a read-only subagent writes the task list of a piece of work before it starts."""

import re
from dataclasses import dataclass

from nanobot.agent.subagent.ports import SpawnsSubagents
from nanobot.agent.subagent.roles import TaskRole
from nanobot.agent.subagent.tasks import TaskState
from nanobot.agent.subagent.texts import not_done
from nanobot.agent.tools.base import ToolContext
from nanobot.errors import NanobotError
from nanobot.messages.types import Provenance
from nanobot.utils.text import clip_line, quote_lines

MOST_STEPS = 20
_LONGEST_STEP = 300
_ASKED = "Plan this:\n\n{asked}"
_STEP = re.compile(r"^[^\S\n]*(?:[-*+]|\d+[.)])[^\S\n]+\[ ?\][^\S\n]+(\S.*)$", re.MULTILINE)
_NO_LIST = "The planner's answer has no readable task list."


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of planning."""

    steps: tuple[str, ...]
    """Empty without a plan; then `trouble` says why."""
    trouble: str = ""
    cost_usd: float | None = None
    tokens: int = 0
    provenance: Provenance = Provenance.TOOL
    """The least trusted content that the planner read."""


class SubagentPlanner:
    def __init__(self, subagents: SpawnsSubagents) -> None:
        self._subagents = subagents

    async def plan(self, asked: str, *, ctx_of: ToolContext) -> Plan:
        """Plan what is `asked`, for the turn of `ctx_of`. Never raises; a failure is in the plan's `trouble`.
        Cancelling stops the planner.
        """
        words = _ASKED.format(asked=quote_lines(asked))
        try:
            ended = await self._subagents.see_through(words, f"plan: {asked}", role=TaskRole.PLANNER, ctx=ctx_of)
        except NanobotError as error:
            return Plan((), f"There is no plan: {error}")
        steps = _steps_in(ended.result) if ended.state is TaskState.DONE else ()
        trouble = "" if steps else _NO_LIST if ended.state is TaskState.DONE else f"The planning {not_done(ended)}"
        return Plan(steps, trouble, ended.cost_usd, ended.tokens, ended.seen)


def _steps_in(text: str) -> tuple[str, ...]:
    return tuple(clip_line(step.strip(), _LONGEST_STEP) for step in _STEP.findall(text)[:MOST_STEPS])
