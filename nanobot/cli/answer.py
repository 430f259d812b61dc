"""An answer that is still being written, as lines: those that stay, and those at its end that may yet change.

Finished blocks stay. So do the first lines of a block that outgrows its place: what follows does not change them. A
table is the exception, its columns may widen with every row, so only its end is shown until it is whole.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from nanobot.cli.blocks import BlockCutter, LineCutter


@dataclass(frozen=True, slots=True)
class Draw:
    """Draws the source of a block as lines of at most so many cells. What is not Markdown is drawn line by line."""

    lines: Callable[[str, int], list[str]]
    markdown: bool = True


_TABLE = re.compile(r"[^\n]*\|[^\n]*\n[\s:|-]*-[\s:|-]*(?:\n|$)")


class GrowingAnswer:
    """The lines of one text of a model. `take` gives each line that stays exactly once."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._cutter = BlockCutter() if draw.markdown else LineCutter()
        self._width = 80
        self._stayed = 0
        self._blocks = 0
        self._ready: list[str] = []

    def feed(self, text: str, width: int) -> None:
        """More of the text. A block whose head already stays keeps the width it was begun with."""
        self._settle(self._cutter.feed(text), width)

    def end(self, width: int) -> None:
        """The text is whole: all of it stays."""
        self._settle(self._cutter.end(), width)

    def take(self, width: int, rows: int) -> tuple[list[str], list[str]]:
        """The lines that have come to stay since the last time, and the lines, `rows` at most, that may change."""
        ready, self._ready = self._ready, []
        rest = self._cutter.rest
        if not rest:
            return ready, []
        lines = self._lines(rest, width)
        overflow = len(lines) - self._stayed - rows
        if overflow > 0 and not (self._draw.markdown and _TABLE.match(rest)):
            ready += lines[self._stayed : self._stayed + overflow]
            self._stayed += overflow
        return ready, lines[max(self._stayed, len(lines) - rows) :]

    def _settle(self, blocks: list[str], width: int) -> None:
        for block in blocks:
            lines = self._lines(block, width)
            self._ready += lines[self._stayed :]
            self._stayed = max(0, self._stayed - len(lines))  # lines of the next block, drawn with this one's rest
            self._blocks += 1

    def _lines(self, block: str, width: int) -> list[str]:
        if not self._stayed:
            self._width = width
        lines = self._draw.lines(block, self._width)
        return [*self._cutter.gap, *lines] if self._blocks else lines
