"""Time limits of a model call, stage by stage."""

import asyncio
import math
import re
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from nanobot.providers.base import call_context
from nanobot.providers.errors import CallTarget, ProviderTimeoutError

T = TypeVar("T")

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
    """The time limits of one call, counted from construction. A call for a goal has no total limit. `close` it at the
    end.
    """

    def __init__(self, timeouts: Timeouts, target: CallTarget) -> None:
        context, loop = call_context(), asyncio.get_running_loop()
        self._target = target
        self._idle_s = timeouts.idle_s
        self._first_s = timeouts.first_token_s
        if context.has_fallback:
            self._first_s = min(self._first_s, timeouts.fallback_first_token_s)
        self._total_s = math.inf if context.goal else timeouts.total_s
        self._started_at = loop.time()
        limit = f"; timeout after {self._first_s:g} s" if self._first_s < math.inf else ""
        notice = f"Waiting for {target.name} for {timeouts.notice_s:g} s{limit}."
        self._notice_timer = loop.call_later(timeouts.notice_s, context.notify, notice)

    async def wait(self, result: Awaitable[T], *, began: bool) -> T:
        """Wait for the first token, or for the next one once the answer `began`.

        Raises ProviderTimeoutError, and cancels what is awaited, when the limit is reached.
        """
        total = (self._started_at + self._total_s, self._total_s, "end of the answer")
        if began:
            self._notice_timer.cancel()
            due = min((asyncio.get_running_loop().time() + self._idle_s, self._idle_s, "next token"), total)
        else:  # one limit, however many keep-alive bytes arrive
            due = min((self._started_at + self._first_s, self._first_s, "first token"), total)
        due_at, limit_s, waited_for = due
        timeout = asyncio.timeout_at(due_at if due_at < math.inf else None)
        try:
            async with timeout:
                return await result
        except TimeoutError:
            if not timeout.expired():
                raise
            error = ProviderTimeoutError(f"waited {limit_s:g} s for the {waited_for}", target=self._target)
            raise error from None

    def close(self) -> None:
        """End the call. Idempotent."""
        self._notice_timer.cancel()
