"""jobs.json: written atomically, by one process at a time.

A damaged file is never overwritten until someone has repaired it; a copy beside it has the last good content. An
invalid entry is kept as it is, reported, and ignored. A user's edit is written to disk or fails. A change by the
scheduler is kept in memory on a disk error, so that reminders still run, and is written as soon as possible.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from nanobot.cron.history import History, HistoryRow
from nanobot.cron.types import CronError, CronJob, CronJobState
from nanobot.errors import StorageError
from nanobot.utils.files import remove_stale_temps, write_whole
from nanobot.utils.locks import ProcessLock
from nanobot.utils.open_no_follow import move_in, open_own, read_own, replace_own
from nanobot.utils.storage_error import storage_error
from nanobot.utils.text import strict_json

_VERSION = 1
_LOCK_TIMEOUT_S = 10.0
_POLL_S = 0.002
_OLD_TEMPS_S = 60.0

RETRY_S = 5.0
"""Delay before writing again after a disk error."""

Stamp = tuple[int, int, int]
_UNKNOWN: Stamp = (-1, -1, -1)
T = TypeVar("T")


class StoreDamagedError(StorageError):
    """jobs.json is not a valid list of jobs. It was not changed."""


class StoreBusyError(StorageError):
    """Another process holds the store's lock."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An invalid entry of the file, kept as it is."""

    raw: Any
    reason: str


@dataclass(slots=True)
class JobFile:
    """The content of the file, in its order."""

    entries: list[CronJob | Unreadable] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)

    @property
    def jobs(self) -> list[CronJob]:
        return [entry for entry in self.entries if isinstance(entry, CronJob)]

    @property
    def unreadable(self) -> list[Unreadable]:
        return [entry for entry in self.entries if isinstance(entry, Unreadable)]

    def get(self, job_id: str) -> CronJob | None:
        return next((job for job in self.jobs if job.id == job_id), None)

    def remove(self, job: CronJob) -> None:
        self.entries = [entry for entry in self.entries if entry is not job]

    def to_json(self) -> dict[str, Any]:
        entries = [entry.to_json() if isinstance(entry, CronJob) else entry.raw for entry in self.entries]
        return {"version": _VERSION, **self.raw, "jobs": entries}


class CronStore:
    """The file, its lock, the history of runs beside it, and what this process knows of them."""

    def __init__(self, path: Path) -> None:
        folder = path.parent
        path = Path(os.path.realpath(folder.parent), folder.name, path.name)  # no symlinks below the workspace
        self.path = path
        self.locks = path.parent / ".locks"
        self.history = History(path.parent)
        self.job_file: JobFile | None = None
        """As last read or written; None before the first read."""
        self.problem: str | None = None
        """The disk error of the last change by the scheduler."""
        self._copy = path.with_name(f"{path.name}.last-good")
        self._saved: dict[str, Any] | None = None
        """The content of the file; None if there is none."""
        self._stamp: Stamp | None = _UNKNOWN
        self._has_unsaved = False
        """Whether `job_file` has runs that could not be written."""
        self._unwritten: list[HistoryRow] = []
        self._last_try_s = 0.0
        self._mutex = threading.Lock()

    @property
    def jobs(self) -> list[CronJob]:
        return self.job_file.jobs if self.job_file is not None else []

    def is_behind(self) -> bool:
        """Whether the file may differ from what is known, and it is time to sync them."""
        is_due = self._has_unsaved and time.monotonic() - self._last_try_s >= RETRY_S
        return is_due or self._current_stamp() != self._stamp

    def edit(self, change: Callable[[JobFile], T]) -> T:
        """Apply a user's edit and write it. Raises StorageError if it cannot be written."""
        with self._lock():
            job_file = self._load()
            result = change(job_file)
            self._save(job_file)
            self._stamp = _UNKNOWN  # the next round reads the file again
        return result

    def fresh(self, *, may_replace: bool) -> JobFile:
        """The current content of the file; the last readable one if it cannot be read now.

        `may_replace`: no scheduler relies on `job_file`.
        """
        stamp = self._current_stamp()
        if self.job_file is not None and stamp == self._stamp:
            return self.job_file
        try:
            loaded = self._load()
        except StorageError:
            if self.job_file is None:
                raise
            return self.job_file
        if may_replace and not self._has_unsaved:
            self.job_file, self._stamp = loaded, stamp
        return loaded

    def change(self, change: Callable[[JobFile, list[HistoryRow]], T]) -> T:
        """Apply a change by the scheduler and write it; on a disk error keep it in memory until it can be written."""
        with self._mutex, ExitStack() as stack:
            failure: StorageError | None = None
            if self.job_file is None:  # first use: the copy may know more than the file
                self.job_file = self._load_copy()
                self._has_unsaved = self.job_file is not None
            self._last_try_s = time.monotonic()
            try:
                stack.enter_context(self._lock())
                job_file = self._load()
            except StoreBusyError:
                raise
            except StorageError as error:
                copy = self._load_copy()  # other processes may use it too
                if copy is None and self.job_file is None:
                    raise
                failure = error
                job_file = self._merge_unsaved(copy) if copy is not None else deepcopy(self.job_file or JobFile())
            self._stamp, self._has_unsaved = self._current_stamp(), failure is not None
            rows: list[HistoryRow] = []
            result = change(job_file, rows)
            self._unwritten += rows
            try:
                # The history first: after a kill between the two, the lease is settled from its row, not written twice.
                self.history.append(self._unwritten)
                self._unwritten = []
                if failure is None:
                    job_file = JobFile([entry for entry in job_file.entries if not _is_to_delete(entry)], job_file.raw)
                    self._save(job_file)
                    self._stamp = self._current_stamp()
            except StorageError as error:
                failure = failure or error
            self.job_file, self._has_unsaved = job_file, failure is not None
            if failure is not None:
                with suppress(OSError):
                    self._write_copy(job_file.to_json())
            self.problem = str(failure) if failure is not None else None
            return result

    def adopt(self, old: Path) -> None:
        """Move the file from its location in earlier releases, once. Raises StorageError."""
        if self.path.exists() or not old.is_file() or old == self.path:
            return
        with self._lock():
            if self.path.exists() or not old.is_file():
                return
            try:
                move_in(old, self.path)
            except OSError as error:
                raise storage_error(f"{old} could not be moved to {self.path}", error) from error

    def _current_stamp(self) -> Stamp | None:
        """A value that changes with the file; None if there is no file."""
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the lock of the store. Raises StorageError."""
        lock = ProcessLock(self.locks / "jobs.lock", open_own)
        try:
            give_up = time.monotonic() + _LOCK_TIMEOUT_S
            while not lock.try_acquire():
                if time.monotonic() > give_up:
                    raise StoreBusyError(
                        f"{self.path} is locked by another nanobot process that does not respond. Stop it."
                    )
                time.sleep(_POLL_S)
        except OSError as error:
            raise storage_error(f"{self.path} cannot be changed", error) from error
        try:
            yield
        finally:
            lock.release()

    def _load(self) -> JobFile:
        """Read the file, and put runs into it that could not be written. Raises StorageError."""
        try:
            data = read_own(self.path)
        except FileNotFoundError:
            self._saved = None
            return self._merge_unsaved(JobFile())
        except OSError as error:
            raise storage_error(f"{self.path} cannot be read", error) from error
        job_file = self._parse(data)
        self._saved = job_file.to_json()
        return self._merge_unsaved(job_file)

    def _save(self, job_file: JobFile) -> None:
        """Write the jobs if they changed since they were read. Only under the lock. Raises StorageError."""
        content = job_file.to_json()
        if self._saved == content or (self._saved is None and not job_file.entries):
            return
        try:
            replace_own(self.path, _text(content))
            self._write_copy(content)
            remove_stale_temps(self.path, older_than_s=_OLD_TEMPS_S)
        except OSError as error:
            raise storage_error(f"{self.path} cannot be written", error) from error
        self._saved = content

    def _write_copy(self, content: dict[str, Any]) -> None:
        """Write in place; `_load_copy` detects a partial write."""
        descriptor = open_own(self._copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            write_whole(descriptor, _text(content).encode())
        finally:
            os.close(descriptor)

    def _load_copy(self) -> JobFile | None:
        try:
            return self._parse(read_own(self._copy))
        except (OSError, StorageError):
            return None

    def _merge_unsaved(self, job_file: JobFile) -> JobFile:
        """Put runs that could not be written into the file's content."""
        for ours in self.jobs if self._has_unsaved else ():
            job = job_file.get(ours.id)
            if job is not None and _has_run_more(ours.state, job.state):
                job.state = deepcopy(ours.state)
                if job.schedule.kind == "at" and job.schedule.at_ms == ours.schedule.at_ms:
                    job.enabled = ours.enabled
        return job_file

    def _parse(self, data: bytes) -> JobFile:
        try:
            raw = json.loads(data.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise self._damaged_error(f"is not valid JSON ({error})") from error
        if not isinstance(raw, dict) or not isinstance(raw.get("jobs"), list):
            raise self._damaged_error('is not a list of jobs ({"version": 1, "jobs": [...]})')
        if (version := raw.get("version", _VERSION)) != _VERSION:
            raise self._damaged_error(
                f"has version {version!r}, written by a newer release; this nanobot supports only version {_VERSION}"
            )
        entries: list[CronJob | Unreadable] = []
        ids: set[str] = set()
        for number, entry in enumerate(raw["jobs"], 1):
            try:
                job = CronJob.from_json(entry)
                if job.id in ids:
                    raise CronError(f"the id {job.id} is used twice")
            except CronError as error:
                entries.append(Unreadable(entry, f"entry {number}: {error}"))
            else:
                ids.add(job.id)
                entries.append(job)
        return JobFile(entries, {key: value for key, value in raw.items() if key != "jobs"})

    def _damaged_error(self, problem: str) -> StoreDamagedError:
        return StoreDamagedError(
            f"{self.path} {problem}. It was not changed. Repair it (its last good content is in {self._copy.name}), or "
            "move it away to start over."
        )


def _text(content: dict[str, Any]) -> str:
    return strict_json(content, indent=2) + "\n"


def _is_to_delete(entry: object) -> bool:
    return isinstance(entry, CronJob) and entry.is_over and entry.state.delivered is None


def _has_run_more(ours: CronJobState, theirs: CronJobState) -> bool:
    """Whether our state has later runs than theirs."""
    pairs = ((ours.last_due_at_ms, theirs.last_due_at_ms), (ours.last_run_at_ms, theirs.last_run_at_ms))
    return any((ours_ms or 0) > (theirs_ms or 0) for ours_ms, theirs_ms in pairs)
