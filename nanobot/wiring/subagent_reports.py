"""How the ends of tasks come into the sessions that asked: by the bus and its journal, or straight into the loop."""

import asyncio
import logging

from nanobot.agent import task_words
from nanobot.agent.loop import AgentLoop
from nanobot.agent.pipeline.left_over import is_taken_on
from nanobot.agent.pipeline.work import Parts
from nanobot.agent.tasks import Task
from nanobot.bus.events import InboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.types import ChatMessage, Origin, Provenance, text_of
from nanobot.utils.clock import timestamp

log = logging.getLogger(__name__)

_LOOK_S = 0.02


class TaskReports:
    """Brings the ends of tasks into the sessions that asked."""

    def __init__(self, bus: MessageBus, parts: Parts, loop: AgentLoop) -> None:
        self._bus = bus
        self._parts = parts
        self._loop = loop

    async def deliver(self, task: Task) -> bool:
        """As a message: through the bus and its journal; else as a turn at once, and then this waits for its end."""
        message = _report(task)
        if self._loop.is_serving:
            await self._bus.publish_inbound(message)
            return True
        return not (await self._loop.serve(message)).later

    async def was_told(self, task: Task) -> bool:
        """Whether a turn has taken it on."""
        folder, sessions = self._parts.turns_folder, self._parts.sessions
        try:
            return await asyncio.to_thread(is_taken_on, folder, sessions, task.parent, task.journal_key)
        except StorageError as error:
            log.warning("whether the report of %s was told cannot be seen: %s", task.id, error)
            return False

    async def was_given(self, task: Task) -> bool:
        """Whether a row of that turn begins with it."""
        try:
            session = await asyncio.to_thread(self._parts.sessions.get_or_create, task.parent)
            rows = await asyncio.to_thread(session.since, 0)
        except StorageError:
            return False
        given = task_words.given(task)
        return any(row["role"] == "tool" and text_of(row["content"]).startswith(given) for row in rows)

    async def quiet(self, session_key: str) -> None:
        """Until its lane is free."""
        async with self._loop.lane(session_key):
            pass

    async def turn_over(self, session_key: str) -> None:
        """From outside its lane: who waits in there waits for the turns of all that came before, too."""
        while session_key in self._parts.vitals.running:  # noqa: ASYNC110 nobody tells of it
            await asyncio.sleep(_LOOK_S)

    async def note(self, task: Task) -> None:
        """A row of ours, which the model reads at its next turn."""
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
            log.warning("the agent cannot be told that subagent %s was stopped: %s", task.id, error)


def _report(task: Task) -> InboundMessage:
    """The report as the message of a turn: in the session and the chat that asked, by its key known for good."""
    here = task.address
    return InboundMessage(
        here.channel,
        task.sender_id or "owner",
        here.chat_id,
        task_words.report(task),
        session_key_override=task.parent,
        thread_id=here.thread_id,
        origin=Origin.SUBAGENT,
        provenance=task.seen,
        quiet=task.quiet,
        journal_key=task.journal_key,
        plainly=task_words.plainly(task),
        scope=task.scope.chat,
    )
