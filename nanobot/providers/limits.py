"""How long a model call may take, stage by stage."""

import asyncio
import math
import re
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

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
    """The limits of one call, counted from when it is made. A call for a goal may take as long as it goes on.

    An answer comes in hundreds of pieces, so the waits for them share one timer: it is not set anew for each, but looks
    when it rings whether the wait it finds is over. `close` it when the call is over.
    """

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
        self._teller: asyncio.TimerHandle | None = None
        self._told = False
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = math.inf
        self._wait = _Wait(self)

    def next_sign(self, *, began: bool) -> AbstractContextManager[None]:
        """Wait for the first sign of an answer, or for the next one once it began. One wait at a time.

        Raises ProviderTimeoutError where it takes too long; what is awaited inside is cancelled then.
        """
        now = time.monotonic()
        total = (self._made_at + self._total_s, self._total_s, "end of the answer")
        if began:
            self._tell_nobody()
            due = min((now + self._idle_s, self._idle_s, "next token"), total)
        else:  # one limit, however many bytes come that say nothing
            due = min((self._made_at + self._first_s, self._first_s, "first token"), total)
            self._tell_in_time(now)
        self._wait.due, self._wait.limit_s, self._wait.waited_for = due
        return self._wait

    def close(self) -> None:
        """The call is over. Doing it twice is harmless."""
        self._tell_nobody()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def watch(self) -> None:
        """See to it that the timer rings before the wait is over."""
        if self._timer is not None and self._rings_at <= self._wait.due:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._wait.due < math.inf:
            self._rings_at = self._wait.due
            left_s = max(self._wait.due - time.monotonic(), 0)
            self._timer = asyncio.get_running_loop().call_later(left_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self._wait.task is None:
            return
        if self._wait.due > time.monotonic():
            self.watch()
        else:
            self._wait.give_up()

    def too_long(self, limit_s: float, waited_for: str) -> ProviderTimeoutError:
        """The error of a wait that was given up."""
        return ProviderTimeoutError(f"waited {limit_s:g} s for the {waited_for}", target=self._target)

    def _tell_in_time(self, now: float) -> None:
        """The person is told once, if it takes long."""
        if self._teller is None and not self._told:
            in_s = max(self._made_at + self._told_s - now, 0)
            self._teller = asyncio.get_running_loop().call_later(in_s, self._tell)

    def _tell_nobody(self) -> None:
        if self._teller is not None:
            self._teller.cancel()
            self._teller = None

    def _tell(self) -> None:
        self._told = True
        patience = f"; it is given up after {self._first_s:g} s" if self._first_s < math.inf else ""
        self._context.notify(f"Waiting for {self._target.name} since {self._told_s:g} s{patience}.")


class _Wait:
    """A wait of one task; the same object for each wait of a call."""

    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits
        self.due = math.inf
        self.limit_s = math.inf
        self.waited_for = ""
        self.task: asyncio.Task[Any] | None = None
        self._cancels = 0
        self._given_up = False

    def give_up(self) -> None:
        """It has lasted too long."""
        if self.task is not None:
            self._given_up = True
            self.task.cancel()

    def __enter__(self) -> None:
        self.task = asyncio.current_task()
        self._cancels = self.task.cancelling() if self.task is not None else 0
        self._limits.watch()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self.task = self.task, None
        given_up, self._given_up = self._given_up, False
        if not given_up or task is None:
            return
        # As in asyncio.timeout: a cancel by somebody else at the same time goes before ours.
        if task.uncancel() <= self._cancels and kind is asyncio.CancelledError:
            raise self._limits.too_long(self.limit_s, self.waited_for) from None
