"""Parsing schedules from user input, and formatting jobs, schedules and times."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo

from nanobot.cron.schedule import from_ms, read_wall_time, to_ms, zone_of
from nanobot.cron.types import CronError, CronJob, CronSchedule
from nanobot.utils.clock import zone_name
from nanobot.utils.text import format_when

_FROM_NOW = re.compile(
    r"(?:\+|in ) ?(\d{1,6}(?:\.\d+)?) ?([smhdw]|(?:sec|min|second|minute|hour|day|week)s?)", re.IGNORECASE
)
_FROM_NOW_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_TIME_OF_DAY = re.compile(r"(\d{1,2}):(\d{2})(?: ?([ap])m)?|(\d{1,2}) ?([ap])m", re.IGNORECASE)
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAYS = {"*": "day", "1-5": "weekday", "mon-fri": "weekday", "7": "Sunday"}
_DAYS |= {str(number): name.title() for number, name in enumerate((_WEEKDAYS[6], *_WEEKDAYS[:6]))}
_DAYS |= {name[:3]: name.title() for name in _WEEKDAYS}
"""Days of the week in a cron expression, in words."""
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


def parse_instant(text: str, zone: tzinfo, now: datetime | None = None) -> datetime:
    """Parse a time: ISO, `+20m`, `18:00`, `9:30am`, `tomorrow 9am` or `friday 18:00`. Raises CronError.

    Without an offset it is a wall time in the zone. A time of day that has passed is tomorrow's; a day without a time
    means 9:00.
    """
    now, text = (now or datetime.now(UTC)).astimezone(zone), text.strip()
    try:
        if match := _FROM_NOW.fullmatch(text):
            return now.astimezone(UTC) + timedelta(**{_FROM_NOW_UNITS[match[2][0].lower()]: float(match[1])})
        if (moment := _next_wall_time(text, zone, now)) is not None:
            return moment
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            to_ms(moment)
            return moment
        return read_wall_time(moment, zone).first
    except (ValueError, OverflowError) as error:
        examples = "18:00, tomorrow 9am, +20m, 2026-12-24T18:00"
        raise CronError(f"Cannot read {text!r} as a time. Examples: {examples}.") from error


def parse_seconds(text: str) -> float:
    """Parse `3600`, `20m` or `1.5h` as seconds. Raises CronError."""
    if match := _FROM_NOW.fullmatch(f"+{text.strip()}"):
        return timedelta(**{_FROM_NOW_UNITS[match[2][0].lower()]: float(match[1])}).total_seconds()
    try:
        return float(text)
    except ValueError as error:
        raise CronError(f"Cannot read {text!r} as seconds. Examples: 3600, 20m, 1.5h.") from error


def parse_snooze(text: str, zone: tzinfo) -> datetime:
    """Parse how long or until when to snooze: `20`, `10m`, `1h`, `18:00`, `tomorrow 9am`. Raises CronError."""
    if text.isdecimal():
        text += "m"
    return parse_instant(f"+{text}" if _FROM_NOW.fullmatch(f"+{text}") else text, zone)


def _next_wall_time(text: str, zone: tzinfo, now: datetime) -> datetime | None:
    """The instant of a time of day, a day, or both; None if the text is something else."""
    first, _, rest = text.partition(" ")
    days_ahead, is_weekday = _days_ahead(first.lower(), now)
    time = rest if days_ahead is not None else text
    time_of_day = _parse_time_of_day(time.strip().removeprefix("at ")) if time else (9, 0)
    if time_of_day is None:
        return None
    date = now.date() + timedelta(days=days_ahead or 0)
    instant = read_wall_time(datetime(date.year, date.month, date.day, *time_of_day), zone).first
    if instant <= now and (days_ahead is None or is_weekday):
        date += timedelta(days=7 if is_weekday else 1)
        instant = read_wall_time(datetime(date.year, date.month, date.day, *time_of_day), zone).first
    return instant


def _days_ahead(word: str, now: datetime) -> tuple[int | None, bool]:
    """How many days ahead a named day is, and whether it is a weekday, which comes again; None if it is no day."""
    if word in ("today", "tomorrow"):
        return int(word == "tomorrow"), False
    number = next((number for number, name in enumerate(_WEEKDAYS) if word in (name, name[:3])), None)
    return (None, False) if number is None else ((number - now.weekday()) % 7, True)


def _parse_time_of_day(text: str) -> tuple[int, int] | None:
    """Hour and minute; None if the text is no time of day. Raises ValueError for an hour that does not exist."""
    if (match := _TIME_OF_DAY.fullmatch(text)) is None:
        return None
    hour, minute, half = int(match[1] or match[4]), int(match[2] or 0), (match[3] or match[5] or "").lower()
    if half and not 1 <= hour <= 12:
        raise ValueError(text)
    return (hour % 12 + (12 if half == "p" else 0) if half else hour), minute


def format_schedule(schedule: CronSchedule, zone: tzinfo) -> str:
    """`every 20 minutes`, `every weekday at 09:00 (Europe/Berlin)`, `once at 2026-12-24 18:00 +01:00 (in 3 days)`."""
    if schedule.kind == "at":
        return f"once at {format_time(schedule.at_ms, zone)}"
    if schedule.kind == "every":
        return f"every {_format_interval(schedule.every_ms or 0)}"
    return f"{_cron_in_words(schedule.expr or '')} ({schedule.tz or zone_name(from_ms(0, zone))})"


def _cron_in_words(expr: str) -> str:
    """`every day at 18:00` for a time of day on every day or on days of the week; else the expression."""
    fields = expr.split()
    if len(fields) != 5 or not (fields[0].isdecimal() and fields[1].isdecimal()) or fields[2:4] != ["*", "*"]:
        return f"cron {expr}"
    day = _DAYS.get(fields[4].lower())
    return f"every {day} at {int(fields[1]):02}:{int(fields[0]):02}" if day else f"cron {expr}"


def format_time(ms: int | None, zone: tzinfo) -> str:
    """`2026-03-29 03:00 +02:00 (in 12 min)`; a dash for None."""
    return "-" if ms is None else format_when(from_ms(ms, zone), offset=True)


def format_next(job: CronJob, zone: tzinfo) -> str:
    """When a job runs next, a retry included, for a table."""
    wakes_ms = job.wakes_at_ms
    if wakes_ms is None:
        return "-" if job.enabled else "disabled"
    return format_when(from_ms(wakes_ms, zone))


def format_job(job: CronJob, zone: tzinfo, next_runs: Sequence[int]) -> str:
    """The job in a line, and its next runs, unless that line names the only one."""
    head = f'Job {job.id} "{job.name}" runs {format_schedule(job.schedule, zone)}'
    if job.payload.deliver:
        head += f", for {job.payload.channel}:{job.payload.to}"
    if list(next_runs) == [job.schedule.at_ms]:
        return f"{head}."
    lines = [f"- {format_time(due, zone)}" for due in next_runs]
    return "\n".join([f"{head}.", "Next run:" if len(lines) == 1 else "Next runs:", *lines])


def _format_interval(every_ms: int) -> str:
    for size, unit in _UNITS:
        if every_ms % size == 0 and every_ms >= size:
            count = every_ms // size
            return unit if count == 1 else f"{count} {unit}s"
    return f"{every_ms / 1000:g} seconds"
