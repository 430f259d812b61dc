"""The layout of what commands print: colours, and lines that fit the terminal, with hanging indent and unbroken words.

A pipe gets each paragraph as one line, without colours.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from shutil import get_terminal_size
from textwrap import wrap
from typing import TextIO
from unicodedata import east_asian_width

import typer

from nanobot.cli.terminal import Paint, is_terminal, strip_control, wants_colour

MAX_COLUMNS = 110
_MIN_TEXT_COLUMNS = 30
"""If fewer columns are left beside a heading, the text goes below it."""
_MAX_CELL = 50
_BULLET = 2
_CODE = re.compile(r"`[^`\n]+`")


def columns(stream: TextIO | None) -> int | None:
    """The columns that a line on this stream may fill; None for no limit."""
    return min(get_terminal_size().columns, MAX_COLUMNS) if is_terminal(stream) else None


def hang(head: str, text: str, width: int | None, indent: int | None = None) -> list[str]:
    """Break a text into lines of at most `width` columns: the first behind `head`, the others indented below it, or
    by `indent`.

    Words are not broken, and a command in backticks only if it does not fit on a line. Where too little room is left
    beside the head, the text begins on the line below; a bullet stays beside it.
    """
    if width is None:
        return f"{head}{text}".rstrip().split("\n")
    indent = len(strip_control(head)) if indent is None else indent
    bullet, above, room = head.strip(), [], width - indent
    longest = max(map(len, text.split()), default=0)
    if head and len(text) > room and (room < _MIN_TEXT_COLUMNS or room < longest <= width - 4):
        above = [head.rstrip()] if len(bullet) > _BULLET else []
        head = "    " if above or not bullet else f"    {bullet} "
        indent = len(head)
    room = max(width - indent, 1)
    lines = [line for paragraph in text.split("\n") for line in _wrap(paragraph, room)]
    return [*above, f"{head}{lines[0]}".rstrip(), *(" " * indent + line for line in lines[1:])]


def _wrap(text: str, room: int) -> list[str]:
    if not text.isascii():  # so that `len` counts columns: a mark behind each wide character
        text = "".join(f"{char}\1" if east_asian_width(char) in "WF" else char for char in text)
    if len(text) <= room:
        return [text.replace("\1", "")]
    kept = _CODE.sub(lambda code: code[0].replace(" ", "\0") if len(code[0]) <= room else code[0], text)
    lines = wrap(kept, room, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ").replace("\1", "") for line in lines] or [""]


def print_line(text: str, head: str = "", *, indent: int | None = None, err: bool = False) -> None:
    """Print a text, hanging behind `head` or by `indent`."""
    typer.echo("\n".join(hang(head, text, columns(sys.stderr if err else sys.stdout), indent)), err=err)


def print_error(text: str) -> None:
    """Print an error on stderr."""
    print_line(text, f"{Paint(wants_colour(sys.stderr)).red('Error:')} ", err=True)


def print_warning(text: str) -> None:
    """Print a warning on stderr."""
    print_line(text, f"{Paint(wants_colour(sys.stderr)).yellow('Warning:')} ", err=True)


def print_heading(text: str) -> None:
    """Print a blank line and a heading."""
    typer.echo(f"\n{Paint(wants_colour(sys.stdout)).bold(text)}")


def print_rows(rows: Iterable[Sequence[str]]) -> None:
    """Print rows of cells in columns, indented by two. The text of the last column hangs."""
    cells = [[" ".join(strip_control(cell).split()) for cell in row] for row in rows]
    widths = [min(max(map(len, column)), _MAX_CELL) for column in zip(*cells, strict=True)]
    for *heads, text in cells:
        head = "".join(f"  {cell:<{width}}" for cell, width in zip(heads, widths, strict=False))
        print_line(text, f"{head}  ")
