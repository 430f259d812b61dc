"""When a schedule is due, the coming runs of all jobs, and the only place that knows about clock changes.

- `at`: once.
- `every`: at fixed intervals from an anchor, so that a restart does not shift them.
- `cron`: by the zone's wall clock. A time of day that occurs twice (clocks go back) runs once, the first time; one
  that is skipped runs when the clocks jump. An expression that matches in every hour follows elapsed time instead: it
  runs in both repeated hours and not in a skipped one.
"""

import heapq
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import groupby, islice, takewhile
from math import inf
from operator import attrgetter
from typing import Any

from nanobot.cron.types import DAY_MS, LAST_MS, MINUTE_MS, CronError, CronJob, CronSchedule
from nanobot.utils.text import nearest

_HOUR = 1
_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
_EVERY_HOUR = frozenset(range(24))
_RANDOM_FIELD = re.compile(r"(?:^|[\s,])[rh](?:$|[\s,/(])", re.IGNORECASE)
"""Croniter's R and H fields: random values, different at each evaluation."""
_CRONITER_START = datetime(2000, 1, 1)
_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)


def to_ms(instant: datetime) -> int:
    """Milliseconds since 1970."""
    return round(instant.timestamp() * 1000)


def from_ms(ms: int, zone: tzinfo = UTC) -> datetime:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)).astimezone(zone)


# -- zones and clock changes -------------------------------------------------------------------------------------------


class HostZone(tzinfo):
    """The host's time zone with its clock changes, from the C library."""

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        if moment is None:
            return None
        return moment.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, moment: datetime | None) -> timedelta | None:
        return None

    def tzname(self, moment: datetime | None) -> str | None:
        return None if moment is None else moment.replace(tzinfo=None).astimezone().tzname()

    def fromutc(self, moment: datetime) -> datetime:
        wall = datetime.fromtimestamp(moment.replace(tzinfo=UTC).timestamp())
        return wall.replace(tzinfo=self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HostZone)

    def __hash__(self) -> int:
        return hash(HostZone)


HOST = HostZone()


def zone_of(*names: str | None) -> tzinfo:
    """The zone of the first name given, else the host's. Raises CronError for an unknown name."""
    name = next((name.strip() for name in names if name and name.strip()), None)
    if name is None:
        return HOST
    from zoneinfo import ZoneInfo, available_timezones  # takes 10 ms

    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:
        known = available_timezones()
        near = nearest(name, known, 1)
        hint = f" Did you mean {near[0]}?" if near else " Use a name such as Europe/Berlin."
        if not known:
            hint = " This host has no time zone data: `pip install tzdata` brings it."
        raise CronError(f"unknown timezone {name!r}.{hint}") from error


def job_zone(job: CronJob, user_zone: str | None) -> tzinfo:
    """The job's own zone, else the user's, else the host's. Raises CronError."""
    return zone_of(job.schedule.tz, user_zone)


def job_zone_or_host(job: CronJob, user_zone: str | None) -> tzinfo:
    """The zone to show a job's times in; the host's if the job's is invalid."""
    try:
        return job_zone(job, user_zone)
    except CronError:
        return HOST


def wall_at(instant: datetime, zone: tzinfo) -> datetime:
    """The wall time in the zone at that instant, naive (with fold)."""
    return instant.astimezone(zone).replace(tzinfo=None)


@dataclass(frozen=True, slots=True)
class WallTime:
    """The instants (UTC) at which a wall time is shown: `second` if it occurs twice.

    A skipped wall time is shown when the clocks jump.
    """

    first: datetime
    second: datetime | None = None


def read_wall_time(wall: datetime, zone: tzinfo) -> WallTime:
    early, late = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if early <= late:
        return WallTime(early, late if early < late else None)
    return WallTime(_change_between(late, early, zone))  # in a gap, PEP 495 gives the later instant first


def _change_between(early: datetime, late: datetime, zone: tzinfo) -> datetime:
    """The first whole second with another UTC offset than at `early`."""
    before = early.astimezone(zone).utcoffset()
    while late - early > _SECOND:
        middle = max((early + (late - early) / 2).replace(microsecond=0), early + _SECOND)
        if middle.astimezone(zone).utcoffset() == before:
            early = middle
        else:
            late = middle
    return late.replace(microsecond=0)


@dataclass(frozen=True, slots=True)
class ClockChange:
    """A clock change: when, and the UTC offsets before and after."""

    at: datetime
    before: timedelta
    after: timedelta


def clock_changes(zone: tzinfo, start: datetime, end: datetime) -> Iterator[ClockChange]:
    """The clock changes of that period, in order."""
    early, end = start.astimezone(UTC).replace(microsecond=0), end.astimezone(UTC)
    before = early.astimezone(zone).utcoffset() or timedelta()
    while early < end:
        late = min(early + _DAY, end)
        after = late.astimezone(zone).utcoffset() or timedelta()
        if before != after:
            yield ClockChange(_change_between(early, late, zone).astimezone(zone), before, after)
        early, before = late, after


# -- schedules ---------------------------------------------------------------------------------------------------------


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
        expr = schedule.expr or ""
        matches = _by_elapsed_time if _covers_every_hour(expr) else _by_wall_time
        yield from map(to_ms, matches(expr, from_ms(after_ms), zone))


def seconds_between_runs(schedule: CronSchedule) -> float:
    """Seconds between the first two runs since 1970; infinite if there is only one."""
    runs = list(islice(instants(schedule, 0, zone=UTC, anchor_ms=0), 2))
    return (runs[1] - runs[0]) / 1000 if len(runs) == 2 else inf


def next_instant(schedule: CronSchedule, after_ms: int, *, zone: tzinfo, anchor_ms: int) -> int | None:
    """The first due instant after `after_ms`, or None."""
    return next(instants(schedule, after_ms, zone=zone, anchor_ms=anchor_ms), None)


def _is_moved(schedule: CronSchedule, due_ms: int, zone: tzinfo) -> bool:
    """Whether this due instant replaces a time of day that the clocks skipped."""
    due = from_ms(due_ms, zone)
    if schedule.kind != "cron" or due.utcoffset() == from_ms(due_ms - 1, zone).utcoffset():
        return False
    wall = wall_at(due, zone)
    return next(_wall_times(schedule.expr or "", wall - _SECOND), None) != wall


def missed_between(
    schedule: CronSchedule, first_ms: int, until_ms: int, *, zone: tzinfo, limit: int
) -> tuple[int, int, int]:
    """The number of due instants from `first_ms` (itself one) to `until_ms`, the last but one of them, and the last.

    Counts up to `limit` (at least 2), for a job every minute that was missed for years; the two instants are exact.
    """
    if schedule.kind == "every":
        every = schedule.every_ms or 1
        steps = max(until_ms - first_ms, 0) // every
        return steps + 1, first_ms + max(steps - 1, 0) * every, first_ms + steps * every

    def due_after(after_ms: int) -> Iterator[int]:
        due = instants(schedule, after_ms, zone=zone, anchor_ms=first_ms)
        return takewhile(lambda due_ms: due_ms <= until_ms, due)

    missed = [first_ms, *islice(due_after(first_ms), limit - 1)]
    last_two, window_ms = missed[-2:], MINUTE_MS
    while len(missed) == limit:
        last_two = [*deque(due_after(max(until_ms - window_ms, first_ms - 1)), maxlen=2)]
        if len(last_two) == 2:
            break
        window_ms *= 8
    return len(missed), last_two[0], last_two[-1]


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


def _by_wall_time(expr: str, after: datetime, zone: tzinfo) -> Iterator[datetime]:
    """Each matching time of day once. The instants of increasing wall times never decrease."""
    last = after
    for wall in _wall_times(expr, wall_at(after, zone).replace(fold=0)):
        at = read_wall_time(wall, zone).first
        if at > last:
            yield at
            last = at


def _by_elapsed_time(expr: str, after: datetime, zone: tzinfo) -> Iterator[datetime]:
    """Every instant at which the clocks show a matching time, from one clock change to the next."""
    last, offset = after, after.astimezone(zone).utcoffset() or timedelta()
    wall_times = _wall_times(expr, wall_at(after, zone).replace(fold=0))
    while (wall := next(wall_times, None)) is not None:
        at = (wall - offset).replace(tzinfo=UTC)
        change = next(clock_changes(zone, last, at), None)
        if change is None:
            yield at
            last = at
        else:
            last, offset = change.at.astimezone(UTC), change.after
            wall_times = _wall_times(expr, wall_at(last, zone).replace(fold=0) - _SECOND)


@dataclass(frozen=True, slots=True)
class SimulatedEvent:
    """One run of a job, or a clock change (without a job)."""

    at_ms: int
    zone: tzinfo
    job: CronJob | None = None
    remark: str = ""
    """How a clock change affects the run, or what changes."""
    collides: tuple[str, ...] = ()
    """Names of other jobs in the same minute."""

    @property
    def description(self) -> str:
        """Remark and collisions; empty for a plain run."""
        collides = f"collides with {', '.join(self.collides)}" if self.collides else ""
        return "; ".join(part for part in (self.remark, collides) if part)

    def to_json(self) -> dict[str, object]:
        """As in `nanobot cron rehearse --json`."""
        at = from_ms(self.at_ms, self.zone).isoformat()
        row = {"atMs": self.at_ms, "at": at, "jobId": self.job and self.job.id, "remark": self.remark}
        return row if self.job is None else {**row, "name": self.job.name, "collidesWith": list(self.collides)}


def simulate(jobs: Sequence[CronJob], days: float, user_zone: str | None) -> Iterator[SimulatedEvent]:
    """Runs and clock changes of the coming days, in order, for enabled jobs. Raises CronError."""
    start_ms = to_ms(datetime.now(UTC))
    end_ms = start_ms + round(days * DAY_MS)
    zones = {job.id: job_zone(job, user_zone) for job in jobs if job.enabled and job.is_agent_turn}
    changes, when = [], attrgetter("at_ms")
    for zone in dict.fromkeys(zones.values()):
        for change in clock_changes(zone, from_ms(start_ms), from_ms(end_ms)):
            by = change.after - change.before
            remark = f"clocks go {'forward' if by > timedelta() else 'back'} by {abs(by) // timedelta(minutes=1)} min"
            changes.append(SimulatedEvent(to_ms(change.at), zone, remark=remark))
    streams = [_runs_of(job, start_ms, end_ms, zones[job.id]) for job in jobs if job.id in zones]

    def runs() -> Iterator[SimulatedEvent]:
        for _, group in groupby(heapq.merge(*streams, key=when), key=lambda run: run.at_ms // MINUTE_MS):
            together = list(group)
            names = {run.job.id: run.job.name for run in together if run.job is not None}
            for run in together:
                others = (name for job_id, name in names.items() if run.job is None or job_id != run.job.id)
                yield replace(run, collides=tuple(others))

    return heapq.merge(sorted(changes, key=when), runs(), key=when)


def _runs_of(job: CronJob, start_ms: int, end_ms: int, zone: tzinfo) -> Iterator[SimulatedEvent]:
    anchor = job.state.next_run_at_ms or job.created_at_ms or start_ms
    for due in instants(job.schedule, start_ms, zone=zone, anchor_ms=anchor):
        if due >= end_ms:
            return
        remark, wall = "", wall_at(from_ms(due), zone)
        if _is_moved(job.schedule, due, zone):
            remark = "this time of day is skipped on this day"
        elif job.schedule.kind == "cron" and read_wall_time(wall.replace(fold=0), zone).second is not None:
            remark = f"this hour occurs twice; {'second' if wall.fold else 'first'} time"
        yield SimulatedEvent(due, zone, job, remark)
