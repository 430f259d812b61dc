"""The misfire policy: whether a due job runs now, runs late, or is skipped with a reason. Pure functions."""

from dataclasses import dataclass, replace

from nanobot.cron.schedule import job_zone, missed_between, next_instant
from nanobot.cron.types import DAY_MS, GRACE_MS, CronJob, Misfire
from nanobot.utils.text import duration

_CLOCK_STEP_MS = 1_000
"""Clock corrections up to this are normal."""
_MAX_COUNTED = 10_000
"""Missed runs are counted up to this: a week of minutes, half a second of work."""
_WITHIN_S = 3_600.0
"""The default for `run_if_within`."""


@dataclass(frozen=True, slots=True)
class MissedRuns:
    """Consecutive due instants of a job that did not run, and why."""

    first_ms: int
    last_ms: int
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class MisfireDecision:
    """What to do with a due job. `run_ms` is the due instant to run, or None."""

    run_ms: int | None
    late_ms: int
    skipped: tuple[MissedRuns, ...]
    next_ms: int | None

    @property
    def missed(self) -> int:
        """How many missed runs this run also stands for."""
        return sum(runs.count for runs in self.skipped) if self.run_ms is not None else 0


def plan(job: CronJob, now_ms: int, user_zone: str | None) -> int | None:
    """The next due instant of the job (in the past if it is due now), or None if there is none. Raises CronError.

    Keeps the instant in the file unless the job was edited, its zone changed or the clock was set back. A run is not
    repeated when the clock goes back by less than a day.
    """
    planned, schedule, last_run_ms = job.state.next_run_at_ms, job.schedule, job.state.last_due_at_ms
    if not job.enabled or not job.is_agent_turn:
        return None
    if schedule.kind == "at":
        is_over = (
            schedule.at_ms is None or last_run_ms == schedule.at_ms or (planned is None and schedule.at_ms <= now_ms)
        )
        return None if is_over else schedule.at_ms
    zone = job_zone(job, user_zone)
    expected = next_instant(schedule, now_ms, zone=zone, anchor_ms=job.created_at_ms or now_ms)
    if planned is None:
        return expected
    if schedule.kind == "every":
        latest_ms = now_ms + (schedule.every_ms or 0) + _CLOCK_STEP_MS
        return planned if planned <= latest_ms else now_ms + (schedule.every_ms or 0)
    if next_instant(schedule, planned - 1, zone=zone, anchor_ms=0) != planned:
        return expected
    if expected is None or planned <= expected:
        return planned
    has_run_already = last_run_ms is not None and expected <= last_run_ms <= now_ms + DAY_MS
    return planned if has_run_already else expected


def apply_misfire_policy(job: CronJob, now_ms: int, user_zone: str | None) -> MisfireDecision:
    """Decide what to do with a due job. Raises CronError."""
    due, before_ms, next_ms = missed_until(job, now_ms, user_zone)
    late_ms = now_ms - due.last_ms
    if (reason := _skip_reason(job, late_ms)) is not None:
        return MisfireDecision(None, late_ms, (replace(due, reason=reason),), next_ms)
    earlier_runs: tuple[MissedRuns, ...] = ()
    if due.count > 1:
        reason = "missed; one later run stands for all"
        earlier_runs = (MissedRuns(due.first_ms, before_ms, due.count - 1, reason),)
    return MisfireDecision(due.last_ms, late_ms if late_ms > GRACE_MS else 0, earlier_runs, next_ms)


def missed_until(
    job: CronJob, now_ms: int, user_zone: str | None, reason: str = ""
) -> tuple[MissedRuns, int, int | None]:
    """The due instants from the planned one to now, the last but one of them, and the next. Raises CronError."""
    zone, first = job_zone(job, user_zone), job.state.next_run_at_ms or now_ms
    count, before, last = missed_between(job.schedule, first, now_ms, zone=zone, limit=_MAX_COUNTED)
    next_ms = next_instant(job.schedule, max(now_ms, last), zone=zone, anchor_ms=first)
    return MissedRuns(first, last, count, reason), before, next_ms


def _skip_reason(job: CronJob, late_ms: int) -> str | None:
    """Why this job is skipped when late by `late_ms`; None if it runs."""
    within_s = job.misfire_within_s if job.misfire_within_s is not None else _WITHIN_S
    if late_ms <= GRACE_MS or job.misfire is Misfire.RUN_ONCE:
        return None
    if job.misfire is Misfire.RUN_IF_WITHIN and late_ms <= within_s * 1000:
        return None
    return f"missed by {duration(late_ms / 1000)}; the job is set to {job.misfire}"
