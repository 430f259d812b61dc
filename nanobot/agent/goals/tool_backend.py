"""The backend of the `goal` tool: begin, note, finish, ask and drop."""

from collections.abc import Sequence

from nanobot.agent.goals import texts
from nanobot.agent.goals.goal import Goal, GoalState, check_length
from nanobot.agent.goals.manager import NO_GOAL, GoalManager
from nanobot.agent.tools.base import ToolContext
from nanobot.agent.tools.goal import GoalCheck
from nanobot.errors import NanobotError
from nanobot.messages.types import is_outside, least_trusted
from nanobot.utils.text import clip_line

_MAX_NOTE_CHARS = 4_000
"""Characters of a note field or question: they are added to every message."""


class GoalToolBackend:
    def __init__(self, goals: GoalManager) -> None:
        self._goals = goals

    async def begin(self, text: str, check: GoalCheck | None, ctx: ToolContext) -> str:
        """Start a goal in the session of this turn. Raises NanobotError."""
        asker = least_trusted([ctx.asker, ctx.entered]) if is_outside(ctx.entered) else ctx.asker
        goal = await self._goals.set(
            Goal(
                "",
                text,
                ctx.session_key,
                ctx.address,
                asker,
                ctx.origin,
                ctx.sender_id,
                ctx.attended,
                ctx.scope,
                self._goals.policy.limits,
                check,
                review=self._goals.policy.review,
            )
        )
        return texts.started_tool_result(goal)

    async def note(self, ctx: ToolContext, *, done: str = "", doing: str = "", following: str = "") -> str:
        """Update the note. Raises NanobotError."""
        goal = await self._goals.open_goal(ctx.session_key)
        if not (done or doing or following):
            raise NanobotError("The note is empty. Pass done, doing or next.")
        for name, text in (("done", done), ("doing", doing), ("next", following)):
            check_length(_MAX_NOTE_CHARS, text, name)
        note = goal.note
        note.done, note.doing, note.following = done or note.done, doing or note.doing, following or note.following
        goal.noted = least_trusted([goal.noted, ctx.entered])
        await self._goals.save(goal)
        return "Noted."

    def checks(self, ctx: ToolContext) -> Sequence[GoalCheck]:
        """Return the checks that the goal's author demands. Raises NanobotError."""
        goal = self._goals.goal_of(ctx.session_key)
        if goal is None or goal.state.is_over:
            raise NanobotError(NO_GOAL)
        return [goal.check] if goal.check is not None else []

    def record_failed_check(self, output: str, ctx: ToolContext) -> None:
        """Record the output of a check that failed when the goal was claimed."""
        self._goals.record_failed_check(ctx.session_key, output)

    async def finish(self, check: GoalCheck, ctx: ToolContext) -> str:
        """Finish the goal: the check passed. Raises NanobotError."""
        goal = await self._goals.open_goal(ctx.session_key)
        goal.state, goal.claim = GoalState.ACTIVE, check
        await self._goals.save(goal)
        self._goals.ensure_running(ctx.session_key)
        review_note = " A reviewer reads it first." if goal.review else ""
        return f"The check passed ({check}). Give your final answer now: it is the report to the person.{review_note}"

    async def ask(self, question: str, ctx: ToolContext) -> str:
        """Let the goal wait for the person's answer. Raises NanobotError."""
        if not question.strip():
            raise NanobotError("The question is missing. Pass it in text.")
        check_length(_MAX_NOTE_CHARS, question, "text")
        goal = await self._goals.open_goal(ctx.session_key)
        goal.state, goal.why = GoalState.ASKING, question.strip()
        goal.noted = least_trusted([goal.noted, ctx.entered])
        await self._goals.save(goal)
        return "The question is sent when this turn ends; the goal continues with the answer. End the turn now."

    async def drop(self, why: str, ctx: ToolContext) -> str:
        """Give the goal up. Raises NanobotError."""
        if not why.strip():
            raise NanobotError("Pass the reason in text.")
        goal = await self._goals.open_goal(ctx.session_key)
        goal.state, goal.why = GoalState.DROPPED, clip_line(" ".join(why.split()), 400).rstrip(".")
        await self._goals.save(goal)
        return "The goal is given up. Say in your answer what was done and what is missing."
