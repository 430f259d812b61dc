"""Jobs as text: schedules that people write, jobs and times for people, the message of a run, what is sent of it."""

import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo

from nanobot.bus.events import InboundMessage
from nanobot.cron.schedule import from_ms, job_zone_or_host, read_wall_time, to_ms, zone_of
from nanobot.cron.types import CronError, CronJob, CronSchedule, Notify, Run
from nanobot.messages.shown import JOB_NOTE
from nanobot.messages.types import Origin
from nanobot.utils.clock import zone_name
from nanobot.utils.text import format_when, relative_time

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
NOTHING_TO_REPORT = "NOTHING_TO_REPORT"
"""The model's answer for `notify: on_alert` if there is no alert."""
_EDGES = re.compile(r"[\s`*_\"'.!]+")


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
        every_ms = schedule.every_ms or 0
        size, unit = next((row for row in _UNITS if every_ms >= row[0] and every_ms % row[0] == 0), (1_000, "second"))
        return f"every {unit}" if every_ms == size else f"every {every_ms / size:.12g} {unit}s"
    match (schedule.expr or "").split():
        case [minute, hour, "*", "*", days] if minute.isdecimal() and hour.isdecimal() and days.lower() in _DAYS:
            words = f"every {_DAYS[days.lower()]} at {int(hour):02}:{int(minute):02}"
        case _:
            words = f"cron {schedule.expr or ''}"
    return f"{words} ({schedule.tz or zone_name(from_ms(0, zone))})"


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


def message_for(job: CronJob, due: Run, user_zone: str | None = None) -> InboundMessage:
    """The inbound message of a run: at the job's target, in the job's session, with the run's message id.

    It is quiet unless every answer is sent, since messages the turn sends itself would bypass `is_worth_sending`.
    """
    payload = job.payload
    return InboundMessage(
        payload.channel or "cli",
        "cron",
        payload.to or "direct",
        run_message(job, due, user_zone),
        session_key_override=job.run_session,
        message_id=due.message_id,
        thread_id=payload.thread_id,
        origin=Origin.CRON,
        provenance=payload.provenance,
        quiet=not may_notify(job) or payload.notify is not Notify.ALWAYS,
        journal_key=due.message_id,
    )


def run_message(job: CronJob, due: Run, user_zone: str | None = None) -> str:
    """The text of a run: the job's message, then what the model should know about this run."""
    due_at = "started by hand" if due.manual else f"due {due_time(job, due, user_zone)}"
    notes = [f'{JOB_NOTE}{job.name}", {due_at}.']
    if may_notify(job):
        notes.append(
            f"Your answer is sent to {job.payload.channel or 'cli'}, chat {job.payload.to or 'direct'}: if the text "
            "above is a reminder, remind the person; if it is a task, do it and report the result. Nobody can answer "
            "questions now."
        )
        if due.retry and job.payload.notify is Notify.ALWAYS:
            notes.append("No model answered before, so the person was sent the text above as it is.")
    else:
        notes.append("Nobody sees your answer. Do what the text above says.")
    if due.missed:
        runs = "run was" if due.missed == 1 else "runs were"
        notes.append(f"{due.missed} earlier {runs} missed; this one stands for all.")
    if may_notify(job) and job.payload.notify is Notify.ON_ALERT:
        notes.append(f"If nothing needs the person's attention, answer with {NOTHING_TO_REPORT} alone.")
    return f"{job.payload.message}\n\n{' '.join(notes)}]"


def due_time(job: CronJob, due: Run, user_zone: str | None = None) -> str:
    """The due instant in the job's zone: `18:00`, of a late run `18:00 (25 min ago)`, with the date if it was another
    day.
    """
    zone = job_zone_or_host(job, user_zone)
    due_at, now = from_ms(due.at_ms, zone), from_ms(due.at_ms + due.late_ms, zone)
    if due_at.date() != now.date():
        return format_when(due_at, now)
    return f"{due_at:%H:%M} ({relative_time(due_at, now)})" if due.late_ms else f"{due_at:%H:%M}"


def may_notify(job: CronJob) -> bool:
    """Whether the job may send anything: its answer, or with the `message` tool."""
    return job.payload.deliver and job.payload.notify is not Notify.NEVER


def is_worth_sending(job: CronJob, answer: str | None) -> bool:
    """Whether to send this answer to the job's target. `job` is its state when the run started."""
    text = (answer or "").strip()
    if not may_notify(job) or not text:
        return False
    if job.payload.notify is Notify.ON_CHANGE:
        return fingerprint(text) != job.runs.last_answer
    if job.payload.notify is Notify.ON_ALERT:
        return _EDGES.sub("", text).upper() != _EDGES.sub("", NOTHING_TO_REPORT)
    return True


def fingerprint(answer: str) -> str:
    """Equal for answers that differ only in white space and case."""
    return hashlib.sha256(" ".join(answer.casefold().split()).encode("utf-8", "backslashreplace")).hexdigest()[:16]
