"""Keeps one channel connected: starts it, sees whether it lives, and starts it again.

A channel that says nothing for too long is not believed: it is cut off and made anew. Who waits for a connection waits
here, so that a network that is gone for an hour costs nothing but the hour.
"""

import asyncio
import logging
import random

from nanobot.channels.base import BaseChannel
from nanobot.channels.errors import ChannelSetupError
from nanobot.channels.evidence import ChannelState
from nanobot.errors import NanobotError
from nanobot.utils.aio import contained

log = logging.getLogger(__name__)

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 30.0
"""A network that comes back is noticed within this."""
SETUP_WAIT_S = 300.0
"""How often a channel is tried whose owner has to change something: they may have done so at the platform."""
GOODBYE_S = 5.0
"""How long a channel may take to say goodbye; nobody waits longer, neither a stop nor a changed config."""


class Supervisor:
    """The life of one channel. Never ends by itself, whatever the channel does."""

    def __init__(
        self, channel: BaseChannel, *, first_wait_s: float = FIRST_WAIT_S, goodbye_s: float = GOODBYE_S
    ) -> None:
        self._channel = channel
        self._goodbye_s = goodbye_s
        self._first_wait_s = first_wait_s

    async def run(self) -> None:
        """Keep the channel alive until this is cancelled; then it has stopped."""
        failures = 0
        try:
            while True:
                self._channel.evidence.turn(ChannelState.CONNECTING)
                began = self._channel.evidence.clock.monotonic()
                wait_s = await self._once(failures)
                lived = self._channel.evidence.clock.monotonic() - began > LONGEST_WAIT_S
                failures = 0 if lived else failures + 1
                await asyncio.sleep(wait_s)
        finally:
            await self._say_goodbye()
            self._channel.evidence.turn(ChannelState.OFF)

    async def _once(self, failures: int) -> float:
        """One connection, to its end; how long to wait before the next."""
        name, evidence = self._channel.name, self._channel.evidence
        try:
            await self._until_it_stalls()
            error = "the connection ended"
        except ChannelSetupError as setup:
            if evidence.last_error != str(setup):  # said once, not at each try
                log.error("%s: %s", name, setup)  # noqa: TRY400 the owner needs no traceback
            evidence.turn(ChannelState.FAILED, str(setup))
            return SETUP_WAIT_S
        except Exception as broken:  # the wall of a connection
            error = told_of(broken)
            log.debug("%s: the connection broke", name, exc_info=True)
        wait_s: float = min(self._first_wait_s * 2 ** min(failures, 10), LONGEST_WAIT_S) * random.uniform(0.8, 1)  # noqa: S311
        if failures == 0:
            log.warning("%s: not connected (%s); trying again until it is", name, error)
        evidence.turn(ChannelState.DOWN, error)
        return wait_s

    async def _say_goodbye(self) -> None:
        try:
            async with asyncio.timeout(self._goodbye_s):
                await contained(self._channel.stop())
        except TimeoutError:
            log.warning("%s: its stop took longer than %g s, and is left", self._channel.name, self._goodbye_s)
        except Exception:  # the wall of a connection: what is raised here would end every other channel too
            log.exception("%s: its stop broke", self._channel.name)

    async def _until_it_stalls(self) -> None:
        """Run the connection; cut it off when the platform has given no sign for too long. Raises what it raises."""
        channel, evidence = self._channel, self._channel.evidence
        evidence.sign()
        serving = asyncio.create_task(contained(channel.start()), name=f"channel {channel.name}")
        if not channel.says_when_up:
            channel.up()
        try:
            while not serving.done():
                left_s = channel.stall_s - (evidence.clock.monotonic() - evidence.last_sign)
                if channel.stall_s and left_s <= 0:
                    raise TimeoutError(f"no sign of life for {channel.stall_s:g} s")
                await asyncio.wait([serving], timeout=left_s if channel.stall_s else None)
        finally:
            serving.cancel()
            await asyncio.wait([serving])
        if serving.cancelled():  # by something of its own: nobody here wanted it to end
            raise ConnectionError("the connection was given up")
        await serving


def told_of(error: Exception) -> str:
    """An error in a line: ours says it all by itself, others need their name."""
    name, text = type(error).__name__, str(error)
    return text if isinstance(error, NanobotError) and text else f"{name}: {text}" if text else name
