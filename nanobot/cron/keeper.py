"""The book of a service: what the store holds, and what is known while the store cannot be read or written.

A person's change is on the disk or not at all. A change of the clockwork's own goes on in memory while the disk
refuses, so that reminders ring, and is put into the file as soon as it can be.
"""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from copy import deepcopy
from typing import TypeVar

from nanobot.cron.history import HistoryRow
from nanobot.cron.store import Book, CronStore, Stamp, StoreBusyError
from nanobot.cron.types import CronJob, CronJobState
from nanobot.errors import StorageError

T = TypeVar("T")

AGAIN_S = 5.0
"""How long a disk is left alone that refused."""
_UNKNOWN: Stamp = (-1, -1, -1)


class Keeper:
    """Reads, changes and writes the jobs of a store. `on_trouble` is told after each change of the clockwork's own what
    the disk said, None where it said nothing.
    """

    def __init__(self, store: CronStore, on_trouble: Callable[[str | None], None]) -> None:
        self.store = store
        self.book: Book | None = None
        """As it was when it was last read or written."""
        self.ahead = False
        """Whether the book knows of runs that the disk refused to keep."""
        self._on_trouble = on_trouble
        self._stamp: Stamp | None = _UNKNOWN
        self._unwritten: list[HistoryRow] = []
        self._tried_s = 0.0
        self._one_at_a_time = threading.Lock()

    @property
    def jobs(self) -> list[CronJob]:
        """The jobs of the book."""
        return self.book.jobs if self.book is not None else []

    def is_behind(self) -> bool:
        """Whether the file and the book may have parted, and it is worth a try to bring them together."""
        again = self.ahead and time.monotonic() - self._tried_s >= AGAIN_S
        return again or self.store.stamp() != self._stamp

    def edit(self, change: Callable[[Book], T]) -> T:
        """A person's change: on the disk, or not at all."""
        with self.store.held():
            book = self._caught_up(self.store.load())
            done = change(book)
            self.store.save(book)
            self._stamp = _UNKNOWN  # whatever it does to others is looked at in the next round
        return done

    def fresh(self, *, owned: bool) -> Book:
        """The book as the file has it now; where that cannot be read, as it was when it last could."""
        stamp = self.store.stamp()
        if self.book is not None and stamp == self._stamp:
            return self.book
        try:
            loaded = self._caught_up(self.store.load())
        except StorageError:
            if self.book is None:
                raise
            return self.book
        if owned and not self.ahead:
            self.book, self._stamp = loaded, stamp
        return loaded

    def change(self, change: Callable[[Book, list[HistoryRow]], T]) -> T:
        """A change of the clockwork's own: on the disk; where that refuses, in memory, until it takes it."""
        with self._one_at_a_time, ExitStack() as holding:
            refused: StorageError | None = None
            if self.book is None:  # a start: what the last process knew may be more than the file says
                self.book = self.store.load_copy()
                self.ahead = self.book is not None
            self._tried_s = time.monotonic()
            try:
                holding.enter_context(self.store.held())
                stamp = self.store.stamp()
                book = self._caught_up(self.store.load())
            except StoreBusyError:
                raise
            except StorageError as error:
                copy = self.store.load_copy()  # others may go on from it too
                if copy is None and self.book is None:
                    raise
                refused, stamp = error, self.store.stamp()
                book = self._caught_up(copy) if copy is not None else deepcopy(self.book or Book())
            self.ahead = refused is not None
            rows: list[HistoryRow] = []
            done = change(book, rows)
            self._unwritten += rows
            try:
                self.store.note(self._unwritten)
                self._unwritten = []
                if refused is None:
                    left = Book([entry for entry in book.entries if not _is_over(entry)], book.raw)
                    self.store.save(left)
                    book, stamp = left, self.store.stamp()
            except StorageError as error:
                refused = refused or error
            self.book, self._stamp, self.ahead = book, stamp, refused is not None
            if self.ahead:
                self.store.save_copy(book)
            self._on_trouble(str(refused) if refused is not None else None)
            return done

    def _caught_up(self, book: Book) -> Book:
        """What ran while the disk refused is put into what the file has."""
        for mine in self.jobs if self.ahead else ():
            job = book.get(mine.id)
            if job is None or not _is_further(mine.state, job.state):
                continue
            job.state = deepcopy(mine.state)
            if job.schedule.kind == "at" and job.schedule.at_ms == mine.schedule.at_ms:
                job.enabled = mine.enabled
        return book


def _is_over(entry: object) -> bool:
    """Whether it is a one-shot that ran, and was to go then."""
    if not isinstance(entry, CronJob) or entry.schedule.kind != "at" or entry.enabled or not entry.delete_after_run:
        return False
    return entry.state.last_status == "ok" and entry.state.last_due_at_ms == entry.schedule.at_ms


def _is_further(mine: CronJobState, theirs: CronJobState) -> bool:
    """Whether more has been run here than there."""
    pairs = ((mine.last_due_at_ms, theirs.last_due_at_ms), (mine.last_run_at_ms, theirs.last_run_at_ms))
    return any((here or 0) > (there or 0) for here, there in pairs)
