"""Each chat in its order, chats side by side; nothing begins before the servers are known."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

Work = Callable[[], Awaitable[None]]


class Lanes:
    """The work of one connection. The first failure ends all of it, and is what `broken` raises."""

    def __init__(self, opening: Callable[[int], Awaitable[None]], emptied: Callable[[], None]) -> None:
        """`opening` goes before the work of a lane that had none; `emptied` is called when no lane has any."""
        self.ready = asyncio.Event()
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._opening = opening
        self._emptied = emptied
        self._waiting: dict[int, deque[Work]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, chat: int, *work: Work) -> None:
        """Put work into the lane of this chat; without any, only open it. Ignored when it is all at its end."""
        if self.broken.done():
            return
        if (waiting := self._waiting.get(chat)) is not None:
            waiting.extend(work)
            return
        waiting = self._waiting[chat] = deque(work)
        task = asyncio.create_task(self._run(chat, waiting), name=f"discord chat {chat}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def aside(self, work: Coroutine[Any, Any, None]) -> None:
        """Work that waits for nobody, and fails by itself."""
        if self.broken.done():
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def fail(self, error: Exception) -> None:
        """End it all. The first reason stands."""
        if not self.broken.done():
            self.broken.set_exception(error)

    async def close(self) -> None:
        """Nothing more is done."""
        if not self.broken.cancel():
            self.broken.exception()  # whoever wanted to know has asked
        for task in (tasks := [*self._tasks]):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, chat: int, waiting: deque[Work]) -> None:
        try:
            await self.ready.wait()
            await self._opening(chat)
            while waiting:
                await waiting.popleft()()
        except Exception as error:  # its lane stays shut, so that nothing behind it passes for heard
            self.fail(error)
            return
        del self._waiting[chat]
        if not self._waiting and not self.broken.done():
            self._emptied()
