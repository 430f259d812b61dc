"""What a person at the terminal types: lines, words that leave, files, commands for the terminal, answers to approval
questions; and Ctrl+C and other signals.

A question itself is shown by the output of the turn. In the chat, the prompt handles approvals.
"""

import asyncio
import os
import re
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import FrameType

from nanobot.agent.events import Answer, ApprovalAnswered, ApprovalAsked, EventSink, TurnEvent, parse_answer
from nanobot.cli.output import SafeStream, is_terminal
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


class _Stdin:
    """Lines of stdin. A thread reads each one, which cannot be cancelled: the next caller gets its line."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lines: asyncio.Queue[str] = asyncio.Queue()
        self._rest = b""
        self._is_reading = False

    async def next_line(self) -> str:
        """The next line; empty at the end of stdin. Cancelling loses no line."""
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._loop, self._lines = loop, asyncio.Queue()
        if self._lines.empty() and not self._is_reading:
            self._is_reading = True
            threading.Thread(target=self._read, name="keyboard", daemon=True).start()
        return await self._lines.get()

    def _read(self) -> None:
        """Read from the descriptor: a thread waiting in `sys.stdin` would hold its lock at interpreter exit."""
        with suppress(OSError, ValueError, AttributeError):  # the terminal is gone, or there is no stdin
            while b"\n" not in self._rest and (chunk := os.read(sys.stdin.fileno(), 1 << 16)):
                self._rest += chunk
        line, newline, self._rest = self._rest.partition(b"\n")
        self._is_reading = False
        with suppress(RuntimeError):  # the event loop is closed
            assert self._loop is not None  # noqa: S101 it has asked for the line
            self._loop.call_soon_threadsafe(self._lines.put_nowait, (line + newline).decode("utf-8", "replace"))


next_line = _Stdin().next_line


@asynccontextmanager
async def answering_questions(bot: ChatBackend, sink: EventSink) -> AsyncIterator[EventSink]:
    """A sink that also answers approval questions with typed lines, if a person is there. The end of stdin means no."""
    asking: asyncio.Task[None] | None = None
    stderr = SafeStream(sys.stderr)

    async def ask(asked: ApprovalAsked) -> None:
        answer = None
        while answer is None:
            stderr.write(f"{format_choices(asked)}: ")
            line = await next_line()
            answer = parse_answer(line) if line else Answer.NO
        bot.answer(asked.question, answer)

    def watch(event: TurnEvent) -> None:
        nonlocal asking
        sink(event)
        if isinstance(event, ApprovalAsked | ApprovalAnswered) and asking is not None:
            asking.cancel()
        if isinstance(event, ApprovalAsked):
            asking = asyncio.create_task(ask(event))

    try:
        yield watch if is_interactive() else sink
    finally:
        if asking is not None:
            asking.cancel()


INTERRUPT_SIGNALS = [signal.SIGINT]
TERMINATION_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


def exit_code_for(signal_number: int) -> int:
    """The shell's exit code for a process ended by this signal."""
    return 128 + signal_number


@contextmanager
def handle_signals(signals: Sequence[signal.Signals], on_signal: Callable[[int], object]) -> Iterator[None]:
    """Call `on_signal` in the running event loop for these signals. Main thread only.

    A signal that is ignored already (nohup) stays ignored.
    """
    loop = asyncio.get_running_loop()

    def handle(number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(on_signal, number)  # Windows' event loop has no signal handlers

    ignored = {number for number in signals if signal.getsignal(number) is signal.SIG_IGN}
    previous = {number: signal.signal(number, _ignore if number in ignored else handle) for number in signals}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Ignore the signal with a handler: SIG_IGN would be inherited by child processes."""
