"""What the journal refused, kept until it takes it: a disk is full for a while, and who was answered meanwhile must not
be answered again after a crash that comes later.
"""

from collections import deque
from collections.abc import Awaitable, Callable

from nanobot.bus.journal import Journal
from nanobot.errors import StorageError

EVERY_S = 5.0
"""How often it is tried where nothing else is to be written."""
_MOST = 20_000
"""More than that is not kept: the oldest goes."""

Write = Callable[[Journal], Awaitable[None]]
"""Writes one thing down. Raises StorageError."""


class LateWrites:
    """Writes in their order, each until it succeeds."""

    def __init__(self) -> None:
        self._writes: deque[Write] = deque(maxlen=_MOST)

    def __bool__(self) -> bool:
        return bool(self._writes)

    def put(self, write: Write) -> None:
        """Try this again later."""
        self._writes.append(write)

    async def catch_up(self, journal: Journal) -> bool:
        """Try all of them; whether none is left."""
        while self._writes:
            try:
                await self._writes[0](journal)
            except StorageError:
                return False
            self._writes.popleft()
        return True
