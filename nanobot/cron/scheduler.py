"""What is due, and what of it runs: plans, misfire policy, leases, ended runs. No tasks and no waiting.

A run is leased before it starts: its job in the file names the lease of the process that runs it. The lease of a dead
process is settled by the next round of another one.
"""

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace

from nanobot.cron.history import History, HistoryRow, Outcome
from nanobot.cron.notify import fingerprint
from nanobot.cron.schedule import job_zone, missed_between, next_instant, to_ms
from nanobot.cron.store import JobFile
from nanobot.cron.types import (
    DAY_MS,
    GRACE_MS,
    RUNS_KEPT,
    CronError,
    CronJob,
    Due,
    Lease,
    Misfire,
    Notify,
    Retry,
    RunRecord,
    Status,
)
from nanobot.errors import StorageError
from nanobot.utils.clock import Clock
from nanobot.utils.lease import ProcessLease
from nanobot.utils.text import duration

_MAX_ATTEMPTS = 3
_ANSWERABLE_MS = 7 * DAY_MS
"""How long a delivered reminder can be snoozed."""
_CLOCK_STEP_MS = 1_000
"""Clock corrections up to this are normal."""
_MAX_COUNTED = 10_000
"""Missed runs are counted up to this: a week of minutes, half a second of work."""
_WITHIN_S = 3_600.0
"""The default for `run_if_within`."""
_INTERRUPTED = "nanobot was stopped in the middle of this run"
_STILL_RUNNING = "the previous run was still running"
_EXPIRED_BEFORE_START = "its time had passed before it was scheduled"
_REPLACED = "missed; one later run stands for all"
_OUTCOMES: dict[Status, Outcome] = {"ok": "ran", "error": "failed", "skipped": "skipped"}

LeasedRun = tuple[CronJob, Due]
"""A leased job, as it was before the lease, and the due instant to run."""
WasStarted = Callable[[CronJob, Due], bool]
"""Whether the agent took on this run before its process died, so that its turn resumes by itself."""


@dataclass(frozen=True, slots=True)
class EndedRun:
    status: Status
    error: str | None = None
    answer: str | None = None
    duration_ms: int | None = None
    retry_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class MissedRuns:
    """Consecutive due instants of a job: the first, the last but one, the last, how many, and the next after them."""

    first_ms: int
    before_last_ms: int
    last_ms: int
    count: int
    next_ms: int | None


class Scheduler:
    """The state that the rounds of one service share: clock, lease, and running jobs."""

    def __init__(
        self, clock: Clock, timezone: str | None, lease: ProcessLease, history: History, was_started: WasStarted | None
    ) -> None:
        self.timezone = timezone
        self.lease = lease
        self.running: dict[str, Lease] = {}
        """The leases of runs in this process, by job id."""
        self.failed: set[str] = set()
        """Ids of jobs with an error in the last round."""
        self.only: Callable[[CronJob], bool] | None = None
        """Which jobs this process runs; None for all."""
        self._planned: dict[str, tuple[object, ...]] = {}
        self._clock = clock
        self._history = history
        self._was_started = was_started

    def now_ms(self) -> int:
        return to_ms(self._clock.now())

    def forget_plans(self) -> None:
        """Plan all jobs again, since the clock was set."""
        self._planned = {}

    def run_round(self, job_file: JobFile, rows: list[HistoryRow]) -> list[LeasedRun]:
        """Process every job; return the leased runs."""
        self.failed = set()
        leased = []
        for job in job_file.jobs:
            try:
                leased_run = self._settle_job(job, rows)
            except (ValueError, OverflowError) as error:  # an invalid job must not stop the others
                self.failed.add(job.id)
                job.state.last_status, job.state.last_error = "error", str(error)
                continue
            if leased_run is not None:
                leased.append(leased_run)
        return leased

    def lease_manually(self, job_file: JobFile, rows: list[HistoryRow], job_id: str, *, force: bool) -> list[LeasedRun]:
        """Lease a job to run now; empty if it is unknown, disabled or already running."""
        job = job_file.get(job_id)
        if job is None or not self.serves(job) or not (job.enabled or force):
            return []
        if job.state.running is not None:
            if self.is_running(job, job.state.running):
                return []
            self._settle_lease(job, job.state.running, EndedRun("error", _INTERRUPTED), rows)
        now = self.now_ms()
        return [self._lease(job, Due(job.id, now, now, manual=True))]

    def record_end(self, job_file: JobFile, rows: list[HistoryRow], job: CronJob, ended: EndedRun) -> None:
        """Record the end of a run in this process, even if its job was removed meanwhile."""
        lease, current = self.running[job.id], job_file.get(job.id)
        if current is None or current.state.running is None or current.state.running.holder != lease.holder:
            rows.append(_row(job, lease, ended))
        else:
            self._settle_lease(current, lease, ended, rows, skip_overlapped=True)

    def serves(self, job: CronJob) -> bool:
        """Whether this process runs the job."""
        return job.is_agent_turn and (self.only is None or self.only(job))

    def is_running(self, job: CronJob, lease: Lease) -> bool:
        """Whether the run of this lease is in progress, here or in another process."""
        is_elsewhere = lease.holder != self.lease.name and self.lease.is_alive(lease.holder)
        return job.id in self.running or is_elsewhere

    def _settle_job(self, job: CronJob, rows: list[HistoryRow]) -> LeasedRun | None:
        state, now = job.state, self.now_ms()
        if job.id in self.running or not self.serves(job):
            return None
        if state.running is not None:
            if self.is_running(job, state.running):
                return None
            if (leased_again := self._recover_lease(job, state.running, rows)) is not None:
                return leased_again
        if state.delivered is not None and now - state.delivered.at_ms > _ANSWERABLE_MS:
            state.delivered = None
        if job.enabled and not job.payload.message.strip():
            raise CronError("it has no message, so there is nothing to do")
        if state.run_requested_at_ms is not None:
            state.run_requested_at_ms = None
            return self._lease(job, Due(job.id, now, now, manual=True))
        if state.retry is not None and state.retry.at_ms <= now:
            retry, state.retry = state.retry, None
            return self._lease(job, Due(job.id, retry.due_ms, now, now - retry.due_ms, retry=retry.count + 1))
        inputs = (job.enabled, job.schedule, state.next_run_at_ms, state.last_due_at_ms)
        if self._planned.get(job.id) == inputs and (state.next_run_at_ms or 0) > now:
            return None  # evaluating the schedule again is slow
        state.next_run_at_ms = self._plan(job, now)
        self._planned[job.id] = (job.enabled, job.schedule, state.next_run_at_ms, state.last_due_at_ms)
        if state.next_run_at_ms is None:
            if job.enabled and job.schedule.kind == "at":
                at = job.schedule.at_ms or 0
                if state.last_due_at_ms != at:
                    self._skip(job, at, at, 1, _EXPIRED_BEFORE_START, rows)
                job.enabled = False
            return None
        if state.next_run_at_ms > now:
            return None
        missed = self._missed_until(job, now)
        state.next_run_at_ms = missed.next_ms
        late_ms = now - missed.last_ms if now - missed.last_ms > GRACE_MS else 0
        if late_ms and not _may_run_late(job, late_ms):
            reason = f"missed by {duration(late_ms / 1000)}; the job is set to {job.misfire}"
            self._skip(job, missed.first_ms, missed.last_ms, missed.count, reason, rows)
            job.enabled = job.enabled and job.schedule.kind != "at"
            return None
        if missed.count > 1:
            self._skip(job, missed.first_ms, missed.before_last_ms, missed.count - 1, _REPLACED, rows)
        state.last_due_at_ms, state.retry = missed.last_ms, None
        return self._lease(
            job, Due(job.id, missed.last_ms, now, late_ms if late_ms > GRACE_MS else 0, missed.count - 1)
        )

    def _plan(self, job: CronJob, now: int) -> int | None:
        """The next due instant of the job (in the past if it is due now), or None if there is none. Raises CronError.

        Keeps the instant in the file unless the job was edited, its zone changed or the clock was set back. A run is
        not repeated when the clock goes back by less than a day.
        """
        planned, schedule, last_run_ms = job.state.next_run_at_ms, job.schedule, job.state.last_due_at_ms
        if not job.enabled:
            return None
        if schedule.kind == "at":
            at_ms = schedule.at_ms
            is_over = at_ms is None or last_run_ms == at_ms or (planned is None and at_ms <= now)
            return None if is_over else at_ms
        zone = job_zone(job, self.timezone)
        expected = next_instant(schedule, now, zone=zone, anchor_ms=job.created_at_ms or now)
        if planned is None:
            return expected
        if schedule.kind == "every":
            latest_ms = now + (schedule.every_ms or 0)
            return planned if planned <= latest_ms + _CLOCK_STEP_MS else latest_ms
        if next_instant(schedule, planned - 1, zone=zone, anchor_ms=0) != planned:
            return expected
        if expected is None or planned <= expected:
            return planned
        has_run_already = last_run_ms is not None and expected <= last_run_ms <= now + DAY_MS
        return planned if has_run_already else expected

    def _missed_until(self, job: CronJob, now: int) -> MissedRuns:
        """The due instants from the planned one to now. Raises CronError."""
        zone, first = job_zone(job, self.timezone), job.state.next_run_at_ms or now
        count, before, last = missed_between(job.schedule, first, now, zone=zone, limit=_MAX_COUNTED)
        next_ms = next_instant(job.schedule, max(now, last), zone=zone, anchor_ms=first)
        return MissedRuns(first, before, last, count, next_ms)

    def _skip(self, job: CronJob, first_ms: int, last_ms: int, count: int, reason: str, rows: list[HistoryRow]) -> None:
        """Record due instants that do not run."""
        row: HistoryRow = {
            "jobId": job.id,
            "name": job.name,
            "dueAtMs": first_ms,
            "outcome": "skipped",
            "trigger": "schedule",
            "reason": reason,
        }
        if count > 1:
            row["untilMs"], row["count"] = last_ms, count
        rows.append(row)
        job.state.last_due_at_ms, job.state.last_status, job.state.last_error = last_ms, "skipped", reason
        self._add_to_history(job, RunRecord(last_ms, "skipped", 0, reason))

    def _lease(self, job: CronJob, due: Due) -> LeasedRun:
        with suppress(StorageError):  # jobs also run on a disk without locks
            self.lease.hold()
        snapshot = deepcopy(job)
        job.state.running = self.running[job.id] = Lease(due, self.lease.name)
        return snapshot, due

    def _recover_lease(self, job: CronJob, lease: Lease, rows: list[HistoryRow]) -> LeasedRun | None:
        """The process of this lease died: settle the lease, or run it again if the agent never got it."""
        with suppress(StorageError):
            for row in reversed(self._history.rows(job.id)):
                # it ended, but the process died before settling
                is_this_run = row["dueAtMs"] == lease.due.at_ms and row.get("runAtMs") == lease.due.started_ms
                if is_this_run and row["outcome"] != "skipped":
                    status: Status = "ok" if row["outcome"] == "ran" else "error"
                    self._settle_lease(job, lease, EndedRun(status, row.get("reason")), [])
                    return None
        due = replace(lease.due, started_ms=self.now_ms(), attempt=lease.due.attempt + 1)
        if (
            self._was_started is not None
            and lease.due.attempt < _MAX_ATTEMPTS
            and not self._was_started(deepcopy(job), due)
        ):
            late_ms = due.started_ms - due.at_ms
            return self._lease(job, replace(due, late_ms=late_ms if late_ms > GRACE_MS else 0))
        self._settle_lease(job, lease, EndedRun("error", _INTERRUPTED), rows)
        return None

    def _settle_lease(
        self,
        job: CronJob,
        lease: Lease,
        ended: EndedRun,
        rows: list[HistoryRow],
        *,
        skip_overlapped: bool = False,
    ) -> None:
        """Record the end of a run. `skip_overlapped` skips the due instants that passed while it ran."""
        state, now = job.state, self.now_ms()
        state.running = None
        state.last_run_at_ms, state.last_status, state.last_error = lease.due.started_ms, ended.status, ended.error
        self._add_to_history(job, RunRecord(lease.due.started_ms, ended.status, ended.duration_ms or 0, ended.error))
        if ended.status == "ok" and job.payload.notify is Notify.ON_CHANGE and (ended.answer or "").strip():
            state.last_answer = fingerprint(ended.answer or "")
        rows.append(_row(job, lease, ended))
        if ended.retry_in_s is not None:
            state.retry = Retry(now + round(ended.retry_in_s * 1000), lease.due.at_ms, lease.due.retry)
        if job.schedule.kind == "at" and not lease.due.manual:
            job.enabled, state.next_run_at_ms = False, None
        if skip_overlapped and job.enabled and (state.next_run_at_ms or now + 1) <= now:
            with suppress(CronError):
                missed = self._missed_until(job, now)
                state.next_run_at_ms = missed.next_ms
                self._skip(job, missed.first_ms, missed.last_ms, missed.count, _STILL_RUNNING, rows)
                state.last_status, state.last_error = ended.status, ended.error

    def _add_to_history(self, job: CronJob, run: RunRecord) -> None:
        job.state.run_history = [*job.state.run_history, run][-RUNS_KEPT:]


def _may_run_late(job: CronJob, late_ms: int) -> bool:
    within_s = job.misfire_within_s if job.misfire_within_s is not None else _WITHIN_S
    is_within = job.misfire is Misfire.RUN_IF_WITHIN and late_ms <= within_s * 1000
    return job.misfire is Misfire.RUN_ONCE or is_within


def _row(job: CronJob, lease: Lease, ended: EndedRun) -> HistoryRow:
    row: HistoryRow = {
        "jobId": job.id,
        "name": job.name,
        "dueAtMs": lease.due.at_ms,
        "outcome": _OUTCOMES[ended.status],
        "trigger": "manual" if lease.due.manual else "retry" if lease.due.retry else "schedule",
        "runAtMs": lease.due.started_ms,
    }
    if ended.duration_ms is not None:
        row["durationMs"] = ended.duration_ms
    if lease.due.late_ms:
        row["lateMs"] = lease.due.late_ms
    if ended.error:
        row["reason"] = ended.error[:1000]
    return row
