"""A space of process numbers, as sandboxes give their command one: when its head goes, the kernel ends everybody."""

import asyncio
import json
import os
import select
import signal
from contextlib import suppress
from pathlib import Path

from nanobot.utils.families import KILL, KILL_PATIENCE_S

_TO_END_S = 0.05
_TO_TELL_S = 10.0


class Space:
    """A space of process numbers, known by its head, who is held by a descriptor: a number may be given again."""

    def __init__(self, head: int) -> None:
        """Raises ProcessLookupError where it is gone already."""
        self.head = head
        self._held: int | None = os.pidfd_open(head)

    @classmethod
    def told_on(cls, told: int) -> "Space | None":
        """The one that is told of here; None where its program ended without one. Blocking. Raises TimeoutError."""
        said, ready = b"", select.poll()
        ready.register(told, select.POLLIN)
        while b"}" not in said:
            if not ready.poll(_TO_TELL_S * 1000):
                raise TimeoutError(f"its sandbox did not say a word within {_TO_TELL_S:g} s")
            if not (more := os.read(told, 4096)):
                return None
            said += more
        with suppress(ProcessLookupError):
            return cls(int(json.loads(said)["child-pid"]))
        return None

    @property
    def is_alive(self) -> bool:
        """Whether its head is: it stays until the last has gone."""
        if self._held is None:
            return False
        ended = select.poll()
        ended.register(self._held, select.POLLIN)
        return not ended.poll(0)

    async def is_inhabited(self) -> bool:
        """Whether anybody is left once its command has ended."""
        if self.is_alive:
            with suppress(OSError):  # whoever loses its parent in there becomes a child of the head
                return _has_children(self.head)
        return not await self._is_over(_TO_END_S)  # the kernel does not say; the head needs a moment to see it

    async def end(self) -> bool:
        """End everybody in it; whether there was one to end. All are gone when it returns, or two seconds are over."""
        if not self.is_alive or self._held is None:
            return False
        signal.pidfd_send_signal(self._held, KILL)
        await self._is_over(KILL_PATIENCE_S)
        return True

    async def _is_over(self, patience_s: float) -> bool:
        if not self.is_alive or self._held is None:
            return True
        loop, gone, held = asyncio.get_running_loop(), asyncio.Event(), self._held  # it may be let go of meanwhile
        loop.add_reader(held, gone.set)
        try:
            async with asyncio.timeout(patience_s):
                await gone.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(held)
        return True

    def close(self) -> None:
        """Let go of it. Who is in it stays."""
        if self._held is not None:
            os.close(self._held)
            self._held = None


def _has_children(pid: int) -> bool:
    return bool(Path(f"/proc/{pid}/task/{pid}/children").read_bytes())
