"""Runs the turns of goals, sends their reports and provides their planner and reviewer."""

import asyncio
from typing import TYPE_CHECKING

from nanobot.agent.delivery import GOAL_DELIVERY, Delivery
from nanobot.agent.events import TurnResult
from nanobot.agent.goals.goal import Goal
from nanobot.agent.loop import AgentLoop
from nanobot.agent.pipeline.interrupted import find_interrupted_turn, outcome_text
from nanobot.agent.pipeline.turn import TurnDeps
from nanobot.agent.subagent.advisors import Plan, Review, make_plan, review_result
from nanobot.agent.tools.base import ToolContext
from nanobot.bus.events import InboundMessage, OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.errors import StorageError
from nanobot.messages.types import Origin

if TYPE_CHECKING:
    from nanobot.agent.subagent.manager import SubagentManager


class GoalTurns:
    """Runs goal turns through the agent loop; their replies are held back."""

    def __init__(self, bus: MessageBus, deps: TurnDeps, loop: AgentLoop) -> None:
        self._bus = bus
        self._deps = deps
        self._loop = loop

    async def run(self, message: InboundMessage) -> TurnResult:
        """Run the turn in its session's lane, after other processes that wait for it. Never raises for a failure."""
        await self._deps.sessions.yield_to_waiters(message.session_key)
        return await self._loop.serve(message)

    async def resume(self, session_key: str) -> TurnResult | None:
        """Resume an interrupted turn of a goal. Other interrupted turns wait for their person."""
        interrupted = await asyncio.to_thread(find_interrupted_turn, self._deps.turns_folder, session_key)
        if interrupted is None or interrupted.message.origin is not Origin.GOAL:
            return None
        return await self._loop.resume(session_key, Delivery(self._bus, interrupted.message, GOAL_DELIVERY))

    async def wait_for_lane(self, session_key: str) -> None:
        """Wait until the session's lane is free."""
        async with self._loop.lane(session_key):
            pass

    def send_report(self, goal: Goal) -> None:
        """Send the report through the journal, which sends it once even if a crash comes before the goal is saved."""
        address = goal.address
        message = OutboundMessage(address.channel, address.chat_id, goal.report, kind=OutboundKind.REPLY)
        message.thread_id, message.answers = address.thread_id, f"goal:{goal.id}:{goal.turns}"
        self._bus.post_outbound(message)

    async def called_tools(self, session_key: str, turn_id: str) -> set[str]:
        """Return the names of the tools that this turn called."""
        try:
            session = await asyncio.to_thread(self._deps.sessions.get_or_create, session_key)
        except StorageError:
            return set()
        rows = session.get_history()  # includes the newest turn, however long it is
        return {str(row.get("name")) for row in rows if row["role"] == "tool" and row.get("turn_id") == turn_id}

    async def last_reply(self, session_key: str) -> str:
        """Return the session's last answer."""
        try:
            session = await asyncio.to_thread(self._deps.sessions.get_or_create, session_key)
            rows = await asyncio.to_thread(session.since, 0)
        except StorageError:
            return ""
        answers = [at for at, row in enumerate(rows) if row["role"] == "assistant" and not row.get("tool_calls")]
        return outcome_text(rows[: answers[-1] + 1]) if answers else ""


class GoalTeam:
    """The planner and the reviewer: read-only subagents of the session."""

    def __init__(self, subagents: "SubagentManager", deps: TurnDeps) -> None:
        self._subagents = subagents
        self._deps = deps

    async def plan(self, goal: Goal) -> Plan:
        """Return a task list. Never raises."""
        return await make_plan(self._subagents, goal.text, ctx=self._context(goal))

    async def review(self, goal: Goal, result: str) -> Review:
        """Review the result independently of the session. Never raises."""
        check, ctx = str(goal.claim or ""), self._context(goal)
        return await review_result(self._subagents, goal.text, result, check=check, ctx=ctx)

    def _context(self, goal: Goal) -> ToolContext:
        """Return the context of the goal's turn, as far as subagents need it."""
        return ToolContext(
            session_key=goal.session_key,
            address=goal.address,
            turn_id=f"goal-{goal.id}-{goal.turns}",
            workspace=self._deps.workspace,
            clock=self._deps.clock,
            entered=goal.noted,
            asker=goal.asker,
            origin=Origin.GOAL,
            sender_id=goal.sender_id,
            attended=goal.attended,
            scope=goal.scope,
        )
