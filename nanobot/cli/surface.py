"""Where a screen draws: lines that stay, and under them a few that are drawn anew until they stay or vanish."""

import os
import shutil
from typing import Protocol, TextIO

from nanobot.cli.outlet import Outlet
from nanobot.cli.terminal import visible

BEGIN_UPDATE, END_UPDATE = "\x1b[?2026h", "\x1b[?2026l"
"""Terminals that know these show what is between them at once; the others leave them out."""


class Surface(Protocol):
    """A terminal as a screen needs it."""

    @property
    def columns(self) -> int:
        """Cells in a line."""
        ...

    @property
    def live_rows(self) -> int:
        """How many lines may be drawn anew."""
        ...

    def show(self, stay: str, live: str) -> None:
        """Write whole lines for good and replace the live ones, in one go. Never raises."""
        ...


def live_rows_of(rows: int) -> int:
    """How many of a terminal's rows the live lines may take: the rest is for what was said before."""
    return max(3, min(rows // 2 - 2, 14))


class DirectSurface:
    """The terminal itself, for one answer without a prompt. Each change is one write, so nothing flickers."""

    def __init__(self, stream: TextIO | None) -> None:
        self.outlet = Outlet(stream)
        self._live = ""
        if os.name == "nt":
            os.system("")  # noqa: S605 this is how an old console learns escape sequences

    @property
    def columns(self) -> int:
        """Cells in a line, but one: a full last cell would wrap in some terminals."""
        return max(shutil.get_terminal_size().columns - 1, 10)

    @property
    def live_rows(self) -> int:
        """How many lines may be drawn anew."""
        return live_rows_of(shutil.get_terminal_size().lines)

    def show(self, stay: str, live: str) -> None:
        """Write whole lines for good and replace the live ones. The outlet says when the terminal is gone."""
        if not (stay or live or self._live):
            return
        erase = self._erasing()
        self._live = live
        change = f"{erase}{stay}{live}"
        self.outlet.write(f"{BEGIN_UPDATE}{change}{END_UPDATE}" if erase else change)

    def _erasing(self) -> str:
        """What takes the live lines away, also where a window that shrank has wrapped them since."""
        if not self._live:
            return ""
        from rich.cells import cell_len  # only screens need to know widths

        columns = shutil.get_terminal_size().columns
        rows = sum(max(1, -(-cell_len(visible(line)) // columns)) for line in self._live.split("\n"))
        return f"\r\x1b[{rows - 1}A\x1b[J" if rows > 1 else "\r\x1b[J"


def home_shortened(path: str | os.PathLike[str]) -> str:
    """The path with ~ for the home folder."""
    text, home = os.fspath(path), os.path.expanduser("~")  # noqa: PTH111 a path as text
    return "~" + text[len(home) :] if home != os.sep and (text == home or text.startswith(home + os.sep)) else text
