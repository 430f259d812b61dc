"""Time zones, and converting wall times to instants around clock changes.

A wall time that occurs twice means the first occurrence; a skipped one means the moment the clocks jump.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from nanobot.cron.types import CronError
from nanobot.utils.text import nearest

_SECOND = timedelta(seconds=1)


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


def wall_at(instant: datetime, zone: tzinfo) -> datetime:
    """The wall time in the zone at that instant, naive (with fold)."""
    return instant.astimezone(zone).replace(tzinfo=None)


@dataclass(frozen=True, slots=True)
class WallTime:
    """The instants at which a wall time is shown. `jump` is set if it is skipped: when the clocks jump."""

    first: datetime
    second: datetime | None = None
    jump: datetime | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it occurs exactly once."""
        return self.second is None and self.jump is None


def read_wall_time(wall: datetime, zone: tzinfo) -> WallTime:
    """The instants (UTC) of a naive wall time."""
    early, late = (_at(wall, zone, fold) for fold in (0, 1))
    if early == late:
        return WallTime(early)
    if early < late:
        return WallTime(early, second=late)
    jump = _change_between(late, early, zone)  # in a gap, PEP 495 gives the later instant first
    return WallTime(jump, jump=jump)


def _at(wall: datetime, zone: tzinfo, fold: int) -> datetime:
    return wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)


def _change_between(early: datetime, late: datetime, zone: tzinfo) -> datetime:
    """The first whole second with another UTC offset than at `early`."""
    before = early.astimezone(zone).utcoffset()
    while late - early > _SECOND:
        middle = (early + (late - early) / 2).replace(microsecond=0)
        middle = middle if middle > early else early + _SECOND
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
    step = timedelta(days=1)
    early = start.astimezone(UTC).replace(microsecond=0)
    while early < end:
        late = min(early + step, end.astimezone(UTC))
        before, after = early.astimezone(zone).utcoffset(), late.astimezone(zone).utcoffset()
        if before != after and before is not None and after is not None:
            yield ClockChange(_change_between(early, late, zone).astimezone(zone), before, after)
        early = late
