"""Keeps one channel connected: starts it, watches for stalls, and reconnects with exponential backoff.

A connection on which the platform is silent for too long is closed and opened again.
"""

import asyncio
import logging
import random

from nanobot.channels.base import BaseChannel
from nanobot.channels.errors import ChannelSetupError
from nanobot.channels.status import ChannelState
from nanobot.errors import NanobotError
from nanobot.utils.aio import contain_errors
from nanobot.utils.storage_error import os_reason

log = logging.getLogger(__name__)

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 30.0
"""Longest backoff: a network that is back is noticed within this."""
SETUP_WAIT_S = 300.0
"""Retry interval of a channel whose owner has to change something: they may do so at the platform."""
STOP_TIMEOUT_S = 5.0
"""How long `stop` of a channel may take."""


class ChannelSupervisor:
    """Runs one channel. Never ends by itself, whatever the channel does."""

    def __init__(
        self, channel: BaseChannel, *, first_wait_s: float = FIRST_WAIT_S, stop_timeout_s: float = STOP_TIMEOUT_S
    ) -> None:
        self._channel = channel
        self._stop_timeout_s = stop_timeout_s
        self._first_wait_s = first_wait_s

    async def run(self) -> None:
        """Keep the channel connected until cancelled; it is stopped when the cancellation returns."""
        failures = 0
        if (inbox := self._channel.inbox) is not None:
            inbox.resume()
        try:
            while True:
                self._channel.status.set_state(ChannelState.CONNECTING)
                began = self._channel.status.clock.monotonic()
                wait_s = await self._connect_once(failures)
                was_stable = self._channel.status.clock.monotonic() - began > LONGEST_WAIT_S
                failures = 0 if was_stable else failures + 1
                await asyncio.sleep(wait_s)
        finally:
            try:
                if inbox is not None:
                    await inbox.close()
                await self._stop()
            finally:
                self._channel.status.set_state(ChannelState.OFF)

    async def _connect_once(self, failures: int) -> float:
        """Run one connection until it ends. Return how long to wait before the next, in seconds."""
        name, status = self._channel.name, self._channel.status
        try:
            await self._serve()
            error = "the connection ended"
        except ChannelSetupError as setup:
            if status.last_error != str(setup):  # logged once, not at each retry
                log.error("%s: %s", name, setup)  # noqa: TRY400 the owner needs no traceback
            status.set_state(ChannelState.FAILED, str(setup))
            return SETUP_WAIT_S
        except Exception as broken:  # a channel may raise anything; reconnect
            error = describe_error(broken)
            log.debug("%s: the connection broke", name, exc_info=True)
        wait_s: float = min(self._first_wait_s * 2 ** min(failures, 10), LONGEST_WAIT_S) * random.uniform(0.8, 1)  # noqa: S311
        if failures == 0:
            log.warning("%s: not connected (%s); trying again until it is", name, error)
        status.set_state(ChannelState.DOWN, error)
        return wait_s

    async def _stop(self) -> None:
        # no asyncio.timeout: below Python 3.11.3 it raises CancelledError in a task that is being cancelled
        stopping = asyncio.create_task(contain_errors(self._channel.stop()), name=f"stop {self._channel.name}")
        await asyncio.wait([stopping], timeout=self._stop_timeout_s)
        if not stopping.done():
            stopping.cancel()
            log.warning("%s: stop took longer than %g s; abandoned", self._channel.name, self._stop_timeout_s)
        elif not stopping.cancelled() and (error := stopping.exception()) is not None:
            log.error("%s: stop failed", self._channel.name, exc_info=error)  # raised, it would end every other channel

    async def _serve(self) -> None:
        """Run `start` and cancel it when the platform stalls, or refuses the bot. Raises what `start` raises."""
        channel, status = self._channel, self._channel.status
        status.touch()
        channel.refusal = refusal = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(contain_errors(channel.start()), name=f"channel {channel.name}")
        if not channel.reports_up:
            channel.mark_up()
        try:
            while not serving.done():
                left_s = channel.stall_s - (status.clock.monotonic() - status.last_seen)
                if channel.stall_s and left_s <= 0:
                    raise TimeoutError(f"the platform was silent for {channel.stall_s:g} s")
                timeout_s = left_s if channel.stall_s else None
                await asyncio.wait([serving, refusal], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if refusal.done():
                    raise refusal.result()
        finally:
            serving.cancel()
            await asyncio.wait([serving])
        if serving.cancelled():  # by the channel itself
            raise ConnectionError("the connection was given up")
        await serving


def describe_error(error: Exception) -> str:
    """Return an error as one line: a NanobotError by its text, any other with the name of its type."""
    name, text = type(error).__name__, str(error) and os_reason(error)
    return text if isinstance(error, NanobotError) and text else f"{name}: {text}" if text else name
