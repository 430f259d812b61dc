"""Calls in flight, recorded on the disk, so that a killed process leaves a ledger row for each.

Each process that calls models has a JSON Lines file in `in-flight`, and a lock file that the system releases when the
process dies. The file is empty when no call is in flight. Both are removed by the process, or by the next one. As in
the ledger, nothing is synced.
"""

import json
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, cast

from nanobot.usage.types import LedgerRow
from nanobot.utils.files import open_private, write_whole
from nanobot.utils.locks import ProcessLock
from nanobot.utils.text import json_objects

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_MAX_LINES = 4096
"""Lines after which the file is rewritten without ended calls: that of a busy bot is never empty."""


class InFlightCalls:
    """The calls of this process, and those left by killed ones."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count(1)
        self._calls: dict[int, LedgerRow] = {}
        self._lines = 0
        self._path: Path | None = None
        self._descriptor = -1
        self._lock: ProcessLock | None = None

    def begin(self, row: LedgerRow) -> int:
        """Record a call with the row to write if this process dies. Return its number. Never raises."""
        number = next(self._numbers)
        self._calls[number] = row
        with suppress(OSError):  # a failing disk must not fail the call; the ledger logs it
            if self._lock is None:
                self._open()
            self._write(_line({"call": number, "row": row}))
        return number

    def end(self, number: int) -> None:
        """Record that the call has its row. Never raises."""
        self._calls.pop(number, None)
        if self._lock is not None:
            with suppress(OSError):
                if not self._calls:
                    os.ftruncate(self._descriptor, 0)
                    self._lines = 0
                elif self._lines > max(_MAX_LINES, 4 * len(self._calls)):
                    self._rewrite(self._path, self._lock, self._descriptor)
                else:
                    self._write(_line({"ended": number}))

    def close(self) -> None:
        """Remove the files if no call is in flight; a later call creates new ones. Never raises."""
        if self._path is not None and self._lock is not None and not self._calls:
            os.close(self._descriptor)
            _remove(self._path, self._lock)
            self._path = self._lock = None

    def take_over(self, write: Callable[[list[LedgerRow]], None]) -> None:
        """Pass the rows of dead processes to `write`, once. Blocks; raises OSError."""
        for path in sorted(self._folder.glob("*.jsonl")):
            lock = ProcessLock(path.with_suffix(".lock"))
            if not lock.try_acquire():
                continue  # its process is alive
            try:
                write(_unfinished_rows(path))
            except BaseException:
                lock.release()
                raise
            _remove(path, lock)

    def _open(self) -> None:
        path = self._folder / f"{secrets.token_hex(8)}.jsonl"
        lock = ProcessLock(path.with_suffix(".lock"))
        lock.try_acquire()  # the name is random, so nobody else has it
        try:
            self._descriptor = open_private(path, _FLAGS)
        except OSError:
            lock.release()
            raise
        self._path, self._lock, self._lines = path, lock, 0

    def _rewrite(self, path: Path | None, lock: ProcessLock, descriptor: int) -> None:
        """Write the calls in flight to a new file, then remove the old one. After a kill, duplicates are dropped."""
        self._open()
        self._write(b"".join(_line({"call": number, "row": row}) for number, row in self._calls.items()))
        os.close(descriptor)
        if path is not None:
            _remove(path, lock)

    def _write(self, lines: bytes) -> None:
        write_whole(self._descriptor, lines)
        self._lines += 1


def _line(entry: dict[str, Any]) -> bytes:
    text = json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _remove(path: Path, lock: ProcessLock) -> None:
    """Remove the data first: without it the lock means nothing."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
    lock.release()  # before deleting: Windows cannot delete an open file
    with suppress(OSError):
        path.with_suffix(".lock").unlink(missing_ok=True)


def _unfinished_rows(path: Path) -> list[LedgerRow]:
    """Return the rows of calls that did not end; an incomplete line was never sent."""
    rows: dict[str, LedgerRow] = {}
    for entry in json_objects(path.read_bytes()) if path.exists() else ():
        rows.pop(str(entry.get("ended")), None)
        if isinstance(entry.get("row"), dict):
            rows[str(entry.get("call"))] = cast("LedgerRow", entry["row"])
    return list(rows.values())
