"""An event loop in a thread of its own, for code that is not ours: what blocks there holds up nobody else."""

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from nanobot.utils.aio import contain_errors

T = TypeVar("T")

_BUSY_S = 0.2


class WorkerThread:
    """One thread for all of it, started by the first call. While something blocks it, new calls get another one."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._blocked: list[asyncio.AbstractEventLoop] = []

    async def run(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run the coroutine there. Raises what it raises (RuntimeError instead of an exit or interrupt), and
        TimeoutError. Cancelling is safe, and does not wait.
        """
        loop = await self._free_loop()
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(contain_errors(work), loop))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise RuntimeError("it cancelled itself") from None

    def close(self) -> None:
        """Stop the thread, as soon as nothing blocks it. It does not keep the process alive."""
        for loop in (self._loop, *self._blocked):
            if loop is not None:
                with suppress(RuntimeError):  # it is closed
                    loop.call_soon_threadsafe(loop.stop)
        self._loop = None

    async def _free_loop(self) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if loop is not None and not loop.is_closed() and not await _is_responsive(loop):
            self._blocked = [other for other in self._blocked if not other.is_closed()] + [loop]
            loop = None
        if loop is None or loop.is_closed():
            loop = self._loop = _start_loop()
        return loop


async def _is_responsive(loop: asyncio.AbstractEventLoop) -> bool:
    answer = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop)
    done, _ = await asyncio.wait((asyncio.wrap_future(answer),), timeout=_BUSY_S)
    return bool(done)


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
