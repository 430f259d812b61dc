"""The only layer that retries: SDKs and clients below it retry nothing.

Standard: the same model, three times, after 1, 2 and 4 s or as long as the server asks for. Persistent: around all
fallback models, until the same failure repeats, at most a minute apart.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers.base import Delta, Finished, LLMProvider, TextDelta, ToolCallDelta, call_context
from nanobot.providers.errors import (
    CallTarget,
    ModelCallError,
    ModelUnavailableError,
    ProviderTimeoutError,
    StreamCutError,
    TryElsewhere,
    format_wait,
)
from nanobot.providers.resilience.breaker import Monotonic

log = logging.getLogger(__name__)

Sleep = Callable[[float], Awaitable[None]]

_NOTICE_INTERVAL_S = 60.0
"""How often the user is told that a persistent call goes on."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When to retry and after how long. Waits double from the first to the maximum."""

    retries: int | None = 3
    """None: until `max_same_failures` failures in a row have the same type and status."""
    first_wait_s: float = 1
    max_wait_s: float = 60
    fallback_wait_s: float = 12
    """While another model is left: how many seconds after the first failure the last wait must end."""
    max_same_failures: int = 10

    @classmethod
    def persistent(cls) -> "RetryPolicy":
        """Retry as long as that may help."""
        return cls(retries=None)


class StreamGuard:
    """Passes the deltas of one attempt on and tracks whether the answer can still be retried.

    Emitted text is final. Reasoning is not: a retried model thinks again. Deltas of tool calls are held back until text
    goes out or the answer is complete, so that a call that was started twice does not look like one.
    """

    def __init__(self) -> None:
        self.final = False
        """Whether another attempt would show the user two answers."""
        self._finished = False
        self._held: list[Delta] = []

    def filter(self, delta: Delta) -> list[Delta]:
        """The deltas to emit now. Updates `final` before they are emitted."""
        if isinstance(delta, ToolCallDelta) and not self.final:
            self._held.append(delta)
            return []
        if isinstance(delta, TextDelta | Finished):
            self.final = True
            self._finished = self._finished or isinstance(delta, Finished)
            held, self._held = self._held, []
            return [*held, delta]
        return [delta]

    def end(self) -> None:
        """The stream is over. Raises StreamCutError if it ended without Finished."""
        if not self._finished:
            raise StreamCutError("the stream ended without a complete answer")


class RetryProvider(LLMProvider):
    """Retries `inner` while that may help and no text was emitted. Each wait is reported to the user."""

    def __init__(
        self,
        inner: LLMProvider,
        policy: RetryPolicy | None = None,
        *,
        target: CallTarget | None = None,
        sleep: Sleep = asyncio.sleep,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        """`target` completes failures that do not name their model."""
        super().__init__(inner.api_key, inner.api_base)
        self._inner = inner
        self._target = target or CallTarget()
        self._policy = policy or RetryPolicy()
        self._sleep = sleep
        self._monotonic = monotonic

    def get_default_model(self) -> str:
        return self._inner.get_default_model()

    def prepare(self) -> None:
        self._inner.prepare()

    def notes(self) -> list[str]:
        return self._inner.notes()

    async def list_models(self) -> tuple[str, ...]:
        return await self._inner.list_models()

    async def context_length(self, model: str) -> int | None:
        return await self._inner.context_length(model)

    async def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> AsyncIterator[Delta]:
        """As in LLMProvider. Raises the last failure; cancelling is safe during a wait, too."""
        persistent = self._policy.retries is None
        retries = (_PersistentRetries if persistent else _Retries)(self._policy, self._monotonic)
        while True:
            attempt = StreamGuard()
            stream = self._inner.chat_stream(messages, tools, model, max_tokens, temperature)
            try:
                async with aclosing(cast("AsyncGenerator[Delta, None]", stream)) as source:
                    async for received in source:
                        for delta in attempt.filter(received):
                            yield delta
                attempt.end()
                return
            except ModelCallError as error:
                error.fill_target(self._target)
                wait_s = None if attempt.final else retries.wait_after(error)
                if wait_s is None:
                    raise
            await self._sleep(wait_s)

    async def close(self) -> None:
        await self._inner.close()


class _Retries:
    """The retries of one call."""

    def __init__(self, policy: RetryPolicy, monotonic: Monotonic) -> None:
        self._policy = policy
        self._context = call_context()
        self._monotonic = monotonic
        self._failed_at: float | None = None
        self._retries = 0

    def wait_after(self, error: ModelCallError) -> float | None:
        """The seconds to wait before the next retry, after telling the user; None to give up."""
        policy = self._policy
        if not is_transient(error) or isinstance(error, ProviderTimeoutError) or self._retries == policy.retries:
            return None  # a timeout has cost a minute already
        wait_s = backoff(policy, self._retries) if error.retry_after_s is None else error.retry_after_s
        if wait_s > (self._fallback_wait_left() if self._context.has_fallback else policy.max_wait_s):
            return None
        self._retries += 1
        self._notify(
            f"{error.target.name}: {error.brief()}. Retry {self._retries} of {policy.retries} in {format_wait(wait_s)}."
        )
        return wait_s

    def _notify(self, text: str) -> None:
        log.info("%s", text)
        self._context.notify(text)

    def _fallback_wait_left(self) -> float:
        now = self._monotonic()
        if self._failed_at is None:
            self._failed_at = now
        return self._failed_at + self._policy.fallback_wait_s - now


class _PersistentRetries(_Retries):
    """The retries of a call in persistent mode."""

    def __init__(self, policy: RetryPolicy, monotonic: Monotonic) -> None:
        super().__init__(policy, monotonic)
        self._last_kind: tuple[type[ModelCallError], int | None] | None = None
        self._same_failures = 0
        self._notified_at: float | None = None

    def wait_after(self, error: ModelCallError) -> float | None:
        """As above. A ModelUnavailableError does not count, since nothing was sent."""
        policy = self._policy
        if isinstance(error, ModelUnavailableError):
            return self._notify_and_wait(error, max(policy.first_wait_s, error.retry_after_s or 0))
        if error.try_elsewhere is TryElsewhere.NOBODY or not any(map(is_transient, (error, *error.previous))):
            return None
        kind = (type(error), error.status)
        self._same_failures = self._same_failures + 1 if kind == self._last_kind else 1
        self._last_kind = kind
        if self._same_failures == policy.max_same_failures:
            return None
        wait_s = backoff(policy, self._retries) if error.retry_after_s is None else error.retry_after_s
        self._retries += 1
        return self._notify_and_wait(error, wait_s)

    def _notify_and_wait(self, error: ModelCallError, wait_s: float) -> float:
        wait_s = min(wait_s, self._policy.max_wait_s)
        now = self._monotonic()
        if self._notified_at is None or now - self._notified_at >= _NOTICE_INTERVAL_S:
            self._notified_at = now
            self._notify(
                f"{error.target.name}: {error.brief()}. Retrying until it answers, next in {format_wait(wait_s)}; "
                "/stop ends that."
            )
        return wait_s


def is_transient(error: ModelCallError) -> bool:
    return error.try_elsewhere is TryElsewhere.OTHER_MODEL


def backoff(policy: RetryPolicy, retries: int) -> float:
    return min(policy.first_wait_s * 2.0 ** min(retries, 30), policy.max_wait_s)
