"""Small asyncio pieces: tasks that have an owner, and waiting that cannot be cut short by a second cancel."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def finish(work: Awaitable[T]) -> T:
    """Wait for work that must end once begun (a write, a goodbye), however often the caller is cancelled meanwhile.

    The cancel is raised after the work has ended.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
    if cancelled is not None:
        task.exception()  # it was waited for; what it raised gives way to the cancel
        raise cancelled
    return task.result()


async def all_or_first_error(work: list[Coroutine[Any, Any, T]]) -> list[T]:
    """Run side by side, results in order. The first error stops the others and is raised as itself."""
    if len(work) == 1:
        return [await work[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


class Turnstile:
    """Lets tasks go on a few at a time, in order: what hundreds do at once would hold the event loop for as long.

    For one loop. A task that comes alone goes through without waiting.
    """

    def __init__(self, most: int = 16) -> None:
        """`most` go through before the loop looks after others again."""
        self._most = most
        self._left = most
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def through(self) -> None:
        """Go through. Cancelling is safe."""
        loop = asyncio.get_running_loop()
        if self._left == self._most:
            loop.call_soon(self._turn, loop)
        if self._left:
            self._left -= 1
            return
        self._waiting.append(waiter := loop.create_future())
        await waiter

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._left = self._most
        while self._waiting and self._left:
            waiter = self._waiting.popleft()
            if not waiter.done():  # its task was cancelled
                waiter.set_result(None)
                self._left -= 1
        if self._left < self._most:
            loop.call_soon(self._turn, loop)
