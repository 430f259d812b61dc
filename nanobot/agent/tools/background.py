"""Processes that commands left running on purpose. Each has a sandbox of its own, invisible to later commands."""

import os
import re
import select
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from nanobot.agent.tools.base import ToolResult
from nanobot.utils.process_tree import Process

_KILL = re.compile(r"kill(?: -(?:[sn] )?(?P<signal>\w+))?(?: --)?(?P<pids>(?: \d+)+)", re.ASCII)


class BackgroundCommands:
    """Background processes by pid, held by a pidfd so that a reused pid is not mistaken for one of them."""

    def __init__(self) -> None:
        self._pidfds: dict[int, int] = {}

    def remember(self, processes: Sequence[Process]) -> None:
        """Hold processes that go on after their command."""
        if sys.platform != "linux":
            return  # elsewhere a later command sees them itself
        for pid in [pid for pid, pidfd in self._pidfds.items() if _has_ended(pidfd)]:
            self._release(pid)
        for process in processes:
            self._release(process.pid)
            with suppress(OSError):
                self._pidfds[process.pid] = os.pidfd_open(process.pid)

    def handle_kill(self, words: Sequence[str]) -> ToolResult | None:
        """Carry out a `kill` of held processes; None if these words are no such command."""
        if sys.platform != "linux" or not self._pidfds or (match := _KILL.fullmatch(" ".join(words))) is None:
            return None
        name, pids = (match["signal"] or "TERM").upper(), [int(pid) for pid in match["pids"].split()]
        number = int(name) if name.isdigit() else signal.Signals.__members__.get(f"SIG{name.removeprefix('SIG')}", 65)
        if number > 64 or any(pid not in self._pidfds for pid in pids):
            return None
        gone = []
        for pid in pids:
            try:
                signal.pidfd_send_signal(self._pidfds[pid], number)
            except ProcessLookupError:
                gone.append(f"kill: ({pid}) - No such process")
                self._release(pid)
        if gone:
            return ToolResult("\n".join([*gone, "", "Exit code: 1"]), error=True)
        return ToolResult("(no output)\n\nExit code: 0")

    def _release(self, pid: int) -> None:
        pidfd = self._pidfds.pop(pid, None)
        if pidfd is not None:
            os.close(pidfd)


def _has_ended(pidfd: int) -> bool:
    """Return whether the process has ended: then its pidfd is readable, see pidfd_open(2)."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
