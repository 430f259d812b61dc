"""Output rows of a search: formatted for a model, and verified against the files they are from."""

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nanobot.agent.tools import grep_child
from nanobot.security.files.open import Opener
from nanobot.security.files.paths import PathDeniedError
from nanobot.utils.text import clip_line, count_noun

ROW_BYTES = 64 * 1024
"""The end of a longer row is dropped."""
_LINE_CHARS = 400
_RESULT_CHARS = 15_000
_ROW = re.compile(r"(?P<path>[^\0]*)\0(?P<number>\d+)(?P<mark>[:-])(?P<text>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _GrepRow:
    """A row as the search printed it, and the line made of it."""

    file: str
    number: int
    text: str
    line: str


class GrepRows:
    """Collects the rows of a search until there are enough."""

    def __init__(self, shown_root: str, root: Path, files_only: bool, max_results: int) -> None:
        self.rows: list[_GrepRow | None] = []
        """None if something was left out between two rows."""
        self.notes: list[str] = []
        self._shown_root = shown_root
        self._root = root
        self._files_only = files_only
        self._max = max(1, max_results)
        self._matches = 0
        self._chars = 0
        self._last_file = ""

    @property
    def files(self) -> set[Path]:
        """The searched folder and all files with rows."""
        return {self._root} | {self._root / row.file for row in self.rows if row is not None}

    def add(self, row: str) -> bool:
        """Add one row of output. Return False once no more are wanted."""
        match = _ROW.fullmatch(row)
        if match is None:
            if row == "--" and not self._files_only and self.rows:
                self.rows.append(None)
            return True
        file = match["path"].removeprefix("./").removeprefix(".\\")
        is_match = match["mark"] == ":"
        new_file = file != self._last_file
        if is_match and (new_file or not self._files_only):
            if self._matches == self._max or self._chars > _RESULT_CHARS:
                count = count_noun(self._matches, *(("file", "files") if self._files_only else ("match", "matches")))
                self.notes.append(f"There are more than these {count}: narrow the search or raise max_results.")
                return False
            self._matches += 1
        name = display_path(self._root, self._shown_root, file)
        self._last_file = file
        if new_file or not self._files_only:
            rest = f"{match['mark']}{match['number']}{match['mark']} {clip_line(match['text'], _LINE_CHARS)}"
            line = name if self._files_only else f"{name}{rest}"
            self.rows.append(_GrepRow(file, int(match["number"]), match["text"], line))
            self._chars += len(line) + 1
        return True

    def verified_lines(self, files: Opener, deadline: float) -> list[str]:
        """Return the lines that their files have when opened under the path policy.

        The search program follows paths by itself: what it finds behind a link that was just created, or under a second
        name of a secret, is left out.
        """
        lines: list[str] = []
        open_file = _OpenFile(files, self._root, deadline)
        for row in self.rows:
            if row is None:
                lines += ["--"] if lines and lines[-1] != "--" else []
            elif open_file.contains(row):
                lines.append(row.line)
        open_file.close()
        if left_out := sum(row is not None for row in self.rows) - sum(line != "--" for line in lines):
            self.notes.append(f"{count_noun(left_out, 'row')} left out: not readable, or changed meanwhile.")
        return lines


class _OpenFile:
    """The file of the present rows, read once from its beginning."""

    def __init__(self, files: Opener, root: Path, deadline: float) -> None:
        self._files = files
        self._root = root
        self._deadline = deadline
        self._name: str | None = None
        self._file: BinaryIO | None = None
        self._lines: Iterator[str] = iter(())
        self._number = 0
        self._line = ""

    def contains(self, row: _GrepRow) -> bool:
        """Return whether this line of the file has this text. Rows come in the order of their lines."""
        try:
            if row.file != self._name:
                self._begin(row.file)
            while self._number < row.number and time.monotonic() < self._deadline:
                self._line = next(self._lines)
                self._number += 1
        except (PathDeniedError, OSError, StopIteration):
            return False
        return self._number == row.number and _comparable(self._line) == _comparable(row.text)

    def _begin(self, name: str) -> None:
        self.close()
        self._name, self._number, self._lines = name, 0, iter(())
        path = self._root / name
        real, self._file = self._files.open(path)
        if os.fspath(real) == os.path.normpath(path):  # else somebody has put a link there
            self._lines = grep_child.lines_of(self._file)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _comparable(text: str) -> str:
    """Return the part of a line that no decoding changes."""
    return text.encode("ascii", "ignore").decode("ascii")[: ROW_BYTES // 4]


def display_path(root: Path, shown_root: str, relative: str) -> str:
    """Return a path that the other file tools accept as it is."""
    relative = relative.replace(os.sep, "/").encode(errors="replace").decode()
    if shown_root in {"", "."}:
        return relative
    return f"{shown_root.rstrip('/')}/{relative}" if Path(shown_root).parts else str(root / relative)


def format_lines(lines: list[str], notes: list[str]) -> str:
    return "\n".join([*_without_trailing_separator(lines), *([f"({' '.join(notes)})"] if notes else [])])


def _without_trailing_separator(lines: list[str]) -> list[str]:
    return lines[:-1] if lines and lines[-1] == "--" else lines
