"""Background work of sessions, goals and subagents, for commands and user interfaces."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from nanobot.agent.goals.service import GoalService
from nanobot.agent.subagent.manager import SubagentManager
from nanobot.bus.events import InboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.utils.text import count_noun

_DELIVERY_TIMEOUT_S = 5.0
_HANDOVER_S = 0.02
"""Time for the channel to take the last message."""


@dataclass(frozen=True)
class BackgroundWork:
    bus: MessageBus
    goals: GoalService
    subagents: SubagentManager

    def list_running(self, session_key: str | None = None) -> list[str]:
        """Return what runs for this session, or for any session: one short text each."""
        labels, titles = self.subagents.labels_of(session_key), self.goals.titles(session_key)
        subagents = [f"{count_noun(len(labels), 'subagent')}: {', '.join(labels)}"] if labels else []
        return [*(f"the goal: {title}" for title in titles), *subagents]

    def status(self, session_key: str) -> list[str]:
        """Return the status of the session's goal, one line each. Does not block."""
        return self.goals.lines(session_key)

    async def stop_for(self, message: InboundMessage) -> list[str]:
        """Stop what runs for the session as far as the sender of this message may. Return its labels."""
        labels, goal = await self.subagents.stop_for(message), await self.goals.stop_for(message)
        return [*labels, f"the goal ({goal})"] if goal else labels

    async def other_process_note(self, session_key: str) -> str:
        """Return a sentence if another process works on this session's goal, else an empty string. Never raises."""
        return await self.goals.other_process_note(session_key)

    async def forget_session(self, session_key: str) -> tuple[list[str], list[str]]:
        """Stop and delete what runs for this session. Return what that was, and the keys of reports that may still
        arrive. Raises NanobotError.
        """
        goal = await self.goals.forget_session(session_key)
        labels, reports = await self.subagents.forget_session(session_key)
        stopped = [f"its goal ({goal})"] if goal else []
        return [*stopped, f"background tasks: {', '.join(labels)}"] if labels else stopped, reports

    async def recover(self, session_key: str) -> None:
        """Resume what a previous process left unfinished in this session. Never raises."""
        await self.goals.recover(session_key)
        await self.subagents.recover(session_key)

    async def wait_until_delivered(self, session_key: str) -> None:
        """Wait until nothing runs for this session and its results were delivered to the channel, also those of work
        that ended just before.
        """
        limit_s = _HANDOVER_S
        while self.list_running(session_key):
            limit_s = _DELIVERY_TIMEOUT_S
            await self.goals.wait_ended(session_key)
            await self.subagents.wait_reported(session_key)
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self.bus.wait_outbound_empty()
        await asyncio.sleep(_HANDOVER_S)
