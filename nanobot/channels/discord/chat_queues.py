"""Each chat in its order, chats side by side; nothing begins before the servers are known."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)

Work = Callable[[], Awaitable[None]]


class ChatQueues:
    """The work of one connection. A piece of it that breaks is logged, and keeps nothing behind it from being done."""

    def __init__(self, emptied: Callable[[], None]) -> None:
        """`emptied` is called whenever no chat has any work left."""
        self.ready = asyncio.Event()
        self._emptied = emptied
        self._waiting: dict[int, deque[Work]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def add(self, chat: int, work: Work) -> None:
        """Put work into the lane of this chat. Ignored once they are closed, as below."""
        if not self._closed:
            self._lane(chat).append(work)

    def first(self, chat: int, work: Work) -> None:
        """The same, before all that waits there."""
        if not self._closed:
            self._lane(chat).appendleft(work)

    def aside(self, work: Work) -> None:
        """Work that waits for nobody, not even for the servers."""
        if not self._closed:
            self._own(_guarded(work))

    async def close(self) -> None:
        """Nothing more is done."""
        self._closed = True
        for task in (tasks := [*self._tasks]):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _lane(self, chat: int) -> deque[Work]:
        if (waiting := self._waiting.get(chat)) is None:
            waiting = self._waiting[chat] = deque()
            self._own(self._run(chat, waiting))
        return waiting

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, chat: int, waiting: deque[Work]) -> None:
        await self.ready.wait()
        while waiting:
            await _guarded(waiting.popleft())
        del self._waiting[chat]
        if not self._waiting:
            self._emptied()


async def _guarded(work: Work) -> None:
    try:
        await work()
    except Exception:  # the wall of a connection: one message that is odd must not make the bot deaf
        log.exception("discord: a message could not be processed")
