"""Time limits of a model call, stage by stage."""

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

FALLBACK_FIRST_TOKEN_S = 20.0
"""First-token limit of a standard model while another can be tried; keeps the whole switch below 30 s."""

_REASONING_MODELS = re.compile(
    r"(?<![a-z0-9])(?:o[1-9]|gpt-5(?!-chat)|r1|qwq|reasoner|reasoning|think|thinking|magistral|deep-?research|"
    r"grok-4(?!-fast-non)|gemini-(?:2\.5|3)(?:\.\d+)?-pro)(?![a-z0-9])",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits in seconds for the connection, the first token, each further token, and the whole answer."""

    connect_s: float = 10
    first_token_s: float = 60
    idle_s: float = 60
    total_s: float = 600
    fallback_first_token_s: float = math.inf
    """First-token limit while another model can be tried; the smaller of the two applies."""
    notice_s: float = 15
    """Without a first token for this long, the user is told which model we wait for."""

    @classmethod
    def standard(cls) -> "Timeouts":
        """For a model that starts to answer within seconds."""
        return cls(fallback_first_token_s=FALLBACK_FIRST_TOKEN_S)

    @classmethod
    def reasoning(cls) -> "Timeouts":
        """For a model that may think for minutes without output."""
        return cls(first_token_s=300, idle_s=180, total_s=1800)

    @classmethod
    def local(cls) -> "Timeouts":
        """For a model on this machine, which may read a long prompt for minutes without output."""
        return cls(connect_s=5, first_token_s=600, idle_s=180, total_s=1800)


def timeouts_for(model: str, *, local: bool, reasoning_effort: str | None = None) -> Timeouts:
    """The default limits of a model, for what the config leaves open."""
    if local:
        return Timeouts.local()
    if reasoning_effort is None:
        is_reasoning = _REASONING_MODELS.search(model) is not None
    else:
        is_reasoning = reasoning_effort not in ("none", "minimal")
    return Timeouts.reasoning() if is_reasoning else Timeouts.standard()


class CallLimits:
    """The time limits of one call, counted from construction. A call for a goal has no total limit.

    An answer has hundreds of chunks, so the waits share one timer. It is not reset for each chunk: when it fires, it
    checks whether the current wait is overdue. `close` it when the call ends.
    """

    def __init__(self, timeouts: Timeouts, target: CallTarget) -> None:
        self._context = call_context()
        self._target = target
        self._idle_s = timeouts.idle_s
        self._first_s = timeouts.first_token_s
        if self._context.has_fallback:
            self._first_s = min(self._first_s, timeouts.fallback_first_token_s)
        self._total_s = math.inf if self._context.goal else timeouts.total_s
        self._notice_s = timeouts.notice_s
        self._started_at = time.monotonic()
        self._notice_timer: asyncio.TimerHandle | None = None
        self._noticed = False
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = math.inf
        self._wait = _Wait(self)

    def wait(self, *, began: bool) -> AbstractContextManager[None]:
        """Limit the wait inside: for the first token, or the next one once the answer `began`. One wait at a time.

        Raises ProviderTimeoutError when the limit is reached, and cancels what is awaited inside.
        """
        now = time.monotonic()
        total = (self._started_at + self._total_s, self._total_s, "end of the answer")
        if began:
            self._cancel_notice()
            due = min((now + self._idle_s, self._idle_s, "next token"), total)
        else:  # one limit, however many keep-alive bytes arrive
            due = min((self._started_at + self._first_s, self._first_s, "first token"), total)
            self._schedule_notice(now)
        self._wait.due, self._wait.limit_s, self._wait.waited_for = due
        return self._wait

    def close(self) -> None:
        """End the call. Idempotent."""
        self._cancel_notice()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def arm(self) -> None:
        """Make the timer fire no later than the end of the current wait."""
        if self._timer is not None and self._fires_at <= self._wait.due:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._wait.due < math.inf:
            self._fires_at = self._wait.due
            left_s = max(self._wait.due - time.monotonic(), 0)
            self._timer = asyncio.get_running_loop().call_later(left_s, self._fire)

    def _fire(self) -> None:
        self._timer = None
        if self._wait.task is None:
            return
        if self._wait.due > time.monotonic():
            self.arm()
        else:
            self._wait.cancel()

    def timeout_error(self, limit_s: float, waited_for: str) -> ProviderTimeoutError:
        return ProviderTimeoutError(f"waited {limit_s:g} s for the {waited_for}", target=self._target)

    def _schedule_notice(self, now: float) -> None:
        if self._notice_timer is None and not self._noticed:
            delay_s = max(self._started_at + self._notice_s - now, 0)
            self._notice_timer = asyncio.get_running_loop().call_later(delay_s, self._notify)

    def _cancel_notice(self) -> None:
        if self._notice_timer is not None:
            self._notice_timer.cancel()
            self._notice_timer = None

    def _notify(self) -> None:
        self._noticed = True
        limit = f"; timeout after {self._first_s:g} s" if self._first_s < math.inf else ""
        self._context.notify(f"Waiting for {self._target.name} for {self._notice_s:g} s{limit}.")


class _Wait:
    """One wait of one task. The object is reused for every wait of a call."""

    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits
        self.due = math.inf
        self.limit_s = math.inf
        self.waited_for = ""
        self.task: asyncio.Task[Any] | None = None
        self._cancels = 0
        self._timed_out = False

    def cancel(self) -> None:
        if self.task is not None:
            self._timed_out = True
            self.task.cancel()

    def __enter__(self) -> None:
        self.task = asyncio.current_task()
        self._cancels = self.task.cancelling() if self.task is not None else 0
        self._limits.arm()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self.task = self.task, None
        timed_out, self._timed_out = self._timed_out, False
        if not timed_out or task is None:
            return
        # As in asyncio.timeout: a concurrent cancel by another task takes precedence over ours.
        if task.uncancel() <= self._cancels and kind is asyncio.CancelledError:
            raise self._limits.timeout_error(self.limit_s, self.waited_for) from None
