"""Small asyncio helpers."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


async def finish(work: Awaitable[T]) -> T:
    """Wait for work that must complete once started, such as a write, even if the caller is cancelled repeatedly.

    The cancellation is raised after the work has ended.
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
        task.exception()  # retrieved; its error gives way to the cancellation
        raise cancelled
    return task.result()


def is_being_cancelled() -> bool:
    """Whether the current task was cancelled. If not, a CancelledError comes from a task or future it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def contain_errors(work: Awaitable[T]) -> T:
    """Await foreign code. An exception that is no Exception, such as SystemExit, becomes a RuntimeError, and so does a
    CancelledError although this task was not cancelled.
    """
    try:
        return await work
    except Exception:
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
            raise
        raise RuntimeError(f"it raised {type(error).__name__}: {error}") from error


async def gather_or_raise(work: list[Coroutine[Any, Any, T]]) -> list[T]:
    """Run concurrently and return the results in order. The first error cancels the others and is raised itself."""
    if len(work) == 1:
        return [await work[0]]
    async with task_group() as group:
        tasks = [group.create_task(coroutine) for coroutine in work]
    return [task.result() for task in tasks]


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """A TaskGroup that raises the first error itself."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


class Pace:
    """Limits how much work begins in one iteration of the event loop, first come, first served.

    asyncio runs all ready callbacks in one iteration and polls sockets and timers only between iterations: a thousand
    tasks that become ready together and work for a millisecond each would block the loop for a second.
    """

    def __init__(self, max_s: float = 0.008) -> None:
        self._max_s = max_s
        self._until: float | None = None
        """When the time for work is used up; None before the first caller of an iteration."""
        self._begun = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def step(self) -> None:
        """Return at once while there is time, else in a later iteration; one caller is always let through."""
        loop = asyncio.get_running_loop()
        if self._waiting or self._is_over(loop):
            self._waiting.append(place := loop.create_future())
            await place
            while self._is_over(loop):
                self._waiting.appendleft(place := loop.create_future())
                await place
        if self._until is None:
            self._start(loop)
        self._begun += 1

    def _is_over(self, loop: asyncio.AbstractEventLoop) -> bool:
        return self._until is not None and self._begun > 0 and loop.time() >= self._until

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._until, self._begun = loop.time() + self._max_s, 0
        loop.call_soon(self._end, loop)

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake one more than began in this iteration: others would mostly have to wait again."""
        self._until, places = None, self._begun + 1
        while self._waiting and places:
            place = self._waiting.popleft()
            if not place.done():  # else it was cancelled
                place.set_result(None)
                places -= 1
                if self._until is None:
                    self._start(loop)
