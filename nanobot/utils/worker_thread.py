"""An event loop in a thread of its own, for code that is not ours: what blocks there holds up nobody else."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from nanobot.utils.aio import contain_errors, is_being_cancelled

T = TypeVar("T")

_BUSY_S = 0.2
"""If the thread has not begun a call after this time, something blocks it."""


class WorkerThread:
    """One thread for all of it, started by the first call. While something blocks it, new calls get another one."""

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
                    self._leave(loop)
                    continue
            except BaseException:
                call.cancel()
                raise
            return call

    def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is loop:
            self._loop = None
        if loop not in self._blocked:
            self._blocked = [*(other for other in self._blocked if not other.is_closed()), loop]

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
