"""Writing to session files: whole lines at the end, on the disk before anybody is told so.

Many sessions share a round: all lines are written, then each file is synced, so that the file system commits once for
all of them. A lock of the folder keeps writers of all processes apart while they write, not while the disk works.
"""

import asyncio
import contextlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nanobot.session.reader import Print
from nanobot.utils.files import line_end, open_lines, sync_data, sync_folder, write_whole
from nanobot.utils.locks import locked

_SYNCS_AT_ONCE = 4


@dataclass(slots=True)
class Append:
    """Lines for the end of a file, and how it went: `start` is where they begin, `error` why they are not there."""

    path: Path
    data: bytes
    header: bytes = b""
    """What a file begins with that does not exist yet."""
    start: int = 0
    print: Print | None = None
    created: bool = False
    error: OSError | None = None


def append_all(lock: Path, appends: Sequence[Append]) -> None:
    """Write these, and see them to the disk. Each is there wholly or not at all; what failed says so in `error`."""
    opened: dict[Path, int] = {}
    try:
        with locked(lock):
            for append in appends:
                try:
                    _write(append, opened)
                except OSError as error:
                    append.error = error
        _sync(appends, opened)
    except OSError as error:
        for append in appends:
            append.error = append.error or error
    finally:
        for descriptor in opened.values():
            os.close(descriptor)


class GroupCommit:
    """The rounds. While one is on its way to the disk, what comes in waits together for the next."""

    def __init__(self, lock: Path) -> None:
        self._lock = lock
        self._waiting: list[tuple[Append, asyncio.Future[None]]] = []
        self._round: asyncio.Task[None] | None = None

    def hand_in(self, append: Append) -> "asyncio.Future[None]":
        """Done once it is on the disk, or with the error that kept it from there; it is written whoever waits."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._waiting.append((append, done))
        if self._round is None or self._round.done() or self._round.get_loop() is not loop:
            self._round = loop.create_task(self._rounds())
        return done

    async def _rounds(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            failure: Exception | None = None
            try:
                await asyncio.to_thread(append_all, self._lock, [append for append, _ in batch])
            except Exception as error:  # whoever waits must hear of it, whatever it is
                failure = error
            except BaseException:
                for _, done in [*batch, *self._waiting]:
                    done.cancel()  # the loop is closing: nobody may be told that it is on the disk
                raise
            for append, done in batch:
                why_not = failure or append.error
                if not done.done():
                    done.set_result(None) if why_not is None else done.set_exception(why_not)


def _write(append: Append, opened: dict[Path, int]) -> None:
    """Write one append under the lock. A file that ends in half a line gets a new one first."""
    descriptor = opened.get(append.path)
    if descriptor is None:
        descriptor = opened[append.path] = open_lines(append.path)
    end = os.lseek(descriptor, 0, os.SEEK_END)
    append.created = end == 0
    before = append.header if append.created else line_end(descriptor)
    try:
        write_whole(descriptor, before + append.data)
    except OSError:
        with contextlib.suppress(OSError):  # then the next append begins a new line
            os.ftruncate(descriptor, end)
        raise
    append.start = end + (0 if append.created else len(before))
    append.print = Print.of(os.fstat(descriptor))


def _sync_data_of(opened: dict[Path, int]) -> dict[Path, OSError]:
    """See the data of these files to the disk, side by side: then the file system commits once for many of them.

    One after the other, each waits for a commit of its own; 100 files took 0.3 s so, against 0.02.
    """

    files = [*opened.items()]
    mine, *others = [files[number::_SYNCS_AT_ONCE] for number in range(_SYNCS_AT_ONCE)]
    theirs = _threads(os.getpid()).map(_sync_each, filter(None, others))
    return _sync_each(mine) | {path: error for failed in theirs for path, error in failed.items()}


def _sync_each(files: Sequence[tuple[Path, int]]) -> dict[Path, OSError]:
    """See them to the disk in this thread; what the disk refused."""
    failed: dict[Path, OSError] = {}
    for path, descriptor in files:
        try:
            sync_data(descriptor)
        except OSError as error:
            failed[path] = error
    return failed


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    """Made when many files are first written at once, and kept: threads cost more than what they do here.

    A process that was forked has none of its parent's threads, hence the number of the process.
    """
    return ThreadPoolExecutor(_SYNCS_AT_ONCE - 1, thread_name_prefix="sync")


def _sync(appends: Sequence[Append], opened: dict[Path, int]) -> None:
    failed = _sync_data_of(opened)
    for append in appends:
        append.error = append.error or failed.get(append.path)
    for folder in {append.path.parent for append in appends if append.created and append.error is None}:
        sync_folder(folder)
