"""One scheduling round over a job file: find due jobs, lease them, record ended runs. No I/O, no tasks, no waiting."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace

from nanobot.cron.history import History, HistoryRow, Outcome
from nanobot.cron.leases import Leases
from nanobot.cron.misfire import MissedRuns, apply_misfire_policy, missed_until, plan
from nanobot.cron.notify import fingerprint
from nanobot.cron.schedule import to_ms
from nanobot.cron.store import JobFile
from nanobot.cron.types import (
    DAY_MS,
    GRACE_MS,
    RUNS_KEPT,
    CronError,
    CronJob,
    Due,
    Lease,
    Notify,
    Retry,
    RunRecord,
    Status,
)
from nanobot.utils.clock import Clock

_MAX_ATTEMPTS = 3
_ANSWERABLE_MS = 7 * DAY_MS
"""How long a delivered reminder can be snoozed."""
_INTERRUPTED = "nanobot was stopped in the middle of this run"
_STILL_RUNNING = "the previous run was still running"
_EXPIRED_BEFORE_START = "its time had passed before it was scheduled"
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


class Scheduler:
    """The state that the rounds of one service share: clock, leases, and running jobs."""

    def __init__(
        self, clock: Clock, timezone: str | None, leases: Leases, history: History, was_started: WasStarted | None
    ) -> None:
        self.timezone = timezone
        self.leases = leases
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
        if lease.holder == self.leases.holder:
            return job.id in self.running
        return job.id in self.running or self.leases.is_alive(lease.holder)

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
        if self._planned.get(job.id) == _plan_inputs(job) and (state.next_run_at_ms or 0) > now:
            return None
        state.next_run_at_ms = plan(job, now, self.timezone)
        self._planned[job.id] = _plan_inputs(job)
        if state.next_run_at_ms is None:
            if job.enabled and job.schedule.kind == "at":
                at = job.schedule.at_ms or 0
                self._record_missed(
                    job, [] if state.last_due_at_ms == at else [MissedRuns(at, at, 1, _EXPIRED_BEFORE_START)], rows
                )
                job.enabled = False
            return None
        if state.next_run_at_ms > now:
            return None
        decision = apply_misfire_policy(job, now, self.timezone)
        self._record_missed(job, decision.skipped, rows)
        state.next_run_at_ms = decision.next_ms
        if decision.run_ms is None:
            job.enabled = job.enabled and job.schedule.kind != "at"
            return None
        state.last_due_at_ms, state.retry = decision.run_ms, None
        return self._lease(job, Due(job.id, decision.run_ms, now, decision.late_ms, decision.missed))

    def _record_missed(self, job: CronJob, missed: Sequence[MissedRuns], rows: list[HistoryRow]) -> None:
        for missed_runs in missed:
            row: HistoryRow = {
                "jobId": job.id,
                "name": job.name,
                "dueAtMs": missed_runs.first_ms,
                "outcome": "skipped",
                "trigger": "schedule",
                "reason": missed_runs.reason,
            }
            if missed_runs.count > 1:
                row["untilMs"], row["count"] = missed_runs.last_ms, missed_runs.count
            rows.append(row)
            job.state.last_due_at_ms = missed_runs.last_ms
            job.state.last_status, job.state.last_error = "skipped", missed_runs.reason
            self._add_to_history(job, RunRecord(missed_runs.last_ms, "skipped", 0, missed_runs.reason))

    def _lease(self, job: CronJob, due: Due) -> LeasedRun:
        with suppress(OSError):
            self.leases.open()
        snapshot = deepcopy(job)
        job.state.running = self.running[job.id] = Lease(due, self.leases.holder)
        return snapshot, due

    def _recover_lease(self, job: CronJob, lease: Lease, rows: list[HistoryRow]) -> LeasedRun | None:
        """The process of this lease died: settle the lease, or run it again if the agent never got it."""
        with suppress(OSError):
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
                status, error = state.last_status, state.last_error
                missed, _, state.next_run_at_ms = missed_until(job, now, self.timezone, _STILL_RUNNING)
                self._record_missed(job, [missed], rows)
                state.last_status, state.last_error = status, error

    def _add_to_history(self, job: CronJob, run: RunRecord) -> None:
        job.state.run_history = [*job.state.run_history, run][-RUNS_KEPT:]


def _plan_inputs(job: CronJob) -> tuple[object, ...]:
    """The inputs and result of a plan, to avoid evaluating the schedule again, which is slow."""
    when, state = job.schedule, job.state
    schedule = (when.kind, when.at_ms, when.every_ms, when.expr, when.tz)
    return job.enabled, schedule, state.next_run_at_ms, state.last_due_at_ms


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
