"""Plans: the task list of a piece of work, written before it begins by a subagent that only reads."""

import re
from dataclasses import dataclass
from typing import Protocol

from nanobot.agent.roles import Role
from nanobot.agent.subagent_ports import Subagents
from nanobot.agent.task_words import not_done, quoted
from nanobot.agent.tasks import TaskState
from nanobot.agent.tools.base import ToolContext
from nanobot.errors import NanobotError
from nanobot.messages.types import Provenance
from nanobot.utils.text import clip_line

MOST_STEPS = 20
_LONGEST_STEP = 300
_ASKED = "Plan this:\n\n{asked}"
_STEP = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+\[ ?\]\s+(\S.*)$", re.MULTILINE)
_NO_LIST = "The planner gave no task list that could be read."


@dataclass(frozen=True, slots=True)
class Plan:
    """What a planner came to."""

    steps: tuple[str, ...]
    """Empty where there is no plan; then `trouble` says why."""
    trouble: str = ""
    cost_usd: float | None = None
    tokens: int = 0
    provenance: Provenance = Provenance.TOOL
    """The least trusted words that the planner has seen, and with them the steps."""


class Planner(Protocol):
    """Writes plans."""

    async def plan(self, asked: str, *, ctx_of: ToolContext) -> Plan:
        """The steps to what is `asked`, for the turn of `ctx_of`. Never raises: without a plan it says why. Cancelled,
        it stops.
        """
        ...


class SubagentPlanner:
    """Has a subagent plan."""

    def __init__(self, subagents: Subagents) -> None:
        self._subagents = subagents

    async def plan(self, asked: str, *, ctx_of: ToolContext) -> Plan:
        """See `Planner`."""
        words = _ASKED.format(asked=quoted(asked))
        try:
            ended = await self._subagents.see_through(words, f"plan: {asked}", role=Role.PLANNER, ctx=ctx_of)
        except NanobotError as error:
            return Plan((), f"There is no plan: {error}")
        steps = _steps_in(ended.result) if ended.state is TaskState.DONE else ()
        trouble = "" if steps else _NO_LIST if ended.state is TaskState.DONE else f"The planning {not_done(ended)}"
        return Plan(steps, trouble, ended.cost_usd, ended.tokens, ended.seen)


def _steps_in(text: str) -> tuple[str, ...]:
    return tuple(clip_line(step.strip(), _LONGEST_STEP) for step in _STEP.findall(text)[:MOST_STEPS])
