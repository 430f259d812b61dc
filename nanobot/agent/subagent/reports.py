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
    def __init__(self, bus: MessageBus, deps: TurnDeps, loop: AgentLoop) -> None:
        self._bus = bus
        self._deps = deps
        self._loop = loop

    async def deliver(self, task: Task) -> bool:
        """Publish the report on the bus; without a serving loop, run its turn now and wait for its end.

        Return False if nanobot shuts down first. Raises StorageError if the report could not be stored.
        """
        message = _report(task)
        if self._loop.is_serving:
            await self._bus.publish_inbound(message)
            return True
        return not (await self._loop.serve(message)).later

    async def is_delivered(self, task: Task) -> bool:
        """Whether a turn accepted the report, perhaps in a previous process. Never raises."""
        folder, sessions = self._deps.turns_folder, self._deps.sessions
        try:
            return await asyncio.to_thread(is_accepted, folder, sessions, task.parent, task.journal_key)
        except StorageError as error:
            log.warning("cannot check whether the report of %s was delivered: %s", task.id, error)
            return False

    async def is_result_stored(self, task: Task) -> bool:
        """Whether a turn that waited has stored the result, as a tool result of the parent session. Never raises."""
        try:
            session = await asyncio.to_thread(self._deps.sessions.get_or_create, task.parent)
            rows = await asyncio.to_thread(session.since, 0)
        except StorageError:
            return False
        prefix = texts.tool_result_prefix(task)
        return any(row["role"] == "tool" and text_of(row["content"]).startswith(prefix) for row in rows)

    async def wait_for_lane(self, session_key: str) -> None:
        """Wait until no turn of this session runs, including those queued now."""
        async with self._loop.lane(session_key):
            pass

    async def wait_idle(self, session_key: str) -> None:
        """Wait for the running turn without entering its lane: a waiter in the lane would also wait for
        queued turns.
        """
        await self._deps.status.wait_idle(session_key)

    async def note_stop(self, task: Task) -> None:
        """Store a system row that tells the model at its next turn that a person stopped the task. Never raises."""
        row: ChatMessage = {
            "role": "user",
            "content": f"[The person stopped the subagent that worked on: {task.label}. It will not report.]",
            "origin": Origin.SYSTEM,
            "provenance": Provenance.SYSTEM,
            "timestamp": timestamp(self._deps.clock),
        }
        try:
            async with self._loop.lane(task.parent), self._deps.sessions.hold(task.parent) as session:
                last = session.last_message
                if last is not None and text_of(last["content"]) != row["content"]:
                    await self._deps.sessions.append(session, row)
        except NanobotError as error:
            log.warning("cannot tell the agent that subagent %s was stopped: %s", task.id, error)


def _report(task: Task) -> InboundMessage:
    """Return the report as a message to the parent session and chat. Its journal key makes it unique."""
    return InboundMessage.at(
        task.address,
        task.sender_id,
        texts.report(task),
        session_key=task.parent,
        origin=Origin.SUBAGENT,
        provenance=task.seen,
        quiet=task.quiet,
        journal_key=task.journal_key,
        fallback_text=texts.plain_report(task),
        scope=task.scope.chat,
    )
