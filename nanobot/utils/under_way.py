"""What a process has begun and not ended, on the disk, so that a kill loses none of it: the next one takes it over.

A process has a file of lines in the folder, and beside it a lock that the system lets go of when the process dies,
however that happens. The file is empty when nothing is under way; both go with the process, or are swept by the next
one. Nothing here waits for the disk: after a power cut the last lines may be missing.
"""

import json
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from nanobot.utils.files import open_private, write_whole
from nanobot.utils.locks import ProcessLock
from nanobot.utils.text import json_objects

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_MOST_LINES = 4096
"""A file that has more, most of them of what has ended, is begun anew."""

Row = Mapping[str, Any]


class UnderWay:
    """What one process has begun, a row each, and what dead ones left behind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count(1)
        self._rows: dict[int, Row] = {}
        self._lines = 0
        self._path: Path | None = None
        self._descriptor = -1
        self._lock: ProcessLock | None = None

    def begin(self, row: Row) -> int:
        """Note what begins, with the row it leaves if this process dies over it; gives its number.

        Never raises for the disk: one that refuses costs what a kill would then lose, and nothing else.
        """
        number = next(self._numbers)
        self._rows[number] = row
        with suppress(OSError):
            if self._lock is None:
                self._open()
            self._write(_line({"call": number, "row": row}))
        return number

    def end(self, number: int) -> None:
        """It has ended, and leaves nothing here. Never raises."""
        self._rows.pop(number, None)
        if self._lock is not None:
            with suppress(OSError):
                if not self._rows:
                    os.ftruncate(self._descriptor, 0)
                    self._lines = 0
                elif self._lines > max(_MOST_LINES, 4 * len(self._rows)):
                    self._begin_anew(self._path, self._lock, self._descriptor)
                else:
                    self._write(_line({"ended": number}))

    def close(self) -> None:
        """This process begins no more; where it does all the same there is a new file. Never raises."""
        if self._path is not None and self._lock is not None and not self._rows:
            os.close(self._descriptor)
            _remove(self._path, self._lock)
            self._path = self._lock = None

    def take_over(self, write: Callable[[list[dict[str, Any]]], None]) -> None:
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
        """What is under way goes to another file before this one goes: a kill between them leaves it twice."""
        self._open()
        self._write(b"".join(_line({"call": number, "row": row}) for number, row in self._rows.items()))
        os.close(descriptor)
        if path is not None:
            _remove(path, lock)

    def _write(self, lines: bytes) -> None:
        write_whole(self._descriptor, lines)
        self._lines += 1


def _line(fact: Row) -> bytes:
    text = json.dumps(fact, ensure_ascii=False, separators=(",", ":"), default=str)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _remove(path: Path, lock: ProcessLock) -> None:
    """The lines first: without them the lock means nothing."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
    lock.release()  # before its file goes: Windows deletes no open one
    with suppress(OSError):
        path.with_suffix(".lock").unlink(missing_ok=True)


def _rows_left(path: Path) -> list[dict[str, Any]]:
    """What began and did not end; half a line never began."""
    rows: dict[str, dict[str, Any]] = {}
    for found in json_objects(path.read_bytes()) if path.exists() else ():
        rows.pop(str(found.get("ended")), None)
        if isinstance(found.get("row"), dict):
            rows[str(found.get("call"))] = found["row"]
    return list(rows.values())
