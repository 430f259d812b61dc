"""Approval prompts without the line editor: the choices on stderr, the answer is the next line typed.

The question itself is shown by the turn's output. In the chat, the prompt handles approvals.
"""

import asyncio
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from nanobot.agent.events import Answer, ApprovalAnswered, ApprovalAsked, TurnEvent, parse_answer
from nanobot.cli.terminal import SafeStream, is_terminal


def is_interactive() -> bool:
    """Whether stdin and stderr are terminals."""
    return is_terminal(sys.stdin) and is_terminal(sys.stderr)


def format_choices(asked: ApprovalAsked, columns: int = 80) -> str:
    """The possible answers in one line, shortened if it would not fit."""
    always = " · a always" if asked.may_always else ""
    full = f"y yes, this once{always} · n no"
    return full if len(full) <= columns else f"y once{always} · n no"


def read_lines(on_line: Callable[[str], None]) -> None:
    """Call `on_line` for each line typed from now on, until stdin ends or the event loop closes."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        with suppress(OSError, ValueError, RuntimeError):  # the terminal is gone or the loop closed
            while line := sys.stdin.readline():
                loop.call_soon_threadsafe(on_line, line)

    threading.Thread(target=read, name="keyboard", daemon=True).start()  # a read cannot be cancelled


def read_line(on_line: Callable[[str], None]) -> None:
    """Call `on_line` with the next line typed, empty at the end of stdin, unless the event loop closes before."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            line = sys.stdin.readline()
        except (OSError, ValueError):  # the terminal is gone
            line = ""
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(on_line, line)

    threading.Thread(target=read, name="keyboard", daemon=True).start()  # a read cannot be cancelled


class ApprovalPrompt:
    """A sink that answers approval questions with typed lines. The end of stdin means no."""

    def __init__(self, answer: Callable[[str, Answer], None]) -> None:
        self._answer = answer
        self._out = SafeStream(sys.stderr)
        self._question: ApprovalAsked | None = None
        self._is_reading = False

    def __call__(self, event: TurnEvent) -> None:
        """Prompt for a question, or drop it once it is answered."""
        if isinstance(event, ApprovalAsked):
            self._question = event
            self._prompt()
            self._start_reading()
        elif isinstance(event, ApprovalAnswered):
            self._question = None

    def _prompt(self) -> None:
        if self._question is not None:
            self._out.write(f"{format_choices(self._question)}: ")

    def _start_reading(self) -> None:
        """Read a line, unless one is being read already."""
        if not self._is_reading:
            self._is_reading = True
            read_line(self._on_line)

    def _on_line(self, line: str) -> None:
        self._is_reading = False
        if self._question is None:
            return
        answer = Answer.NO if not line else parse_answer(line)
        if answer is None:
            self._prompt()
            self._start_reading()
        else:
            self._answer(self._question.question, answer)
