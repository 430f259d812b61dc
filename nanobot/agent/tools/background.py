"""What commands left running on purpose. It lives behind a wall of its own, where no later command can see it."""

import os
import select
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from nanobot.agent.tools.base import ToolResult
from nanobot.utils.families import Process

_SIGNALS = {name.removeprefix("SIG"): number for name, number in signal.Signals.__members__.items()}


class Background:
    """The processes of earlier commands, held so that a number given again is not taken for one of them."""

    def __init__(self, most: int = 200) -> None:
        """Of more than `most` that live, the newest are not held."""
        self._most = most
        self._held: dict[int, int] = {}

    def remember(self, processes: Sequence[Process]) -> None:
        """These go on after their command."""
        if sys.platform != "linux":
            return  # there a later command sees them itself
        for pid in [pid for pid, held in self._held.items() if _has_ended(held)]:
            self._let_go(pid)
        for process in processes:
            self._let_go(process.pid)
            if len(self._held) < self._most:
                with suppress(OSError):
                    self._held[process.pid] = os.pidfd_open(process.pid)

    def ended_by(self, words: Sequence[str]) -> ToolResult | None:
        """Carry out a `kill` of some of them; None where these words are none."""
        if sys.platform != "linux" or not self._held or len(words) < 2 or words[0] != "kill":
            return None
        number, pids = _read(words[1:])
        if number is None or not pids or any(pid not in self._held for pid in pids):
            return None
        gone = []
        for pid in pids:
            try:
                signal.pidfd_send_signal(self._held[pid], number)
            except ProcessLookupError:
                gone.append(f"kill: ({pid}) - No such process")
                self._let_go(pid)
        if gone:
            return ToolResult("\n".join([*gone, "", "Exit code: 1"]), error=True)
        return ToolResult("(no output)\n\nExit code: 0")

    def _let_go(self, pid: int) -> None:
        held = self._held.pop(pid, None)
        if held is not None:
            os.close(held)


def _has_ended(held: int) -> bool:
    """Whether the process of this descriptor is gone: then it can be read, pidfd_open(2)."""
    look = select.poll()
    look.register(held, select.POLLIN)
    return bool(look.poll(0))


def _read(words: Sequence[str]) -> tuple[int | None, list[int]]:
    """Which signal to whom; None where it is not that simple."""
    number: int | None = signal.SIGTERM
    pids: list[int] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in ("-s", "-n") and rest:
            word = f"-{rest.pop(0)}"
        if word.startswith("-") and not pids and word != "--":
            name = word[1:].upper().removeprefix("SIG")
            number = int(name) if name.isdigit() and 0 <= int(name) < 65 else _SIGNALS.get(name)
        elif word.isdigit():
            pids.append(int(word))
        elif word != "--":
            return None, []
    return number, pids
