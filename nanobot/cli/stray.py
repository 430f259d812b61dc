"""What somebody prints while the prompt is on the screen (a log, a library's warning): whole lines above the prompt."""

import asyncio
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

from nanobot.cli.terminal import visible


class _StrayLines(io.TextIOBase):
    """A stream that hands its lines to the event loop. Any thread may write."""

    def __init__(self, show: Callable[[list[str]], None]) -> None:
        self._show = show
        self._loop = asyncio.get_running_loop()
        self._partial = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *whole, self._partial = (self._partial + text).split("\n")
        if whole and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._show, [visible(line) for line in whole])
        return len(text)


@contextmanager
def above_the_prompt(show: Callable[[list[str]], None]) -> Iterator[None]:
    """Until the block ends, what goes to sys.stdout and sys.stderr is shown by `show`. Needs a running loop."""
    with redirect_stdout(_StrayLines(show)), redirect_stderr(_StrayLines(show)):
        yield
