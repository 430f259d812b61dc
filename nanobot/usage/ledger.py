"""The ledger: one row for every request sent to a model, in `state/usage/YYYY-MM.jsonl`.

A row is a single append to the page cache, some microseconds, so it is written on the event loop. It survives the
process at once. It is not synced, since after a power failure the provider's bill is still there. Several processes may
append. Nothing is created before the first request. `InFlightCalls` records requests until they have a row.
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

from nanobot.usage.in_flight import InFlightCalls
from nanobot.usage.types import LedgerRow
from nanobot.utils.files import open_private, write_whole

log = logging.getLogger(__name__)

_MAX_UNWRITTEN = 1000
"""Rows kept while the disk fails; the budget has counted them in any case."""
_BLOCK = 256 * 1024
_MONTH_FILE = re.compile(r"\d{4}-\d{2}\.jsonl")
_ROW = re.compile(rb'\{"when":')
_COUNTS = ("prompt_tokens", "cached_tokens", "cache_written_tokens", "completion_tokens", "reasoning_tokens")
_MAX_USD = 1e9
"""No call costs this much: such a row is damaged, and would distort all sums."""
_WORDS = ("when", "cause", "session", "turn", "provider", "model", "outcome", "process")


class Ledger:
    """Writes the rows. `process` is the id this process writes into them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = secrets.token_hex(4)
        self._unwritten: deque[tuple[str, bytes]] = deque(maxlen=_MAX_UNWRITTEN)
        self._has_failed = False
        self._writing = threading.Lock()  # `catch_up` writes rows of killed processes in a thread
        self._month = _MonthFile()
        self._in_flight = InFlightCalls(folder / "in-flight")
        self.caught_up = False
        """Whether `catch_up` was called."""

    def begin(self, row: LedgerRow) -> int:
        """Record that a request is about to be sent. `row` is written if this process is killed. Never raises."""
        return self._in_flight.begin(row)

    def end(self, number: int) -> None:
        """Record that the request with this number has its row. Never raises."""
        self._in_flight.end(number)

    def close(self) -> None:
        """Close the files; a later request reopens them. Never raises."""
        with self._writing:
            self._month.close()
        self._in_flight.close()

    def catch_up(self) -> None:
        """Write the rows of requests whose process was killed. Blocks; never raises."""
        self.caught_up = True
        try:
            self._in_flight.take_over(self._add_missing)
        except (OSError, ValueError) as error:
            log.warning("Requests of a killed process in %s cannot be read: %s", self.folder, error)

    def _add_missing(self, rows: list[LedgerRow]) -> None:
        """Add rows that are not in the ledger: a process may die between the row and recording that it was written."""
        rows = [row for row in rows if _is_row(row)]
        if not rows:
            return
        since = date.fromisoformat(f"{min(row['when'] for row in rows)[:7]}-01")
        existing = {_row_id(row) for row in self.reader().rows(since)}
        for row in rows:
            if _row_id(row) not in existing:
                self.add(row)

    def add(self, row: LedgerRow) -> None:
        """Write a row, and those that could not be written before. Never raises: a full disk must not fail a turn."""
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
            if not self._has_failed:
                log.warning("Model usage cannot be written to %s: %s", self.folder, error)
            self._has_failed = True
            return
        if self._has_failed:
            log.info("Model usage is written to %s again", self.folder)
            self._has_failed = False

    def reader(self) -> "LedgerReader":
        """Return a reader that starts at the beginning."""
        return LedgerReader(self.folder)

    def _append(self, name: str, line: bytes) -> None:
        descriptor = self._month.open(self.folder / name)
        write_whole(descriptor, line)  # also after an incomplete line of a full disk: readers separate them


class _MonthFile:
    """The file of a month, kept open between rows as long as it is the one at its path."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._descriptor = -1
        self._opened: os.stat_result | None = None

    def open(self, path: Path) -> int:
        """Return a descriptor of the file at `path`, reopened if the file was replaced. Raises OSError."""
        if path != self._path or not self._is_current():
            self.close()
            self._descriptor = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            self._path, self._opened = path, os.fstat(self._descriptor)
        return self._descriptor

    def close(self) -> None:
        """Close it until the next row."""
        if self._opened is not None:
            os.close(self._descriptor)
            self._opened = None

    def _is_current(self) -> bool:
        try:
            return self._path is not None and self._opened is not None and samestat(self._path.stat(), self._opened)
        except OSError:
            return False


class LedgerReader:
    """Reads each row once, including those appended later. `damaged` counts skipped lines.

    Blocks; call it in a thread.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._damaged = 0
        self._torn: set[Path] = set()

    @property
    def damaged(self) -> int:
        """Number of unreadable lines, including an incomplete one at the end of a file."""
        return self._damaged + len(self._torn)

    def was_replaced(self) -> bool:
        """Whether a file is shorter than what was read of it, so another one took its place."""
        return any(_size(path) < read for path, read in self._read.items())

    def rows(self, since: date) -> Iterator[LedgerRow]:
        """Yield the unread rows of the months from `since` on, in file order. Raises OSError.

        Files are named after the month in the writer's time zone, so a day before is included.
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
        incomplete = b""
        with path.open("rb", buffering=0) as file:
            file.seek(self._read.get(path, 0))
            while block := file.read(_BLOCK):
                lines, newline, rest = block.rpartition(b"\n")
                if not newline:
                    incomplete += block
                    continue
                self._read[path] = self._read.get(path, 0) + len(incomplete) + len(lines) + 1
                yield from self._decode(incomplete + lines)
                incomplete = rest
        if incomplete and (row := _parse_row(incomplete)) is not None:
            self._read[path] = self._read.get(path, 0) + len(incomplete)
            yield row
        elif incomplete:  # being written, or left by a crash
            self._torn.add(path)

    def _decode(self, lines: bytes) -> list[LedgerRow]:
        try:
            rows = json.loads(b"[" + b",".join(filter(None, lines.split(b"\n"))) + b"]")  # half the time of one by one
            if all(map(_is_row, rows)):
                return cast("list[LedgerRow]", rows)
        except (ValueError, RecursionError):
            pass
        return [row for line in lines.split(b"\n") if line.strip() for row in self._salvage(line)]

    def _salvage(self, line: bytes) -> Iterator[LedgerRow]:
        """Yield the row of a line, or the complete ones after an incomplete row."""
        if (row := _parse_row(line)) is not None:
            yield row
            return
        self._damaged += 1
        for start in _ROW.finditer(line, 1):
            if (row := _parse_row(line[start.start() :])) is not None:
                yield row


def _row_id(row: LedgerRow) -> tuple[str, ...]:
    """Return what identifies a request."""
    return row["process"], row["when"], row["turn"], row["provider"], row["model"]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _parse_row(line: bytes) -> LedgerRow | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return cast("LedgerRow", value) if _is_row(value) else None


def _is_row(value: Any) -> bool:
    """Whether a value is a complete row that can be summed."""
    if type(value) is not dict:
        return False
    get = value.get
    return (
        all([type(count := get(name)) is int and count >= 0 for name in _COUNTS])  # noqa: C419 a list is twice as fast, a hundred thousand times
        and all([type(get(name)) is str for name in _WORDS])  # noqa: C419
        and _is_amount(get("usd"))
    )


def _is_amount(usd: Any) -> bool:
    return usd is None or (type(usd) in (float, int) and 0 <= usd < _MAX_USD)  # NaN is not
