"""What a person types: words that leave, files, commands for the terminal, and answers to approval questions.

A question itself is shown by the output of the turn. In the chat, the prompt handles approvals.
"""

import asyncio
import os
import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from nanobot.agent.events import Answer, ApprovalAnswered, ApprovalAsked, EventSink, TurnEvent, parse_answer
from nanobot.cli.terminal import SafeStream, is_terminal
from nanobot.gateway.control.backend import ChatBackend, current_folder

EXIT_WORDS = frozenset({"exit", "quit", "/exit", "/quit", ":q"})
"""Lines that end a chat."""
SHELL_PREFIX = "!"


_MENTION = re.compile(r"(?:^|(?<=\s))@(\S+)")


def find_mentioned_files(line: str, workspace: Path) -> list[str]:
    """Absolute paths of the files that `@name` in the line refers to, each once, in order: of the current folder, else
    of the workspace.
    """
    paths: dict[str, None] = {}
    for name in _MENTION.findall(line):
        for spelling in (name, name.rstrip(".,;:!?)")):
            path = _file(spelling, Path(current_folder())) or _file(spelling, workspace)
            if path is not None:
                paths[path] = None
                break
    return [*paths]


def _file(name: str, workspace: Path) -> str | None:
    try:
        path = workspace / Path(name).expanduser()
        return str(path) if path.is_file() else None
    except (OSError, RuntimeError, ValueError):  # not a valid path: too long, unknown home, NUL
        return None


_NEED_TERMINAL = frozenset({
    "vi", "vim", "nvim", "view", "nano", "emacs", "pico", "micro", "hx", "kak", "less", "more", "most", "man", "info",
    "top", "htop", "btop", "watch", "tmux", "screen", "mc", "ranger", "tig", "lazygit",
})  # fmt: skip


def terminal_command(line: str) -> str:
    """The command of a shell line that runs on the terminal itself: after `!!`, or one of the editors, pagers and
    monitors that are known to need it. Empty for others.
    """
    command = line.strip().removeprefix(SHELL_PREFIX)
    if command.startswith(SHELL_PREFIX):
        return command.removeprefix(SHELL_PREFIX).strip()
    program = command.split(maxsplit=1)[0] if command.strip() else ""
    return command.strip() if program.rpartition("/")[2] in _NEED_TERMINAL else ""


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


def with_approvals(bot: ChatBackend, sink: EventSink) -> EventSink:
    """A sink that also answers approval questions with typed lines, if a person is there. The end of stdin means no."""
    if not is_interactive():
        return sink
    stderr = SafeStream(sys.stderr)
    question: ApprovalAsked | None = None

    def prompt(asked: ApprovalAsked) -> None:
        stderr.write(f"{format_choices(asked)}: ")
        read_line(on_line)

    def on_line(line: str) -> None:
        if question is None:
            return
        answer = Answer.NO if not line else parse_answer(line)
        if answer is None:
            prompt(question)
        else:
            bot.answer(question.question, answer)

    def watch(event: TurnEvent) -> None:
        nonlocal question
        sink(event)
        if isinstance(event, ApprovalAsked):
            question = event
            prompt(event)
        elif isinstance(event, ApprovalAnswered):
            question = None

    return watch
