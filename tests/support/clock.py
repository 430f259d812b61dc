"""Waiting that takes no time: an event loop whose clock runs ahead, and a `sleep` with a clock of its own.

Where nothing happens, the clock of the loop jumps to the next thing that is due. What goes over loopback sockets of
the same loop, or to a thread and back, happens before time goes on.

    with asyncio.Runner(loop_factory=WarpLoop) as runner:
        runner.run(five_minutes_of_something())
"""

import asyncio
import selectors
from collections.abc import Callable
from datetime import datetime, timedelta

PATIENCE_S = 0.01
"""How long something real is waited for before time jumps: a thread that writes to the disk, mostly."""


class _Jumping(selectors.DefaultSelector):
    ahead_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= PATIENCE_S:
            return super().select(timeout)
        found = super().select(PATIENCE_S)
        if not found:
            self.ahead_s += timeout - PATIENCE_S
        return found


class WarpLoop(asyncio.SelectorEventLoop):
    """The loop; its `time` runs ahead of the host's."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return super().time() + self._jumping.ahead_s


class LoopClock:
    """The time of the running loop, for whoever asks a Clock."""

    def __init__(self) -> None:
        self.monotonic: Callable[[], float] = asyncio.get_running_loop().time
        self._began, self._zero = datetime.now().astimezone(), self.monotonic()

    def now(self) -> datetime:
        return self._began + timedelta(seconds=self.monotonic() - self._zero)


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
