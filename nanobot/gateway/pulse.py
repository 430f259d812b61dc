"""The pulse: once a second, how late the event loop comes round, and when each channel was last connected.

What beats here also tells the service manager that the gateway lives: a loop that hangs beats no more.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from nanobot.channels.evidence import ChannelState, Evidence
from nanobot.utils.clock import Clock

BEAT_S = 1.0
REFUSED_S = 600.0
"""How long a message that no platform took makes the gateway unwell, where none was sent since."""
_REMEMBERED = 60


@dataclass(slots=True)
class _Sends:
    """What became of the messages that a channel was handed, from beat to beat."""

    sent: int = 0
    failed: int = 0
    refused_at: float | None = None
    why: str = ""

    def look(self, evidence: Evidence, now: float) -> None:
        if evidence.sent > self.sent:
            self.refused_at = None
        if evidence.failed > self.failed:
            self.refused_at, self.why = now, evidence.last_error
        self.sent, self.failed = evidence.sent, evidence.failed


class Pulse:
    """Beats while it runs."""

    def __init__(
        self, clock: Clock, channels: Callable[[], Mapping[str, Evidence]], told: "Callable[[str], None] | None" = None
    ) -> None:
        """`told` hears what is for the service manager."""
        self._clock = clock
        self._channels = channels
        self._told = told or tell_service_manager
        self._late: deque[float] = deque(maxlen=_REMEMBERED)
        self._last = clock.monotonic()
        self._up: dict[str, float] = {}
        self._sends: dict[str, _Sends] = {}

    @property
    def silent_s(self) -> float:
        """Seconds since the last beat."""
        return self._clock.monotonic() - self._last

    @property
    def lag_s(self) -> float:
        """How late the loop came round at its worst in the last minute."""
        return max(self._late, default=0.0)

    def gone_s(self, name: str) -> float:
        """How long that channel has not been connected; since it was first looked for, where it never was."""
        return self._clock.monotonic() - self._up.setdefault(name, self._clock.monotonic())

    def refused(self, name: str) -> str | None:
        """Why that channel's platform took no message lately; None where it took the last one, or none was sent."""
        sends = self._sends.get(name)
        if sends is None or sends.refused_at is None or self._clock.monotonic() - sends.refused_at > REFUSED_S:
            return None
        return sends.why

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            self.beat()
            due = self._clock.monotonic() + BEAT_S
            await asyncio.sleep(BEAT_S)
            self._late.append(max(0.0, self._clock.monotonic() - due))

    def beat(self) -> None:
        """One beat."""
        self._last = self._clock.monotonic()
        channels = self._channels()
        self._up = {name: since for name, since in self._up.items() if name in channels}
        self._sends = {name: sends for name, sends in self._sends.items() if name in channels}
        for name, evidence in channels.items():
            if evidence.state is ChannelState.UP or name not in self._up:
                self._up[name] = self._last
            self._sends.setdefault(name, _Sends()).look(evidence, self._last)
        self._told("WATCHDOG=1")


def tell_service_manager(state: str) -> None:
    """What systemd wants to hear, where it listens. Never raises. The protocol: sd_notify(3) of systemd."""
    place = os.environ.get("NOTIFY_SOCKET")
    if not place or not hasattr(socket, "AF_UNIX"):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
        to.setblocking(False)
        to.connect("\0" + place[1:] if place.startswith("@") else place)
        to.send(state.encode())
