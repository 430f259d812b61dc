"""What time it is. Everything that asks for the time asks a Clock, so that a test may hold it still."""

import time
from datetime import datetime, timedelta, tzinfo
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


def zone_named(name: str | None) -> tzinfo | None:
    """The zone of that IANA name; None, which is the host's, for none or for one this host does not know."""
    if not name:
        return None
    from zoneinfo import ZoneInfo  # 10 ms that most people, who live where their host does, need not wait

    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        return None
