"""The rows of a search as they come: made into lines for a model, and checked against the files they are from."""

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nanobot.agent.tools import grep_child
from nanobot.security.opening import Opener
from nanobot.security.paths import PathDeniedError
from nanobot.utils.text import clip_line, counted

ROW_BYTES = 64 * 1024
"""Of a longer row the end is dropped."""
_LINE_CHARS = 400
_RESULT_CHARS = 15_000
_ROW = re.compile(r"(?P<path>[^\0]*)\0(?P<number>\d+)(?P<mark>[:-])(?P<text>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Taken:
    """A row as the search told it, and the line made of it."""

    file: str
    number: int
    text: str
    line: str


class Rows:
    """Rows of a search as they come, until there are enough."""

    def __init__(self, shown_root: str, root: Path, files_only: bool, max_results: int) -> None:
        self.taken: list[_Taken | None] = []
        """None where something was left out between two rows."""
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
        """Where the rows were found."""
        return {self._root} | {self._root / one.file for one in self.taken if one is not None}

    def take(self, row: str) -> bool:
        """One row of output. False once no more are wanted."""
        match = _ROW.fullmatch(row)
        if match is None:
            if row == "--" and not self._files_only and self.taken:
                self.taken.append(None)
            return True
        found = match["path"].removeprefix("./").removeprefix(".\\")
        is_match = match["mark"] == ":"
        new_file = found != self._last_file
        if is_match and (new_file or not self._files_only):
            if self._matches == self._max or self._chars > _RESULT_CHARS:
                what = "file" if self._files_only else "match"
                said = counted(self._matches, what, "files" if self._files_only else "matches")
                self.notes.append(f"There are more than these {said}: narrow the search or raise max_results.")
                return False
            self._matches += 1
        name = shown_path(self._root, self._shown_root, found)
        self._last_file = found
        if new_file or not self._files_only:
            rest = f"{match['mark']}{match['number']}{match['mark']} {clip_line(match['text'], _LINE_CHARS)}"
            line = name if self._files_only else f"{name}{rest}"
            self.taken.append(_Taken(found, int(match["number"]), match["text"], line))
            self._chars += len(line) + 1
        return True

    def as_they_stand(self, files: Opener, deadline: float) -> list[str]:
        """The lines that are in their files when those are opened as every file is.

        The program that searched follows paths by itself: what it found behind a link that came in between, or under
        a second name of a secret, is not told.
        """
        lines: list[str] = []
        held = _Held(files, self._root, deadline)
        for one in self.taken:
            if one is None:
                lines += ["--"] if lines and lines[-1] != "--" else []
            elif held.has(one):
                lines.append(one.line)
        held.close()
        if left_out := sum(one is not None for one in self.taken) - sum(line != "--" for line in lines):
            self.notes.append(f"{counted(left_out, 'row')} left out: not readable, or changed meanwhile.")
        return lines


class _Held:
    """The file that rows were found in, read along once from its beginning."""

    def __init__(self, files: Opener, root: Path, deadline: float) -> None:
        self._files = files
        self._root = root
        self._deadline = deadline
        self._name: str | None = None
        self._file: BinaryIO | None = None
        self._lines: Iterator[str] = iter(())
        self._number = 0
        self._line = ""

    def has(self, row: _Taken) -> bool:
        """Whether the file has this text in that line. Rows come in the order of their lines."""
        try:
            if row.file != self._name:
                self._begin(row.file)
            while self._number < row.number and time.monotonic() < self._deadline:
                self._line = next(self._lines)
                self._number += 1
        except (PathDeniedError, OSError, StopIteration):
            return False
        return self._number == row.number and _compared(self._line) == _compared(row.text)

    def _begin(self, name: str) -> None:
        self.close()
        self._name, self._number, self._lines = name, 0, iter(())
        asked = self._root / name
        real, self._file = self._files.open(asked)
        if os.fspath(real) == os.path.normpath(asked):  # else somebody has put a link there
            self._lines = grep_child.lines_of(self._file)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _compared(text: str) -> str:
    """What of a line no decoding changes."""
    return text.encode("ascii", "ignore").decode("ascii")[: ROW_BYTES // 4]


def shown_path(root: Path, asked: str, relative: str) -> str:
    """A path that can be handed to the other file tools as it stands."""
    relative = relative.replace(os.sep, "/").encode(errors="replace").decode()
    if asked in {"", "."}:
        return relative
    return f"{asked.rstrip('/')}/{relative}" if Path(asked).parts else str(root / relative)


def with_notes(lines: list[str], notes: list[str]) -> str:
    """The text of a result."""
    return "\n".join([*_trimmed(lines), *([f"({' '.join(notes)})"] if notes else [])])


def _trimmed(lines: list[str]) -> Iterator[str]:
    """Without a separator that has nothing behind it."""
    return iter(lines[:-1] if lines and lines[-1] == "--" else lines)
