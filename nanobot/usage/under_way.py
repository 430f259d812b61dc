"""Calls that were sent and have no row yet, on the disk, so that a kill costs no row: whoever comes next writes it.

A process that asks models has a file of lines in `under-way`, and beside it a lock that the system lets go of when the
process dies, however that happens. The file is empty when no call is under way; both go with the process, or are swept
by the next one. Nothing here waits for the disk, as in the ledger.
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
_MOST_LINES = 4096
"""A file with more, most of them of calls that have ended, is begun anew: a busy bot's is never empty."""


class UnderWay:
    """The calls of one process, and what dead ones left behind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count(1)
        self._calls: dict[int, LedgerRow] = {}
        self._lines = 0
        self._path: Path | None = None
        self._descriptor = -1
        self._lock: ProcessLock | None = None

    def begin(self, row: LedgerRow) -> int:
        """Note a call, with the row it leaves if this process dies over it; gives its number. Never raises."""
        number = next(self._numbers)
        self._calls[number] = row
        with suppress(OSError):  # a disk that refuses costs no answer; the ledger says so
            if self._lock is None:
                self._open()
            self._write(_line({"call": number, "row": row}))
        return number

    def end(self, number: int) -> None:
        """The call has its row. Never raises."""
        self._calls.pop(number, None)
        if self._lock is not None:
            with suppress(OSError):
                if not self._calls:
                    os.ftruncate(self._descriptor, 0)
                    self._lines = 0
                elif self._lines > max(_MOST_LINES, 4 * len(self._calls)):
                    self._begin_anew(self._path, self._lock, self._descriptor)
                else:
                    self._write(_line({"ended": number}))

    def close(self) -> None:
        """This process asks no more; one that asks all the same begins a new file. Never raises."""
        if self._path is not None and self._lock is not None and not self._calls:
            os.close(self._descriptor)
            _remove(self._path, self._lock)
            self._path = self._lock = None

    def take_over(self, write: Callable[[list[LedgerRow]], None]) -> None:
        """Hand the rows of dead processes to `write`, once. Blocking; raises OSError."""
        for path in sorted(self._folder.glob("*.jsonl")):
            lock = ProcessLock(path.with_suffix(".lock"))
            if not lock.try_acquire():
                continue  # it lives
            try:
                write(_rows_left(path))
            except BaseException:
                lock.release()
                raise
            _remove(path, lock)

    def _open(self) -> None:
        path = self._folder / f"{secrets.token_hex(8)}.jsonl"
        lock = ProcessLock(path.with_suffix(".lock"))
        lock.try_acquire()  # nobody else knows the name
        try:
            self._descriptor = open_private(path, _FLAGS)
        except OSError:
            lock.release()
            raise
        self._path, self._lock, self._lines = path, lock, 0

    def _begin_anew(self, path: Path | None, lock: ProcessLock, descriptor: int) -> None:
        """Another file, with what is under way, before this one goes. What a kill then leaves twice is written once."""
        self._open()
        self._write(b"".join(_line({"call": number, "row": row}) for number, row in self._calls.items()))
        os.close(descriptor)
        if path is not None:
            _remove(path, lock)

    def _write(self, lines: bytes) -> None:
        write_whole(self._descriptor, lines)
        self._lines += 1


def _line(fact: dict[str, Any]) -> bytes:
    text = json.dumps(fact, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _remove(path: Path, lock: ProcessLock) -> None:
    """The lines first: without them the lock means nothing."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
    lock.release()  # before its file goes: Windows deletes no open one
    with suppress(OSError):
        path.with_suffix(".lock").unlink(missing_ok=True)


def _rows_left(path: Path) -> list[LedgerRow]:
    """What began and did not end; half a line was never sent."""
    rows: dict[str, LedgerRow] = {}
    for found in json_objects(path.read_bytes()) if path.exists() else ():
        rows.pop(str(found.get("ended")), None)
        if isinstance(found.get("row"), dict):
            rows[str(found.get("call"))] = cast("LedgerRow", found["row"])
    return list(rows.values())
