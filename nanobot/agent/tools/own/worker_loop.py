"""The event loop, in a thread of its own, for own tools and plugins: code that blocks holds up nobody else."""

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from nanobot.utils.aio import contain_errors

T = TypeVar("T")

_CANCEL_TIMEOUT_S = 1.0
"""How long a cancelled call may take to end before its thread is abandoned."""


class WorkerLoop:
    """One loop for all of them; replaced if a tool blocks it for good."""

    def __init__(self, name: str = "own tools") -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, work: Coroutine[Any, Any, T], limit_s: float) -> T:
        """Run the coroutine there. Raises what it raises (RuntimeError instead of an exit or interrupt), and
        TimeoutError. Cancelling is safe."""
        loop = self._loop
        if loop is None or loop.is_closed():
            loop = self._loop = _start_loop(self._name)
        waiting = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_contain_errors(work), loop))
        try:
            async with asyncio.timeout(limit_s):
                return await waiting
        except (TimeoutError, asyncio.CancelledError) as end:
            if not await _is_responsive(loop) and self._loop is loop:
                self._loop = None  # its thread is stuck in a tool; Python cannot end it
            if isinstance(end, asyncio.CancelledError) and not _is_cancelled():
                raise RuntimeError("it cancelled itself") from None
            raise

    def close(self) -> None:
        """Stop the loop, if it still responds."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None


async def _contain_errors(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await contain_errors(work)
    except asyncio.CancelledError:
        if _is_cancelled():
            raise
        raise RuntimeError("it cancelled itself") from None


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _start_loop(name: str) -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()

    def run() -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()  # also if a stray task stopped it: the next call starts a new one

    threading.Thread(target=run, name=name, daemon=True).start()
    return loop


async def _is_responsive(loop: asyncio.AbstractEventLoop) -> bool:
    here, answered = asyncio.get_running_loop(), asyncio.Event()

    def answer() -> None:
        with suppress(RuntimeError):  # our loop is closed
            here.call_soon_threadsafe(answered.set)

    loop.call_soon_threadsafe(answer)
    try:
        async with asyncio.timeout(_CANCEL_TIMEOUT_S):
            await answered.wait()
    except TimeoutError:
        return False
    return True
