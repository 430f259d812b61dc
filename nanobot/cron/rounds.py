"""A round: every job of a book is judged at one moment, what is due is leased, what ended is written down.

Works on a book that somebody else reads and writes; knows no file, no task and no waiting.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace

from nanobot.cron.history import History, HistoryRow, Outcome
from nanobot.cron.judging import Passed, judge, passed_until, plan
from nanobot.cron.leases import Leases
from nanobot.cron.notify import fingerprint
from nanobot.cron.schedule import to_ms
from nanobot.cron.store import Book
from nanobot.cron.types import (
    GRACE_MS,
    RUNS_KEPT,
    CronError,
    CronJob,
    Due,
    Lease,
    Notify,
    RunRecord,
    Status,
)
from nanobot.utils.clock import Clock

_ATTEMPTS = 3
_KILLED = "nanobot was stopped in the middle of this run"
_STILL_AT_WORK = "the run before was still at work"
_NEVER_WAITED_FOR = "its time was over before anybody waited for it"
_OUTCOMES: dict[Status, Outcome] = {"ok": "ran", "error": "failed", "skipped": "skipped"}

Begun = tuple[CronJob, Due]
"""A job that was leased, as it was before, and the instant it is to be run for."""
WasBegun = Callable[[CronJob, Due], bool]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended."""

    status: Status
    error: str | None = None
    answer: str | None = None
    duration_ms: int | None = None


class Rounds:
    """What the rounds of one service have in common: the time, our locks, and what runs here."""

    def __init__(
        self, clock: Clock, timezone: str | None, leases: Leases, history: History, was_begun: WasBegun | None
    ) -> None:
        self.timezone = timezone
        self.leases = leases
        self.running: dict[str, Lease] = {}
        """The leases whose runs are at work in this process, by job."""
        self.refused: set[str] = set()
        """Jobs that the last round could make nothing of."""
        self.only: Callable[[CronJob], bool] | None = None
        """Which jobs this process runs; None for all."""
        self._planned: dict[str, tuple[object, ...]] = {}
        self._clock = clock
        self._history = history
        self._was_begun = was_begun

    def now_ms(self) -> int:
        """What time it is."""
        return to_ms(self._clock.now())

    def forget_plans(self) -> None:
        """The clock was set: what was planned by the old one is planned anew."""
        self._planned = {}

    def settle(self, book: Book, rows: list[HistoryRow]) -> list[Begun]:
        """Judge every job; what is to be run is leased."""
        self.refused = set()
        begun = []
        for job in book.jobs:
            try:
                found = self._settle_job(job, rows)
            except (ValueError, OverflowError) as error:  # one odd job keeps no other from its time
                self.refused.add(job.id)
                job.state.last_status, job.state.last_error = "error", str(error)
                continue
            if found is not None:
                begun.append(found)
        return begun

    def lease_by_hand(self, book: Book, rows: list[HistoryRow], job_id: str, *, force: bool) -> list[Begun]:
        """A job to be run now; nothing where there is none, it is off, or it is at work already."""
        job = book.get(job_id)
        if job is None or not self.serves(job) or not (job.enabled or force):
            return []
        if job.state.running is not None:
            if self.is_at_work(job, job.state.running):
                return []
            self._settle_lease(job, job.state.running, Ended("error", _KILLED), rows)
        now = self.now_ms()
        return [self._leased(job, Due(job.id, now, now, manual=True))]

    def ended(self, book: Book, rows: list[HistoryRow], job: CronJob, ended: Ended) -> None:
        """Write down how a run of this process ended; of a job that was removed meanwhile too."""
        lease, there = self.running[job.id], book.get(job.id)
        if there is None or there.state.running is None or there.state.running.holder != lease.holder:
            rows.append(_row(job, lease, ended))
        else:
            self._settle_lease(there, lease, ended, rows, still_at_work=True)

    def serves(self, job: CronJob) -> bool:
        """Whether this job is run here."""
        return job.is_ours and (self.only is None or self.only(job))

    def is_at_work(self, job: CronJob, lease: Lease) -> bool:
        """Whether the run of this lease goes on, here or elsewhere."""
        if lease.holder == self.leases.holder:
            return job.id in self.running
        return job.id in self.running or self.leases.is_alive(lease.holder)

    def _settle_job(self, job: CronJob, rows: list[HistoryRow]) -> Begun | None:
        state, now = job.state, self.now_ms()
        if job.id in self.running or not self.serves(job):
            return None
        if state.running is not None:
            if self.is_at_work(job, state.running):
                return None
            if (again := self._take_over(job, state.running, rows)) is not None:
                return again
        if job.enabled and not job.payload.message.strip():
            raise CronError("it has no message, so there is nothing to do")
        if state.run_requested_at_ms is not None:
            state.run_requested_at_ms = None
            return self._leased(job, Due(job.id, now, now, manual=True))
        if self._planned.get(job.id) == _plan_of(job) and (state.next_run_at_ms or 0) > now:
            return None
        state.next_run_at_ms = plan(job, now, self.timezone)
        self._planned[job.id] = _plan_of(job)
        if state.next_run_at_ms is None:
            if job.enabled and job.schedule.kind == "at":
                at = job.schedule.at_ms or 0
                self._pass(job, [] if state.last_due_at_ms == at else [Passed(at, at, 1, _NEVER_WAITED_FOR)], rows)
                job.enabled = False
            return None
        if state.next_run_at_ms > now:
            return None
        verdict = judge(job, now, self.timezone)
        self._pass(job, verdict.passed, rows)
        state.next_run_at_ms = verdict.next_ms
        if verdict.run_ms is None:
            job.enabled = job.enabled and job.schedule.kind != "at"
            return None
        state.last_due_at_ms = verdict.run_ms
        return self._leased(job, Due(job.id, verdict.run_ms, now, verdict.late_ms, verdict.missed))

    def _pass(self, job: CronJob, passed: Sequence[Passed], rows: list[HistoryRow]) -> None:
        for one in passed:
            row: HistoryRow = {
                "jobId": job.id,
                "name": job.name,
                "dueAtMs": one.first_ms,
                "outcome": "skipped",
                "trigger": "schedule",
                "reason": one.reason,
            }
            if one.count > 1:
                row["untilMs"], row["count"] = one.last_ms, one.count
            rows.append(row)
            job.state.last_due_at_ms = one.last_ms
            job.state.last_status, job.state.last_error = "skipped", one.reason
            self._remember(job, RunRecord(one.last_ms, "skipped", 0, one.reason))

    def _leased(self, job: CronJob, due: Due) -> Begun:
        with suppress(OSError):
            self.leases.open()
        lease = Lease(due.at_ms, due.started_ms, self.leases.holder, due.attempt, due.manual, due.late_ms, due.missed)
        before = deepcopy(job)
        job.state.running = self.running[job.id] = lease
        return before, due

    def _take_over(self, job: CronJob, lease: Lease, rows: list[HistoryRow]) -> Begun | None:
        """The holder of this lease is gone: settle it, or run it again where nobody else will."""
        with suppress(OSError):
            for row in reversed(self._history.rows(job.id)):
                if row["dueAtMs"] == lease.due_ms and row["outcome"] != "skipped":  # it ended, and died over the word
                    status: Status = "ok" if row["outcome"] == "ran" else "error"
                    self._settle_lease(job, lease, Ended(status, row.get("reason")), [])
                    return None
        due = Due(job.id, lease.due_ms, self.now_ms(), lease.late_ms, lease.missed, lease.manual, lease.attempt + 1)
        if self._was_begun is not None and lease.attempt < _ATTEMPTS and not self._was_begun(deepcopy(job), due):
            late_ms = due.started_ms - due.at_ms
            return self._leased(job, replace(due, late_ms=late_ms if late_ms > GRACE_MS else 0))
        self._settle_lease(job, lease, Ended("error", _KILLED), rows)
        return None

    def _settle_lease(
        self,
        job: CronJob,
        lease: Lease,
        ended: Ended,
        rows: list[HistoryRow],
        *,
        still_at_work: bool = False,
    ) -> None:
        state, now = job.state, self.now_ms()
        state.running = None
        state.last_run_at_ms, state.last_status, state.last_error = lease.started_ms, ended.status, ended.error
        self._remember(job, RunRecord(lease.started_ms, ended.status, ended.duration_ms or 0, ended.error))
        if ended.status == "ok" and job.payload.notify is Notify.ON_CHANGE and (ended.answer or "").strip():
            state.last_answer = fingerprint(ended.answer or "")
        rows.append(_row(job, lease, ended))
        if job.schedule.kind == "at" and not lease.manual:
            job.enabled, state.next_run_at_ms = False, None
        if still_at_work and job.enabled and (state.next_run_at_ms or now + 1) <= now:
            with suppress(CronError):
                status, error = state.last_status, state.last_error
                passed, state.next_run_at_ms = passed_until(job, now, self.timezone, _STILL_AT_WORK)
                self._pass(job, [passed], rows)
                state.last_status, state.last_error = status, error

    def _remember(self, job: CronJob, run: RunRecord) -> None:
        job.state.run_history = [*job.state.run_history, run][-RUNS_KEPT:]


def _plan_of(job: CronJob) -> tuple[object, ...]:
    """What a plan was made from, and what came of it. Asking the calendar is what costs."""
    when, state = job.schedule, job.state
    schedule = (when.kind, when.at_ms, when.every_ms, when.expr, when.tz)
    return job.enabled, schedule, state.next_run_at_ms, state.last_due_at_ms


def _row(job: CronJob, lease: Lease, ended: Ended) -> HistoryRow:
    row: HistoryRow = {
        "jobId": job.id,
        "name": job.name,
        "dueAtMs": lease.due_ms,
        "outcome": _OUTCOMES[ended.status],
        "trigger": "manual" if lease.manual else "schedule",
        "runAtMs": lease.started_ms,
    }
    if ended.duration_ms is not None:
        row["durationMs"] = ended.duration_ms
    if lease.late_ms:
        row["lateMs"] = lease.late_ms
    if ended.error:
        row["reason"] = ended.error[:1000]
    return row
