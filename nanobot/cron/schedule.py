"""When a schedule is due. Pure functions: time and zone are parameters.

- `at`: once.
- `every`: at fixed intervals from an anchor, so that a restart does not shift them.
- `cron`: by the zone's wall clock. A time of day that occurs twice (clocks go back) runs once, the first time; one
  that is skipped runs when the clocks jump. An expression that matches in every hour follows elapsed time instead: it
  runs in both repeated hours and not in a skipped one.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import islice
from math import inf
from typing import Any

from nanobot.cron.types import LAST_MS, CronError, CronSchedule
from nanobot.cron.zones import read_wall_time, wall_at

_HOUR = 1
_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
_EVERY_HOUR = frozenset(range(24))
_RANDOM_FIELD = re.compile(r"(?:^|[\s,])[rh](?:$|[\s,/(])", re.IGNORECASE)
"""Croniter's R and H fields: random values, different at each evaluation."""
_CRONITER_START = datetime(2000, 1, 1)


def to_ms(instant: datetime) -> int:
    """Milliseconds since 1970."""
    return round(instant.timestamp() * 1000)


def from_ms(ms: int, zone: tzinfo = UTC) -> datetime:
    """The instant in the zone."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)).astimezone(zone)


def check_schedule(schedule: CronSchedule) -> None:
    """Raise CronError if the schedule is invalid or never due."""
    if schedule.kind == "at":
        if schedule.at_ms is None or not 0 <= schedule.at_ms < LAST_MS:
            raise CronError("A job that runs once needs its time, for example 2026-12-24T18:00.")
    elif schedule.kind == "every":
        if not schedule.every_ms or not 0 < schedule.every_ms < LAST_MS:
            raise CronError("An interval must be more than 0 seconds.")
    elif schedule.kind == "cron":
        _covers_every_hour(schedule.expr or "")
    else:
        raise CronError(f"Unknown kind of schedule {schedule.kind!r}. Use at, every or cron.")


def instants(schedule: CronSchedule, after_ms: int, *, zone: tzinfo, anchor_ms: int) -> Iterator[int]:
    """Due instants after `after_ms`, in order, in milliseconds. Raises CronError as `check_schedule` does."""
    check_schedule(schedule)
    if schedule.kind == "at":
        yield from (at for at in (schedule.at_ms,) if at is not None and at > after_ms)
    elif schedule.kind == "every":
        every = schedule.every_ms or 1
        due = anchor_ms + ((after_ms - anchor_ms) // every + 1) * every
        while due < LAST_MS:
            yield due
            due += every
    else:
        yield from map(to_ms, _matches(schedule.expr or "", from_ms(after_ms), zone))


def seconds_between_runs(schedule: CronSchedule) -> float:
    """Seconds between the first two runs since 1970; infinite if there is only one."""
    runs = list(islice(instants(schedule, 0, zone=UTC, anchor_ms=0), 2))
    return (runs[1] - runs[0]) / 1000 if len(runs) == 2 else inf


def next_instant(schedule: CronSchedule, after_ms: int, *, zone: tzinfo, anchor_ms: int) -> int | None:
    """The first due instant after `after_ms`, or None."""
    return next(instants(schedule, after_ms, zone=zone, anchor_ms=anchor_ms), None)


def is_moved(schedule: CronSchedule, due_ms: int, zone: tzinfo) -> bool:
    """Whether this due instant replaces a time of day that the clocks skipped."""
    due = from_ms(due_ms, zone)
    if schedule.kind != "cron" or due.utcoffset() == from_ms(due_ms - 1, zone).utcoffset():
        return False
    wall = wall_at(due, zone)
    return next(_wall_times(schedule.expr or "", wall - timedelta(seconds=1)), None) != wall


def count_between(
    schedule: CronSchedule, first_ms: int, until_ms: int, *, zone: tzinfo, anchor_ms: int, limit: int
) -> tuple[int, int]:
    """The number of due instants from `first_ms` (itself one) to `until_ms`, and the last of them.

    Stops counting at `limit`, for a job every minute that was missed for years.
    """
    if schedule.kind == "every":
        steps = max(until_ms - first_ms, 0) // (schedule.every_ms or 1)
        return steps + 1, first_ms + steps * (schedule.every_ms or 1)
    count, last = 1, first_ms
    for due in instants(schedule, first_ms, zone=zone, anchor_ms=anchor_ms):
        if due > until_ms:
            break
        count, last = count + 1, due
        if count >= limit:
            return count, last_between(schedule, last, until_ms, zone=zone, anchor_ms=anchor_ms)
    return count, last


def last_between(schedule: CronSchedule, first_ms: int, until_ms: int, *, zone: tzinfo, anchor_ms: int) -> int:
    """The last due instant up to `until_ms`, at least `first_ms`. Searches backwards in growing windows."""
    window_ms = 60_000
    while until_ms - window_ms > first_ms:
        due = list(_up_to(schedule, until_ms - window_ms, until_ms, zone, anchor_ms))
        if due:
            return due[-1]
        window_ms *= 8
    return max((first_ms, *_up_to(schedule, first_ms, until_ms, zone, anchor_ms)))


def _up_to(schedule: CronSchedule, after_ms: int, until_ms: int, zone: tzinfo, anchor_ms: int) -> Iterator[int]:
    for due in instants(schedule, after_ms, zone=zone, anchor_ms=anchor_ms):
        if due > until_ms:
            return
        yield due


@lru_cache(maxsize=256)
def _covers_every_hour(expr: str) -> bool:
    """Whether the expression matches in every hour. Raises CronError if it is invalid or never matches."""
    from croniter import CroniterBadDateError, croniter  # takes 50 ms

    problem = f'Invalid cron expression "{expr}"'
    hint = "Use minute, hour, day of the month, month, day of the week: `0 9 * * 1-5` is every weekday at 9:00."
    if _RANDOM_FIELD.search(expr):
        raise CronError(f"{problem}: the random fields R and H are not supported. {hint}")
    try:
        parsed = croniter(expr, _CRONITER_START)
        parsed.get_next(datetime)
    except CroniterBadDateError as error:
        raise CronError(f"{expr!r} never matches any date. {hint}") from error
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise CronError(f"{problem}: {_out_of_range(expr) or str(error)}. {hint}") from error
    hours: Any = parsed.expanded[_HOUR]
    return hours == ["*"] or set(hours) >= _EVERY_HOUR


def _out_of_range(expr: str) -> str:
    """The first number of an expression that its field cannot have, as `minute 99 is out of range 0-59`."""
    for field, (name, low, high) in zip(expr.split(), _FIELDS, strict=False):
        for number in re.findall(r"\d+", field.partition("/")[0]):
            if not low <= int(number) <= high:
                return f"{name} {number} is out of range {low}-{high}"
    return ""


def _wall_times(expr: str, start: datetime) -> Iterator[datetime]:
    """Matching wall times after `start`, in order."""
    from croniter import CroniterBadDateError, croniter

    try:
        parsed = croniter(expr, start)
        while True:
            yield parsed.get_next(datetime)
    except (CroniterBadDateError, OverflowError):
        return


def _matches(expr: str, after: datetime, zone: tzinfo) -> Iterator[datetime]:
    return _by_elapsed_time(expr, after, zone) if _covers_every_hour(expr) else _by_wall_time(expr, after, zone)


def _by_wall_time(expr: str, after: datetime, zone: tzinfo) -> Iterator[datetime]:
    """Each matching time of day once. The instants of increasing wall times never decrease."""
    last = after
    for wall in _wall_times(expr, wall_at(after, zone).replace(fold=0)):
        at = read_wall_time(wall, zone).first
        if at > last:
            yield at
            last = at


def _by_elapsed_time(expr: str, after: datetime, zone: tzinfo) -> Iterator[datetime]:
    """Every instant at which the clocks show a matching time; found one by one near a clock change."""
    last, wall_times = after, _wall_times(expr, wall_at(after, zone).replace(fold=0))
    while (wall := next(wall_times, None)) is not None:
        shown = read_wall_time(wall, zone)
        if shown.is_plain and read_wall_time(wall_at(last, zone).replace(fold=0), zone).is_plain:
            yield shown.first
            last = shown.first
            continue
        due = _next_shown(expr, last, zone)
        if due is None:
            return
        yield due
        last, wall_times = due, _wall_times(expr, wall_at(due, zone).replace(fold=0))


def _next_shown(expr: str, after: datetime, zone: tzinfo) -> datetime | None:
    wall = wall_at(after, zone)
    shown_now = read_wall_time(wall.replace(fold=0), zone)
    candidates = []
    if shown_now.second is not None and wall.fold == 0:  # the clocks will go back: the repeated hour counts too
        overlap = shown_now.second - shown_now.first
        for earlier in _wall_times(expr, wall.replace(fold=0) - overlap):
            again = read_wall_time(earlier, zone)
            if earlier > wall.replace(fold=0) + overlap:
                break
            if again.second is not None and again.second > after:
                candidates.append(again.second)
                break
    for later in _wall_times(expr, wall.replace(fold=0)):
        shown = read_wall_time(later, zone)
        at = next((at for at in (shown.first, shown.second) if at is not None and at > after), None)
        if at is not None and shown.jump is None:
            candidates.append(at)
            break
    return min(candidates, default=None)
