"""What a turn asks, put to who sits at a plain keyboard: a line on stderr, and the next line that is typed.

The face of the turn shows the question itself; here is only how it is answered. In the chat its prompt does that.
"""

import asyncio
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from nanobot.agent.answers import answer_in
from nanobot.agent.turn import Answer, ApprovalAnswered, ApprovalAsked, TurnEvent
from nanobot.cli.outlet import Outlet
from nanobot.cli.terminal import is_screen


def somebody_is_there() -> bool:
    """Whether a person sees what is written on stderr and types on stdin."""
    return is_screen(sys.stdin) and is_screen(sys.stderr)


def how_to_answer(asked: ApprovalAsked, columns: int = 80) -> str:
    """The answers there are, in a line; in shorter words where it would not fit."""
    always = " · a always" if asked.may_always else ""
    whole = f"y yes, this once{always} · n no"
    return whole if len(whole) <= columns else f"y once{always} · n no"


def hear_lines(typed: Callable[[str], None]) -> None:
    """Hand on each line that is typed from now on, until the keyboard ends or the loop does."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        with suppress(OSError, ValueError, RuntimeError):  # the terminal is gone, or nobody listens any more
            while line := sys.stdin.readline():
                loop.call_soon_threadsafe(typed, line)

    threading.Thread(target=read, name="keyboard", daemon=True).start()  # a read cannot be cancelled


class Asking:
    """A sink of turn events that answers questions with what is typed. A keyboard that ends says no."""

    def __init__(self, answer: Callable[[str, Answer], None]) -> None:
        self._answer = answer
        self._out = Outlet(sys.stderr)
        self._asked: ApprovalAsked | None = None
        self._loop = asyncio.get_running_loop()
        self._reads = False

    def __call__(self, event: TurnEvent) -> None:
        """Ask, or learn that it is answered."""
        if isinstance(event, ApprovalAsked):
            self._asked = event
            self._prompt()
            self._read_on()
        elif isinstance(event, ApprovalAnswered):
            self._asked = None

    def _prompt(self) -> None:
        if self._asked is not None:
            self._out.write(f"{how_to_answer(self._asked)}: ")

    def _read_on(self) -> None:
        """Have a thread wait for a line: a read cannot be cancelled, so one that waits already goes on waiting."""
        if not self._reads:
            self._reads = True
            threading.Thread(target=self._read, name="answer", daemon=True).start()

    def _read(self) -> None:
        try:
            line = sys.stdin.readline()
        except (OSError, ValueError):  # the terminal is gone
            line = ""
        with suppress(RuntimeError):  # so is the turn
            self._loop.call_soon_threadsafe(self._typed, line)

    def _typed(self, line: str) -> None:
        self._reads = False
        if self._asked is None:
            return
        answer = Answer.NO if not line else answer_in(line)
        if answer is None:
            self._prompt()
            self._read_on()
        else:
            self._answer(self._asked.question, answer)
