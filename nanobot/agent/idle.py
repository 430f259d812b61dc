"""The idle watch: sessions in which nobody says anything any more are compacted, while nobody waits.

One timer, for the session that has been silent longest; none where there is nothing to wait for.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock

log = logging.getLogger(__name__)


class IdleWatch:
    """Calls `compact` for a session once nothing was said in it for `idle_s` seconds; with 0 seconds, never.

    `turn_begins` and `turn_ended` come in pairs; turns that wait for their lane count as begun. Sessions are compacted
    one after the other, and each only once until something was said in it again.
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
        self._due: dict[str, float] = {}  # in the order of their times, since all wait equally long
        self._timer: asyncio.Task[None] | None = None
        self._at_work: tuple[str, asyncio.Task[None]] | None = None

    async def turn_begins(self, session_key: str) -> None:
        """Somebody speaks: a compaction of this session is broken off, and has ended when this returns.

        Call it before the turn waits for its lane. However it ends, `turn_ended` is owed.
        """
        if self._idle_s <= 0:
            return
        self._turns[session_key] += 1
        self._due.pop(session_key, None)
        if self._at_work is not None and self._at_work[0] == session_key:
            task = self._at_work[1]
            task.cancel()
            await asyncio.wait([task])

    def turn_ended(self, session_key: str) -> None:
        """The session's clock begins anew, unless another turn of it has begun meanwhile."""
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
        """Break off what is at work, and begin no more."""
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
                    await self._work(session_key)
        finally:
            self._timer = None

    async def _work(self, session_key: str) -> None:
        """Compact it in a task of its own, so that a new message ends that and not the watch."""
        task = asyncio.create_task(self._guarded(session_key), name=f"compacting {session_key}")
        self._at_work = (session_key, task)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
            await finish(asyncio.wait([task]))
            self._at_work = None

    async def _guarded(self, session_key: str) -> None:
        try:
            await self._compact(session_key)
        except Exception:  # nobody waits for it, and the other sessions still have their turn
            log.exception("Session %s could not be compacted", session_key)
