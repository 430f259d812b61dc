"""What time it is. Everything that asks for the time asks a Clock, so that a test may hold it still."""

import os
import time
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> datetime:
        """The wall clock, aware of its zone."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, for measuring."""
        ...


class SystemClock:
    """The host's clock, in the host's zone or in the one given."""

    def __init__(self, zone: tzinfo | None = None) -> None:
        self._zone = zone

    def now(self) -> datetime:
        """The wall clock, aware of its zone."""
        return datetime.now(self._zone).astimezone(self._zone)

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()


class FrozenClock:
    """Stands still until it is told to go on."""

    def __init__(self, now: datetime) -> None:
        self._now = now.astimezone() if now.tzinfo is None else now
        self._monotonic = 0.0

    def now(self) -> datetime:
        """The moment it stands at."""
        return self._now

    def monotonic(self) -> float:
        """Seconds gone by since it was made."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time go by."""
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds


def timestamp(clock: Clock) -> str:
    """Now, as rows of a session carry it: local time in ISO form, without a zone."""
    return clock.now().replace(tzinfo=None).isoformat()


def zone_name(moment: datetime) -> str:
    """The zone of an aware moment as people write it: `Asia/Shanghai` where that is known, else its abbreviation."""
    if moment.tzinfo == UTC:
        return "UTC"
    if key := getattr(moment.tzinfo, "key", None):
        return str(key)
    is_local = moment.astimezone().utcoffset() == moment.utcoffset()
    return (is_local and _host_zone()) or moment.tzname() or "local time"


def _host_zone() -> str:
    """The host's zone as the tz database names it; empty where the host does not say (Windows)."""
    named = os.environ.get("TZ", "").removeprefix(":")
    place = named if named.startswith("/") else f"zoneinfo/{named}" if named else os.path.realpath("/etc/localtime")
    return place.partition("zoneinfo/")[2]


def zone_named(name: str | None) -> tzinfo | None:
    """The zone of that IANA name; None, which is the host's, for none or for one this host does not know."""
    if not name:
        return None
    from zoneinfo import ZoneInfo  # 10 ms that most people, who live where their host does, need not wait

    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        return None
