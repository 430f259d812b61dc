"""Lanes: the turns of a session one after the other, sessions side by side, a gate on how many at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext


class Lanes:
    """A lane a session, made when somebody enters and gone when the last one leaves."""

    def __init__(self, most_at_once: int = 64) -> None:
        self._gate = asyncio.Semaphore(most_at_once) if most_at_once > 0 else nullcontext()
        self._lanes: dict[str, asyncio.Lock] = {}
        self._users: dict[str, int] = {}

    @asynccontextmanager
    async def enter(self, session_key: str) -> AsyncIterator[None]:
        """Wait for one's place in the lane, then at the gate. First come, first served; cancelling gives it up."""
        lane = self._lanes.setdefault(session_key, asyncio.Lock())
        self._users[session_key] = self._users.get(session_key, 0) + 1
        try:
            async with lane, self._gate:
                yield
        finally:
            self._users[session_key] -= 1
            if not self._users[session_key]:
                del self._users[session_key], self._lanes[session_key]

    def waiting(self, session_key: str) -> int:
        """How many turns are in the lane, the running one included."""
        return self._users.get(session_key, 0)

    def __len__(self) -> int:
        """How many lanes somebody is in."""
        return len(self._lanes)
