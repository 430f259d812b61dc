"""jobs.json: written atomically, by one process at a time.

A damaged file is never overwritten until someone has repaired it; a copy beside it has the last good content. An
invalid entry is kept as it is, reported, and ignored.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanobot.cron.history import History, HistoryRow
from nanobot.cron.types import CronError, CronJob
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

Stamp = tuple[int, int, int]


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
    """The file, its lock and its history."""

    def __init__(self, path: Path) -> None:
        folder = path.parent
        path = Path(os.path.realpath(folder.parent), folder.name, path.name)  # no symlinks below the workspace
        self.path = path
        self.locks = path.parent / ".locks"
        self._copy = path.with_name(f"{path.name}.last-good")
        self.history = History(path.parent)
        self._last_saved: dict[str, Any] | None = None

    def stamp(self) -> Stamp | None:
        """A value that changes with the file; None if there is no file. Never raises."""
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def load(self) -> JobFile:
        """Read the file; empty if there is none. Raises StorageError if it cannot be read or is damaged."""
        try:
            data = read_own(self.path)
        except FileNotFoundError:
            self._last_saved = None
            return JobFile()
        except OSError as error:
            raise storage_error(f"{self.path} cannot be read", error) from error
        job_file = self._parse(data)
        self._last_saved = job_file.to_json()
        return job_file

    @contextmanager
    def lock(self) -> Iterator[None]:
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

    def append_history(self, rows: Sequence[HistoryRow]) -> None:
        """Append history rows, before `save` and under the lock. Raises StorageError.

        After a kill between the two, the lease is settled from the row and no second row is written.
        """
        try:
            self.history.append(rows)
        except OSError as error:
            raise storage_error(f"{self.history.path} cannot be written", error) from error

    def save(self, job_file: JobFile) -> None:
        """Write the jobs if they changed since `load`. Only under the lock. Raises StorageError."""
        content = job_file.to_json()
        if self._last_saved == content or (self._last_saved is None and not job_file.entries):
            return
        try:
            replace_own(self.path, _text(content))
            self._write_copy(content)
            remove_stale_temps(self.path, older_than_s=_OLD_TEMPS_S)
        except OSError as error:
            raise storage_error(f"{self.path} cannot be written", error) from error
        self._last_saved = content

    def save_copy(self, job_file: JobFile) -> None:
        """Write the copy while the file cannot be read. Never raises."""
        with suppress(OSError):
            self._write_copy(job_file.to_json())

    def _write_copy(self, content: dict[str, Any]) -> None:
        """Write in place; `load_copy` detects a partial write."""
        descriptor = open_own(self._copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            write_whole(descriptor, _text(content).encode())
        finally:
            os.close(descriptor)

    def load_copy(self) -> JobFile | None:
        """The content of the copy, or None."""
        try:
            return self._parse(read_own(self._copy))
        except (OSError, StorageError):
            return None

    def adopt(self, old: Path) -> None:
        """Move the file from its location in earlier releases, once. Raises StorageError."""
        if self.path.exists() or not old.is_file() or old == self.path:
            return
        with self.lock():
            if self.path.exists() or not old.is_file():
                return
            try:
                move_in(old, self.path)
            except OSError as error:
                raise storage_error(f"{old} could not be moved to {self.path}", error) from error

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
