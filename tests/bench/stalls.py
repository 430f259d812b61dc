"""How long an event loop stalls: a task that wants to run every 10 ms, and how late it is at worst."""

import asyncio
import time
from typing import Self

EVERY_S = 0.01


class Stalls:
    """Watches the running loop while it is open; `longest` is the worst delay, in seconds."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _watch(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(EVERY_S)
            self.longest = max(self.longest, time.perf_counter() - before - EVERY_S)
