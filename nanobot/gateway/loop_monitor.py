"""Measures the event loop's delay once a second, tracks channel connections, and pings the systemd watchdog.

A blocked event loop stops the pings, so that systemd restarts the gateway.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from nanobot.channels.status import ChannelState, ChannelStatus
from nanobot.utils.clock import Clock

BEAT_S = 1.0
REFUSED_S = 600.0
"""How long an undelivered message is reported, unless one was sent since."""
_SAMPLES = 60


@dataclass(slots=True)
class _Sends:
    """The send results of a channel at the last beat."""

    sent: int = 0
    failed: int = 0
    refused_at: float | None = None
    reason: str = ""

    def update(self, status: ChannelStatus, now: float) -> None:
        if status.sent > self.sent:
            self.refused_at = None
        if status.failed > self.failed:
            self.refused_at, self.reason = now, status.last_error
        self.sent, self.failed = status.sent, status.failed


class LoopMonitor:
    """Measures once a second while it runs."""

    def __init__(
        self,
        clock: Clock,
        channels: Callable[[], Mapping[str, ChannelStatus]],
        notify: "Callable[[str], None] | None" = None,
    ) -> None:
        """`notify` receives the messages for the service manager."""
        self._clock = clock
        self._channels = channels
        self._notify = notify or tell_service_manager
        self._delays: deque[float] = deque(maxlen=_SAMPLES)
        self._last = clock.monotonic()
        self._last_up: dict[str, float] = {}
        self._sends: dict[str, _Sends] = {}

    @property
    def silent_s(self) -> float:
        """Seconds since the last beat."""
        return self._clock.monotonic() - self._last

    @property
    def lag_s(self) -> float:
        """The event loop's longest delay in the last minute, in seconds."""
        return max(self._delays, default=0.0)

    def gone_s(self, name: str) -> float:
        """How long the channel has been disconnected, in seconds; counted from the first check if it never was."""
        return self._clock.monotonic() - self._last_up.setdefault(name, self._clock.monotonic())

    def refused(self, name: str) -> str | None:
        """Why the channel's last message was not delivered; None if it was, or if there was none lately."""
        sends = self._sends.get(name)
        if sends is None or sends.refused_at is None or self._clock.monotonic() - sends.refused_at > REFUSED_S:
            return None
        return sends.reason

    async def run(self) -> None:
        while True:
            self.beat()
            due = self._clock.monotonic() + BEAT_S
            await asyncio.sleep(BEAT_S)
            self._delays.append(max(0.0, self._clock.monotonic() - due))

    def beat(self) -> None:
        self._last = self._clock.monotonic()
        channels = self._channels()
        self._last_up = {name: since for name, since in self._last_up.items() if name in channels}
        self._sends = {name: sends for name, sends in self._sends.items() if name in channels}
        for name, status in channels.items():
            if status.state is ChannelState.UP or name not in self._last_up:
                self._last_up[name] = self._last
            self._sends.setdefault(name, _Sends()).update(status, self._last)
        self._notify("WATCHDOG=1")


def tell_service_manager(state: str) -> None:
    """Send a state to systemd, if it started the gateway. Never raises. The protocol: sd_notify(3) of systemd."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address or not hasattr(socket, "AF_UNIX"):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram:
        datagram.setblocking(False)
        datagram.connect("\0" + address[1:] if address.startswith("@") else address)
        datagram.send(state.encode())
