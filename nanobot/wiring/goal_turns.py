"""Where the turns of goals run, how their people are told, who helps with them."""

import asyncio
from typing import TYPE_CHECKING

from nanobot.agent.delivery import OF_GOALS, Delivery
from nanobot.agent.goals.goal import Goal
from nanobot.agent.loop import AgentLoop
from nanobot.agent.pipeline.left_over import left_over_turns, words_of
from nanobot.agent.pipeline.work import Parts
from nanobot.agent.planning import Plan, SubagentPlanner
from nanobot.agent.review import Review, SubagentReviewer
from nanobot.agent.tools.base import ToolContext
from nanobot.agent.turn import TurnResult
from nanobot.bus.events import InboundMessage, OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.errors import StorageError
from nanobot.messages.types import Origin

if TYPE_CHECKING:
    from nanobot.wiring.subagents import Subagents


class GoalTurns:
    """Through the loop, like everybody's; the reply is kept back."""

    def __init__(self, bus: MessageBus, parts: Parts, loop: AgentLoop) -> None:
        self._bus = bus
        self._parts = parts
        self._loop = loop

    async def run(self, message: InboundMessage) -> TurnResult:
        """Run it in its session's lane, behind who waits for the session in another process."""
        await self._parts.sessions.give_way(message.session_key)
        return await self._loop.serve(message)

    async def resume(self, session_key: str) -> TurnResult | None:
        """Take up the turn that was cut off. Another one than a goal's waits for its person."""
        left = (await asyncio.to_thread(left_over_turns, self._parts.turns_folder)).get(session_key)
        if left is None or left.message.origin is not Origin.GOAL:
            return None
        return await self._loop.resume(session_key, Delivery(self._bus, left.message, OF_GOALS))

    async def quiet(self, session_key: str) -> None:
        """Until its lane is free."""
        async with self._loop.lane(session_key):
            pass

    def tell(self, goal: Goal) -> None:
        """By the journal: the same report goes out once, also where a crash comes before that is written down."""
        to = goal.address
        message = OutboundMessage(to.channel, to.chat_id, goal.report, kind=OutboundKind.REPLY)
        message.thread_id, message.answers = to.thread_id, f"goal:{goal.id}:{goal.turns}"
        self._bus.post_outbound(message)

    async def called(self, session_key: str, turn_id: str) -> set[str]:
        """The names of the tools that this turn has called."""
        try:
            session = await asyncio.to_thread(self._parts.sessions.get_or_create, session_key)
        except StorageError:
            return set()
        rows = session.get_history()  # the newest, however long it is
        return {str(row.get("name")) for row in rows if row["role"] == "tool" and row.get("turn_id") == turn_id}

    async def last_words(self, session_key: str) -> str:
        """The answer that stands last in its session."""
        try:
            session = await asyncio.to_thread(self._parts.sessions.get_or_create, session_key)
            rows = await asyncio.to_thread(session.since, 0)
        except StorageError:
            return ""
        said = [at for at, row in enumerate(rows) if row["role"] == "assistant" and not row.get("tool_calls")]
        return words_of(rows[: said[-1] + 1]) if said else ""


class GoalTeam:
    """The planner and the reviewer: subagents of the session, with eyes and no hands."""

    def __init__(self, subagents: "Subagents", parts: Parts) -> None:
        self._subagents = subagents
        self._parts = parts

    async def plan(self, goal: Goal) -> Plan:
        """A list of tasks."""
        return await SubagentPlanner(self._subagents.manager).plan(goal.text, ctx_of=self._context(goal))

    async def review(self, goal: Goal, result: str) -> Review:
        """Read the result with fresh eyes."""
        reviewer, check = SubagentReviewer(self._subagents.manager), str(goal.claim or "")
        return await reviewer.review(goal.text, result, check=check, ctx_of=self._context(goal))

    def _context(self, goal: Goal) -> ToolContext:
        """A turn of the goal's, as far as subagents want to know."""
        return ToolContext(
            session_key=goal.session_key,
            address=goal.address,
            turn_id=f"goal-{goal.id}-{goal.turns}",
            workspace=self._parts.workspace,
            clock=self._parts.clock,
            entered=goal.noted,
            asker=goal.asker,
            origin=Origin.GOAL,
            sender_id=goal.sender_id,
            attended=goal.attended,
            scope=goal.scope,
        )
