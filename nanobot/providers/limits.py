"""How long a model call may take, stage by stage."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from nanobot.providers.errors import CallTarget, ProviderTimeoutError


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait, in seconds, for a connection, the first sign of an answer, the next one, and the whole."""

    connect_s: float = 10
    first_token_s: float = 120
    idle_s: float = 60
    total_s: float = 600

    @classmethod
    def local(cls) -> "Timeouts":
        """For a model on this machine, which reads a long prompt slowly and says nothing meanwhile."""
        return cls(connect_s=5, first_token_s=600, idle_s=180, total_s=1800)


class CallLimits:
    """The limits of one call, counted from when it is made."""

    def __init__(self, timeouts: Timeouts, target: CallTarget) -> None:
        self._timeouts = timeouts
        self._target = target
        self._deadline = time.monotonic() + timeouts.total_s

    def next_sign(self, *, began: bool) -> AbstractAsyncContextManager[None]:
        """Wait for the first sign of an answer, or for the next one once it began."""
        if began:
            return self._within(self._timeouts.idle_s, "next token")
        return self._within(self._timeouts.first_token_s, "first token")

    @asynccontextmanager
    async def _within(self, seconds: float, waited_for: str) -> AsyncIterator[None]:
        limit_s = seconds
        left = self._deadline - time.monotonic()
        if left < seconds:
            seconds, waited_for, limit_s = max(left, 0), "end of the answer", self._timeouts.total_s
        try:
            async with asyncio.timeout(seconds) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise ProviderTimeoutError(f"waited {limit_s:g} s for the {waited_for}", target=self._target) from None
