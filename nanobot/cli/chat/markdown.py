"""Markdown rendered to terminal lines by Rich. Slow to import, so import it only for a terminal."""

import io
import re

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown
from rich.text import Text

_TRAILING = re.compile(r"(?:\x1b\[[0-9;]*m|\s)+$")


class _PlainHeading(Heading):
    """A left-aligned bold heading without Rich's box."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self.text.copy()
        text.justify = "left"
        text.stylize("bold underline" if self.tag == "h1" else "bold")
        yield text


class _ChatMarkdown(Markdown):
    elements = {**Markdown.elements, "heading_open": _PlainHeading}  # noqa: RUF012 Rich's own shape


def markdown_lines(source: str, width: int, colour: bool) -> list[str]:
    """Render one block to lines of at most `width` cells, without trailing spaces."""
    drawn = io.StringIO()
    console = Console(
        file=drawn,
        width=max(width, 8),
        force_terminal=colour,
        color_system="standard" if colour else None,
        legacy_windows=False,
        highlight=False,
        emoji=False,
    )
    console.print(_ChatMarkdown(source, code_theme="ansi_dark", hyperlinks=False))
    lines = [_strip_padding(line) for line in drawn.getvalue().split("\n")]
    while lines and not lines[0]:
        lines.pop(0)
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _strip_padding(line: str) -> str:
    """Strip padding, which would wrap in a smaller window and end up in copied text."""
    trimmed = _TRAILING.sub("", line)
    return trimmed + "\x1b[0m" if "\x1b" in trimmed else trimmed


def plain_lines(source: str, width: int) -> list[str]:
    """The text wrapped, without Markdown."""
    lines: list[str] = []
    for line in source.split("\n"):
        wrapped = Text(line.expandtabs(4)).wrap(Console(width=max(width, 8), file=io.StringIO()), max(width, 8))
        lines += [part.plain.rstrip() for part in wrapped] or [""]
    return lines
