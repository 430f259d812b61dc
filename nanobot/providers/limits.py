"""How long a model call may take, stage by stage."""

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from nanobot.providers.base import call_context
from nanobot.providers.errors import CallTarget, ProviderTimeoutError

HURRIED_S = 20.0
"""How long a usual model may say nothing while another is left: with what comes around it, that one answers in 30 s."""

_THINKERS = re.compile(
    r"(?<![a-z0-9])(?:o[1-9]|gpt-5(?!-chat)|r1|qwq|reasoner|reasoning|think|thinking|magistral|deep-?research|"
    r"grok-4(?!-fast-non)|gemini-(?:2\.5|3)(?:\.\d+)?-pro)(?![a-z0-9])",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait, in seconds, for a connection, the first sign of an answer, the next one, and the whole."""

    connect_s: float = 10
    first_token_s: float = 60
    idle_s: float = 60
    total_s: float = 600
    hurried_s: float = math.inf
    """For the first sign while another model is left to be asked; the shorter of the two holds."""
    told_s: float = 15
    """After so long without a first sign the person is told whom we wait for."""

    @classmethod
    def usual(cls) -> "Timeouts":
        """For a model that begins to speak within seconds."""
        return cls(hurried_s=HURRIED_S)

    @classmethod
    def reasoning(cls) -> "Timeouts":
        """For a model that thinks for minutes, and may not show it."""
        return cls(first_token_s=300, idle_s=180, total_s=1800)

    @classmethod
    def local(cls) -> "Timeouts":
        """For a model on this machine, which reads a long prompt slowly and says nothing meanwhile."""
        return cls(connect_s=5, first_token_s=600, idle_s=180, total_s=1800)


def timeouts_for(model: str, *, local: bool, reasoning_effort: str | None = None) -> Timeouts:
    """What holds for a model where the config says nothing."""
    if local:
        return Timeouts.local()
    thinks = _THINKERS.search(model) if reasoning_effort is None else reasoning_effort not in ("none", "minimal")
    return Timeouts.reasoning() if thinks else Timeouts.usual()


class CallLimits:
    """The limits of one call, counted from when it is made. A call for a goal may take as long as it goes on."""

    def __init__(self, timeouts: Timeouts, target: CallTarget) -> None:
        self._context = call_context()
        self._target = target
        self._idle_s = timeouts.idle_s
        self._first_s = timeouts.first_token_s
        if self._context.others_left:
            self._first_s = min(self._first_s, timeouts.hurried_s)
        self._total_s = math.inf if self._context.goal else timeouts.total_s
        self._told_s = timeouts.told_s
        self._made_at = time.monotonic()
        self._told = False

    def next_sign(self, *, began: bool) -> AbstractAsyncContextManager[None]:
        """Wait for the first sign of an answer, or for the next one once it began."""
        now = time.monotonic()
        total = (self._made_at + self._total_s - now, self._total_s, "end of the answer")
        if began:
            return self._within(*min((self._idle_s, self._idle_s, "next token"), total))
        # One limit, however many bytes come that say nothing.
        first = (self._made_at + self._first_s - now, self._first_s, "first token")
        return self._telling(*min(first, total))

    @asynccontextmanager
    async def _within(self, seconds: float, limit_s: float, waited_for: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(max(seconds, 0) if seconds < math.inf else None) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise ProviderTimeoutError(f"waited {limit_s:g} s for the {waited_for}", target=self._target) from None

    @asynccontextmanager
    async def _telling(self, seconds: float, limit_s: float, waited_for: str) -> AsyncIterator[None]:
        """The same; the person is told once, if it takes long."""
        tell_in_s = self._made_at + self._told_s - time.monotonic()
        timer = None if self._told else asyncio.get_running_loop().call_later(max(tell_in_s, 0), self._tell)
        try:
            async with self._within(seconds, limit_s, waited_for):
                yield
        finally:
            if timer is not None:
                timer.cancel()

    def _tell(self) -> None:
        self._told = True
        patience = f"; it is given up after {self._first_s:g} s" if self._first_s < math.inf else ""
        self._context.notify(f"Waiting for {self._target.name} since {self._told_s:g} s{patience}.")
