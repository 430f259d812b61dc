"""Schedules in people's words: what they ask for, made into one, and one told back with its next runs."""

from collections.abc import Sequence
from datetime import datetime, timedelta, tzinfo

from nanobot.cron.judging import job_zone
from nanobot.cron.schedule import from_ms, to_ms
from nanobot.cron.types import CronError, CronJob, CronSchedule
from nanobot.cron.zones import HOST, reading, zone_of
from nanobot.utils.clock import zone_name

_UNITS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"))


def schedule_of(
    *,
    every_seconds: float | None = None,
    cron_expr: str | None = None,
    at: str | None = None,
    tz: str | None = None,
    user_zone: str | None = None,
) -> CronSchedule:
    """The schedule that was asked for. A time without an offset is one of `tz`, else of the user's zone, else of the
    host's. Raises CronError where it is none, or more than one.
    """
    given = [value for value in (every_seconds, cron_expr, at) if value not in (None, "")]
    if len(given) != 1:
        asked = "Only one of them" if given else "One of them"
        raise CronError(f"When? {asked} is needed: an interval in seconds, a cron expression, or a time (at).")
    zone = zone_of(tz, user_zone)
    if cron_expr:
        return CronSchedule("cron", expr=" ".join(cron_expr.split()), tz=tz or None)
    if at:
        return CronSchedule("at", at_ms=to_ms(instant_of(at, zone)), tz=tz or None)
    if tz:
        raise CronError("A time zone says nothing about an interval. Leave it out, or use a cron expression.")
    if every_seconds is None or not 1 <= every_seconds < 3e9:
        raise CronError("An interval must be at least a second, and less than a hundred years.")
    return CronSchedule("every", every_ms=round(every_seconds * 1000))


def instant_of(text: str, zone: tzinfo) -> datetime:
    """The instant of an ISO time; without an offset, of a wall clock in the zone. Raises CronError."""
    try:
        told = datetime.fromisoformat(text.strip())
        if told.tzinfo is not None:
            to_ms(told)
            return told
        return reading(told, zone).first
    except (ValueError, OverflowError) as error:
        raise CronError(f"{text!r} is no time. Write it like 2026-12-24T18:00.") from error


def job_zone_or_host(job: CronJob, user_zone: str | None) -> tzinfo:
    """Where to tell a job's times: one with a made-up zone is listed too."""
    try:
        return job_zone(job, user_zone)
    except CronError:
        return HOST


def told_schedule(schedule: CronSchedule, zone: tzinfo) -> str:
    """`every 20 minutes`, `cron 0 9 * * 1-5 (Europe/Berlin)`, `once at 2026-12-24 18:00:00 +01:00`."""
    if schedule.kind == "at":
        return f"once at {told_instant(schedule.at_ms, zone)}"
    if schedule.kind == "every":
        return f"every {_told_interval(schedule.every_ms or 0)}"
    return f"cron {schedule.expr} ({schedule.tz or zone_name(from_ms(0, zone))})"


def told_instant(ms: int | None, zone: tzinfo) -> str:
    """`2026-03-29 03:00:00 +02:00`; a dash where there is none."""
    if ms is None:
        return "-"
    moment = from_ms(ms, zone)
    return f"{moment:%Y-%m-%d %H:%M:%S} {_told_offset(moment.utcoffset() or timedelta())}"


def told_job(job: CronJob, zone: tzinfo, next_runs: Sequence[int]) -> str:
    """What was made, in a line, and when it runs next."""
    head = f'Job {job.id} "{job.name}" runs {told_schedule(job.schedule, zone)}'
    if job.payload.deliver:
        head += f", for {job.payload.channel}:{job.payload.to}"
    lines = [f"- {told_instant(due, zone)}" for due in next_runs]
    return "\n".join([f"{head}.", "Next run:" if len(lines) == 1 else "Next runs:", *lines])


def _told_offset(offset: timedelta) -> str:
    sign, minutes = ("-" if offset < timedelta() else "+"), round(abs(offset).total_seconds() / 60)
    return f"{sign}{minutes // 60:02}:{minutes % 60:02}"


def _told_interval(every_ms: int) -> str:
    for size, unit in _UNITS:
        if every_ms % size == 0 and every_ms >= size:
            count = every_ms // size
            return unit if count == 1 else f"{count} {unit}s"
    return f"{every_ms / 1000:g} seconds"
