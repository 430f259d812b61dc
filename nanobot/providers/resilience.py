"""The one layer above the wire that retries, falls back to other models and pauses failing ones; nothing below retries.

Standard: each model is asked up to four times, after 1, 2 and 4 s or as long as the server asks for; then the next one.
Persistent (`agents.defaults.providerRetryMode`): each is asked once, and all of them again until the same failure
repeats, at most a minute apart. Each error type says who to try next (`try_elsewhere` in errors.py). No switch is
silent: the session is notified once which model answers instead, and once when the first one is back.
"""

import asyncio
import json
import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import cached_property

from nanobot.messages.tokens import estimate_tokens
from nanobot.providers.base import (
    Delta,
    Finished,
    LLMProvider,
    ModelRequest,
    TextDelta,
    ToolCallDelta,
    call_context,
    call_context_scope,
)
from nanobot.providers.errors import (
    CallTarget,
    ModelCallError,
    ModelUnavailableError,
    ProviderTimeoutError,
    StreamCutError,
    TryElsewhere,
    format_wait,
)
from nanobot.utils.bounded_dict import put_bounded

log = logging.getLogger(__name__)

Sleep = Callable[[float], Awaitable[None]]
Monotonic = Callable[[], float]

RETRIES = 3
FIRST_WAIT_S = 1.0
MAX_WAIT_S = 60.0
FALLBACK_WAIT_S = 12.0
"""While another model is left: how many seconds after the first failure the last wait must end."""
MAX_SAME_FAILURES = 10
"""After so many failures in a row of the same type and status, a persistent call gives up."""
MAX_FAILURES = 3
"""After so many failures in a row, a model is paused."""
OPEN_S = 60.0
"""For so long; then one call is sent as a probe."""
_NOTICE_INTERVAL_S = 60.0
"""Interval of the notices that a persistent call is still retried."""
_MAX_SESSIONS = 1024
"""How many sessions to remember whose answers come from another model than the first."""
_MIN_REPLY_TOKENS = 1024
"""A context window that leaves fewer tokens for the reply is too small for the request."""


class Breaker:
    """A circuit breaker: whether one model at one endpoint may be called. Shared by all its callers; in memory only.

    The third failure in a row opens it for a minute. Then one call goes out as a probe; until its first token, no
    other.
    """

    def __init__(self, monotonic: Monotonic = time.monotonic) -> None:
        self._monotonic = monotonic
        self._failures = 0
        self._closes_at = 0.0
        self._is_probed = False
        self.last_error: ModelCallError | None = None
        """The last failure since the last success."""

    @property
    def is_open(self) -> bool:
        """Whether it opened and no call has succeeded since."""
        return self._failures >= MAX_FAILURES

    @property
    def remaining_s(self) -> float:
        """Seconds until a call may go out; 0 if one may now."""
        return max(0.0, self._closes_at - self._monotonic()) if self.is_open else 0.0

    @property
    def allows_call(self) -> bool:
        return not self.is_open or (not self._is_probed and self.remaining_s == 0)

    def start_call(self) -> bool:
        """A call goes out. Return whether it is a probe, for which `end_probe` must follow."""
        self._is_probed = self.is_open
        return self.is_open

    def end_probe(self, *, has_answered: bool) -> None:
        """The probe ended, or got its first token: then others may call, and one more failure opens it again."""
        self._is_probed = False
        if has_answered and self.is_open:
            self._failures = MAX_FAILURES - 1

    def record_success(self) -> None:
        """A call was answered, or the request itself was rejected: the model works."""
        self._failures, self.last_error = 0, None

    def record_failure(self, error: ModelCallError, *, is_probe: bool) -> bool:
        """A call failed because of the model. Return True if that opened the breaker."""
        self.last_error = error
        if self.is_open and not is_probe:  # a call from before it opened
            return False
        self._failures += 1
        self._closes_at = self._monotonic() + OPEN_S
        return self.is_open


@dataclass(frozen=True, slots=True)
class ChosenProvider:
    """A usable model: its provider, the provider's name, the model name to send, and its breaker.

    A fallback model has settings of its own; one that is None comes from the call. `window_tokens` is None if the
    caller has already fitted the request to this model.
    """

    provider: LLMProvider
    name: str
    model: str
    breaker: Breaker = field(default_factory=Breaker)
    reason: str = ""
    """Why it was chosen, in a sentence."""
    max_tokens: int | None = None
    temperature: float | None = None
    window_tokens: int | None = None

    def __str__(self) -> str:
        return self.target.name

    @property
    def target(self) -> CallTarget:
        return CallTarget(self.name, self.model)

    @property
    def pause(self) -> str:
        """A sentence: for how long it is paused and why."""
        breaker = self.breaker
        reason = f": {breaker.last_error.brief()}" if breaker.last_error is not None else ""
        when = f"for {format_wait(breaker.remaining_s)}" if breaker.remaining_s else "until it answers the next call"
        return f"{self} is paused {when}{reason}."


class ResilientProvider(LLMProvider):
    """The models of a session: the first one that answers. Its breaker protects a single one, too."""

    def __init__(
        self,
        models: Sequence[ChosenProvider],
        *,
        unusable: Sequence[str] = (),
        retries: int | None = RETRIES,
        sleep: Sleep = asyncio.sleep,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        """`unusable`: a sentence about each fallback model that cannot be used. `retries` None: persistent."""
        self._first, *_ = self.models = tuple(models)
        super().__init__(self._first.provider.api_key, self._first.provider.api_base)
        self.unusable = unusable
        self.retries = retries
        self.sleep = sleep
        self.monotonic = monotonic
        self._by_session: dict[str, int] = {}

    def get_default_model(self) -> str:
        return self._first.model

    @property
    def _next(self) -> ChosenProvider | None:
        """The model that the next call will reach, as far as known."""
        return next((model for model in self.models if model.breaker.allows_call), None)

    def prepare(self) -> None:
        if self._next is not None:
            self._next.provider.prepare()

    async def list_models(self) -> tuple[str, ...]:
        return await self._first.provider.list_models()

    async def context_length(self, model: str) -> int | None:
        return await self._first.provider.context_length(model)

    def notes(self) -> list[str]:
        """Which models are paused, for how long and why, and which one is used instead."""
        notes = [*self.unusable]
        for model in self.models:
            notes += [model.pause] if model.breaker.is_open else []
            notes += model.provider.notes()
        if not self._first.breaker.allows_call:
            notes.append(f"{self._next} is used instead." if self._next else "No other model is available.")
        return list(dict.fromkeys(notes))

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """As in LLMProvider. The request's model is for the first model; the others have names of their own.

        Raises the last failure, including which other models were tried; ModelUnavailableError if none may be called
        now. Emitted text is final: from then on there is no other attempt. Reasoning is not, a retried model thinks
        again. Deltas of tool calls wait until text goes out or the answer is complete, so that a call that was started
        twice does not look like one. Cancelling is safe during a wait, too.
        """
        persistence = _Persistence()
        while True:
            call = _Round(request, self.models, [*self.unusable])
            for index, model in enumerate(self.models):
                if (reason := call.reason_to_skip(model)) is not None:
                    call.skipped.append(reason)
                    continue
                try:
                    async with aclosing(self._ask(call, index)) as deltas:
                        async for delta in deltas:
                            yield delta
                    return
                except ModelCallError as error:
                    if call.is_final or error.try_elsewhere is TryElsewhere.NOBODY:
                        raise call.with_context(error) from None
            failure = call.final_error()
            pause_s = persistence.wait_s(failure, self.monotonic()) if self.retries is None else None
            if pause_s is None:
                raise failure
            await self.sleep(pause_s)

    async def _ask(self, call: "_Round", index: int) -> AsyncGenerator[Delta, None]:
        """One model's answer, at the first attempt or a later one."""
        model, request = self.models[index], call.request_for(index)
        context = replace(call_context(), has_fallback=call.has_fallback(index))
        breaker, is_probe = model.breaker, model.breaker.start_call()
        has_begun, retries = False, 0
        failed_at: float | None = None
        try:
            while True:
                held: list[Delta] = []  # deltas of tool calls that may not go out yet
                finished = False
                try:
                    async with aclosing(request.send(model.provider)) as deltas:
                        with call_context_scope(context):
                            delta = await anext(deltas, None)  # only then is the context read
                        while delta is not None:
                            if isinstance(delta, ToolCallDelta) and not call.is_final:
                                held.append(delta)
                            else:
                                if not has_begun:
                                    has_begun = True
                                    if is_probe:
                                        breaker.end_probe(has_answered=True)
                                        is_probe = False
                                    self._announce(index, call)
                                if isinstance(delta, Finished):
                                    finished = True
                                    breaker.record_success()
                                if isinstance(delta, TextDelta | Finished):
                                    call.is_final = True
                                    for waiting in held:
                                        yield waiting
                                    held = []
                                yield delta
                            delta = await anext(deltas, None)
                    if finished:
                        return
                    raise StreamCutError("the stream ended without a complete answer")
                except ModelCallError as error:
                    if not error.target.model:  # the code that raised it did not know it
                        error.target = model.target
                    now = self.monotonic()
                    failed_at = now if failed_at is None else failed_at
                    latest_s = failed_at + FALLBACK_WAIT_S - now if context.has_fallback else MAX_WAIT_S
                    wait_s = None if call.is_final else self._wait_s(error, retries, latest_s)
                    if wait_s is None:
                        call.add_failure(model, error, is_probe=is_probe)
                        raise
                    retries += 1
                    _notify(f"{_brief(error)} Retry {retries} of {self.retries} in {format_wait(wait_s)}.")
                    await self.sleep(wait_s)
        finally:
            if is_probe:
                breaker.end_probe(has_answered=False)

    def _wait_s(self, error: ModelCallError, retries: int, latest_s: float) -> float | None:
        """The seconds before the same model is asked again, at most `latest_s`; None to give it up."""
        if self.retries is None or retries == self.retries:
            return None
        if error.try_elsewhere is not TryElsewhere.OTHER_MODEL or isinstance(error, ProviderTimeoutError):
            return None  # it would fail again, or has cost a minute already
        wait_s = _backoff(retries) if error.retry_after_s is None else error.retry_after_s
        return wait_s if wait_s <= latest_s else None

    async def close(self) -> None:
        for model in self.models:
            await model.provider.close()

    def _announce(self, index: int, call: "_Round") -> None:
        """Log and notify the session if another model answers it than before."""
        now, context = self.models[index], call_context()
        if index != self._by_session.get(context.session_key, 0):
            put_bounded(self._by_session, context.session_key, index, _MAX_SESSIONS)
            switch = f"{now} answers instead of {self._first}. {call.reasons()}" if index else f"{now} answers again."
            log.log(logging.WARNING if index else logging.INFO, "%s", switch)
            context.notify(switch)


class _Round:
    """One call's way through the models, each at most once: who was asked, and why others were not."""

    def __init__(self, request: ModelRequest, models: Sequence[ChosenProvider], skipped: list[str]) -> None:
        self.is_final = False
        """Whether something was emitted that cannot be taken back."""
        self.skipped = skipped
        """Models that were not asked and why, a sentence each."""
        self._request = request
        self._models = models
        self._failures: list[ModelCallError] = []
        self._rejected_providers: set[str] = set()

    def reason_to_skip(self, model: ChosenProvider) -> str | None:
        """A sentence why this model is not asked now; None if it is."""
        if model.name in self._rejected_providers:
            return f"{model} was not tried: it uses the same provider."
        window = model.window_tokens
        reply_tokens = min(model.max_tokens or self._request.max_tokens, _MIN_REPLY_TOKENS)
        if window is not None and window - self._tokens < reply_tokens:
            return (
                f"{model} was not tried: the request has about {self._tokens:,} tokens, its context window {window:,}."
            )
        return None if model.breaker.allows_call else model.pause

    def has_fallback(self, index: int) -> bool:
        """Whether a later model is worth trying, as far as known."""
        return any(self.reason_to_skip(model) is None for model in self._models[index + 1 :])

    def request_for(self, index: int) -> ModelRequest:
        """The request with a model's settings. Only the first model is replaced by the one that the request names."""
        request, model = self._request, self._models[index]
        max_tokens = model.max_tokens or request.max_tokens
        return replace(
            request,
            model=(request.model if index == 0 else "") or model.model,
            max_tokens=max_tokens
            if model.window_tokens is None
            else min(max_tokens, model.window_tokens - self._tokens),
            temperature=request.temperature if model.temperature is None else model.temperature,
        )

    @cached_property
    def _tokens(self) -> int:
        tools = json.dumps(list(self._request.tools))
        return estimate_tokens(self._request.messages) + estimate_tokens(tools)

    def add_failure(self, model: ChosenProvider, error: ModelCallError, *, is_probe: bool) -> None:
        """This model is given up."""
        self._failures.append(error)
        if error.try_elsewhere is TryElsewhere.OTHER_PROVIDER:
            self._rejected_providers.add(model.name)
        if error.try_elsewhere is TryElsewhere.NOBODY:
            model.breaker.record_success()  # the model works, the request does not
        elif model.breaker.record_failure(error, is_probe=is_probe):
            log.warning("%s", model.pause)

    def reasons(self) -> str:
        """Why the models before this one did not answer."""
        return " ".join([*(error.summary() for error in self._failures), *self.skipped])

    def with_context(self, error: ModelCallError) -> ModelCallError:
        """The failure with the failures and skipped models before it."""
        error.previous = tuple(failure for failure in self._failures if failure is not error)
        error.skipped = tuple(self.skipped)
        return error

    def final_error(self) -> ModelCallError:
        """The error to raise if no model answered."""
        if self._failures:
            return self.with_context(self._failures[-1])
        paused = [model for model in self._models if model.breaker.is_open]
        soonest = min(paused, key=lambda model: model.breaker.remaining_s)
        detail = ""
        if (last := soonest.breaker.last_error) is not None:
            step = last.advice() if last.try_elsewhere is TryElsewhere.OTHER_PROVIDER else ""
            why = f"its last failure was that {last.brief()}: {last.detail}".rstrip(": ")
            detail = f"{why}. {step}".strip(" .")
        again_in_s = max(1.0, soonest.breaker.remaining_s)
        error = ModelUnavailableError(detail, target=soonest.target, retry_after_s=again_in_s)
        error.skipped = tuple(reason for reason in self.skipped if reason != soonest.pause)
        return error


class _Persistence:
    """How long a persistent call goes on."""

    def __init__(self) -> None:
        self._rounds = 0
        self._last_kind: tuple[type[ModelCallError], int | None] | None = None
        self._same_failures = 0
        self._notified_at = -math.inf

    def wait_s(self, error: ModelCallError, now: float) -> float | None:
        """The seconds before all models are asked again, after telling the user now and then; None to give up."""
        if isinstance(error, ModelUnavailableError):  # nothing was sent, so it does not count
            wait_s = max(FIRST_WAIT_S, error.retry_after_s or 0)
        elif TryElsewhere.OTHER_MODEL not in [failure.try_elsewhere for failure in (error, *error.previous)]:
            return None  # none of the failures will pass
        else:
            kind = (type(error), error.status)
            self._same_failures = self._same_failures + 1 if kind == self._last_kind else 1
            self._last_kind = kind
            if self._same_failures == MAX_SAME_FAILURES:
                return None
            wait_s = _backoff(self._rounds) if error.retry_after_s is None else error.retry_after_s
            self._rounds += 1
        wait_s = min(wait_s, MAX_WAIT_S)
        if now - self._notified_at >= _NOTICE_INTERVAL_S:
            self._notified_at = now
            _notify(f"{_brief(error)} Retrying until it answers, next in {format_wait(wait_s)}; /stop ends that.")
        return wait_s


def _notify(text: str) -> None:
    log.info("%s", text)
    call_context().notify(text)


def _backoff(retries: int) -> float:
    return float(min(FIRST_WAIT_S * 2.0 ** min(retries, 30), MAX_WAIT_S))


def _brief(error: ModelCallError) -> str:
    return f"{error.target.name}: {error.brief()}."
