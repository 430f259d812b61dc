"""Where the user's own tools run, and what plugins bring: a loop in a thread of its own.

So one that blocks holds up nobody else.
"""

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from nanobot.utils.aio import contained

T = TypeVar("T")

_TO_NOTICE_S = 1.0
"""How long a cancelled call may take to end, before its thread is given up."""


class Aside:
    """One loop for all of them; a new one where a tool blocked the last for good."""

    def __init__(self, name: str = "own tools") -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, work: Coroutine[Any, Any, T], limit_s: float) -> T:
        """Have it done there. Raises what it does, of what would end us (an exit, an interrupt) a RuntimeError, and
        TimeoutError; cancelling it is safe."""
        loop = self._loop
        if loop is None or loop.is_closed():
            loop = self._loop = _started(self._name)
        waiting = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_held(work), loop))
        try:
            async with asyncio.timeout(limit_s):
                return await waiting
        except (TimeoutError, asyncio.CancelledError) as end:
            if not await _still_turns(loop) and self._loop is loop:
                self._loop = None  # its thread is stuck in a tool; nothing of Python can end it
            if isinstance(end, asyncio.CancelledError) and not _is_cancelled():
                raise RuntimeError("it cancelled itself") from None
            raise

    def close(self) -> None:
        """End it, if it can still end."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None


async def _held(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await contained(work)
    except asyncio.CancelledError:
        if _is_cancelled():
            raise
        raise RuntimeError("it cancelled itself") from None


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _started(name: str) -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()

    def turn() -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()  # also where a stray task ended it: the next call begins a new one

    threading.Thread(target=turn, name=name, daemon=True).start()
    return loop


async def _still_turns(loop: asyncio.AbstractEventLoop) -> bool:
    here, answered = asyncio.get_running_loop(), asyncio.Event()

    def answer() -> None:
        with suppress(RuntimeError):  # too late: our loop is closed
            here.call_soon_threadsafe(answered.set)

    loop.call_soon_threadsafe(answer)
    try:
        async with asyncio.timeout(_TO_NOTICE_S):
            await answered.wait()
    except TimeoutError:
        return False
    return True
