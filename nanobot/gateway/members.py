"""What lives in the gateway, each behind a wall: one that dies is begun anew after a while, and the others never know.

A member is a name and something to run. One that can say when it last did anything is not believed when it has been
silent for too long: it is cut off and begun anew.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from nanobot.utils.clock import Clock

log = logging.getLogger(__name__)

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0
STEADY_S = 300.0
"""One that lived this long is trusted again: its next end is its first."""
STARTING_S = 30.0
"""How long one that has just begun is given before its silence counts."""


@dataclass(slots=True)
class Member:
    """One life in the gateway, and how it went so far."""

    name: str
    run: Callable[[], Awaitable[object]]
    """Runs until it is cancelled. Returning is an end in good order; raising is one that is begun anew."""
    silent_s: Callable[[], float | None] = lambda: None
    """Seconds since it last did anything; None for one that need not do anything."""
    stale_s: float | None = None
    """After so long a silence it is cut off and begun anew."""
    problem: Callable[[], str | None] = lambda: None
    """What keeps it from its work, in a line."""
    alive: bool = False
    ended: bool = False
    """Whether it came to its end in good order."""
    restarts: int = 0
    last_error: str = ""
    began: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """For health and status."""
        silent_s = self.silent_s()
        return {
            "alive": self.alive,
            "restarts": self.restarts,
            "lastTickS": None if silent_s is None else round(silent_s, 1),
            "lastError": self.problem() or self.last_error,
        }


@dataclass(slots=True)
class Members:
    """All of them."""

    clock: Clock
    first_wait_s: float = FIRST_WAIT_S
    starting_s: float = STARTING_S
    known: dict[str, Member] = field(default_factory=dict)

    def add(self, member: Member) -> None:
        """One more, before `run`."""
        self.known[member.name] = member

    async def run(self) -> None:
        """Keep all of them alive until this is cancelled. Never raises for one of them."""
        async with asyncio.TaskGroup() as lives:
            for member in self.known.values():
                lives.create_task(self._keep(member), name=f"keeper of {member.name}")

    async def _keep(self, member: Member) -> None:
        wait_s = self.first_wait_s
        while True:
            member.began, member.alive = self.clock.monotonic(), True
            try:
                await self._until_it_is_stale(member)
                member.ended = True
                return
            except Exception as error:  # the wall of a member: whatever broke in it stays in it
                member.last_error = f"{type(error).__name__}: {error}"
                log.exception("%s broke; it is begun anew in %.0f s", member.name, wait_s)
            finally:
                member.alive = False
            if self.clock.monotonic() - member.began > STEADY_S:
                wait_s = self.first_wait_s
            await asyncio.sleep(wait_s)
            member.restarts += 1
            wait_s = min(wait_s * 2, LONGEST_WAIT_S)

    async def _until_it_is_stale(self, member: Member) -> None:
        """Run it; raises what it raises, and TimeoutError when it has been silent for too long."""
        running = asyncio.ensure_future(member.run())
        try:
            while not running.done():
                await asyncio.wait([running], timeout=member.stale_s and member.stale_s / 3)
                silent_s, age_s = member.silent_s() or 0.0, self.clock.monotonic() - member.began
                if member.stale_s and min(silent_s, age_s - self.starting_s) > member.stale_s and not running.done():
                    raise TimeoutError(f"no sign of life for {silent_s:.0f} s")
        finally:
            running.cancel()
            await asyncio.wait([running])
        await running
