"""Commands in a terminal of their own: pexpect's, from the warm process where that shows the same
(`tests/support/forkserver.py`).
"""

import os
import pty
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pexpect
from ptyprocess import PtyProcess

from tests.support.forkserver import End, Order, fork, may_be_warm


def at_home(**environ: str) -> dict[str, str]:
    """The environment of a terminal in the home of this test; and these."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
    return {**kept, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", **environ}


def on_screen(command: Sequence[str], *, env: Mapping[str, str], **options: Any) -> "pexpect.spawn[Any]":
    """`pexpect.spawn` of it."""
    kind = _Screen if may_be_warm(command, env) else pexpect.spawn
    return kind(command[0], [*command[1:]], env=env, **options)


def shown(command: Sequence[str], columns: int, **environ: str) -> str:
    """What a command that asks nothing shows in the home of this test, on a terminal of so many columns."""
    child = on_screen(command, env=at_home(**environ), dimensions=(40, columns), encoding="utf-8", timeout=20)
    text = str(child.read()).replace("\r", "")
    child.close()
    return text


class _Screen(pexpect.spawn):  # type: ignore[misc]
    """A terminal with a child of the warm process."""

    def _spawnpty(
        self,
        args: list[str | bytes],
        *,
        env: dict[str, str],
        cwd: str | None,
        dimensions: tuple[int, int] = (24, 80),
        echo: bool = True,
        **_: Any,
    ) -> PtyProcess:
        ours, theirs = pty.openpty()
        if not echo:
            modes = termios.tcgetattr(theirs)
            modes[3] &= ~termios.ECHO
            termios.tcsetattr(theirs, termios.TCSANOW, modes)
        order = Order([os.fsdecode(word) for word in args], cwd or str(Path.cwd()), dict(env), at_terminal=True)
        termios.tcsetwinsize(theirs, dimensions)
        child = _Child(fork(order, [theirs] * 3), ours)
        os.close(theirs)
        return child


class _Child(PtyProcess):  # type: ignore[misc]
    """Who is waited for at the line of the warm parent."""

    def __init__(self, end: End, terminal: int) -> None:
        super().__init__(end.pid, terminal)
        self._end = end
        self.terminated = False
        self.exitstatus: int | None = None
        self.signalstatus: int | None = None

    def wait(self) -> int | None:
        self._look(None)
        return self.exitstatus

    def isalive(self) -> bool:
        self._look(None if self.flag_eof else 0)
        return not self.terminated

    def _look(self, timeout: float | None) -> None:
        code = None if self.terminated else self._end.code(timeout)
        if code is not None:
            self.terminated = True
            self.exitstatus = code if code >= 0 else None
            self.signalstatus = -code if code < 0 else None
