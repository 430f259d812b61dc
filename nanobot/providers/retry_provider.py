"""The one layer that asks again: SDKs and clients under it retry nothing.

Standard: the same model, three times, after 1, 2 and 4 s or what the server asks for. Persistent: around everybody who
can be asked, for as long as the failures differ, at most a minute apart.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers.attempt import Attempt
from nanobot.providers.base import Delta, LLMProvider, call_context
from nanobot.providers.breaker import Monotonic
from nanobot.providers.errors import (
    CallTarget,
    ModelCallError,
    ModelsOutError,
    ProviderTimeoutError,
    TryElsewhere,
    in_words,
)

log = logging.getLogger(__name__)

Sleep = Callable[[float], Awaitable[None]]

_TOLD_EVERY_S = 60.0
"""How often a person is told that a persistent call goes on."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When to ask again, and after how long. Waits double from the first to the longest."""

    retries: int | None = 3
    """None: until `most_alike` failures in a row were of one kind and status."""
    first_wait_s: float = 1
    longest_wait_s: float = 60
    hurried_s: float = 12
    """How long after the first failure a wait may end at the latest while another model is left to be asked."""
    most_alike: int = 10

    @classmethod
    def persistent(cls) -> "RetryPolicy":
        """Go on as long as it may help."""
        return cls(retries=None)


class RetryProvider(LLMProvider):
    """Asks `inner` again where that may help and no text went out yet. Each wait is told to the person."""

    def __init__(
        self,
        inner: LLMProvider,
        policy: RetryPolicy | None = None,
        *,
        target: CallTarget | None = None,
        sleep: Sleep = asyncio.sleep,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        """`target`: who is asked, for failures that do not say it themselves."""
        super().__init__(inner.api_key, inner.api_base)
        self._inner = inner
        self._target = target or CallTarget()
        self._policy = policy or RetryPolicy()
        self._sleep = sleep
        self._monotonic = monotonic

    def get_default_model(self) -> str:
        """The inner one's."""
        return self._inner.get_default_model()

    def prepare(self) -> None:
        """A call is near."""
        self._inner.prepare()

    def notes(self) -> list[str]:
        """The inner one's."""
        return self._inner.notes()

    async def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> AsyncIterator[Delta]:
        """As the port says. Raises the last failure; cancelling is safe while it waits, too."""
        persistent = self._policy.retries is None
        tries = _PersistentTries(self._policy, self._monotonic) if persistent else _Tries(self._policy, self._monotonic)
        while True:
            attempt = Attempt()
            stream = self._inner.chat_stream(messages, tools, model, max_tokens, temperature)
            try:
                async with aclosing(cast("AsyncGenerator[Delta, None]", stream)) as source:
                    async for said in source:
                        for delta in attempt.passed(said):
                            yield delta
                attempt.end()
                return
            except ModelCallError as error:
                error.told_by(self._target)
                wait_s = None if attempt.final else tries.wait_after(error)
                if wait_s is None:
                    raise
            await self._sleep(wait_s)

    async def close(self) -> None:
        """Close the inner one."""
        await self._inner.close()


class _Tries:
    """The tries of one call."""

    def __init__(self, policy: RetryPolicy, monotonic: Monotonic) -> None:
        self._policy = policy
        self._context = call_context()
        self._monotonic = monotonic
        self._failed_at: float | None = None
        self._retries = 0

    def wait_after(self, error: ModelCallError) -> float | None:
        """How long to wait before the next try, which the person is told; None when there is none."""
        policy = self._policy
        if not _may_pass(error) or isinstance(error, ProviderTimeoutError) or self._retries == policy.retries:
            return None  # a time-out has cost a minute already
        wait_s = _wait(policy, self._retries) if error.retry_after_s is None else error.retry_after_s
        if wait_s > (self._hurried_left() if self._context.others_left else policy.longest_wait_s):
            return None
        self._retries += 1
        self._tell(
            f"{error.target.name}: {error.brief()}. Retry {self._retries} of {policy.retries} in {in_words(wait_s)}."
        )
        return wait_s

    def _tell(self, text: str) -> None:
        log.info("%s", text)
        self._context.notify(text)

    def _hurried_left(self) -> float:
        now = self._monotonic()
        if self._failed_at is None:
            self._failed_at = now
        return self._failed_at + self._policy.hurried_s - now


class _PersistentTries(_Tries):
    """The tries of a call that goes on."""

    def __init__(self, policy: RetryPolicy, monotonic: Monotonic) -> None:
        super().__init__(policy, monotonic)
        self._last: tuple[type[ModelCallError], int | None] | None = None
        self._alike = 0
        self._told_at: float | None = None

    def wait_after(self, error: ModelCallError) -> float | None:
        """As above; being told that nobody could be asked counts as no try."""
        policy = self._policy
        if isinstance(error, ModelsOutError):
            return self._told(error, max(policy.first_wait_s, error.retry_after_s or 0))
        if error.try_elsewhere is TryElsewhere.NOBODY or not any(map(_may_pass, (error, *error.earlier))):
            return None
        kind = (type(error), error.status)
        self._alike = self._alike + 1 if kind == self._last else 1
        self._last = kind
        if self._alike == policy.most_alike:
            return None
        wait_s = _wait(policy, self._retries) if error.retry_after_s is None else error.retry_after_s
        self._retries += 1
        return self._told(error, wait_s)

    def _told(self, error: ModelCallError, wait_s: float) -> float:
        wait_s = min(wait_s, self._policy.longest_wait_s)
        now = self._monotonic()
        if self._told_at is None or now - self._told_at >= _TOLD_EVERY_S:
            self._told_at = now
            self._tell(
                f"{error.target.name}: {error.brief()}. It is asked again until it answers, the next time in "
                f"{in_words(wait_s)}; /stop ends that."
            )
        return wait_s


def _may_pass(error: ModelCallError) -> bool:
    """Whether it may be over in a moment."""
    return error.try_elsewhere is TryElsewhere.OTHER_MODEL


def _wait(policy: RetryPolicy, retries: int) -> float:
    return min(policy.first_wait_s * 2.0 ** min(retries, 30), policy.longest_wait_s)
