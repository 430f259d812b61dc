"""Background work of sessions, goals and subagents, for the user interfaces."""

import asyncio
from contextlib import suppress

from nanobot.agent.goals.service import GoalService
from nanobot.agent.subagent.manager import SubagentManager
from nanobot.bus.queue import MessageBus
from nanobot.utils.text import count_noun

_DELIVERY_TIMEOUT_S = 5.0
_HANDOVER_S = 0.02
"""Time for the channel to take the last message."""


class BackgroundWork:
    def __init__(self, bus: MessageBus, goals: GoalService, subagents: SubagentManager) -> None:
        self._bus = bus
        self._goals = goals
        self._subagents = subagents

    def list_running(self, session_key: str | None = None) -> list[str]:
        """Return what runs for this session, or for any session: one short text each."""
        labels, titles = self._subagents.labels_of(session_key), self._goals.titles(session_key)
        subagents = [f"{count_noun(len(labels), 'subagent')}: {', '.join(labels)}"] if labels else []
        return [*(f"the goal: {title}" for title in titles), *subagents]

    async def recover(self, session_key: str) -> None:
        """Resume what a previous process left unfinished in this session. Never raises."""
        await self._goals.recover(session_key)
        await self._subagents.recover(session_key)

    async def wait_until_delivered(self, session_key: str) -> None:
        """Wait until nothing runs for this session and its results were delivered to the channel."""
        if not self.list_running(session_key):
            return
        while self.list_running(session_key):
            await self._goals.wait_ended(session_key)
            await self._subagents.wait_reported(session_key)
        with suppress(TimeoutError):
            async with asyncio.timeout(_DELIVERY_TIMEOUT_S):
                await self._bus.wait_outbound_empty()
                await asyncio.sleep(_HANDOVER_S)
