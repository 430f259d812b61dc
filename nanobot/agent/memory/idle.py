"""Compacts sessions that have been idle for some time, in the background.

What was missed while nanobot was not running is done by the session's next turn (COMPACT). One timer, for the session
that has been idle longest.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

from nanobot.utils.clock import Clock

log = logging.getLogger(__name__)


class IdleWatch:
    """Calls `compact` for a session once it was idle for `idle_s` seconds; 0 disables it.

    `turn_begins` and `turn_ended` come in pairs; turns queued in their lane count as begun. Sessions are compacted one
    after another, each once until its next turn. A turn does not cancel a running compaction, so `compact` must not
    block turns.
    """

    def __init__(
        self,
        compact: Callable[[str], Awaitable[object]],
        idle_s: float,
        clock: Clock,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._compact = compact
        self._idle_s = idle_s
        self._clock = clock
        self._sleep = sleep
        self._turns: Counter[str] = Counter()
        self._due: dict[str, float] = {}  # ordered by time, since the delay is constant
        self._timer: asyncio.Task[None] | None = None

    def turn_begins(self, session_key: str) -> None:
        """Record a turn, before it waits for its lane; `turn_ended` must follow in any case."""
        if self._idle_s <= 0:
            return
        self._turns[session_key] += 1
        self._due.pop(session_key, None)

    def turn_ended(self, session_key: str) -> None:
        """Restart the idle time of the session, unless it has another turn."""
        if self._idle_s <= 0:
            return
        self._turns[session_key] -= 1
        if self._turns[session_key] > 0:
            return
        del self._turns[session_key]
        self._due[session_key] = self._clock.monotonic() + self._idle_s
        if self._timer is None:
            self._timer = asyncio.create_task(self._watch(), name="idle watch")

    async def close(self) -> None:
        """Cancel a running compaction, and start no more."""
        self._idle_s = 0
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.wait([self._timer])

    async def _watch(self) -> None:
        try:
            while self._due:
                session_key, due = next(iter(self._due.items()))
                left = due - self._clock.monotonic()
                if left > 0:
                    await self._sleep(left)
                else:
                    del self._due[session_key]
                    await self._compact_safely(session_key)
        finally:
            self._timer = None

    async def _compact_safely(self, session_key: str) -> None:
        try:
            await self._compact(session_key)
        except Exception:  # must not keep other sessions from being compacted
            log.exception("Session %s could not be compacted", session_key)
