"""Streaming text to terminal lines: split growing Markdown into blocks, render each finished block once.

Rich is imported with the first text, when the request is already under way.
"""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockRenderer:
    """Renders the source of a block to lines of at most `width` cells; plain text is rendered line by line."""

    lines: Callable[[str, int], list[str]]
    markdown: bool = True


_RULE = re.compile("━|──")
"""In the line below the head of a table."""
_TABLE = re.compile(r"[^\n]*\|[^\n]*\n[\s:|-]*-[\s:|-]*(?:\n|$)")


class GrowingAnswer:
    """The lines of one streamed text. `take` returns each permanent line exactly once.

    Lines of finished blocks are permanent, and so are the first lines of a block that outgrows the live area. Tables
    are an exception: columns may widen with every row, so only head and end are shown until the table is complete.
    """

    def __init__(self, renderer: BlockRenderer) -> None:
        self._renderer = renderer
        self._splitter = BlockSplitter() if renderer.markdown else LineSplitter()
        self._width = 80
        self._fixed_rows = 0
        self._blocks = 0
        self._ready: list[str] = []

    def feed(self, text: str, width: int) -> None:
        """Add text. A block whose first lines are permanent keeps the width it started with."""
        self._add_blocks(self._splitter.feed(text), width)

    def end(self, width: int) -> None:
        """End the text: all lines become permanent."""
        self._add_blocks(self._splitter.end(), width)

    def take(self, width: int, rows: int) -> tuple[list[str], list[str]]:
        """The new permanent lines, and at most `rows` live lines that may still change."""
        ready, self._ready = self._ready, []
        rest = self._splitter.rest
        if not rest:
            return ready, []
        lines = self._lines(rest, width)
        overflow = len(lines) - self._fixed_rows - rows
        if overflow > 0 and self._renderer.markdown and _TABLE.match(rest):
            head = next((index for index, line in enumerate(lines[: rows // 2], 1) if _RULE.search(line)), 0)
            return ready, lines[:head] + lines[len(lines) - rows + head :]
        if overflow > 0:
            ready += lines[self._fixed_rows : self._fixed_rows + overflow]
            self._fixed_rows += overflow
        return ready, lines[max(self._fixed_rows, len(lines) - rows) :]

    def _add_blocks(self, blocks: list[str], width: int) -> None:
        for block in blocks:
            lines = self._lines(block, width)
            self._ready += lines[self._fixed_rows :]
            self._fixed_rows = max(0, self._fixed_rows - len(lines))  # the rest belongs to the next block
            self._blocks += 1

    def _lines(self, block: str, width: int) -> list[str]:
        if not self._fixed_rows:
            self._width = width
        lines = self._renderer.lines(block, self._width)
        return [*self._splitter.gap, *lines] if self._blocks else lines


_FENCE = re.compile(r"( *)(`{3,}|~{3,})([^`]*)$")
_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])(?:\s|$)")
_HEADING = re.compile(r" {0,3}#{1,6}(?:\s|$)")


class LineSplitter:
    """Splits streamed plain text into lines."""

    gap: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.rest = ""

    def feed(self, text: str) -> list[str]:
        """Add text; return the lines it completed."""
        *full_lines, self.rest = (self.rest + text).split("\n")
        return full_lines

    def end(self) -> list[str]:
        """End the text; return the last line unless it is empty."""
        last, self.rest = self.rest, ""
        return [last] if last else []


class BlockSplitter:
    """Splits streamed Markdown into complete blocks that can be rendered alone (paragraph, list, table, code)."""

    gap: tuple[str, ...] = ("",)
    """Lines between two blocks."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._partial = ""
        self._fence = ""
        self._fence_indent = 0

    @property
    def rest(self) -> str:
        """The incomplete block."""
        return "\n".join([*self._lines, self._partial]).strip("\n")

    def feed(self, text: str) -> list[str]:
        """Add text; return the blocks it completed."""
        *full_lines, self._partial = (self._partial + text).split("\n")
        finished: list[str] = []
        for line in full_lines:
            self._add_line(line, finished)
        if self._partial.strip() and self._after_gap() and not self._fence and not self._is_list():
            self._finish_block(finished)
        return finished

    def end(self) -> list[str]:
        """End the text; return the last block, if any."""
        finished = self.feed("\n")
        self._fence = ""
        self._finish_block(finished)
        return finished

    def _add_line(self, line: str, finished: list[str]) -> None:
        if self._fence:
            self._add_code_line(line, finished)
        elif not line.strip():
            if self._lines and not self._after_gap():
                self._lines.append("")
        else:
            self._add_text_line(line, finished)

    def _add_code_line(self, line: str, finished: list[str]) -> None:
        self._lines.append(line)
        match = _FENCE.match(line)
        if match and match[2].startswith(self._fence) and not match[3].strip():
            self._fence = ""
            if not self._fence_indent and not self._is_list():
                self._finish_block(finished)

    def _add_text_line(self, line: str, finished: list[str]) -> None:
        fence = _FENCE.match(line)
        heading = _HEADING.match(line)
        is_block = bool(heading or (fence and not fence[1]))
        if is_block or (self._after_gap() and not self._continues_list(line)):
            self._finish_block(finished)
        self._lines.append(line)
        if fence:
            self._fence, self._fence_indent = fence[2], len(fence[1])
        elif heading:
            self._finish_block(finished)

    def _continues_list(self, line: str) -> bool:
        """Whether a line after an empty one continues the list: its next item, or indented text."""
        return self._is_list() and bool(line[0].isspace() or _ITEM.match(line))

    def _after_gap(self) -> bool:
        return bool(self._lines) and not self._lines[-1]

    def _is_list(self) -> bool:
        return bool(self._lines and _ITEM.match(self._lines[0]))

    def _finish_block(self, finished: list[str]) -> None:
        block = "\n".join(self._lines).strip("\n")
        self._lines = []
        if block.strip():
            finished.append(block)


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Renderers:
    """One for answers of the model, one for plain text."""

    answer: BlockRenderer
    plain: BlockRenderer


def make_renderers(*, markdown: bool, colour: bool) -> Renderers:
    """Rendering never raises: Markdown that fails is shown as plain text."""

    def plain(source: str, width: int) -> list[str]:
        from nanobot.cli.chat.markdown import plain_lines

        return plain_lines(source, width)

    def answer(source: str, width: int) -> list[str]:
        from nanobot.cli.chat.markdown import markdown_lines

        try:
            return markdown_lines(source, width, colour)
        except Exception:  # rendering must not fail the turn
            log.warning("Cannot render Markdown; showing it as plain text.", exc_info=True)
            return plain(source, width)

    plain_renderer = BlockRenderer(plain, markdown=False)
    return Renderers(BlockRenderer(answer) if markdown else plain_renderer, plain_renderer)
