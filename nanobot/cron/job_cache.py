"""A service's copy of the job file, which keeps working while the file cannot be read or written.

A user's edit is written to disk or fails. A change by the scheduler is kept in memory on a disk error, so that
reminders still run, and is written as soon as possible.
"""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from copy import deepcopy
from typing import TypeVar

from nanobot.cron.history import HistoryRow
from nanobot.cron.store import CronStore, JobFile, Stamp, StoreBusyError
from nanobot.cron.types import CronJob, CronJobState
from nanobot.errors import StorageError

T = TypeVar("T")

RETRY_S = 5.0
"""Delay before writing again after a disk error."""
_UNKNOWN: Stamp = (-1, -1, -1)


class JobCache:
    """Reads, changes and writes the jobs of a store.

    `on_problem` is called after each change by the scheduler with the disk error, or None.
    """

    def __init__(self, store: CronStore, on_problem: Callable[[str | None], None]) -> None:
        self.store = store
        self.job_file: JobFile | None = None
        """As last read or written; None before the first read."""
        self.has_unsaved = False
        """Whether it holds runs that could not be written."""
        self._on_problem = on_problem
        self._stamp: Stamp | None = _UNKNOWN
        self._unwritten: list[HistoryRow] = []
        self._last_try_s = 0.0
        self._lock = threading.Lock()

    @property
    def jobs(self) -> list[CronJob]:
        return self.job_file.jobs if self.job_file is not None else []

    def is_behind(self) -> bool:
        """Whether the file may differ from the copy and it is time to sync them."""
        is_due = self.has_unsaved and time.monotonic() - self._last_try_s >= RETRY_S
        return is_due or self.store.stamp() != self._stamp

    def edit(self, change: Callable[[JobFile], T]) -> T:
        """Apply a user's edit and write it. Raises StorageError if it cannot be written."""
        with self.store.lock():
            job_file = self._merge_unsaved(self.store.load())
            result = change(job_file)
            self.store.save(job_file)
            self._stamp = _UNKNOWN  # the next round reads the file again
        return result

    def fresh(self, *, may_replace: bool) -> JobFile:
        """The current content of the file; the last readable one if it cannot be read now."""
        stamp = self.store.stamp()
        if self.job_file is not None and stamp == self._stamp:
            return self.job_file
        try:
            loaded = self._merge_unsaved(self.store.load())
        except StorageError:
            if self.job_file is None:
                raise
            return self.job_file
        if may_replace and not self.has_unsaved:
            self.job_file, self._stamp = loaded, stamp
        return loaded

    def change(self, change: Callable[[JobFile, list[HistoryRow]], T]) -> T:
        """Apply a change by the scheduler and write it; on a disk error keep it in memory until it can be written."""
        with self._lock, ExitStack() as stack:
            failure: StorageError | None = None
            if self.job_file is None:  # first use: the copy may know more than the file
                self.job_file = self.store.load_copy()
                self.has_unsaved = self.job_file is not None
            self._last_try_s = time.monotonic()
            try:
                stack.enter_context(self.store.lock())
                stamp = self.store.stamp()
                job_file = self._merge_unsaved(self.store.load())
            except StoreBusyError:
                raise
            except StorageError as error:
                copy = self.store.load_copy()  # other processes may use it too
                if copy is None and self.job_file is None:
                    raise
                failure, stamp = error, self.store.stamp()
                job_file = self._merge_unsaved(copy) if copy is not None else deepcopy(self.job_file or JobFile())
            self.has_unsaved = failure is not None
            rows: list[HistoryRow] = []
            result = change(job_file, rows)
            self._unwritten += rows
            try:
                self.store.append_history(self._unwritten)
                self._unwritten = []
                if failure is None:
                    remaining = JobFile([entry for entry in job_file.entries if not _is_to_delete(entry)], job_file.raw)
                    self.store.save(remaining)
                    job_file, stamp = remaining, self.store.stamp()
            except StorageError as error:
                failure = failure or error
            self.job_file, self._stamp, self.has_unsaved = job_file, stamp, failure is not None
            if self.has_unsaved:
                self.store.save_copy(job_file)
            self._on_problem(str(failure) if failure is not None else None)
            return result

    def _merge_unsaved(self, job_file: JobFile) -> JobFile:
        """Merge runs that could not be written into the file's content."""
        for ours in self.jobs if self.has_unsaved else ():
            job = job_file.get(ours.id)
            if job is None or not _has_run_more(ours.state, job.state):
                continue
            job.state = deepcopy(ours.state)
            if job.schedule.kind == "at" and job.schedule.at_ms == ours.schedule.at_ms:
                job.enabled = ours.enabled
        return job_file


def _is_to_delete(entry: object) -> bool:
    return isinstance(entry, CronJob) and entry.is_over and entry.state.delivered is None


def _has_run_more(ours: CronJobState, theirs: CronJobState) -> bool:
    """Whether our state has later runs than theirs."""
    pairs = ((ours.last_due_at_ms, theirs.last_due_at_ms), (ours.last_run_at_ms, theirs.last_run_at_ms))
    return any((ours_ms or 0) > (theirs_ms or 0) for ours_ms, theirs_ms in pairs)
