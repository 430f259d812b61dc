"""Cutting Markdown that is still growing into blocks, so that what is finished is drawn once and never again.

A block is what can be drawn alone: a paragraph, a heading, a list, a table, a fenced piece of code. Pure.
"""

import re

_FENCE = re.compile(r"( *)(`{3,}|~{3,})([^`]*)$")
_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])(?:\s|$)")
_HEADING = re.compile(r" {0,3}#{1,6}(?:\s|$)")


class LineCutter:
    """Takes text as it comes; gives back its whole lines. For texts that are not Markdown."""

    gap: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.rest = ""

    def feed(self, text: str) -> list[str]:
        """More text; the lines it finished."""
        *whole, self.rest = (self.rest + text).split("\n")
        return whole

    def end(self) -> list[str]:
        """No more text will come; the last line, if it has words."""
        last, self.rest = self.rest, ""
        return [last] if last else []


class BlockCutter:
    """Takes text as it comes; gives back the blocks that nothing can change any more."""

    gap: tuple[str, ...] = ("",)
    """What stands between two blocks."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._partial = ""
        self._fence = ""
        self._fence_indent = 0

    @property
    def rest(self) -> str:
        """The block that is still growing."""
        return "\n".join([*self._lines, self._partial]).strip("\n")

    def feed(self, text: str) -> list[str]:
        """More text; the blocks it finished."""
        *whole, self._partial = (self._partial + text).split("\n")
        finished: list[str] = []
        for line in whole:
            self._take(line, finished)
        if self._partial.strip() and self._after_gap() and not self._fence and not self._is_list():
            self._finish(finished)
        return finished

    def end(self) -> list[str]:
        """No more text will come; the last block, if there is one."""
        finished = self.feed("\n")
        self._fence = ""
        self._finish(finished)
        return finished

    def _take(self, line: str, finished: list[str]) -> None:
        if self._fence:
            self._take_code(line, finished)
        elif not line.strip():
            if self._lines and not self._after_gap():
                self._lines.append("")
        else:
            self._take_words(line, finished)

    def _take_code(self, line: str, finished: list[str]) -> None:
        self._lines.append(line)
        found = _FENCE.match(line)
        if found and found[2].startswith(self._fence) and not found[3].strip():
            self._fence = ""
            if not self._fence_indent and not self._is_list():
                self._finish(finished)

    def _take_words(self, line: str, finished: list[str]) -> None:
        fence = _FENCE.match(line)
        heading = _HEADING.match(line)
        alone = bool(heading or (fence and not fence[1]))
        if alone or (self._after_gap() and not self._goes_on(line)):
            self._finish(finished)
        self._lines.append(line)
        if fence:
            self._fence, self._fence_indent = fence[2], len(fence[1])
        elif heading:
            self._finish(finished)

    def _goes_on(self, line: str) -> bool:
        """Whether a line after an empty one still belongs to the block: a list's next item or an item's next words."""
        return self._is_list() and bool(line[0].isspace() or _ITEM.match(line))

    def _after_gap(self) -> bool:
        return bool(self._lines) and not self._lines[-1]

    def _is_list(self) -> bool:
        return bool(self._lines and _ITEM.match(self._lines[0]))

    def _finish(self, finished: list[str]) -> None:
        block = "\n".join(self._lines).strip("\n")
        self._lines = []
        if block.strip():
            finished.append(block)
