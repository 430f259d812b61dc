"""Shared by the commands: options, loading the config, requests to the gateway, printing tables, JSON and texts.

A terminal gets a table, a pipe gets tab-separated lines without a heading, `--json` prints JSON anywhere.
"""

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanobot.cli.layout import print_line, print_warning
from nanobot.cli.terminal import Paint, escape_control, is_terminal, strip_control, wants_colour
from nanobot.config.paths import DataPaths, absolute, get_config_path, get_data_dir, use_config
from nanobot.errors import NanobotError
from nanobot.utils.text import format_when, nearest

if TYPE_CHECKING:
    from nanobot.config.schema import Config

EXIT_INTERRUPTED = 130
"""The exit code after Ctrl+C."""
MAX_WARNINGS = 5
NO_GATEWAY = (
    "No gateway is running for {data}. Start one with `nanobot gateway`, or install it as a service with "
    "`nanobot gateway install`."
)

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "-c",
        "--config",
        metavar="FILE",
        help="Use this config file; its folder is the data folder. It does not move the workspace.",
    ),
]
WorkspaceOption = Annotated[
    Path | None, typer.Option("-w", "--workspace", metavar="FOLDER", help="Use this workspace instead of the config's.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True)
class Setup:
    """The config and the folders a command works with."""

    config: "Config"
    config_path: Path
    data_dir: Path
    workspace: Path

    @property
    def paths(self) -> DataPaths:
        """The paths of the data folder."""
        return DataPaths(self.data_dir)


def read_setup(config: Path | None, workspace: Path | None, *, warns: bool = True, secrets: bool = True) -> Setup:
    """Load the config given on the command line, else the user's, else the defaults. Creates no file or folder.

    `warns` prints harmless problems of the file (an unknown key) on stderr. Without `secrets`, references to secrets
    are not resolved: that may run a command that asks the user for a fingerprint. Raises ConfigError.
    """
    from nanobot.config.loader import load_config, load_warnings  # brings pydantic, 150 ms
    from nanobot.security.redaction import hold_secrets
    from nanobot.security.secrets import named_secrets

    use_config(config)
    loaded = load_config(must_exist=config is not None, secrets=secrets)
    hold_secrets(lambda: named_secrets(loaded.model_dump(), os.environ))
    if warns:
        print_warnings(load_warnings(loaded))
    return Setup(
        config=loaded,
        config_path=get_config_path(),
        data_dir=get_data_dir(),
        workspace=absolute(workspace or loaded.workspace_path),
    )


def get_data_paths(config: Path | None) -> DataPaths:
    """The data folder's paths, without reading the config."""
    use_config(config)
    return DataPaths(get_data_dir())


def ask_gateway(paths: DataPaths, request: dict[str, Any]) -> dict[str, Any] | None:
    """Send a request and return the answer, or None where no gateway is running. Raises GatewayError if it refuses."""
    import asyncio  # slow; not needed for --help

    from nanobot.net.gateway_socket import connect

    async def ask() -> dict[str, Any] | None:
        async with connect(paths.state) as connection:
            return await connection.request(request) if connection is not None else None

    return asyncio.run(ask())


def require_gateway(paths: DataPaths, request: dict[str, Any]) -> dict[str, Any]:
    """Like `ask_gateway`, but raises NanobotError where no gateway is running."""
    answer = ask_gateway(paths, request)
    if answer is None:
        raise NanobotError(NO_GATEWAY.format(data=paths.data))
    return answer


def print_warnings(warnings: Sequence[str]) -> None:
    """Print the first MAX_WARNINGS warnings on stderr, and how many more there are."""
    for warning in warnings[:MAX_WARNINGS]:
        print_warning(to_one_line(warning))
    if len(warnings) > MAX_WARNINGS:
        print_warning(f"{len(warnings) - MAX_WARNINGS} more; `nanobot status --json` lists all.")


def unknown_name_error(kind: str, name: str, known: Iterable[str], see: str) -> NanobotError:
    """Return the error for an unknown name, with the nearest known names. `see` is the command that lists all."""
    near = ", ".join(repr(to_one_line(other)) for other in nearest(name, known))
    return NanobotError(
        f"There is no {kind} {to_one_line(name)!r}. {f'Did you mean {near}? ' if near else ''}See `{see}`."
    )


def print_text(text: str, *, wraps: bool = False) -> None:
    """Print text from a model or a file: without control sequences, with known secrets redacted.

    With `wraps`, lines are broken between words, below their indent or id; without, a terminal shows them as they are.
    """
    from nanobot.security.redaction import redact_known  # slow to import; not needed for --help

    shown = strip_control(redact_known(text)).rstrip("\n")
    if not wraps:
        typer.echo(shown)
        return
    for line in shown.split("\n"):
        words = _LINE_HEAD.sub("", line, count=1)
        print_line(words, line[: len(line) - len(words)])


def print_json(value: object) -> None:
    """Print as JSON, with control characters escaped and known secrets redacted."""
    from nanobot.security.redaction import redact_known

    typer.echo(escape_control(redact_known(json.dumps(value, ensure_ascii=False, indent=2, default=str))))


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    empty: str,
    spare: Sequence[str] = (),
) -> None:
    """Print a table, or tab-separated lines in a pipe. Without rows, print `empty` on stderr.

    `spare` is for tables of numbers: the columns to drop, in this order, where the terminal is too narrow.
    """
    from nanobot.security.redaction import redact_known

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
