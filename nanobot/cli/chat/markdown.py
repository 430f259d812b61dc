"""Markdown rendered to terminal lines by Rich. Slow to import, so import it only for a terminal."""

import io
import re
from itertools import pairwise

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, ListItem, Markdown, TableElement
from rich.segment import Segment
from rich.style import Style
from rich.syntax import ANSI_LIGHT, ANSISyntaxTheme, Syntax
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

_TRAILING = re.compile(r"(?:\x1b\[[0-9;]*m|\s)+$")
_THEME = Theme({"markdown.code": Style(color="cyan")})  # without a background, which would be black on light terminals
_ON_DARK_AND_LIGHT = {"blue": "magenta", "yellow": "green"}
_CODE_THEME = ANSISyntaxTheme(
    {
        token: Style(color=_ON_DARK_AND_LIGHT.get(style.color.name, style.color)) if style.color else style
        for token, style in ANSI_LIGHT.items()
    }
)
"""Rich's colours for light terminals, without those that are hard to read on dark or light ones."""
_BAR = "▎ "


class _PlainHeading(Heading):
    """A left-aligned bold heading without Rich's box."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self.text.copy()
        text.justify = "left"
        text.stylize("bold underline" if self.tag == "h1" else "bold")
        yield text


class _ListItem(ListItem):
    """With a dot behind its number, as it was written."""

    def render_number(self, console: Console, options: ConsoleOptions, number: int, last_number: int) -> RenderResult:
        parts = iter(super().render_number(console, options, number, last_number))
        numeral = next(parts)
        assert isinstance(numeral, Segment)  # noqa: S101 narrows the type: the number comes first
        yield Segment(f"{numeral.text[1:-1]}. ", numeral.style)
        yield from parts


class _BarredCode(CodeBlock):
    """Code with a bar on its left."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = Syntax(str(self.text).rstrip(), self.lexer_name, theme=_CODE_THEME, word_wrap=True)
        width = max(options.max_width - len(_BAR), 1)
        for line in console.render_lines(code, options.update(width=width), pad=False, new_lines=True):
            yield Segment(_BAR, Style(dim=True))
            yield from line


class _FoldedTable(TableElement):
    """A table whose long words, such as URLs, are wrapped instead of cut off."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in super().__rich_console__(console, options):
            if isinstance(part, Table):
                for column in part.columns:
                    column.overflow = "fold"
            yield part


class _ChatMarkdown(Markdown):
    elements = {  # noqa: RUF012 Rich's own shape
        **Markdown.elements,
        "heading_open": _PlainHeading,
        "fence": _BarredCode,
        "code_block": _BarredCode,
        "table_open": _FoldedTable,
        "list_item_open": _ListItem,
    }

    def __init__(self, source: str) -> None:
        super().__init__(source, hyperlinks=False)
        for token in self.parsed:
            for child in token.children or ():
                if child.type == "softbreak":  # poems, addresses and `key: value` lines are meant as they are
                    child.type = "hardbreak"


_PARSER = MarkdownIt().enable("strikethrough").enable("table")


def split_blocks(text: str) -> tuple[list[str], str]:
    """The complete blocks (paragraph, list, table, code) of Markdown that grows, and the rest.

    The last block may still grow, unless an empty line ends it: a list or open code takes that line in.
    """
    complete, _, partial = text.rpartition("\n")
    lines = complete.split("\n")
    spans = [token.map for token in _PARSER.parse(f"{complete}\n") if token.level == 0 and token.map]
    starts = [0, *(start for start, _ in spans[1:])]
    if spans and spans[-1][1] < len(lines):
        starts.append(len(lines))
    blocks = ["\n".join(lines[start:end]).strip("\n") for start, end in pairwise(starts)]
    return blocks, "\n".join([*lines[starts[-1] :], partial]).lstrip("\n")


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
        theme=_THEME,
    )
    console.print(_ChatMarkdown(source))
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
