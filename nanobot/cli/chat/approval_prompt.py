"""Approval prompts without the line editor: the choices on stderr, the answer is the next line typed.

The question itself is shown by the output of the turn. In the chat, the prompt handles approvals.
"""

import asyncio
import os
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


class _LineReader:
    """Reads typed lines in a thread. A read cannot be cancelled, so a later caller takes the line of an earlier one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._deliver: Callable[[str], None] | None = None
        self._read_ahead = b""

    def read(self, on_line: Callable[[str], None]) -> None:
        """Call `on_line` in this event loop with the next line; it is empty at the end of stdin."""
        loop = asyncio.get_running_loop()

        def deliver(line: str) -> None:
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(on_line, line)

        with self._lock:
            is_reading, self._deliver = self._deliver is not None, deliver
        if not is_reading:
            threading.Thread(target=self._read, name="keyboard", daemon=True).start()

    def _read(self) -> None:
        """Read from the descriptor: a thread waiting in `sys.stdin` would hold its lock at interpreter exit."""
        with suppress(OSError, ValueError, AttributeError):  # the terminal is gone, or there is no stdin
            while b"\n" not in self._read_ahead and (chunk := os.read(sys.stdin.fileno(), 1 << 16)):
                self._read_ahead += chunk
        line, newline, self._read_ahead = self._read_ahead.partition(b"\n")
        with self._lock:
            deliver, self._deliver = self._deliver, None
        if deliver is not None:
            deliver((line + newline).decode("utf-8", "replace"))


read_line = _LineReader().read


async def next_line() -> str:
    """The next line of stdin; empty at its end. Cancelling is safe."""
    line: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    read_line(lambda text: None if line.done() else line.set_result(text))
    return await line


def read_lines(on_line: Callable[[str], None]) -> None:
    """Call `on_line` for each line typed from now on, until stdin ends."""

    def handle(line: str) -> None:
        if line:
            on_line(line)
            read_line(handle)

    read_line(handle)


class ApprovalPrompt:
    """A sink that answers approval questions with typed lines. The end of stdin means no."""

    def __init__(self, answer: Callable[[str, Answer], None]) -> None:
        self._answer = answer
        self._out = SafeStream(sys.stderr)
        self._question: ApprovalAsked | None = None

    def __call__(self, event: TurnEvent) -> None:
        """Prompt for a question, or drop it once it is answered."""
        if isinstance(event, ApprovalAsked):
            self._question = event
            self._prompt()
        elif isinstance(event, ApprovalAnswered):
            self._question = None

    def _prompt(self) -> None:
        if self._question is not None:
            self._out.write(f"{format_choices(self._question)}: ")
            read_line(self._on_line)

    def _on_line(self, line: str) -> None:
        if self._question is None:
            return
        answer = Answer.NO if not line else parse_answer(line)
        if answer is None:
            self._prompt()
        else:
            self._answer(self._question.question, answer)
