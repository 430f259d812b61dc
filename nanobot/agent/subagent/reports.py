"""Delivers the results of tasks to their parent sessions: through the bus and its journal, or directly into
the loop.
"""

import asyncio
import logging

from nanobot.agent.loop import AgentLoop
from nanobot.agent.pipeline.interrupted import is_accepted
from nanobot.agent.pipeline.turn import TurnDeps
from nanobot.agent.subagent import texts
from nanobot.agent.subagent.tasks import Task
from nanobot.bus.events import InboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.types import ChatMessage, Origin, Provenance, text_of
from nanobot.utils.clock import timestamp

log = logging.getLogger(__name__)


class TaskReports:
    def __init__(self, bus: MessageBus, parts: TurnDeps, loop: AgentLoop) -> None:
        self._bus = bus
        self._parts = parts
        self._loop = loop

    async def deliver(self, task: Task) -> bool:
        """Publish the report on the bus; without a serving loop, run its turn now and wait for its end."""
        message = _report(task)
        if self._loop.is_serving:
            await self._bus.publish_inbound(message)
            return True
        return not (await self._loop.serve(message)).later

    async def was_told(self, task: Task) -> bool:
        """Whether a turn accepted the report."""
        folder, sessions = self._parts.turns_folder, self._parts.sessions
        try:
            return await asyncio.to_thread(is_accepted, folder, sessions, task.parent, task.journal_key)
        except StorageError as error:
            log.warning("cannot check whether the report of %s was delivered: %s", task.id, error)
            return False

    async def was_given(self, task: Task) -> bool:
        """Whether a tool result of the parent session starts with it."""
        try:
            session = await asyncio.to_thread(self._parts.sessions.get_or_create, task.parent)
            rows = await asyncio.to_thread(session.since, 0)
        except StorageError:
            return False
        given = texts.inline_prefix(task)
        return any(row["role"] == "tool" and text_of(row["content"]).startswith(given) for row in rows)

    async def quiet(self, session_key: str) -> None:
        """Wait until the session's lane is free."""
        async with self._loop.lane(session_key):
            pass

    async def wait_idle(self, session_key: str) -> None:
        """Wait for the running turn without entering its lane: a waiter in the lane would also wait for
        queued turns.
        """
        await self._parts.status.wait_idle(session_key)

    async def note(self, task: Task) -> None:
        """Store a system row that the model reads at its next turn."""
        row: ChatMessage = {
            "role": "user",
            "content": f"[The person stopped the subagent that worked on: {task.label}. It will not report.]",
            "origin": Origin.SYSTEM,
            "provenance": Provenance.SYSTEM,
            "timestamp": timestamp(self._parts.clock),
        }
        try:
            async with self._loop.lane(task.parent), self._parts.sessions.hold(task.parent) as session:
                last = session.last_message
                if last is not None and text_of(last["content"]) != row["content"]:
                    await self._parts.sessions.append(session, row)
        except NanobotError as error:
            log.warning("cannot tell the agent that subagent %s was stopped: %s", task.id, error)


def _report(task: Task) -> InboundMessage:
    """Return the report as a message to the parent session and chat. Its journal key makes it unique."""
    here = task.address
    return InboundMessage(
        here.channel,
        task.sender_id or "owner",
        here.chat_id,
        texts.report(task),
        session_key_override=task.parent,
        thread_id=here.thread_id,
        origin=Origin.SUBAGENT,
        provenance=task.seen,
        quiet=task.quiet,
        journal_key=task.journal_key,
        fallback_text=texts.plain_report(task),
        scope=task.scope.chat,
    )
