"""Pace: of many who want to work at once, each pass of the event loop lets as many through as it has time for.

asyncio runs whatever is ready in one pass, and looks at sockets, timers and everybody else only between two of them. A
thousand tasks that become ready together and work for a millisecond each would stop the loop for a second so.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable


class Pace:
    """A place that work passes on its way. While nobody waits there is no timer and no task, and it costs nothing."""

    def __init__(self, pass_s: float = 0.008, clock: Callable[[], float] = time.perf_counter) -> None:
        """`pass_s` is how old a pass may be when it lets the last one through; one it lets through in any case."""
        self._pass_s = pass_s
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._late: list[asyncio.Future[None]] = []
        """Who was called for this pass and came too late: before all others in the next."""
        self._began: float | None = None
        """When this pass began, as far as it is seen from here; None where nobody came by."""
        self._through = 0

    async def step(self) -> None:
        """Return at once while this pass is young, else in a later one: before those who come in a later pass.

        Whoever returns works until its next await. Cancelling gives the place up.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # who waited in another one is gone with it
            self._loop, self._waiting, self._late, self._began = loop, deque(), [], None
        if self._began is None:
            self._begin_pass(loop)
        elif self._waiting or self._late or self._is_old():
            self._waiting.append(place := loop.create_future())
            await place
            while self._is_old():
                self._late.append(place := loop.create_future())
                await place
        self._through += 1

    def _is_old(self) -> bool:
        return self._began is not None and self._through > 0 and self._clock() - self._began >= self._pass_s

    def _begin_pass(self, loop: asyncio.AbstractEventLoop) -> None:
        self._began = self._clock()
        self._through = 0
        loop.call_soon(self._end_pass, loop)

    def _end_pass(self, loop: asyncio.AbstractEventLoop) -> None:
        """Call the next ones. They run in the pass that begins here, and before it ends here."""
        self._waiting.extendleft(reversed(self._late))
        self._late.clear()
        most = self._through + 1  # more would mostly be called in vain
        called = 0
        while self._waiting and called < most:
            place = self._waiting.popleft()
            if not place.done():  # else it was cancelled
                place.set_result(None)
                called += 1
        if called:
            self._begin_pass(loop)
        else:
            self._began = None
