"""What commands print. Text made safe for a terminal, colours, writing that never raises; lines that fit, with hanging
indent and unbroken words; lists, JSON and texts.

A terminal gets a table, a pipe gets tab-separated lines without a heading, and each paragraph as one line, without
colours. `--json` prints JSON anywhere.
"""

import errno
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from datetime import datetime
from itertools import zip_longest
from shutil import get_terminal_size
from typing import Any, TextIO
from unicodedata import east_asian_width

import typer

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_UNESCAPED_BY_JSON = re.compile("[\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def repair_output(text: str) -> str:
    """Replace lone surrogates, which undecodable argv bytes become, so that the text can be encoded."""
    surrogates = _SURROGATE.findall(text)
    if not surrogates:
        return text
    are_bytes = all("\udc80" <= surrogate <= "\udcff" for surrogate in surrogates)
    return text.encode("utf-8", "surrogateescape" if are_bytes else "replace").decode("utf-8", "replace")


def strip_control(text: str) -> str:
    """Remove control sequences: text of a model or tool must not move the cursor or set a title."""
    return _CONTROL.sub("", repair_output(text).replace("\r\n", "\n").replace("\r", "\n"))


def escape_control(text: str) -> str:
    """Escape in a JSON text the control characters that JSON allows unescaped (DEL, C1)."""
    return _UNESCAPED_BY_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", repair_output(text))


def write_text(stream: TextIO, text: str) -> None:
    """Write and flush. Raises OSError where the reader is gone."""
    stream.write(text)
    stream.flush()


def is_terminal(stream: TextIO | None) -> bool:
    """Whether this stream is a terminal."""
    return stream is not None and not stream.closed and stream.isatty()


def wants_colour(stream: TextIO | None) -> bool:
    """Whether to use colours: on a terminal that is not dumb, unless NO_COLOR is set."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def can_redraw(stream: TextIO | None) -> bool:
    """Whether the terminal can redraw lines that were written."""
    term = os.environ.get("TERM") or ("" if os.name == "nt" else "unknown")
    return is_terminal(stream) and term not in ("dumb", "unknown")


def _sgr(code: str) -> "Callable[[Paint, str], str]":
    return lambda paint, text: f"\x1b[{code}m{text}\x1b[0m" if paint.colour and text else text


class Paint:
    """Wrap text in SGR colour sequences, or return it unchanged where `colour` is off."""

    def __init__(self, colour: bool) -> None:
        self.colour = colour

    @classmethod
    def on(cls, stream: TextIO | None) -> "Paint":
        """The colours that this stream shows."""
        return cls(wants_colour(stream))

    dim = _sgr("2")  # everything beside the answer
    bold = _sgr("1")  # what a person typed, headings
    red = _sgr("31")  # failures
    yellow = _sgr("33")  # warnings
    green = _sgr("32")  # added lines


class SafeStream:
    """A stream whose writes never raise: the reader of a pipe may leave, the disk may be full.

    `stream` is None in a process without that stream; then writes are dropped.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self.closed = False
        self.problem = ""
        """Why writing failed; empty while it works, and where the reader merely closed the pipe."""

    def write(self, text: str) -> None:
        """Write and flush."""
        if self.closed or self._stream is None:
            return
        try:
            write_text(self._stream, text)
        except BrokenPipeError:
            self._close()
        except OSError as error:
            if not (os.name == "nt" and error.errno == errno.EINVAL):  # a broken pipe on Windows
                self.problem = f"the output could not be written: {error.strerror}"
            self._close()

    def _close(self) -> None:
        """Redirect the stream to the null device, so that the flush at exit does not fail."""
        self.closed = True
        sink = os.open(os.devnull, os.O_WRONLY)
        try:
            if self._stream is not None:
                os.dup2(sink, self._stream.fileno())
        except (OSError, ValueError):
            pass  # no file descriptor, so nothing to flush
        finally:
            os.close(sink)


MAX_COLUMNS = 110
_MIN_TEXT_COLUMNS = 28
"""If fewer columns are left beside a heading, the text goes below it."""
_MAX_CELL = 50
_BULLET = 2
_WIDE = (
    r"\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff01-\uff60\uffe0-\uffe6\U00020000-\U0003fffd"
)
_PIECES = rf"(\s*)(?:([^\s`{_WIDE}]*`[^`\n]+`[^\s{_WIDE}]*)|([{_WIDE}][、。！，：；？）」』]*|[^\s{_WIDE}]+))"
"""What is not broken, with the space before it: code in backticks, a word, a single wide character. Compiled with the
first text that is wrapped: at import, it would cost each command 3 ms.
"""


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


def cell_width(text: str) -> int:
    """The columns that a text fills on a terminal: two for each wide character, such as a Chinese one."""
    return len(text) if text.isascii() else sum(1 + (east_asian_width(char) in "WF") for char in text)


def _wrap(text: str, room: int) -> list[str]:
    """Break a text between words, or before a wide character, so that no line is wider than it must be."""
    lines, line = [], ""
    for space, code, word in re.findall(_PIECES, text):
        pieces = [(space, code or word)]
        if cell_width(code) > room:
            pieces = [(" " if number else space, part) for number, part in enumerate(code.split(" "))]
        for gap, piece in pieces:
            if line.strip() and cell_width(line + gap + piece) > room:
                lines.append(line)
                line = piece
            else:
                line += gap + piece
    return [*lines, line]


def print_line(text: str, head: str = "", *, indent: int | None = None, err: bool = False) -> None:
    """Print a text, hanging behind `head` or by `indent`."""
    typer.echo("\n".join(hang(head, text, columns(sys.stderr if err else sys.stdout), indent)), err=err)


def print_error(text: str) -> None:
    """Print an error on stderr."""
    print_line(text, f"{Paint.on(sys.stderr).red('Error:')} ", err=True)


def print_warning(text: str) -> None:
    """Print a warning on stderr."""
    print_line(text, f"{Paint.on(sys.stderr).yellow('Warning:')} ", err=True)


def print_heading(text: str) -> None:
    """Print a blank line and a heading."""
    typer.echo(f"\n{Paint.on(sys.stdout).bold(text)}")


def print_rows(rows: Iterable[Sequence[str]]) -> None:
    """Print rows of cells in columns, indented by two. The text of the last column hangs."""
    cells = [[to_one_line(cell) for cell in row] for row in rows]
    widths = [min(max(map(cell_width, column)), _MAX_CELL) for column in zip(*cells, strict=True)]
    for *heads, text in cells:
        print_line(text, "".join(f"  {_pad(cell, width)}" for cell, width in zip(heads, widths, strict=False)) + "  ")


def _pad(cell: str, width: int, *, right: bool = False) -> str:
    space = " " * (width - cell_width(cell))
    return space + cell if right else cell + space


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


Column = str | int | Callable[[Any], object]
"""A cell of a row: the value of this key, attribute or index, or what this function makes of the row."""


def print_list(
    rows: Sequence[Any],
    columns: Mapping[str, Column],
    *,
    empty: str,
    as_json: bool = False,
    to_json: Callable[[Any], object] = lambda row: row,
    spare: Sequence[str] = (),
) -> None:
    """Print rows as JSON, or as a table of the columns, by heading; in a pipe as tab-separated lines.

    Without rows, say `empty` on stderr. `spare` is for tables of numbers: the columns to drop, in this order, where the
    terminal is too narrow.
    """
    from nanobot.security.secrets import redact_known

    def text(row: Any, column: Column) -> str:
        cell = column(row) if callable(column) else _value(row, column)
        return "" if cell is None else to_one_line(redact_known(str(cell)))

    if as_json:
        print_json([to_json(row) for row in rows])
        return
    lines = [[text(row, column) for column in columns.values()] for row in rows]
    if not lines:
        print_line(empty, err=True)
    elif is_terminal(sys.stdout):
        _show_table([*columns], lines, spare)
    else:
        for line in lines:
            typer.echo("\t".join(line))


def _value(row: Any, key: str | int) -> Any:
    return row[key] if isinstance(key, int) or isinstance(row, Mapping) else getattr(row, key)


def when(key: str) -> Column:
    """A column of the ISO times at this key."""
    return lambda row: format_timestamp(_value(row, key) or "-")


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
_MIN_CELL = 4
_MAX_LINES = 4
"""Of a cell in a column that was shrunk below _LAST_COLUMN."""
_LAST_COLUMN = 30
"""Cells to which the last column shrinks before others do."""
_SHORT_NAME = 12
"""Cells of the first column that must stay visible beside the numbers."""


@dataclass
class _TableColumn:
    heading: str
    cells: list[str]
    width: int = 0

    def __post_init__(self) -> None:
        self.width = max(map(cell_width, (self.heading, *self.cells)))
        self.is_number = all(map(_NUMBER.fullmatch, self.cells))

    def cut(self, width: int) -> None:
        """Shorten the cells to this width."""
        self.cells = [cell if cell_width(cell) <= width else f"{cell[: width - 1]}…" for cell in self.cells]
        self.width = min(self.width, width)

    def is_too_narrow(self) -> bool:
        """Whether it breaks a word such as an address, or becomes a tower. Chinese text may be broken anywhere."""
        if any(len(word) > self.width for cell in self.cells for word in cell.split() if word.isascii()):
            return True
        return self.width < _LAST_COLUMN and any(len(_wrap(cell, self.width)) > _MAX_LINES for cell in self.cells)


def _show_table(headings: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str]) -> None:
    """Draw a table that fits the terminal, numbers aligned right, without the columns that hold no value.

    Too wide a table shrinks its last column, then its widest, and wraps what they hold, but never the first, which
    people type next; where that makes one too narrow, each row becomes a block of lines. A table of numbers (`spare`)
    cuts the first instead: a broken number is a wrong one.
    """
    first, *others = (_TableColumn(name, cells) for name, *cells in zip(headings, *rows, strict=True) if any(cells))

    def room_for_first() -> int:
        return get_terminal_size().columns - sum(column.width + 2 for column in others)

    for name in spare:
        if min(first.width, _SHORT_NAME) > room_for_first():
            others = [column for column in others if column.heading != name]
    if spare:
        first.cut(max(room_for_first(), 4))
    while others and not spare and first.width > room_for_first():
        widest = others[-1] if others[-1].width > _LAST_COLUMN else max(others, key=lambda column: column.width)
        if widest.width <= _MIN_CELL:
            break
        widest.width -= 1
    paint, columns = Paint.on(sys.stdout), [first, *others]
    if not spare and any(column.is_too_narrow() for column in columns):
        _show_records(columns, paint)
        return
    for number in range(-1, len(first.cells)):
        texts = [column.heading if number < 0 else column.cells[number] for column in columns]
        cells = [_wrap(text, column.width) for text, column in zip(texts, columns, strict=True)]
        for line in zip_longest(*cells, fillvalue=""):
            padded = (_pad(cell, to.width, right=to.is_number) for cell, to in zip(line, columns, strict=True))
            text = "  ".join(padded).rstrip()
            typer.echo(text if number >= 0 else paint.bold(text))


def _show_records(columns: Sequence[_TableColumn], paint: Paint) -> None:
    """Print each row as a block of lines, for a terminal that is too narrow for its columns."""
    width = max(len(column.heading) for column in columns[1:])
    for number, name in enumerate(columns[0].cells):
        typer.echo(paint.bold(name))
        for column in columns[1:]:
            if column.cells[number] not in ("", "-"):
                print_line(column.cells[number], f"  {column.heading:<{width}}  ")
