"""Waiting that takes no time: an event loop whose clock runs ahead, and a `sleep` with a clock of its own.

Where nothing happens, the clock of the loop jumps to the next thing that is due. What goes over loopback sockets of
the same loop, or to a thread and back, happens before time goes on: a thread that runs or waits for the disk holds the
clock (on Linux, which tells; elsewhere it has a moment).

    with asyncio.Runner(loop_factory=WarpLoop) as runner:
        runner.run(five_minutes_of_something())
"""

import asyncio
import selectors
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

PATIENCE_S = 0.01
"""How long something real is waited for before time jumps: a thread that writes to the disk, mostly."""


class _Jumping(selectors.DefaultSelector):
    ahead_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= PATIENCE_S:
            return super().select(timeout)
        found = super().select(PATIENCE_S)
        if found or _is_thread_busy():
            return found
        found = super().select(0)  # what a thread has told since
        if not found:
            self.ahead_s += timeout - PATIENCE_S
        return found


def _is_thread_busy() -> bool:
    """Whether another thread of this process runs, or waits for the disk."""
    own = str(threading.get_native_id())
    for stat in Path("/proc/self/task").glob("*/stat"):
        with suppress(OSError):  # it has ended
            if stat.parent.name != own and stat.read_text().rpartition(")")[2].split()[0] in "RD":
                return True
    return False


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
