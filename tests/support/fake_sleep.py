"""Waiting that takes no time, and a clock that knows how long it would have taken."""

import asyncio


class Waits:
    """Hand `sleep` and `monotonic` to whatever waits."""

    def __init__(self) -> None:
        self.taken: list[float] = []
        self._ahead_s = 0.0

    async def sleep(self, seconds: float) -> None:
        """Be there at once."""
        self.taken.append(seconds)
        self._ahead_s += seconds
        await asyncio.sleep(0)

    def advance(self, seconds: float) -> None:
        """Let time go by."""
        self._ahead_s += seconds

    def monotonic(self) -> float:
        """What was waited so far; nothing else moves it."""
        return self._ahead_s
