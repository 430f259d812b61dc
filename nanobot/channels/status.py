"""The observed state of one channel: whether it is connected, and when it last received and sent.

Health, `status` and the supervisor read this and nothing else.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from nanobot.utils.clock import Clock, SystemClock

REFUSED_S = 600.0
"""How long an undelivered message is reported, unless one was sent since."""


class ChannelState(StrEnum):
    OFF = "off"
    CONNECTING = "connecting"
    UP = "up"
    DOWN = "down"
    """Not connected; the supervisor reconnects."""
    FAILED = "failed"
    """The owner has to change something."""


@dataclass(slots=True)
class ChannelStatus:
    """State, counters and times of one channel. Times come from `clock`."""

    clock: Clock = field(default_factory=SystemClock)
    state: ChannelState = ChannelState.OFF
    since: datetime | None = None
    """When `state` last changed."""
    last_seen: float = 0.0
    """When the platform last answered anything, by `clock.monotonic`."""
    last_received: datetime | None = None
    last_sent: datetime | None = None
    last_error: str = ""
    received: int = 0
    sent: int = 0
    failed: int = 0
    gone_since: float | None = None
    """When it was last connected or first tried, by `clock.monotonic`; None while it is connected."""
    failed_at: float | None = None
    """When the last message failed; None if it was sent."""
    refusal: str = ""
    """Why it failed."""
    connected: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    """Set while the state is UP."""

    def touch(self) -> None:
        """Record that the platform answered: a poll, a ping, a message."""
        self.last_seen = self.clock.monotonic()

    def set_state(self, state: ChannelState, error: str = "") -> bool:
        """Enter a state. Return whether it differs from the previous one."""
        is_new = state is not self.state
        if is_new:
            self.state, self.since = state, self.clock.now()
        if error:
            self.last_error = error
        if state is ChannelState.UP:
            self.last_error, self.gone_since = "", None
            self.connected.set()
        else:
            self.connected.clear()
            if self.gone_since is None:
                self.gone_since = self.clock.monotonic()
        self.touch()
        return is_new

    def record_received(self) -> None:
        self.received += 1
        self.last_received = self.clock.now()
        self.touch()

    def record_sent(self) -> None:
        self.sent += 1
        self.failed_at = None
        self.last_sent = self.clock.now()
        self.touch()

    def record_failed(self, error: str) -> None:
        """Record a message that the platform did not take."""
        self.failed += 1
        self.last_error = self.refusal = error
        self.failed_at = self.clock.monotonic()

    @property
    def gone_s(self) -> float:
        """How long it has been disconnected, in seconds."""
        return 0.0 if self.gone_since is None else self.clock.monotonic() - self.gone_since

    @property
    def undelivered(self) -> str:
        """Why the last message was not delivered; empty if it was, or if there was none lately."""
        is_recent = self.failed_at is not None and self.clock.monotonic() - self.failed_at <= REFUSED_S
        return self.refusal if is_recent else ""

    def to_json(self) -> dict[str, Any]:
        """The status for health and `status`: times in ISO format with offset, `silentS` in seconds."""
        return {
            "state": self.state.value,
            "since": self.since and self.since.isoformat(timespec="seconds"),
            "silentS": round(self.clock.monotonic() - self.last_seen, 1),
            "lastReceived": self.last_received and self.last_received.isoformat(timespec="seconds"),
            "lastSent": self.last_sent and self.last_sent.isoformat(timespec="seconds"),
            "lastError": self.last_error,
            "received": self.received,
            "sent": self.sent,
            "failed": self.failed,
        }
