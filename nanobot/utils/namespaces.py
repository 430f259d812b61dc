"""PID namespaces of sandboxed commands: when the first process of one ends, the kernel kills all others."""

import asyncio
import json
import os
import select
import signal
from contextlib import suppress
from pathlib import Path

from nanobot.utils.process_tree import KILL, KILL_TIMEOUT_S

_END_TIMEOUT_S = 0.05
_INFO_TIMEOUT_S = 10.0


class PidNamespace:
    """A PID namespace, identified by its first process, which a pidfd references since PIDs are reused."""

    def __init__(self, head: int) -> None:
        """Raises ProcessLookupError if it has ended already."""
        self.head = head
        self._pidfd: int | None = os.pidfd_open(head)

    @classmethod
    def from_info_fd(cls, info_fd: int) -> "PidNamespace | None":
        """Read the namespace from bwrap's info pipe; None if the program ended without creating one. Blocking. Raises
        TimeoutError.
        """
        data, ready = b"", select.poll()
        ready.register(info_fd, select.POLLIN)
        while b"}" not in data:
            if not ready.poll(_INFO_TIMEOUT_S * 1000):
                raise TimeoutError(f"its sandbox sent no information within {_INFO_TIMEOUT_S:g} s")
            if not (chunk := os.read(info_fd, 4096)):
                return None
            data += chunk
        with suppress(ProcessLookupError):
            return cls(int(json.loads(data)["child-pid"]))
        return None

    @property
    def is_alive(self) -> bool:
        """Whether the first process is alive: it stays until all others have ended."""
        if self._pidfd is None:
            return False
        ended = select.poll()
        ended.register(self._pidfd, select.POLLIN)
        return not ended.poll(0)

    async def has_processes(self) -> bool:
        """Whether processes are left after its command has ended."""
        if self.is_alive:
            with suppress(OSError):  # orphans become children of the first process
                return _has_children(self.head)
        return not await self._wait_ended(_END_TIMEOUT_S)  # no information; give the first process time to notice

    async def end(self) -> bool:
        """Kill all processes in it; return False if it had ended. All are gone on return, unless that takes over two
        seconds.
        """
        if not self.is_alive or self._pidfd is None:
            return False
        signal.pidfd_send_signal(self._pidfd, KILL)
        await self._wait_ended(KILL_TIMEOUT_S)
        return True

    async def _wait_ended(self, timeout_s: float) -> bool:
        if not self.is_alive or self._pidfd is None:
            return True
        loop, gone, pidfd = asyncio.get_running_loop(), asyncio.Event(), self._pidfd  # it may be closed meanwhile
        loop.add_reader(pidfd, gone.set)
        try:
            async with asyncio.timeout(timeout_s):
                await gone.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(pidfd)
        return True

    def close(self) -> None:
        """Close the pidfd. Processes in it continue."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


def _has_children(pid: int) -> bool:
    return bool(Path(f"/proc/{pid}/task/{pid}/children").read_bytes())
