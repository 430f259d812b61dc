"""jobs.json: read whatever wrote it, written in one step, by one process at a time.

A file that cannot be read is left as it is, byte for byte, and nothing is written until somebody has mended it; a copy
beside it says what it held. One job in it that makes no sense is kept as it stands, named, and left out.
"""

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanobot.cron.history import History, HistoryRow
from nanobot.cron.types import CronError, CronJob
from nanobot.errors import StorageError
from nanobot.utils.files import make_private_folder, sweep_temps, sync_folder, write_atomic, write_in_place
from nanobot.utils.locks import ProcessLock
from nanobot.utils.refusals import refusal
from nanobot.utils.text import sound_json

_PATIENCE_S = 10.0
_POLL_S = 0.002
_OLD_TEMPS_S = 60.0

Stamp = tuple[int, int, int]


class StoreDamagedError(StorageError):
    """jobs.json is no list of jobs. It was left as it is."""


class StoreBusyError(StorageError):
    """Another process has the store and does not let go."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An entry of the file that is no job: kept as it stands."""

    raw: Any
    reason: str


@dataclass(slots=True)
class Book:
    """All that is in the file, in its order."""

    entries: list[CronJob | Unreadable] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)

    @property
    def jobs(self) -> list[CronJob]:
        """The jobs."""
        return [entry for entry in self.entries if isinstance(entry, CronJob)]

    @property
    def unreadable(self) -> list[Unreadable]:
        """What stands between them."""
        return [entry for entry in self.entries if isinstance(entry, Unreadable)]

    def get(self, job_id: str) -> CronJob | None:
        """The job of that id."""
        return next((job for job in self.jobs if job.id == job_id), None)

    def remove(self, job: CronJob) -> None:
        """Take it out."""
        self.entries = [entry for entry in self.entries if entry is not job]

    def to_json(self) -> dict[str, Any]:
        """All of the file."""
        entries = [entry.to_json() if isinstance(entry, CronJob) else entry.raw for entry in self.entries]
        return {"version": 1, **self.raw, "jobs": entries}


class CronStore:
    """The file, its lock and its history."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.locks = path.parent / ".locks"
        self._copy = path.with_name(f"{path.name}.last-good")
        self.history = History(path.parent)
        self._read: dict[str, Any] | None = None

    def stamp(self) -> Stamp | None:
        """What changes when the file does; None where there is none. Never raises."""
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def load(self) -> Book:
        """What is in the file; without one, nothing. Raises StorageError; a damaged one is left as it is."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            self._read = None
            return Book()
        except OSError as error:
            raise refusal(f"{self.path} cannot be read", error) from error
        book = self._parsed(data)
        self._read = book.to_json()
        return book

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep every other process from changing the file. Raises StorageError."""
        lock = ProcessLock(self.locks / "jobs.lock")
        try:
            give_up = time.monotonic() + _PATIENCE_S
            while not lock.try_acquire():
                if time.monotonic() > give_up:
                    raise StoreBusyError(f"{self.path} is held by another nanobot that does not go on. Look for it.")
                time.sleep(_POLL_S)
        except OSError as error:
            raise refusal(f"{self.path} cannot be changed", error) from error
        try:
            yield
        finally:
            lock.release()

    def note(self, rows: Sequence[HistoryRow]) -> None:
        """Write what became of instants; before the jobs, and only while held. Raises StorageError.

        A kill between the two is seen by who settles the lease: the instant has its row, and gets no second one.
        """
        try:
            self.history.append(rows)
        except OSError as error:
            raise refusal(f"{self.history.path} cannot be written", error) from error

    def save(self, book: Book) -> None:
        """Write the jobs where they changed since they were loaded. Only while held. Raises StorageError."""
        whole = book.to_json()
        if self._read == whole or (self._read is None and not book.entries):
            return
        try:
            make_private_folder(self.path.parent)
            sweep_temps(self.path, older_than_s=_OLD_TEMPS_S)
            write_atomic(self.path, _text(whole))
            write_in_place(self._copy, _text(whole))
        except OSError as error:
            raise refusal(f"{self.path} cannot be written", error) from error
        self._read = whole

    def save_copy(self, book: Book) -> None:
        """Keep what the file should hold, while it cannot be read. Never raises: it is a copy."""
        with suppress(OSError):
            write_in_place(self._copy, _text(book.to_json()))

    def load_copy(self) -> Book | None:
        """What was last written or should have been; None where nobody knows."""
        try:
            return self._parsed(self._copy.read_bytes())
        except (OSError, StorageError):
            return None

    def adopt(self, old: Path) -> None:
        """Move the file from where earlier releases kept it, once. Raises StorageError."""
        if self.path.exists() or not old.is_file() or old == self.path:
            return
        with self.held():
            if self.path.exists() or not old.is_file():
                return
            try:
                shutil.move(old, self.path)
                sync_folder(self.path.parent)
            except OSError as error:
                raise refusal(f"{old} could not be moved to {self.path}", error) from error

    def _parsed(self, data: bytes) -> Book:
        try:
            raw = json.loads(data.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise self._damaged(f"is no JSON ({error})") from error
        if not isinstance(raw, dict) or not isinstance(raw.get("jobs"), list):
            raise self._damaged('is no list of jobs ({"version": 1, "jobs": [...]})')
        entries: list[CronJob | Unreadable] = []
        seen: set[str] = set()
        for number, entry in enumerate(raw["jobs"], 1):
            try:
                job = CronJob.from_json(entry)
                if job.id in seen:
                    raise CronError(f"the id {job.id} is used twice")
            except CronError as error:
                entries.append(Unreadable(entry, f"entry {number}: {error}"))
            else:
                seen.add(job.id)
                entries.append(job)
        return Book(entries, {key: value for key, value in raw.items() if key != "jobs"})

    def _damaged(self, what: str) -> StoreDamagedError:
        return StoreDamagedError(
            f"{self.path} {what}. It was left as it is and no job is changed. Mend it (what it last held is in "
            f"{self._copy.name}), or move it away to begin anew."
        )


def _text(whole: dict[str, Any]) -> str:
    return sound_json(whole, indent=2) + "\n"
