"""What is due, and what of it runs: plans, misfire policy, claimed and ended runs. No tasks and no waiting."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace

from nanobot.cron.format import fingerprint
from nanobot.cron.schedule import job_zone, missed_between, next_instant, to_ms
from nanobot.cron.store import STILL_RUNNING, CronStore, JobFile, Runs
from nanobot.cron.types import DAY_MS, GRACE_MS, CronError, CronJob, Misfire, Notify, Outcome, Run
from nanobot.utils.clock import Clock
from nanobot.utils.text import duration

_MAX_ATTEMPTS = 3
_CLOCK_STEP_MS = 1_000
"""Clock corrections up to this are normal."""
_MAX_COUNTED = 10_000
"""Missed runs are counted up to this: a week of minutes, half a second of work."""
_WITHIN_S = 3_600.0
"""The default for `run_if_within`."""
_INTERRUPTED = "nanobot was stopped in the middle of this run"
_EXPIRED_BEFORE_START = "its time had passed before it was scheduled"
_REPLACED = "missed; one later run stands for all"
_MAX_REASON_CHARS = 1_000

ClaimedRun = tuple[CronJob, Run]
"""A job as it was when its run was claimed, and the run."""
WasStarted = Callable[[CronJob, Run], bool]
"""Whether the agent took on this run before its process died, so that its turn resumes by itself."""


@dataclass(frozen=True, slots=True)
class EndedRun:
    outcome: Outcome
    reason: str | None = None
    answer: str | None = None
    duration_ms: int | None = None
    retry_in_s: float | None = None


@dataclass(eq=False, slots=True)
class Scheduler:
    """Decides on the jobs of a store, for one process."""

    _store: CronStore
    _clock: Clock
    timezone: str | None
    _was_started: WasStarted | None
    running: set[str] = field(default_factory=set)
    """Ids of the jobs that run in this process."""
    failed: dict[str, str] = field(default_factory=dict)
    """Why the jobs, by id, could not be scheduled in the last round."""
    only: Callable[[CronJob], bool] | None = None
    """Which jobs this process runs; None for all."""

    def now_ms(self) -> int:
        return to_ms(self._clock.now())

    def serves(self, job: CronJob) -> bool:
        return job.is_agent_turn and (self.only is None or self.only(job))

    def is_running(self, job: CronJob) -> bool:
        """Whether the job runs, here or in another process."""
        lease, run = self._store.lease, job.runs.running
        is_elsewhere = run is not None and run.holder != lease.name and lease.is_alive(run.holder)
        return job.id in self.running or is_elsewhere

    def run_round(self) -> list[ClaimedRun]:
        """Decide on every job; return the runs to start."""
        self.failed, now = {}, self.now_ms()
        claimed: list[ClaimedRun] = []
        with self._claiming(claimed, now) as (job_file, runs):
            for job in filter(self.serves, job_file.jobs):
                try:
                    run = self._decide(job, runs, now)
                except (ValueError, OverflowError) as error:  # an invalid job must not stop the others
                    self.failed[job.id] = str(error)
                    job.state.last_status, job.state.last_error = "error", str(error)
                else:
                    if job.id in runs.changed:
                        runs.attach(job, now)
                    if run is not None:
                        claimed.append((deepcopy(job), run))
                        self.running.add(job.id)
        return claimed

    def claim_manually(self, job_id: str, *, force: bool) -> list[ClaimedRun]:
        """Claim a run for now; empty if the job is unknown, disabled or already running."""
        now = self.now_ms()
        claimed: list[ClaimedRun] = []
        with self._claiming(claimed, now) as (job_file, runs):
            job = job_file.get(job_id)
            if job is None or not self.serves(job) or not (job.enabled or force) or self.is_running(job):
                return []
            if job.runs.running is not None:
                self._end(job, job.runs.running, EndedRun("failed", _INTERRUPTED), runs)
            run = self._claim(job, Run(job.id, now, now, manual=True), runs)
            runs.attach(job, now)
            claimed.append((deepcopy(job), run))
            self.running.add(job.id)
        return claimed

    @contextmanager
    def _claiming(self, claimed: list[ClaimedRun], now: int) -> Iterator[tuple[JobFile, Runs]]:
        """A change that claims runs. They do not run if it fails."""
        try:
            with self._store.change(now) as (job_file, runs):
                yield job_file, runs
        except BaseException:
            self.running.difference_update(job.id for job, _ in claimed)
            raise

    def record(self, ended_runs: list[tuple[ClaimedRun, EndedRun]]) -> None:
        """Record the ends of runs of this process, even if their jobs were removed meanwhile."""
        now = self.now_ms()
        with self._store.change(now) as (job_file, runs):
            for (snapshot, run), ended in ended_runs:
                job = job_file.get(snapshot.id)
                current = job.runs.running if job is not None else None
                self._end(job or snapshot, current or run, ended, runs)
                if job is not None:
                    with suppress(CronError):
                        self._skip_overlapped(job, runs, now)
                    runs.attach(job, now)

    def _decide(self, job: CronJob, runs: Runs, now: int) -> Run | None:
        """Claim a run of the job if there is one to start now; skip what it misses. Raises CronError."""
        state = job.state
        if self.is_running(job):
            return None
        if job.runs.running is not None and (again := self._recover(job, job.runs.running, runs, now)) is not None:
            return again
        if job.enabled and not job.payload.message.strip():
            raise CronError("it has no message, so there is nothing to do")
        if (waiting := job.runs.waiting) is not None and waiting.started_ms <= now:
            late_ms = 0 if waiting.manual else now - waiting.at_ms
            return self._claim(job, replace(waiting, started_ms=now, late_ms=late_ms), runs)
        state.next_run_at_ms = first = self._plan(job, now)
        if first is None and job.enabled and job.schedule.kind == "at":
            at = job.schedule.at_ms or 0
            if job.runs.last_due_ms != at:
                self._skip(job, (at, at, 1), _EXPIRED_BEFORE_START, runs)
            job.enabled = False
        if first is None or first > now:
            return None
        count, before_last, last, state.next_run_at_ms = self._missed_until(job, first, now)
        late_ms = now - last if now - last > GRACE_MS else 0
        within_s = _WITHIN_S if job.misfire_within_s is None else job.misfire_within_s
        may_be_late = job.misfire is Misfire.RUN_ONCE or (
            job.misfire is Misfire.RUN_IF_WITHIN and late_ms <= within_s * 1000
        )
        if late_ms and not may_be_late:
            reason = f"missed by {duration(late_ms / 1000)}; the job is set to {job.misfire}"
            self._skip(job, (first, last, count), reason, runs)
            job.enabled = job.enabled and job.schedule.kind != "at"
            return None
        if count > 1:
            self._skip(job, (first, before_last, count - 1), _REPLACED, runs)
        runs.drop_waiting(job.id)
        return self._claim(job, Run(job.id, last, now, late_ms, count - 1), runs)

    def _plan(self, job: CronJob, now: int) -> int | None:
        """The next due instant of the job (in the past if it is due now), or None if there is none. Raises CronError.

        Keeps the instant in the file unless it was handled, the job was edited, its zone changed or the clock was set
        back. A run is not repeated when the clock goes back by less than a day.
        """
        planned, schedule, last_due_ms = job.state.next_run_at_ms, job.schedule, job.runs.last_due_ms
        if not job.enabled:
            return None
        if schedule.kind == "at":
            at_ms = schedule.at_ms
            is_over = at_ms is None or last_due_ms == at_ms or (planned is None and at_ms <= now)
            return None if is_over else at_ms
        zone = job_zone(job, self.timezone)
        if planned is not None and last_due_ms is not None and planned <= last_due_ms <= now:  # the file is behind
            planned = next_instant(schedule, last_due_ms, zone=zone, anchor_ms=planned)
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
        has_run_already = last_due_ms is not None and expected <= last_due_ms <= now + DAY_MS
        return planned if has_run_already else expected

    def _missed_until(self, job: CronJob, first: int, now: int) -> tuple[int, int, int, int | None]:
        """How many instants are due from `first` to now, the last but one, the last, and the next after them."""
        zone = job_zone(job, self.timezone)
        count, before, last = missed_between(job.schedule, first, now, zone=zone, limit=_MAX_COUNTED)
        return count, before, last, next_instant(job.schedule, max(now, last), zone=zone, anchor_ms=first)

    def _skip(self, job: CronJob, instants: tuple[int, int, int], reason: str, runs: Runs) -> None:
        """Record due instants that do not run: the first, the last, and how many."""
        first, last, count = instants
        run = Run(job.id, runs.free_instant(job.id, first), name=job.name, outcome="skipped", reason=reason)
        runs.put(replace(run, until_ms=last, count=count) if count > 1 else run)

    def _skip_overlapped(self, job: CronJob, runs: Runs, now: int) -> None:
        """Skip the due instants that passed while the job ran."""
        first = job.state.next_run_at_ms
        if job.enabled and first is not None and first <= now:
            count, _, last, job.state.next_run_at_ms = self._missed_until(job, first, now)
            self._skip(job, (first, last, count), STILL_RUNNING, runs)

    def _claim(self, job: CronJob, run: Run, runs: Runs) -> Run:
        """Write that this process runs it."""
        self._store.lease.hold()
        if run.outcome != "waiting" and run.attempt == 1:
            run = replace(run, at_ms=runs.free_instant(job.id, run.at_ms))
        run = replace(run, name=job.name, outcome="running", holder=self._store.lease.name)
        runs.put(run)
        return run

    def _recover(self, job: CronJob, run: Run, runs: Runs, now: int) -> Run | None:
        """The process of this run died: run it again if the agent never got it; else it has failed."""
        again = replace(run, started_ms=now, attempt=run.attempt + 1)
        was_started = self._was_started is None or self._was_started(deepcopy(job), again)
        if run.attempt >= _MAX_ATTEMPTS or was_started:
            self._end(job, run, EndedRun("failed", _INTERRUPTED), runs)
            return None
        late_ms = now - run.at_ms
        return self._claim(job, replace(again, late_ms=late_ms if late_ms > GRACE_MS else 0), runs)

    def _end(self, job: CronJob, run: Run, ended: EndedRun, runs: Runs) -> None:
        """Record the end of a run, and its retry."""
        is_remembered = (
            ended.outcome == "ran" and job.payload.notify is Notify.ON_CHANGE and (ended.answer or "").strip()
        )
        run = replace(
            run,
            outcome=ended.outcome,
            reason=ended.reason[:_MAX_REASON_CHARS] if ended.reason else None,
            duration_ms=ended.duration_ms,
            answer=fingerprint(ended.answer or "") if is_remembered else None,
        )
        runs.put(run)
        if ended.retry_in_s is not None:
            retry_ms = self.now_ms() + round(ended.retry_in_s * 1000)
            runs.put(Run(job.id, run.at_ms, retry_ms, retry=run.retry + 1, name=job.name, outcome="waiting"))
        if job.schedule.kind == "at" and not run.manual:
            job.enabled, job.state.next_run_at_ms = False, None
