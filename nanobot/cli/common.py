"""What the commands share: options, the config they read, and how lists, values and texts are printed.

A terminal gets a table; a pipe gets plain lines with tabs, without a heading; `--json` gets JSON anywhere.
"""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nanobot.cli.terminal import harmless_json, is_screen, visible
from nanobot.errors import NanobotError
from nanobot.utils.text import nearest

if TYPE_CHECKING:
    from nanobot.config.schema import Config

INTERRUPTED = 130
"""The exit code of who was stopped by Ctrl+C."""
SHOWN_WARNINGS = 5

ConfigOption = Annotated[
    Path | None,
    typer.Option("-c", "--config", metavar="FILE", help="Another config file; its folder is the data folder."),
]
WorkspaceOption = Annotated[
    Path | None, typer.Option("-w", "--workspace", metavar="FOLDER", help="Another workspace than the config's.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True)
class Setup:
    """Where a command works: its config and its folders."""

    config: "Config"
    config_path: Path
    data_dir: Path
    workspace: Path


def read_setup(config: Path | None, workspace: Path | None, *, warns: bool = True, secrets: bool = True) -> Setup:
    """The config on the command line, else the user's own, else defaults. Raises ConfigError; makes nothing.

    What is odd about the file but does no harm (a key nobody knows) is said on stderr, unless somebody else says it.
    Who needs no secret says so: it may take a command and its owner's finger to get one.
    """
    from nanobot.config import paths  # the loader brings pydantic, 150 ms
    from nanobot.config.loader import load_config, load_warnings
    from nanobot.security import vault
    from nanobot.security.secrets import named_secrets

    paths.use_config(config)
    loaded = load_config(must_exist=config is not None, secrets=secrets)
    vault.hold(lambda: named_secrets(loaded.model_dump(), os.environ))
    if warns:
        warn(load_warnings(loaded))
    return Setup(
        config=loaded,
        config_path=paths.get_config_path(),
        data_dir=paths.get_data_dir(),
        workspace=paths.absolute(workspace or loaded.workspace_path),
    )


def warn(warnings: Sequence[str]) -> None:
    """Say on stderr what may be wrong, as far as a screen has room for it."""
    for warning in warnings[:SHOWN_WARNINGS]:
        typer.echo(f"Warning: {one_line(warning)}", err=True)
    if len(warnings) > SHOWN_WARNINGS:
        typer.echo(f"Warning: {len(warnings) - SHOWN_WARNINGS} more; `nanobot status --json` has them all.", err=True)


def unknown_name(kind: str, name: str, known: Iterable[str], see: str) -> NanobotError:
    """There is no such thing; the nearest names, and the command that lists all."""
    near = ", ".join(repr(one_line(other)) for other in nearest(name, known))
    return NanobotError(
        f"There is no {kind} {one_line(name)!r}. {f'Did you mean {near}? ' if near else ''}See `{see}`."
    )


def say_text(text: str) -> None:
    """A text of somebody's, without what would steer a terminal and without secrets of ours."""
    from nanobot.security.vault import masked  # only who shows such a text waits for it

    typer.echo(visible(masked(text)).rstrip("\n"))


def show_json(value: object) -> None:
    """As JSON, for programs; nothing in it steers a terminal, and no secret of ours is in it."""
    from nanobot.security.vault import masked

    typer.echo(harmless_json(masked(json.dumps(value, ensure_ascii=False, indent=2, default=str))))


def show_rows(
    headings: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str, spare: Sequence[str] = ()
) -> None:
    """A table, or tabbed lines in a pipe. Without rows, the sentence `empty`, on stderr.

    `spare` is for a table of numbers: which columns go, the first one first, where a screen has no room for all.
    """
    from nanobot.security.vault import masked

    lines = [["" if cell is None else one_line(masked(str(cell))) for cell in row] for row in rows]
    if not lines:
        typer.echo(empty, err=True)
    elif is_screen(sys.stdout):
        _show_table(headings, lines, spare)
    else:
        for line in lines:
            typer.echo("\t".join(line))


def one_line(text: str) -> str:
    """The words of a text in one line, without what would steer a terminal."""
    return " ".join(visible(text).split())


_SHORT_NAME = 12
"""As much of a name has to be seen beside the numbers."""


def _show_table(headings: Sequence[str], lines: Sequence[Sequence[str]], spare: Sequence[str]) -> None:
    """Columns as wide as their characters are in a terminal (a Chinese one takes two cells).

    Where they do not fit, the widest give way; the first, which is what one types in the next command, never does. In a
    table of numbers it is the one that does: half a number is a wrong one.
    """
    from rich.cells import cell_len  # rich: 50 ms, for those who look
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    columns = list(zip(headings, *lines, strict=True))
    widths = [max(map(cell_len, column)) for column in columns]
    for name in spare:
        if min(widths[0], _SHORT_NAME) + sum(width + 2 for width in widths[1:]) > console.width:
            place = next(index for index, column in enumerate(columns) if column[0] == name)
            del columns[place], widths[place]
    if spare:
        widths[0] = min(widths[0], max(console.width - sum(width + 2 for width in widths[1:]), 4))
    headings, *lines = zip(*columns, strict=True)
    gaps = 2 * (len(widths) - 1)
    while sum(widths) + gaps > console.width and max(widths[1:], default=0) > 4:
        widths[widths.index(max(widths[1:]), 1)] -= 1
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading, width in zip(headings, widths, strict=True):
        table.add_column(heading, width=width, no_wrap=True, overflow="ellipsis")
    for line in lines:
        table.add_row(*map(Text, line))
    console.print(table, soft_wrap=sum(widths) + gaps > console.width)
