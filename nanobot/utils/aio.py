"""asyncio helpers: work that must finish, code that is not ours, and a loop in a thread for what may block."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
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


_BUSY_S = 0.2
"""If the thread has not begun a call after this time, something blocks it."""


class WorkerThread:
    """An event loop in a thread of its own, for code that is not ours: what blocks there holds up nobody else.

    The first call starts it. While something blocks it, new calls get another one.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._blocked: list[asyncio.AbstractEventLoop] = []

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float) -> T:
        """Run the coroutine there. Raises what it raises (RuntimeError instead of an exit or interrupt), and
        TimeoutError. Cancelling is safe, and does not wait.
        """
        call = await self._begin(work)
        try:
            async with asyncio.timeout(timeout_s):
                return await call
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            raise RuntimeError("it cancelled itself") from None

    async def _begin(self, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Future[T]:
        """Start the call in a thread that is free."""
        while True:
            loop = self._loop
            if loop is None or loop.is_closed():
                loop = self._loop = _start_loop()
            begun, claim = asyncio.Event(), threading.Lock()
            call = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_call(work, begun, claim), loop))
            try:
                async with asyncio.timeout(_BUSY_S):
                    await begun.wait()
            except TimeoutError:
                if claim.acquire(blocking=False):
                    call.cancel()
                    if self._loop is loop:
                        self._loop = None
                    if loop not in self._blocked:
                        self._blocked = [*(other for other in self._blocked if not other.is_closed()), loop]
                    continue
            except BaseException:
                call.cancel()
                raise
            return call

    def close(self) -> None:
        """Stop the thread, as soon as nothing blocks it. It does not keep the process alive."""
        for loop in (self._loop, *self._blocked):
            if loop is not None:
                with suppress(RuntimeError):  # it is closed
                    loop.call_soon_threadsafe(loop.stop)
        self._loop, self._blocked = None, []


def _call(
    work: Callable[[], Coroutine[Any, Any, T]], begun: asyncio.Event, claim: threading.Lock
) -> Coroutine[Any, Any, T]:
    caller = asyncio.get_running_loop()

    async def call() -> T:
        if not claim.acquire(blocking=False):
            raise RuntimeError("another thread has begun it")
        with suppress(RuntimeError):  # the caller's loop is closed
            caller.call_soon_threadsafe(begun.set)
        return await contain_errors(work())

    return call()


def _start_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()

    def run() -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks, timeout=_BUSY_S) if tasks else asyncio.sleep(0))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()  # also if foreign code stopped it: the next call starts a new one

    threading.Thread(target=run, name="plugins and own tools", daemon=True).start()
    return loop
