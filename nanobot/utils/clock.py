"""Clocks. Code that needs the time asks a Clock, so that tests can control it."""

import os
import time
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """The time, with its time zone."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, for measuring."""
        ...


class SystemClock:
    """The host's clock, in the host's zone or a given one."""

    def __init__(self, zone: tzinfo | None = None) -> None:
        self._zone = zone

    def now(self) -> datetime:
        return datetime.now(self._zone).astimezone(self._zone)

    def monotonic(self) -> float:
        return time.monotonic()


class FrozenClock:
    """A clock that only moves with `advance`."""

    def __init__(self, now: datetime) -> None:
        self._now = now.astimezone() if now.tzinfo is None else now
        self._monotonic = 0.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        """Seconds advanced so far."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds


def timestamp(clock: Clock) -> str:
    """Now, as stored in session rows: local time in ISO format, without a zone."""
    return clock.now().replace(tzinfo=None).isoformat()


def zone_name(moment: datetime) -> str:
    """The zone of an aware datetime: an IANA name if known, else its abbreviation."""
    if moment.tzinfo == UTC:
        return "UTC"
    if key := getattr(moment.tzinfo, "key", None):
        return str(key)
    host = ""
    if moment.astimezone().utcoffset() == moment.utcoffset():
        host = os.environ.get("TZ", "").removeprefix(":")
        if not host or host.startswith("/"):  # a file; Windows has none
            host = (host or os.path.realpath("/etc/localtime")).partition("zoneinfo/")[2]
    return host or moment.tzname() or "local time"


def find_zone(name: str | None) -> tzinfo | None:
    """The zone of that IANA name; None, meaning the host's, if the name is empty or unknown."""
    if not name:
        return None
    from zoneinfo import ZoneInfo  # slow import (10 ms), rarely needed

    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        return None
