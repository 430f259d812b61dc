"""Parsing schedules from user input, and formatting jobs, schedules and times."""

from collections.abc import Sequence
from datetime import datetime, timedelta, tzinfo

from nanobot.cron.misfire import job_zone
from nanobot.cron.schedule import from_ms, to_ms
from nanobot.cron.types import CronError, CronJob, CronSchedule
from nanobot.cron.zones import HOST, read_wall_time, zone_of
from nanobot.utils.clock import zone_name

_UNITS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"))


def parse_schedule(
    *,
    every_seconds: float | None = None,
    cron_expr: str | None = None,
    at: str | None = None,
    tz: str | None = None,
    user_zone: str | None = None,
) -> CronSchedule:
    """Make a schedule from exactly one of interval, cron expression and time; raises CronError otherwise.

    A time without an offset is in `tz`, else in the user's zone, else in the host's.
    """
    specified = [value for value in (every_seconds, cron_expr, at) if value not in (None, "")]
    if len(specified) != 1:
        which = "Only one of them" if specified else "One of them"
        raise CronError(f"When? {which} is needed: an interval in seconds, a cron expression, or a time (at).")
    zone = zone_of(tz, user_zone)
    if cron_expr:
        return CronSchedule("cron", expr=" ".join(cron_expr.split()), tz=tz or None)
    if at:
        return CronSchedule("at", at_ms=to_ms(parse_instant(at, zone)), tz=tz or None)
    if tz:
        raise CronError("An interval has no time zone. Leave it out, or use a cron expression.")
    if every_seconds is None or not 1 <= every_seconds < 3e9:
        raise CronError("An interval must be at least one second and less than a hundred years.")
    return CronSchedule("every", every_ms=round(every_seconds * 1000))


def parse_instant(text: str, zone: tzinfo) -> datetime:
    """Parse an ISO time; without an offset it is a wall time in the zone. Raises CronError."""
    try:
        moment = datetime.fromisoformat(text.strip())
        if moment.tzinfo is not None:
            to_ms(moment)
            return moment
        return read_wall_time(moment, zone).first
    except (ValueError, OverflowError) as error:
        raise CronError(f"Cannot read {text!r} as a time. Write it like 2026-12-24T18:00.") from error


def job_zone_or_host(job: CronJob, user_zone: str | None) -> tzinfo:
    """The zone to show a job's times in; the host's if the job's is invalid."""
    try:
        return job_zone(job, user_zone)
    except CronError:
        return HOST


def format_schedule(schedule: CronSchedule, zone: tzinfo) -> str:
    """`every 20 minutes`, `cron 0 9 * * 1-5 (Europe/Berlin)`, `once at 2026-12-24 18:00:00 +01:00`."""
    if schedule.kind == "at":
        return f"once at {format_time(schedule.at_ms, zone)}"
    if schedule.kind == "every":
        return f"every {_format_interval(schedule.every_ms or 0)}"
    return f"cron {schedule.expr} ({schedule.tz or zone_name(from_ms(0, zone))})"


def format_time(ms: int | None, zone: tzinfo) -> str:
    """`2026-03-29 03:00:00 +02:00`; a dash for None."""
    if ms is None:
        return "-"
    moment = from_ms(ms, zone)
    return f"{moment:%Y-%m-%d %H:%M:%S} {_format_offset(moment.utcoffset() or timedelta())}"


def format_job(job: CronJob, zone: tzinfo, next_runs: Sequence[int]) -> str:
    """The job in a line, and its next runs."""
    head = f'Job {job.id} "{job.name}" runs {format_schedule(job.schedule, zone)}'
    if job.payload.deliver:
        head += f", for {job.payload.channel}:{job.payload.to}"
    lines = [f"- {format_time(due, zone)}" for due in next_runs]
    return "\n".join([f"{head}.", "Next run:" if len(lines) == 1 else "Next runs:", *lines])


def _format_offset(offset: timedelta) -> str:
    sign, minutes = ("-" if offset < timedelta() else "+"), round(abs(offset).total_seconds() / 60)
    return f"{sign}{minutes // 60:02}:{minutes % 60:02}"


def _format_interval(every_ms: int) -> str:
    for size, unit in _UNITS:
        if every_ms % size == 0 and every_ms >= size:
            count = every_ms // size
            return unit if count == 1 else f"{count} {unit}s"
    return f"{every_ms / 1000:g} seconds"
