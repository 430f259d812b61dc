"""The mention that comes twice: as `app_mention` and as `message`, with the same timestamp, in either order.

The message says at least as much: a mention may come without its files, or, with files, not at all. So a mention that
names no file waits a moment for its message. Where the app is told of mentions alone, the moment is all it costs.
"""

import asyncio
from collections import OrderedDict

TWIN_S = 0.3
_MOST = 512


class MentionDeduplicator:
    """Which messages have come, and who waits for one."""

    def __init__(self) -> None:
        self._come: OrderedDict[tuple[str, str], asyncio.Event] = OrderedDict()

    def came(self, chat: str, ts: str) -> None:
        """A message has come."""
        self._of(chat, ts).set()

    async def has_come(self, chat: str, ts: str) -> bool:
        """Whether the message of a mention is here, or comes in a moment."""
        try:
            async with asyncio.timeout(TWIN_S):
                await self._of(chat, ts).wait()
        except TimeoutError:
            return False
        return True

    def _of(self, chat: str, ts: str) -> asyncio.Event:
        event = self._come.setdefault((chat, ts), asyncio.Event())
        while len(self._come) > _MOST:
            self._come.popitem(last=False)
        return event
