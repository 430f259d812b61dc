"""What a due instant comes to: run, run late, or passed over with a reason. Pure; every instant is accounted for."""

from dataclasses import dataclass, replace
from datetime import tzinfo

from nanobot.cron.schedule import count_between, last_between, next_instant
from nanobot.cron.types import GRACE_MS, CronJob, Misfire
from nanobot.cron.zones import zone_of

DAY_MS = 24 * 60 * 60 * 1000
_STEP_MS = 1_000
"""Clocks are set right by so much all the time."""
_COUNTED = 10_000
"""So far missed instants are counted: a week of minutes, half a second of work."""
_WITHIN_S = 3_600.0
"""`run_if_within`, where the job does not say how long."""


@dataclass(frozen=True, slots=True)
class Passed:
    """Instants of a job that were not run, from the first to the last of them, and why."""

    first_ms: int
    last_ms: int
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a job that is due. `run_ms` is the instant to run, if one is."""

    run_ms: int | None
    late_ms: int
    passed: tuple[Passed, ...]
    next_ms: int | None

    @property
    def missed(self) -> int:
        """How many instants the run stands for besides its own."""
        return sum(passed.count for passed in self.passed) if self.run_ms is not None else 0


def job_zone(job: CronJob, user_zone: str | None) -> tzinfo:
    """The job's own zone, else the user's, else the host's. Raises CronError."""
    return zone_of(job.schedule.tz, user_zone)


def plan(job: CronJob, now_ms: int, user_zone: str | None) -> int | None:
    """The instant this job waits for (in the past: it is due); None where nothing comes any more. Raises CronError.

    What stands in the file is believed as long as it can be: a job that was edited, a zone that changed, clocks that
    were set back are seen here. What was run is not run again when clocks go back by less than a day.
    """
    waits, schedule, ran = job.state.next_run_at_ms, job.schedule, job.state.last_due_at_ms
    if not job.enabled or not job.is_ours:
        return None
    if schedule.kind == "at":
        over = schedule.at_ms is None or ran == schedule.at_ms or (waits is None and schedule.at_ms <= now_ms)
        return None if over else schedule.at_ms
    zone = job_zone(job, user_zone)
    expected = next_instant(schedule, now_ms, zone=zone, anchor_ms=_anchor(job, now_ms))
    if waits is None:
        return expected
    if schedule.kind == "every":
        too_long = now_ms + (schedule.every_ms or 0) + _STEP_MS
        return waits if waits <= too_long else now_ms + (schedule.every_ms or 0)
    if next_instant(schedule, waits - 1, zone=zone, anchor_ms=0) != waits:
        return expected
    if expected is None or waits <= expected:
        return waits
    stays_run = ran is not None and expected <= ran <= now_ms + DAY_MS
    return waits if stays_run else expected


def judge(job: CronJob, now_ms: int, user_zone: str | None) -> Verdict:
    """What becomes of a job whose planned instant has come. Raises CronError."""
    due, next_ms = passed_until(job, now_ms, user_zone)
    late_ms = now_ms - due.last_ms
    if (refusal := _refusal(job, late_ms)) is not None:
        return Verdict(None, late_ms, (replace(due, reason=refusal),), next_ms)
    earlier: tuple[Passed, ...] = ()
    if due.count > 1:
        zone = job_zone(job, user_zone)
        before = last_between(job.schedule, due.first_ms, due.last_ms - 1, zone=zone, anchor_ms=due.first_ms)
        earlier = (Passed(due.first_ms, before, due.count - 1, "missed; one later run stands for all"),)
    return Verdict(due.last_ms, late_ms if late_ms > GRACE_MS else 0, earlier, next_ms)


def passed_until(job: CronJob, now_ms: int, user_zone: str | None, reason: str = "") -> tuple[Passed, int | None]:
    """All instants from the planned one to now, and the one after them. Raises CronError."""
    zone, first = job_zone(job, user_zone), job.state.next_run_at_ms or now_ms
    count, last = count_between(job.schedule, first, now_ms, zone=zone, anchor_ms=first, most=_COUNTED)
    following = next_instant(job.schedule, max(now_ms, last), zone=zone, anchor_ms=first)
    return Passed(first, last, count, reason), following


def late_words(late_ms: int) -> str:
    """`2 h 5 min`."""
    minutes = max(late_ms // 60_000, 1)
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    parts = ((days, "d"), (hours, "h"), (minutes, "min"))
    return " ".join([f"{amount} {unit}" for amount, unit in parts if amount][:2])


def _refusal(job: CronJob, late_ms: int) -> str | None:
    """Why this job does not run so late; None where it does."""
    within_s = job.misfire_within_s if job.misfire_within_s is not None else _WITHIN_S
    if late_ms <= GRACE_MS or job.misfire is Misfire.RUN_ONCE:
        return None
    if job.misfire is Misfire.RUN_IF_WITHIN and late_ms <= within_s * 1000:
        return None
    return f"missed by {late_words(late_ms)}; the job is set to {job.misfire}"


def _anchor(job: CronJob, now_ms: int) -> int:
    return job.created_at_ms or now_ms
