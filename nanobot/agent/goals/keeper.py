"""What the `goal` tool says of a goal, done: begun, noted, claimed, asked about, dropped. It fits the tool's port."""

from collections.abc import Sequence

from nanobot.agent.goals import words
from nanobot.agent.goals.goal import Goal, GoalState, keeps_to
from nanobot.agent.goals.manager import NONE, GoalManager
from nanobot.agent.tools.base import ToolContext
from nanobot.agent.tools.goal import Check
from nanobot.errors import NanobotError
from nanobot.messages.types import is_outside, least_trusted
from nanobot.utils.text import clip_line

_MOST_NOTED = 4_000
"""Characters of a part of its note, and of a question: they stand beside every message."""


class GoalKeeper:
    """The goals of one bot, as its agent speaks of them."""

    def __init__(self, goals: GoalManager) -> None:
        self._goals = goals

    async def begin(self, text: str, check: Check | None, ctx: ToolContext) -> str:
        """Take it on for the session of this turn. Raises NanobotError where it cannot be."""
        trust = least_trusted([ctx.asker, ctx.entered]) if is_outside(ctx.entered) else ctx.asker
        goal = await self._goals.set(
            Goal(
                "",
                text,
                ctx.session_key,
                ctx.address,
                trust,
                ctx.origin,
                ctx.sender_id,
                ctx.attended,
                ctx.scope,
                self._goals.policy.limits,
                check,
                review=self._goals.policy.review,
            )
        )
        return words.begun_by_agent(goal)

    async def note(self, ctx: ToolContext, *, done: str = "", doing: str = "", following: str = "") -> str:
        """Write down how far it is. Raises NanobotError."""
        goal = await self._goals.at_work(ctx.session_key)
        if not (done or doing or following):
            raise NanobotError("There is nothing to note. Give done, doing or next.")
        for name, text in (("done", done), ("doing", doing), ("next", following)):
            keeps_to(_MOST_NOTED, text, name)
        note = goal.note
        note.done, note.doing, note.following = done or note.done, doing or note.doing, following or note.following
        goal.noted = least_trusted([goal.noted, ctx.entered])
        await self._goals.save(goal)
        return "Noted."

    def checks(self, ctx: ToolContext) -> Sequence[Check]:
        """What must hold at the end, as who set it has said. Raises NanobotError."""
        goal = self._goals.goal_of(ctx.session_key)
        if goal is None or goal.state.is_over:
            raise NanobotError(NONE)
        return [goal.check] if goal.check is not None else []

    def refuted(self, shown: str, ctx: ToolContext) -> None:
        """Its end was claimed, and a check did not hold, as is said here."""
        self._goals.refuted(ctx.session_key, shown)

    async def claimed(self, check: Check, ctx: ToolContext) -> str:
        """Its end was claimed, and the check held. Raises NanobotError."""
        goal = await self._goals.at_work(ctx.session_key)
        goal.state, goal.claim = GoalState.ACTIVE, check
        await self._goals.save(goal)
        self._goals.see_through(ctx.session_key)
        reader = " A reviewer reads it first." if goal.review else ""
        return f"The check holds ({check}). Give your final answer now: it is what the person is told.{reader}"

    async def ask(self, question: str, ctx: ToolContext) -> str:
        """It waits for the person's answer. Raises NanobotError."""
        if not question.strip():
            raise NanobotError("There is no question. Say it in text.")
        keeps_to(_MOST_NOTED, question, "text")
        goal = await self._goals.at_work(ctx.session_key)
        goal.state, goal.why = GoalState.ASKING, question.strip()
        goal.noted = least_trusted([goal.noted, ctx.entered])
        await self._goals.save(goal)
        return "The person is asked when this turn ends; the goal goes on with their answer. End the turn now."

    async def drop(self, why: str, ctx: ToolContext) -> str:
        """It cannot be reached. Raises NanobotError."""
        if not why.strip():
            raise NanobotError("Say in text why it cannot be reached.")
        goal = await self._goals.at_work(ctx.session_key)
        goal.state, goal.why = GoalState.DROPPED, clip_line(" ".join(why.split()), 400).rstrip(".")
        await self._goals.save(goal)
        return "The goal is given up. Tell the person in your answer what was done and what is missing."
