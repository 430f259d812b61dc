"""What shows that a channel lives: not that it was started, but what came and went, and when.

Health, `status` and the supervisor all read this and nothing else.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from nanobot.utils.clock import Clock, SystemClock


class ChannelState(StrEnum):
    """How a channel is."""

    OFF = "off"
    CONNECTING = "connecting"
    UP = "up"
    DOWN = "down"
    """Out of reach; it is tried again by itself."""
    FAILED = "failed"
    """Its owner has to change something."""


@dataclass(slots=True)
class Evidence:
    """The signs of life of one channel. Times are of the clock that was handed in."""

    clock: Clock = field(default_factory=SystemClock)
    state: ChannelState = ChannelState.OFF
    since: datetime | None = None
    """When it came into this state."""
    last_sign: float = 0.0
    """When the platform last answered anything, by `clock.monotonic`."""
    last_received: datetime | None = None
    last_sent: datetime | None = None
    last_error: str = ""
    received: int = 0
    sent: int = 0
    failed: int = 0
    connected: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    """Set while it is up: for who waits with a message."""

    def sign(self) -> None:
        """The platform answered: a poll, a ping, a message."""
        self.last_sign = self.clock.monotonic()

    def turn(self, state: ChannelState, error: str = "") -> bool:
        """It is like this now. Whether that is news."""
        news = state is not self.state
        if news:
            self.state, self.since = state, self.clock.now()
        if error:
            self.last_error = error
        if state is ChannelState.UP:
            self.last_error = ""
            self.connected.set()
        else:
            self.connected.clear()
        self.sign()
        return news

    def came(self) -> None:
        """A message came."""
        self.received += 1
        self.last_received = self.clock.now()
        self.sign()

    def went(self) -> None:
        """The platform took a message."""
        self.sent += 1
        self.last_sent = self.clock.now()
        self.sign()

    def refused(self, error: str) -> None:
        """The platform will not take a message."""
        self.failed += 1
        self.last_error = error

    def to_json(self) -> dict[str, Any]:
        """For health and status; times with their offset, seconds since the last sign."""
        return {
            "state": self.state.value,
            "since": self.since and self.since.isoformat(timespec="seconds"),
            "silentS": round(self.clock.monotonic() - self.last_sign, 1),
            "lastReceived": self.last_received and self.last_received.isoformat(timespec="seconds"),
            "lastSent": self.last_sent and self.last_sent.isoformat(timespec="seconds"),
            "lastError": self.last_error,
            "received": self.received,
            "sent": self.sent,
            "failed": self.failed,
        }
