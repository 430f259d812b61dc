"""What goes on beside the turns of a session, as screens ask for it: its goal, and its subagents."""

from nanobot.utils.text import counted
from nanobot.wiring.goals import Goals
from nanobot.wiring.subagents import Subagents


class Background:
    """All of it."""

    def __init__(self, goals: Goals, subagents: Subagents) -> None:
        self._goals = goals
        self._subagents = subagents

    def at_work(self, session_key: str | None = None) -> list[str]:
        """What works for this session, or for any, in a few words each."""
        labels, titles = self._subagents.labels_of(session_key), self._goals.titles(session_key)
        subagents = [f"{counted(len(labels), 'subagent')}: {', '.join(labels)}"] if labels else []
        return [*(f"the goal: {title}" for title in titles), *subagents]

    async def take_up(self, session_key: str) -> None:
        """Go on with what an earlier life left of this session. Never raises."""
        await self._goals.take_up(session_key)
        await self._subagents.take_up(session_key)

    async def all_shown(self, session_key: str) -> None:
        """Wait until nothing works for this session any more, and what came of it has left for its channel."""
        while self.at_work(session_key):
            await self._goals.all_shown(session_key)
            await self._subagents.all_shown(session_key)
