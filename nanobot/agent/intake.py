"""Intake: messages from the bus on their way into the lanes.

Of one session only so many are in its lane at a time. The others wait here, where a message is nothing but itself: ten
thousand turns that wait are half a million objects, and each full collection of garbage would stop the loop for long.
"""

from collections import Counter, deque
from collections.abc import Awaitable, Callable

from nanobot.bus.events import InboundMessage

MOST_IN_LANE = 20


class Intake:
    """Keeps the order of each session. Nothing is refused, and nothing that was taken is left behind."""

    def __init__(self, tell: Callable[[InboundMessage], Awaitable[object]], most_in_lane: int = MOST_IN_LANE) -> None:
        self._tell = tell
        self._most = most_in_lane
        self._inside: Counter[str] = Counter()
        self._outside: dict[str, deque[InboundMessage]] = {}

    def lets_in(self, message: InboundMessage) -> bool:
        """Whether it may enter now: then `serve` is owed. If not it waits here for one that leaves."""
        key = message.session_key
        if self._inside[key] < self._most:
            self._inside[key] += 1
            return True
        self._outside.setdefault(key, deque()).append(message)
        return False

    async def serve(self, message: InboundMessage) -> None:
        """See this message to its end, then the next that waits here, until none does."""
        key = message.session_key
        await self._tell(message)
        while waiting := self._outside.get(key):
            following = waiting.popleft()
            if not waiting:
                del self._outside[key]
            await self._tell(following)
        self._inside[key] -= 1
        if not self._inside[key]:
            del self._inside[key]
