"""The jobs in jobs.json, which a person may edit, and their runs in nanobot's database.

A run is a row that is written before it starts, so that no due instant runs twice. jobs.json reports the runs, after
the rows. A damaged file is never overwritten: until someone has repaired it, the jobs run as the database knows them.
An invalid entry is kept as it is, reported, and ignored.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanobot.config.paths import DataPaths, get_data_dir
from nanobot.cron.types import DAY_MS, RUNS_KEPT, STATUS, CronError, CronJob, JobRuns, Run, RunRecord
from nanobot.errors import StorageError
from nanobot.utils.database import reading, writing
from nanobot.utils.files import remove_stale_temps
from nanobot.utils.locks import ProcessLease, file_lock
from nanobot.utils.open_no_follow import move_in, read_own, replace_own
from nanobot.utils.storage_error import storage_errors
from nanobot.utils.text import escape_surrogates, strict_json

if TYPE_CHECKING:
    from sqlite3 import Connection

_VERSION = 1
_OLD_TEMPS_S = 60.0
_MAX_ROWS = 20_000
_RECENT = 30
"""Rows of a job that say what it does now: more than it can have since its last answer or reminder."""
_ANSWERABLE_MS = 7 * DAY_MS
"""How long a delivered reminder can be snoozed."""
STILL_RUNNING = "the previous run was still running"

_COLUMNS = ", ".join(field.name for field in fields(Run))
_SCHEMA = """
CREATE TABLE IF NOT EXISTS cron_runs (
    number INTEGER PRIMARY KEY, store TEXT NOT NULL,
    job_id TEXT NOT NULL, at_ms INTEGER NOT NULL, started_ms INTEGER NOT NULL, late_ms INTEGER NOT NULL,
    missed INTEGER NOT NULL, manual INTEGER NOT NULL, attempt INTEGER NOT NULL, retry INTEGER NOT NULL,
    name TEXT NOT NULL, outcome TEXT NOT NULL, holder TEXT NOT NULL, reason TEXT, duration_ms INTEGER,
    until_ms INTEGER, count INTEGER, answer TEXT, delivered_ms INTEGER, delivered TEXT,
    UNIQUE (store, job_id, at_ms, retry)
);
CREATE INDEX IF NOT EXISTS cron_runs_of_job ON cron_runs (store, job_id, number);
CREATE TABLE IF NOT EXISTS cron_files (store TEXT PRIMARY KEY, content TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS cron_servers (store TEXT NOT NULL, holder TEXT NOT NULL, PRIMARY KEY (store, holder));
"""
"""`cron_files` has the last valid content of each jobs.json, `cron_servers` the leases of the processes that run it."""


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
    def unreadable(self) -> list[str]:
        return [entry.reason for entry in self.entries if isinstance(entry, Unreadable)]

    def get(self, job_id: str) -> CronJob | None:
        return next((job for job in self.jobs if job.id == job_id), None)

    def remove(self, job: CronJob) -> None:
        self.entries = [entry for entry in self.entries if entry is not job]

    def to_json(self) -> dict[str, Any]:
        entries = [entry.to_json() if isinstance(entry, CronJob) else entry.raw for entry in self.entries]
        return {"version": _VERSION, **self.raw, "jobs": entries}


class Runs:
    """The runs of a store, in a transaction."""

    def __init__(self, db: "Connection", store: str) -> None:
        self._db = db
        self._store = store
        self.changed: set[str] = set()
        """Ids of jobs with new runs."""

    def put(self, run: Run) -> None:
        """Write a run. It replaces the row of its due instant, and becomes the newest."""
        values = [escape_surrogates(value) if isinstance(value, str) else value for value in astuple(run)]
        marks = ", ".join("?" for _ in values)
        self._db.execute(
            f"REPLACE INTO cron_runs (store, {_COLUMNS}) VALUES (?, {marks})",  # noqa: S608 names of fields
            (self._store, *values),
        )
        self.changed.add(run.job_id)

    def free_instant(self, job_id: str, at_ms: int) -> int:
        """The first millisecond from this on without a run of the job: the clock may have been set back."""
        query = "SELECT 1 FROM cron_runs WHERE store = ? AND job_id = ? AND at_ms = ?"
        while self._db.execute(query, (self._store, job_id, at_ms)).fetchone() is not None:
            at_ms += 1
        return at_ms

    def drop_waiting(self, job_id: str, *, only_retry: bool = False) -> None:
        """Give up a retry or a requested run."""
        query = "DELETE FROM cron_runs WHERE store = ? AND job_id = ? AND outcome = 'waiting' AND retry >= ?"
        self._db.execute(query, (self._store, job_id, only_retry))

    def set_delivered(self, job_id: str, at_ms: int, text: str) -> bool:
        """Set what the current run of the job sends. False if it has none."""
        query = (
            "UPDATE cron_runs SET delivered_ms = ?, delivered = ? "
            "WHERE store = ? AND job_id = ? AND outcome = 'running'"
        )
        return self._db.execute(query, (at_ms, escape_surrogates(text), self._store, job_id)).rowcount > 0

    def clear_delivered(self, job_id: str) -> None:
        """The person has answered what the job sent."""
        query = "UPDATE cron_runs SET delivered_ms = NULL, delivered = NULL WHERE store = ? AND job_id = ?"
        self._db.execute(query, (self._store, job_id))

    def of(self, job_id: str | None, limit: int) -> list[Run]:
        """The newest runs of a job, or of all jobs; oldest first."""
        of_job = "" if job_id is None else "AND job_id = ?"
        rows = self._db.execute(
            f"SELECT {_COLUMNS} FROM cron_runs WHERE store = ? {of_job} ORDER BY number DESC LIMIT ?",  # noqa: S608
            (self._store, *([] if job_id is None else [job_id]), limit),
        )
        return [Run(*row) for row in rows.fetchall()[::-1]]

    def attach(self, job: CronJob, now_ms: int) -> None:
        """Set what is known of the job's runs, and report them in its state."""
        rows = self.of(job.id, _RECENT)
        ended = [run for run in rows if run.outcome in STATUS]
        waiting = [run for run in rows if run.outcome == "waiting"]
        dues = [run.until_ms or run.at_ms for run in rows if not run.manual and not run.retry]
        answerable = [run for run in rows if (run.delivered_ms or 0) > now_ms - _ANSWERABLE_MS]
        job.runs = JobRuns(
            running=next((run for run in rows if run.outcome == "running"), None),
            waiting=min(waiting, key=lambda run: run.started_ms) if waiting else None,
            last_due_ms=dues[-1] if dues else None,
            last_answer=next((run.answer for run in reversed(rows) if run.answer), None),
            delivered=answerable[-1] if answerable else None,
        )
        state = job.state
        records = [
            RunRecord(
                run.started_ms or run.until_ms or run.at_ms, STATUS[run.outcome], run.duration_ms or 0, run.reason
            )
            for run in ended
        ]
        reported = {record.run_at_ms for record in records}
        earlier = [record for record in state.run_history if record.run_at_ms not in reported]
        state.run_history = [*earlier, *records][-RUNS_KEPT:]
        for run in ended:
            state.last_run_at_ms = run.started_ms or state.last_run_at_ms
            if run.reason != STILL_RUNNING:
                state.last_status, state.last_error = STATUS[run.outcome], run.reason

    def prune(self) -> None:
        """Forget the oldest rows."""
        self._db.execute("DELETE FROM cron_runs WHERE number <= (SELECT MAX(number) FROM cron_runs) - ?", (_MAX_ROWS,))


class CronStore:
    """The file, the rows of its runs, and what this process knows of both. Methods raise StorageError.

    The rows are in the database of the data folder. A lock covers each change of both.
    """

    def __init__(self, path: Path, data_dir: Path | None = None) -> None:
        places = DataPaths((data_dir or get_data_dir()).resolve())
        folder = path.parent.absolute()
        folder = folder.parent.resolve() / folder.name  # no symlinks below the workspace
        self.path = folder / path.name
        self.job_file: JobFile | None = None
        """As of the last change by the scheduler; None before the first."""
        self.problem: str | None = None
        """Why the last change by the scheduler is not in the file."""
        self.lease = ProcessLease(places.leases)
        """What this process runs is in its name."""
        self._key = str(folder.relative_to(places.data) if folder.is_relative_to(places.data) else folder)
        self._database = places.database
        self._lock = places.state / "cron.lock"
        self._stamp: tuple[int, ...] = (-1,)

    @property
    def jobs(self) -> list[CronJob]:
        return self.job_file.jobs if self.job_file is not None else []

    def is_behind(self) -> bool:
        """Whether the file may differ from what is known."""
        return self._current_stamp() != self._stamp

    def read(self, now_ms: int) -> JobFile:
        """The current jobs; nothing is created."""
        job_file = self._load()
        with reading(self._database, _SCHEMA) as db:
            for job in job_file.jobs:
                Runs(db, self._key).attach(job, now_ms)
        return job_file

    def history(self, job_id: str | None = None) -> list[Run]:
        """Past runs, oldest first."""
        with reading(self._database, _SCHEMA) as db:
            return [run for run in Runs(db, self._key).of(job_id, _MAX_ROWS) if run.outcome in STATUS]

    @contextmanager
    def edit(self, now_ms: int) -> Iterator[tuple[JobFile, Runs]]:
        """A user's edit: file and rows are changed, or neither."""
        with self._locked(), writing(self._database, _SCHEMA) as db:
            job_file, runs = self._load(), Runs(db, self._key)
            before = job_file.to_json()
            for job in job_file.jobs:
                runs.attach(job, now_ms)
            yield job_file, runs
            after = job_file.to_json()
            self._remember(db, after)
            self._save(before, after)
            os.utime(self._lock, ns=(time.time_ns(), time.time_ns()))  # the process that runs the jobs sees it

    @contextmanager
    def change(self, now_ms: int) -> Iterator[tuple[JobFile, Runs]]:
        """A change by the scheduler: the rows, then the file, if it is valid and can be written."""
        problem = None
        with self._locked():
            with writing(self._database, _SCHEMA) as db:
                self._stamp = self._current_stamp()
                try:
                    job_file = self._load()
                except StorageError as error:
                    known = db.execute("SELECT content FROM cron_files WHERE store = ?", (self._key,)).fetchone()
                    if known is None:
                        raise
                    job_file, problem = self._parse(known[0]), str(error)
                runs, before = Runs(db, self._key), job_file.to_json()
                for job in job_file.jobs:
                    runs.attach(job, now_ms)
                yield job_file, runs
                for job in job_file.jobs:
                    if job.is_over and job.runs.delivered is None:
                        job_file.remove(job)
                runs.prune()
                after = job_file.to_json()
                self._remember(db, after)
            if problem is None:
                try:
                    self._save(before, after)
                    self._stamp = self._current_stamp()
                except StorageError as error:  # the rows have it; the next tick tries again
                    problem, self._stamp = str(error), (-1,)
            self.job_file, self.problem = job_file, problem

    def adopt(self, old: Path) -> None:
        """Move the file from its location in earlier releases, once."""
        if self.path.exists() or not old.is_file() or old == self.path:
            return
        with self._locked():
            if not self.path.exists() and old.is_file():
                move_in(old, self.path)

    def serve(self) -> None:
        """Say that this process runs the jobs, until `release`."""
        self.lease.hold()
        with writing(self._database, _SCHEMA) as db:
            for (holder,) in db.execute("SELECT holder FROM cron_servers").fetchall():
                if not self.lease.is_alive(holder):
                    db.execute("DELETE FROM cron_servers WHERE holder = ?", (holder,))
            db.execute("REPLACE INTO cron_servers VALUES (?, ?)", (self._key, self.lease.name))

    def is_served(self, *, by_us: bool) -> bool:
        """Whether any process runs the jobs when due; this one counts if it does so still."""
        with reading(self._database, _SCHEMA) as db:
            holders = db.execute("SELECT holder FROM cron_servers WHERE store = ?", (self._key,)).fetchall()
        return any(self.lease.is_alive(name) for (name,) in holders if by_us or name != self.lease.name)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with storage_errors(f"{self.path} cannot be changed"), file_lock(self._lock):
            yield

    def _current_stamp(self) -> tuple[int, ...]:
        """A value that changes with the file and with each edit."""
        stamp: list[int] = []
        for path in (self.path, self._lock):
            with suppress(OSError):
                stat = path.stat()
                stamp += [stat.st_mtime_ns, stat.st_size, stat.st_ino]
        return tuple(stamp)

    def _load(self) -> JobFile:
        with storage_errors(f"{self.path} cannot be read"):
            try:
                return self._parse(read_own(self.path).decode("utf-8-sig"))
            except FileNotFoundError:
                return JobFile()
            except UnicodeDecodeError as error:
                raise self._damaged(f"is not valid JSON ({error})") from error

    def _save(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        """Write the jobs, if they are not as they were read."""
        if before == after:
            return
        with storage_errors(f"{self.path} cannot be written"):
            replace_own(self.path, strict_json(after, indent=2) + "\n")
            remove_stale_temps(self.path, older_than_s=_OLD_TEMPS_S)

    def _remember(self, db: "Connection", content: dict[str, Any]) -> None:
        """Keep the content, for when the file cannot be read."""
        text = strict_json(content)
        if db.execute("SELECT content FROM cron_files WHERE store = ?", (self._key,)).fetchone() != (text,):
            db.execute("REPLACE INTO cron_files VALUES (?, ?)", (self._key, text))

    def _parse(self, text: str) -> JobFile:
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._damaged(f"is not valid JSON ({error})") from error
        if not isinstance(raw, dict) or not isinstance(raw.get("jobs"), list):
            raise self._damaged('is not a list of jobs ({"version": 1, "jobs": [...]})')
        if (version := raw.get("version", _VERSION)) != _VERSION:
            raise self._damaged(f"has version {version!r}, of a newer release; this one supports only {_VERSION}")
        job_file = JobFile(raw={key: value for key, value in raw.items() if key != "jobs"})
        ids: set[str] = set()
        for number, entry in enumerate(raw["jobs"], 1):
            try:
                job = CronJob.from_json(entry)
                if job.id in ids:
                    raise CronError(f"the id {job.id} is used twice")
            except CronError as error:
                job_file.entries.append(Unreadable(entry, f"entry {number}: {error}"))
            else:
                ids.add(job.id)
                job_file.entries.append(job)
        return job_file

    def _damaged(self, problem: str) -> StorageError:
        return StorageError(
            f"{self.path} {problem}. It was not changed. Repair it, or move it away to start over; until then "
            "the jobs that were known run."
        )
