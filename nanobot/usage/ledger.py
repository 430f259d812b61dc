"""The ledger: a row for every request sent to a model, in `state/usage/YYYY-MM.jsonl`, written once, read often.

A row is one append to the system's cache, some microseconds, so it is made on the event loop. It outlives the process
at once; it is not waited for on the disk, since after a power cut the provider's own bill still tells. Several
processes may append. Nothing is touched before the first request; while one is under way, under_way.py knows of it.
"""

import json
import logging
import os
import re
import secrets
import threading
from collections import deque
from collections.abc import Iterator
from datetime import date, timedelta
from os.path import samestat
from pathlib import Path
from typing import Any, cast

from nanobot.usage.types import LedgerRow
from nanobot.usage.under_way import UnderWay
from nanobot.utils.files import open_private, write_whole

log = logging.getLogger(__name__)

_KEPT = 1000
"""How many rows wait for a disk that refuses; the budget has counted them, whatever becomes of them."""
_BLOCK = 256 * 1024
_MONTH_FILE = re.compile(r"\d{4}-\d{2}\.jsonl")
_ROW = re.compile(rb'\{"when":')
_COUNTS = ("prompt_tokens", "cached_tokens", "cache_written_tokens", "completion_tokens", "reasoning_tokens")
_MOST_USD = 1e9
"""No call costs as much: such a row is damaged, and would end all sums for good."""
_WORDS = ("when", "cause", "session", "turn", "provider", "model", "outcome", "process")


class Ledger:
    """Where the rows go. `process` is the name this process writes under."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = secrets.token_hex(4)
        self._unwritten: deque[tuple[str, bytes]] = deque(maxlen=_KEPT)
        self._refused = False
        self._writing = threading.Lock()  # what killed processes left is written in a thread, beside our own rows
        self._month = _KeptOpen()
        self._under_way = UnderWay(folder / "under-way")
        self.caught_up = False
        """Whether `catch_up` was called."""

    def begin(self, row: LedgerRow) -> int:
        """A request is about to be sent. `row` is what it leaves if this process is killed. Never raises."""
        return self._under_way.begin(row)

    def end(self, number: int) -> None:
        """The request that `begin` gave this number has its row. Never raises."""
        self._under_way.end(number)

    def close(self) -> None:
        """No request is under way, and none is near; one that comes all the same is no harm. Never raises."""
        with self._writing:
            self._month.close()
        self._under_way.close()

    def catch_up(self) -> None:
        """Write the rows of requests over which other processes were killed. Blocking; never raises."""
        self.caught_up = True
        try:
            self._under_way.take_over(self._add_missing)
        except (OSError, ValueError) as error:
            log.warning("What a killed process left in %s cannot be read: %s", self.folder, error)

    def _add_missing(self, rows: list[LedgerRow]) -> None:
        """A process may have died between the row and the word that it is written."""
        rows = [row for row in rows if _is_row(row)]
        if not rows:
            return
        since = date.fromisoformat(f"{min(row['when'] for row in rows)[:7]}-01")
        there = {_mark(row) for row in self.reader().rows(since)}
        for row in rows:
            if _mark(row) not in there:
                self.add(row)

    def add(self, row: LedgerRow) -> None:
        """Write the row, and those that the disk refused before. Never raises: a full disk costs no answer."""
        text = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
        line = text.encode("utf-8", "backslashreplace") + b"\n"
        with self._writing:
            self._unwritten.append((f"{row['when'][:7]}.jsonl", line))
            self._write_all()

    def _write_all(self) -> None:
        try:
            while self._unwritten:
                self._append(*self._unwritten[0])
                self._unwritten.popleft()
        except OSError as error:
            if not self._refused:
                log.warning("What models use cannot be written to %s: %s", self.folder, error)
            self._refused = True
            return
        if self._refused:
            log.info("What models use is written to %s again", self.folder)
            self._refused = False

    def reader(self) -> "LedgerReader":
        """One who has read nothing yet."""
        return LedgerReader(self.folder)

    def _append(self, name: str, line: bytes) -> None:
        descriptor = self._month.at(self.folder / name)
        write_whole(descriptor, line)  # behind half a one of a full disk too: a reader tells them apart


class _KeptOpen:
    """A file that rows are appended to, open from one row to the next as long as it is the one at its path."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._descriptor = -1
        self._opened: os.stat_result | None = None

    def at(self, path: Path) -> int:
        """It, opened anew for another month, or where somebody took it away. Raises OSError."""
        if path != self._path or not self._is_there():
            self.close()
            self._descriptor = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            self._path, self._opened = path, os.fstat(self._descriptor)
        return self._descriptor

    def close(self) -> None:
        """Until the next row."""
        if self._opened is not None:
            os.close(self._descriptor)
            self._opened = None

    def _is_there(self) -> bool:
        try:
            return self._path is not None and self._opened is not None and samestat(self._path.stat(), self._opened)
        except OSError:
            return False


class LedgerReader:
    """Reads each row once, also those that any process appends later. `damaged` counts the lines that were passed over.

    Blocking: call it in a thread.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._damaged = 0
        self._torn: set[Path] = set()

    @property
    def damaged(self) -> int:
        """Lines that could not be read, half a one at the end of a file included."""
        return self._damaged + len(self._torn)

    def outlived(self) -> bool:
        """Whether a file became shorter than what was read of it: somebody put another in its place."""
        return any(_size(path) < read for path, read in self._read.items())

    def rows(self, since: date) -> Iterator[LedgerRow]:
        """What was not read yet of the months from `since` on, in the order it was written. Raises OSError.

        A file is named after a month in the zone its rows were written in: hence a day's margin, for who travels.
        """
        first = (since - timedelta(days=1)).strftime("%Y-%m")
        for path in sorted(self._months()):
            if path.stem >= first and _size(path) > self._read.get(path, 0):
                yield from self._rest(path)

    def _months(self) -> list[Path]:
        try:
            return [path for path in self._folder.iterdir() if _MONTH_FILE.fullmatch(path.name)]
        except FileNotFoundError:
            return []

    def _rest(self, path: Path) -> Iterator[LedgerRow]:
        self._torn.discard(path)
        half = b""
        with path.open("rb", buffering=0) as file:
            file.seek(self._read.get(path, 0))
            while block := file.read(_BLOCK):
                lines, newline, rest = block.rpartition(b"\n")
                if not newline:
                    half += block
                    continue
                self._read[path] = self._read.get(path, 0) + len(half) + len(lines) + 1
                yield from self._sound(half + lines)
                half = rest
        if half and (row := _row_in(half)) is not None:
            self._read[path] = self._read.get(path, 0) + len(half)
            yield row
        elif half:  # somebody is writing it, or died over it
            self._torn.add(path)

    def _sound(self, lines: bytes) -> list[LedgerRow]:
        try:
            found = json.loads(b"[" + b",".join(filter(None, lines.split(b"\n"))) + b"]")  # half the time of one by one
            if all(map(_is_row, found)):
                return cast("list[LedgerRow]", found)
        except (ValueError, RecursionError):
            pass
        return [row for line in lines.split(b"\n") if line.strip() for row in self._salvaged(line)]

    def _salvaged(self, line: bytes) -> Iterator[LedgerRow]:
        """The row of a line; else the whole one behind half a one."""
        if (row := _row_in(line)) is not None:
            yield row
            return
        self._damaged += 1
        for start in _ROW.finditer(line, 1):
            if (row := _row_in(line[start.start() :])) is not None:
                yield row


def _mark(row: LedgerRow) -> tuple[str, ...]:
    """What tells a request from all others."""
    return row["process"], row["when"], row["turn"], row["provider"], row["model"]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _row_in(line: bytes) -> LedgerRow | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return cast("LedgerRow", found) if _is_row(found) else None


def _is_row(found: Any) -> bool:
    """Whether it can be added up."""
    if type(found) is not dict:
        return False
    get = found.get
    return (
        all([type(count := get(name)) is int and count >= 0 for name in _COUNTS])  # noqa: C419 a list is twice as fast, a hundred thousand times
        and all([type(get(name)) is str for name in _WORDS])  # noqa: C419
        and _is_amount(get("usd"))
    )


def _is_amount(usd: Any) -> bool:
    return usd is None or (type(usd) in (float, int) and 0 <= usd < _MOST_USD)  # NaN is not
