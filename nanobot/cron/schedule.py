"""When a schedule comes due. Pure: the time and the zone are handed in.

- `at`: once.
- `every`: so many milliseconds after a fixed instant, its anchor, so that a restart does not move it.
- `cron`: by the wall clock of the zone. A time of day comes once a day, also on the day it is shown twice (the first
  counts), and on the day it is skipped it comes at the moment the clocks jump. An expression that runs in every hour
  goes by the time that passes instead: also through the hour that is shown twice, and not at one that never was.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any

from nanobot.cron.types import LAST_MS, CronError, CronSchedule
from nanobot.cron.zones import reading, wall_at

_HOUR = 1
_EVERY_HOUR = frozenset(range(24))
_BY_CHANCE = re.compile(r"(?:^|[\s,])[rh](?:$|[\s,/(])", re.IGNORECASE)
"""Croniter's R and H: a time that is drawn anew at each reading is no time to wait for."""
_LONG_AGO = datetime(2000, 1, 1)


def to_ms(instant: datetime) -> int:
    """Milliseconds since 1970, as the file has them."""
    return round(instant.timestamp() * 1000)


def from_ms(ms: int, zone: tzinfo = UTC) -> datetime:
    """The instant, on the wall clock of the zone."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)).astimezone(zone)


def check(schedule: CronSchedule) -> None:
    """Raises CronError where the schedule says nothing, or nothing that a calendar knows."""
    if schedule.kind == "at":
        if schedule.at_ms is None or not 0 <= schedule.at_ms < LAST_MS:
            raise CronError("A job that runs once needs its time, for example 2026-12-24T18:00.")
    elif schedule.kind == "every":
        if not schedule.every_ms or not 0 < schedule.every_ms < LAST_MS:
            raise CronError("An interval must be more than 0 seconds.")
    elif schedule.kind == "cron":
        _runs_every_hour(schedule.expr or "")
    else:
        raise CronError(f"unknown kind of schedule {schedule.kind!r}. Use at, every or cron.")


def instants(schedule: CronSchedule, after_ms: int, *, zone: tzinfo, anchor_ms: int) -> Iterator[int]:
    """When the schedule comes due after that instant, in order, in milliseconds. Raises CronError as `check` does."""
    check(schedule)
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


def next_instant(schedule: CronSchedule, after_ms: int, *, zone: tzinfo, anchor_ms: int) -> int | None:
    """The first of them; None where there is none."""
    return next(instants(schedule, after_ms, zone=zone, anchor_ms=anchor_ms), None)


def is_moved(schedule: CronSchedule, due_ms: int, zone: tzinfo) -> bool:
    """Whether this instant of an expression stands for a time of day that the clocks have just jumped over."""
    due = from_ms(due_ms, zone)
    if schedule.kind != "cron" or due.utcoffset() == from_ms(due_ms - 1, zone).utcoffset():
        return False
    wall = wall_at(due, zone)
    return next(_walls(schedule.expr or "", wall - timedelta(seconds=1)), None) != wall


def count_between(
    schedule: CronSchedule, first_ms: int, until_ms: int, *, zone: tzinfo, anchor_ms: int, most: int
) -> tuple[int, int]:
    """How many instants there are from `first_ms`, which is one, to `until_ms`, and the last of them.

    Counts to `most` and leaves it there: a minute's job that slept for years is not counted out.
    """
    if schedule.kind == "every":
        steps = max(until_ms - first_ms, 0) // (schedule.every_ms or 1)
        return steps + 1, first_ms + steps * (schedule.every_ms or 1)
    count, last = 1, first_ms
    for due in instants(schedule, first_ms, zone=zone, anchor_ms=anchor_ms):
        if due > until_ms:
            break
        count, last = count + 1, due
        if count >= most:
            return count, last_between(schedule, last, until_ms, zone=zone, anchor_ms=anchor_ms)
    return count, last


def last_between(schedule: CronSchedule, first_ms: int, until_ms: int, *, zone: tzinfo, anchor_ms: int) -> int:
    """The last instant up to `until_ms`, from `first_ms` on, which is one. Looks from behind, in growing steps."""
    back = 60_000
    while until_ms - back > first_ms:
        found = list(_up_to(schedule, until_ms - back, until_ms, zone, anchor_ms))
        if found:
            return found[-1]
        back *= 8
    return max((first_ms, *_up_to(schedule, first_ms, until_ms, zone, anchor_ms)))


def _up_to(schedule: CronSchedule, after_ms: int, until_ms: int, zone: tzinfo, anchor_ms: int) -> Iterator[int]:
    for due in instants(schedule, after_ms, zone=zone, anchor_ms=anchor_ms):
        if due > until_ms:
            return
        yield due


@lru_cache(maxsize=256)
def _runs_every_hour(expr: str) -> bool:
    """Whether the expression leaves out no hour of a day. Raises CronError where it says nothing that ever comes."""
    from croniter import CroniterBadDateError, croniter  # 50 ms, for those who have such a job

    told = f"{expr!r} is no cron expression"
    hint = "Use minute, hour, day of the month, month, day of the week: `0 9 * * 1-5` is every weekday at 9:00."
    if _BY_CHANCE.search(expr):
        raise CronError(f"{told} that can be kept: R and H draw their time by chance. {hint}")
    try:
        parsed = croniter(expr, _LONG_AGO)
        parsed.get_next(datetime)
    except CroniterBadDateError as error:
        raise CronError(f"{expr!r} never comes due: no calendar has such a day. {hint}") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:  # as it stumbles
        raise CronError(f"{told}: {error}. {hint}") from error
    hours: Any = parsed.expanded[_HOUR]
    return hours == ["*"] or set(hours) >= _EVERY_HOUR


def _walls(expr: str, start: datetime) -> Iterator[datetime]:
    """The wall times after that one that match, in order, until the calendar ends."""
    from croniter import CroniterBadDateError, croniter

    try:
        parsed = croniter(expr, start)
        while True:
            yield parsed.get_next(datetime)
    except (CroniterBadDateError, OverflowError):
        return


def _matches(expr: str, after: datetime, zone: tzinfo) -> Iterator[datetime]:
    return _by_passing_time(expr, after, zone) if _runs_every_hour(expr) else _by_the_wall(expr, after, zone)


def _by_the_wall(expr: str, after: datetime, zone: tzinfo) -> Iterator[datetime]:
    """Each matching time of day once. The instants of wall times never fall, so nothing before the wall is missed."""
    last = after
    for wall in _walls(expr, wall_at(after, zone).replace(fold=0)):
        at = reading(wall, zone).first
        if at > last:
            yield at
            last = at


def _by_passing_time(expr: str, after: datetime, zone: tzinfo) -> Iterator[datetime]:
    """Every instant at which the clocks show a matching time. Near a clock change each is looked for by itself."""
    last, walls = after, _walls(expr, wall_at(after, zone).replace(fold=0))
    while (wall := next(walls, None)) is not None:
        shown = reading(wall, zone)
        if shown.is_plain and reading(wall_at(last, zone).replace(fold=0), zone).is_plain:
            yield shown.first
            last = shown.first
            continue
        found = _next_shown(expr, last, zone)
        if found is None:
            return
        yield found
        last, walls = found, _walls(expr, wall_at(found, zone).replace(fold=0))


def _next_shown(expr: str, after: datetime, zone: tzinfo) -> datetime | None:
    wall = wall_at(after, zone)
    shown_now = reading(wall.replace(fold=0), zone)
    candidates = []
    if shown_now.second is not None and wall.fold == 0:  # the clocks are about to go back: the second pass counts too
        back = shown_now.second - shown_now.first
        for earlier in _walls(expr, wall.replace(fold=0) - back):
            again = reading(earlier, zone)
            if earlier > wall.replace(fold=0) + back:
                break
            if again.second is not None and again.second > after:
                candidates.append(again.second)
                break
    for later in _walls(expr, wall.replace(fold=0)):
        shown = reading(later, zone)
        at = next((at for at in (shown.first, shown.second) if at is not None and at > after), None)
        if at is not None and shown.jump is None:
            candidates.append(at)
            break
    return min(candidates, default=None)
