"""What commands print: lines that fit the terminal, with hanging indent and unbroken words; lists, JSON and texts.

A terminal gets a table, a pipe gets tab-separated lines without a heading, and each paragraph as one line, without
colours. `--json` prints JSON anywhere.
"""

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any, TextIO
from unicodedata import east_asian_width

import typer

from nanobot.cli.terminal import Paint, escape_control, is_terminal, strip_control, wants_colour

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


def print_text(text: str, *, wraps: bool = False) -> None:
    """Print text from a model or a file: without control sequences, with known secrets redacted.

    With `wraps`, lines are broken between words, below their indent or id; without, a terminal shows them as they are.
    """
    from nanobot.security.secrets import redact_known  # slow to import; not needed for --help

    shown = strip_control(redact_known(text)).rstrip("\n")
    if not wraps:
        typer.echo(shown)
        return
    for line in shown.split("\n"):
        words = _LINE_HEAD.sub("", line, count=1)
        print_line(words, line[: len(line) - len(words)])


def print_json(value: object) -> None:
    """Print as JSON, dataclasses as objects, with control characters escaped and known secrets redacted."""
    import json  # not needed for --help

    from nanobot.security.secrets import redact_known

    def plain(item: Any) -> object:
        return asdict(item) if is_dataclass(item) and not isinstance(item, type) else str(item)

    typer.echo(escape_control(redact_known(json.dumps(value, ensure_ascii=False, indent=2, default=plain))))


Column = str | Callable[[Any], object]
"""A cell of a row: the value of this key or attribute, or what this function makes of the row."""


def print_list(
    rows: Sequence[Any],
    columns: Mapping[str, Column],
    *,
    as_json: bool,
    empty: str,
    to_json: Callable[[Any], object] = lambda row: row,
) -> None:
    """Print rows as JSON, or as a table of the columns, by heading. Without rows, say `empty` on stderr."""
    if as_json:
        print_json([to_json(row) for row in rows])
        return
    cells = ([cell(row) if callable(cell) else _value(row, cell) for cell in columns.values()] for row in rows)
    print_table([*columns], cells, empty=empty)


def _value(row: Any, key: str) -> Any:
    return row[key] if isinstance(row, Mapping) else getattr(row, key)


def when(key: str) -> Column:
    """A column of the ISO times at this key."""
    return lambda row: format_timestamp(_value(row, key) or "-")


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str, spare: Sequence[str] = ()
) -> None:
    """Print a table, or tab-separated lines in a pipe. Without rows, print `empty` on stderr.

    `spare` is for tables of numbers: the columns to drop, in this order, where the terminal is too narrow.
    """
    from nanobot.security.secrets import redact_known

    lines = [["" if cell is None else to_one_line(redact_known(str(cell))) for cell in row] for row in rows]
    if not lines:
        print_line(empty, err=True)
    elif is_terminal(sys.stdout):
        _show_table(headings, lines, spare)
    else:
        for line in lines:
            typer.echo("\t".join(line))


def to_one_line(text: str) -> str:
    """The text in one line, white space collapsed and control sequences removed."""
    return " ".join(strip_control(text).split())


def format_timestamp(text: str, *, seconds: bool = False) -> str:
    """An ISO time as `2026-12-24 18:00 (2 h ago)`, exact with `seconds` or in a pipe; other text as it is."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    if is_terminal(sys.stdout) and not seconds:
        from nanobot.utils.text import format_when  # slow to import

        return format_when(moment)
    return f"{moment:%Y-%m-%d %H:%M:%S}" if seconds else f"{moment:%Y-%m-%d %H:%M}"


_LINE_HEAD = re.compile(r"\s*(?:\S{1,5}  )?")
_NUMBER = re.compile(r"[<$]*[\d.,]+[%s]?|-?")
_LAST_COLUMN = 30
"""Cells to which the last column shrinks before others do."""
_SHORT_NAME = 12
"""Cells of the first column that must stay visible beside the numbers."""


def _breaks_a_word(widths: Sequence[int], lines: Iterable[Sequence[str]]) -> bool:
    """Whether a column is too narrow for a word such as an address; text without spaces (Chinese) may be broken."""
    return any(
        len(word) > width
        for line in lines
        for width, cell in zip(widths, line, strict=True)
        for word in cell.split()
        if word.isascii()
    )


def _show_records(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Print each row as a block of lines, for a terminal that is too narrow for its columns."""
    paint, width = Paint(wants_colour(sys.stdout)), max(map(len, headings[1:]))
    for name, *cells in lines:
        typer.echo(paint.bold(name))
        for heading, cell in zip(headings[1:], cells, strict=True):
            if cell not in ("", "-"):
                print_line(cell, f"  {heading:<{width}}  ")


def _show_table(headings: Sequence[str], lines: Sequence[Sequence[str]], spare: Sequence[str]) -> None:
    """Draw a table that fits the terminal; widths count cells (a Chinese character takes two).

    Too wide a table shrinks its last column, then its widest, and wraps what they hold, but never the first, which
    people type next; where that would break a word, each row becomes a block of lines. A table of numbers (`spare`)
    cuts the first instead: a broken number is a wrong one. Numbers are aligned right. A column without any value is
    left out.
    """
    from rich.cells import cell_len  # rich takes 50 ms; only a terminal needs it
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, no_color=not wants_colour(sys.stdout))
    columns = [column for column in zip(headings, *lines, strict=True) if any(column[1:])]
    widths = [max(map(cell_len, column)) for column in columns]
    for name in spare:
        if min(widths[0], _SHORT_NAME) + sum(width + 2 for width in widths[1:]) > console.width:
            dropped = next(index for index, column in enumerate(columns) if column[0] == name)
            del columns[dropped], widths[dropped]
    if spare:
        widths[0] = min(widths[0], max(console.width - sum(width + 2 for width in widths[1:]), 4))
    headings, *lines = zip(*columns, strict=True)
    gaps = 2 * (len(widths) - 1)
    while sum(widths) + gaps > console.width and max(widths[1:], default=0) > 4:
        is_last_long = widths[-1] > _LAST_COLUMN
        widths[-1 if is_last_long else widths.index(max(widths[1:]), 1)] -= 1
    if not spare and _breaks_a_word(widths, lines):
        _show_records(headings, lines)
        return
    table = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold" if wants_colour(sys.stdout) else ""
    )
    for heading, width, *cells in zip(headings, widths, *lines, strict=True):
        table.add_column(
            heading,
            width=width,
            justify="right" if all(_NUMBER.fullmatch(cell) for cell in cells) else "left",
            no_wrap=bool(spare),
            overflow="ellipsis" if spare else "fold",
        )
    for line in lines:
        table.add_row(*map(Text, line))
    console.print(table, soft_wrap=sum(widths) + gaps > console.width)
