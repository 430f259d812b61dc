"""Where a screen draws: permanent lines, and below them live lines that are redrawn."""

import os
import shutil
from typing import Protocol, TextIO

from nanobot.cli.terminal import SafeStream, strip_control

BEGIN_UPDATE, END_UPDATE = "\x1b[?2026h", "\x1b[?2026l"
"""Synchronized update: supporting terminals show the text between them at once, others ignore the sequences."""


class Surface(Protocol):
    """The part of a terminal that a screen draws on."""

    @property
    def columns(self) -> int:
        """Usable cells in a line."""
        ...

    @property
    def live_rows(self) -> int:
        """The maximum number of live lines."""
        ...

    def show(self, permanent: str, live: str) -> None:
        """Append permanent lines and replace the live ones, in one write. Never raises."""
        ...


def max_live_rows(rows: int) -> int:
    """The share of a terminal's rows for live lines; the rest shows earlier output."""
    return max(3, min(rows // 2 - 2, 14))


class DirectSurface:
    """The terminal without a prompt, for one answer. Each update is one write, to avoid flicker."""

    def __init__(self, stream: TextIO | None) -> None:
        self.stream = SafeStream(stream)
        self._live = ""
        if os.name == "nt":
            os.system("")  # noqa: S605 enables escape sequences in old consoles

    @property
    def columns(self) -> int:
        """Cells in a line minus one: a full last cell wraps in some terminals."""
        return max(shutil.get_terminal_size().columns - 1, 10)

    @property
    def live_rows(self) -> int:
        """The maximum number of live lines."""
        return max_live_rows(shutil.get_terminal_size().lines)

    def show(self, permanent: str, live: str) -> None:
        """Append permanent lines and replace the live ones."""
        if not (permanent or live or self._live):
            return
        erase = self._erase_sequence()
        self._live = live
        update = f"{erase}{permanent}{live}"
        self.stream.write(f"{BEGIN_UPDATE}{update}{END_UPDATE}" if erase else update)

    def _erase_sequence(self) -> str:
        """The sequence that erases the live lines, even if a smaller window has wrapped them."""
        if not self._live:
            return ""
        from rich.cells import cell_len  # slow to import

        columns = shutil.get_terminal_size().columns
        rows = sum(max(1, -(-cell_len(strip_control(line)) // columns)) for line in self._live.split("\n"))
        return f"\r\x1b[{rows - 1}A\x1b[J" if rows > 1 else "\r\x1b[J"


def shorten_home(path: str | os.PathLike[str]) -> str:
    """The path with the home folder as ~."""
    text, home = os.fspath(path), os.path.expanduser("~")  # noqa: PTH111 a path as text
    return "~" + text[len(home) :] if home != os.sep and (text == home or text.startswith(home + os.sep)) else text
