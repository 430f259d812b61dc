"""Runs the work of each chat in order, chats in parallel, once the bot's servers are known."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)

Work = Callable[[], Awaitable[None]]


class ChatQueues:
    """The work of one connection. A failing item is logged and stops no other."""

    def __init__(self, on_idle: Callable[[], None]) -> None:
        """`on_idle` is called whenever no chat has work left."""
        self.ready = asyncio.Event()
        self._on_idle = on_idle
        self._waiting: dict[int, deque[Work]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def add(self, chat: int, work: Work) -> None:
        """Queue work for this chat. Ignored after `close`."""
        if not self._closed:
            self._queue(chat).append(work)

    def add_first(self, chat: int, work: Work) -> None:
        """Queue work before everything that waits for this chat. Ignored after `close`."""
        if not self._closed:
            self._queue(chat).appendleft(work)

    def start_now(self, work: Work) -> None:
        """Start work at once, even before the servers are known. Ignored after `close`."""
        if not self._closed:
            self._start(_run_guarded(work))

    async def close(self) -> None:
        """Cancel all work."""
        self._closed = True
        for task in (tasks := [*self._tasks]):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _queue(self, chat: int) -> deque[Work]:
        if (waiting := self._waiting.get(chat)) is None:
            waiting = self._waiting[chat] = deque()
            self._start(self._run(chat, waiting))
        return waiting

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, chat: int, waiting: deque[Work]) -> None:
        await self.ready.wait()
        while waiting:
            await _run_guarded(waiting.popleft())
        del self._waiting[chat]
        if not self._waiting:
            self._on_idle()


async def _run_guarded(work: Work) -> None:
    try:
        await work()
    except Exception:  # one unreadable message must not stop the others
        log.exception("discord: a message could not be processed")
