"""Work that goes on in a session without its person: its goal and its subagents, for the loop, commands and clients."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from nanobot.agent.goals.service import GoalService
from nanobot.agent.subagent.manager import SubagentManager
from nanobot.bus.events import InboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.utils.text import count_noun

_DELIVERY_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class BackgroundWork:
    """The goals and subagents of one bot, as loop, commands (see SessionWork) and clients use them."""

    bus: MessageBus
    goals: GoalService
    subagents: SubagentManager

    def list_running(self, session_key: str | None = None) -> list[str]:
        """Return what runs for this session, or for any session: one short text each."""
        labels, titles = self.subagents.labels_of(session_key), self.goals.titles(session_key)
        subagents = [f"{count_noun(len(labels), 'subagent')}: {', '.join(labels)}"] if labels else []
        return [*(f"the goal: {title}" for title in titles), *subagents]

    def status(self, session_key: str) -> list[str]:
        return self.goals.lines(session_key)

    async def other_process_note(self, session_key: str) -> str:
        return await self.goals.other_process_note(session_key)

    async def stop_for(self, message: InboundMessage) -> tuple[str, list[str]]:
        # before the goal: the stopped turn cancels the subagents it waits for, and their labels count too
        stopping = asyncio.create_task(self.subagents.stop_for(message))
        goal = await self.goals.stop_for(message)
        return goal, await stopping

    async def forget_session(self, session_key: str) -> tuple[list[str], list[str]]:
        goal = await self.goals.forget_session(session_key)
        labels, reports = await self.subagents.forget_session(session_key)
        stopped = [f"its goal ({goal})"] if goal else []
        return [*stopped, f"background tasks: {', '.join(labels)}"] if labels else stopped, reports

    async def recover(self, session_key: str | None = None) -> None:
        await self.goals.recover(session_key)
        await self.subagents.recover(session_key)

    async def wait_until_delivered(self, session_key: str, channel: str) -> None:
        """Wait until nothing runs for this session and the channel has shown its results, also those of work that
        ended just before.
        """
        while self.list_running(session_key):
            await self.goals.wait_ended(session_key)
            await self.subagents.wait_reported(session_key)
        with suppress(TimeoutError):
            async with asyncio.timeout(_DELIVERY_TIMEOUT_S):
                await self.bus.wait_delivered(channel)
