"""Limits how much work becomes ready in one iteration of the event loop.

asyncio runs all ready callbacks in one iteration and polls sockets and timers only between iterations. A thousand tasks
that become ready together and work for a millisecond each would block the loop for a second.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable


class Pace:
    """A checkpoint for work. While nothing waits it needs no timer and no task."""

    def __init__(self, max_iteration_s: float = 0.008, clock: Callable[[], float] = time.perf_counter) -> None:
        """`max_iteration_s` is the time budget of an iteration; one waiter is always let through."""
        self._max_iteration_s = max_iteration_s
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._overdue: list[asyncio.Future[None]] = []
        """Waiters released in an iteration but too late to run in it: first in the next."""
        self._started_at: float | None = None
        """Start of this iteration as seen from here; None if nothing has passed."""
        self._passed = 0

    async def step(self) -> None:
        """Return at once within the time budget, else in a later iteration, in the order of arrival.

        The caller then works until its next await. Cancelling gives up the place in the queue.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # waiters of another loop ended with it
            self._loop, self._waiting, self._overdue, self._started_at = loop, deque(), [], None
        if self._started_at is None:
            self._start_iteration(loop)
        elif self._waiting or self._overdue or self._is_used_up():
            self._waiting.append(turn := loop.create_future())
            await turn
            while self._is_used_up():
                self._overdue.append(turn := loop.create_future())
                await turn
        self._passed += 1

    def _is_used_up(self) -> bool:
        return (
            self._started_at is not None
            and self._passed > 0
            and self._clock() - self._started_at >= self._max_iteration_s
        )

    def _start_iteration(self, loop: asyncio.AbstractEventLoop) -> None:
        self._started_at = self._clock()
        self._passed = 0
        loop.call_soon(self._end_iteration, loop)

    def _end_iteration(self, loop: asyncio.AbstractEventLoop) -> None:
        """Release the next waiters. They run in the iteration that starts here."""
        self._waiting.extendleft(reversed(self._overdue))
        self._overdue.clear()
        limit = self._passed + 1  # more would mostly find the time used up
        released = 0
        while self._waiting and released < limit:
            turn = self._waiting.popleft()
            if not turn.done():  # otherwise it was cancelled
                turn.set_result(None)
                released += 1
        if released:
            self._start_iteration(loop)
        else:
            self._started_at = None
