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
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial

from nanobot.errors import NanobotError
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
    other. Each call has a ticket from `start`.
    """

    def __init__(self, monotonic: Monotonic = time.monotonic) -> None:
        self._monotonic = monotonic
        self._failures = 0
        self._opened_at: float | None = None
        self._probe: object | None = None
        self.last_error: ModelCallError | None = None
        """The last failure since the last success."""

    @property
    def is_open(self) -> bool:
        """Whether it opened and no call has succeeded since."""
        return self._opened_at is not None

    @property
    def remaining_s(self) -> float:
        """Seconds until a call may go out; 0 if one may now."""
        return 0.0 if self._opened_at is None else max(0.0, self._opened_at + OPEN_S - self._monotonic())

    @property
    def allows_call(self) -> bool:
        return self._opened_at is None or (self._probe is None and self.remaining_s == 0)

    def start(self) -> object | None:
        """The ticket of a call that is about to go out, to be released at its end; None if it must not."""
        if not self.allows_call:
            return None
        ticket = object()
        if self._opened_at is not None:
            self._probe = ticket
        return ticket

    def record_first_token(self, ticket: object) -> None:
        if ticket is self._probe:  # the model responds: allow other calls; one more failure opens it again
            self._probe, self._opened_at, self._failures = None, None, MAX_FAILURES - 1

    def record_success(self) -> None:
        """A call was answered, or the request itself was rejected: the model works."""
        self._failures, self._opened_at, self._probe, self.last_error = 0, None, None, None

    def record_failure(self, ticket: object, error: ModelCallError) -> bool:
        """A call failed because of the model. Return True if that opened the breaker."""
        self.last_error = error
        if self._opened_at is not None and ticket is not self._probe:  # a call from before it opened
            return False
        self._probe = None
        self._failures += 1
        if self._failures < MAX_FAILURES:
            return False
        self._opened_at = self._monotonic()
        return True

    def release(self, ticket: object) -> None:
        """A call ended, perhaps without a result."""
        if ticket is self._probe:
            self._probe = None


@dataclass(frozen=True, slots=True)
class ChosenProvider:
    """A usable model: its provider, the provider's name, the model name to send, and its breaker."""

    provider: LLMProvider
    name: str
    model: str
    breaker: Breaker = field(default_factory=Breaker)
    reason: str = ""
    """Why it was chosen, in a sentence."""

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


@dataclass(eq=False, slots=True)
class Candidate:
    """One of several models. A setting that is None comes from the call.

    `window_tokens` is None if the caller has already fitted the request to this model.
    """

    name: str
    create: Callable[[], Awaitable[ChosenProvider]]
    """Called on first use, unless there is a model already. Raises NanobotError if the model cannot be used."""
    _: KW_ONLY
    model: ChosenProvider | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    window_tokens: int | None = None
    problem: str | None = None
    """Why it could not be created, as of the last attempt."""

    @classmethod
    def ready(cls, model: ChosenProvider) -> "Candidate":
        async def create() -> ChosenProvider:
            return model

        return cls(str(model), create, model=model)

    async def created(self) -> ChosenProvider:
        """The model, created if necessary. Raises NanobotError if that fails; the next call tries again."""
        if (model := self.model) is not None:
            return model
        try:
            created = await self.create()
        except NanobotError as error:
            self.problem = str(error)
            raise
        self.model, self.problem = self.model or created, None
        if self.model is not created:  # another call was quicker
            await created.provider.close()
        return self.model

    @property
    def may_answer(self) -> bool:
        """Whether it is worth trying, as far as known."""
        return self.problem is None if self.model is None else self.model.breaker.allows_call

    def __str__(self) -> str:
        return str(self.model or self.name)


class ResilientProvider(LLMProvider):
    """The models of a session: the first candidate that answers. Its breaker protects a single one, too."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        *,
        retries: int | None = RETRIES,
        sleep: Sleep = asyncio.sleep,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        """The first candidate must be created already. `retries` None: persistent."""
        first = candidates[0].model
        if first is None:
            raise ValueError("the first candidate must be ready")
        super().__init__(first.provider.api_key, first.provider.api_base)
        self.candidates = list(candidates)
        self.retries = retries
        self.sleep = sleep
        self.monotonic = monotonic
        self._first = first
        self._by_session: dict[str, int] = {}

    def get_default_model(self) -> str:
        return self._first.model

    def prepare(self) -> None:
        """Prepare the candidate that the next call will reach."""
        model = next((candidate.model for candidate in self.candidates if candidate.may_answer), None)
        if model is not None:
            model.provider.prepare()

    async def list_models(self) -> tuple[str, ...]:
        return await self._first.provider.list_models()

    async def context_length(self, model: str) -> int | None:
        return await self._first.provider.context_length(model)

    def notes(self) -> list[str]:
        """Which models are paused, for how long and why, and which one is used instead."""
        notes: list[str] = []
        for candidate in self.candidates:
            if candidate.model is None:
                notes += [f"{candidate.name} cannot be used: {candidate.problem}"] if candidate.problem else []
            else:
                notes += [candidate.model.pause] if candidate.model.breaker.is_open else []
                notes += candidate.model.provider.notes()
        if not self._first.breaker.allows_call:
            instead = next((candidate for candidate in self.candidates if candidate.may_answer), None)
            notes.append("No other model is available." if instead is None else f"{instead} is used instead.")
        return list(dict.fromkeys(notes))

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """As in LLMProvider. The request's model is for the first candidate; the others have names of their own.

        Raises the last failure, including which other models were tried; ModelUnavailableError if none may be called
        now. Emitted text is final: from then on there is no other attempt. Reasoning is not, a retried model thinks
        again. Deltas of tool calls wait until text goes out or the answer is complete, so that a call that was started
        twice does not look like one. Cancelling is safe during a wait, too.
        """
        persistence = _Persistence()
        while True:
            round_ = _Round(request)
            for index, candidate in enumerate(self.candidates):
                model = await round_.start(candidate)
                if model is None:
                    continue
                context = replace(
                    call_context(), has_fallback=any(map(round_.may_answer, self.candidates[index + 1 :]))
                )
                asked = round_.request_for(candidate, model, named=index == 0)
                attempt = _Attempt(model, round_.ticket, partial(self._announce, index, round_))
                try:
                    while True:
                        try:
                            async with aclosing(asked.send(model.provider)) as deltas:
                                with call_context_scope(context):
                                    delta = await anext(deltas, None)  # only then is the context read
                                while delta is not None:
                                    for ready in attempt.feed(delta):
                                        yield ready
                                    delta = await anext(deltas, None)
                            if attempt.finished:
                                return
                            raise StreamCutError("the stream ended without a complete answer")
                        except ModelCallError as error:
                            if not error.target.model:  # the code that raised it did not know it
                                error.target = model.target
                            wait_s = self._wait_for_retry(error, attempt, has_fallback=context.has_fallback)
                            if wait_s is None:
                                round_.add_failure(model, error)
                                if attempt.is_final or error.try_elsewhere is TryElsewhere.NOBODY:
                                    raise round_.with_context(error) from None
                                break
                            await self.sleep(wait_s)
                finally:
                    model.breaker.release(round_.ticket)
            failure = round_.final_error()
            pause_s = persistence.wait_s(failure, self.monotonic()) if self.retries is None else None
            if pause_s is None:
                raise failure
            await self.sleep(pause_s)

    def _wait_for_retry(self, error: ModelCallError, attempt: "_Attempt", *, has_fallback: bool) -> float | None:
        """The seconds before the same model is asked again, after telling the user; None to give it up."""
        attempt.held, now = [], self.monotonic()
        attempt.failed_at = now if attempt.failed_at is None else attempt.failed_at
        if attempt.is_final or self.retries is None or attempt.retries == self.retries:
            return None
        if error.try_elsewhere is not TryElsewhere.OTHER_MODEL or isinstance(error, ProviderTimeoutError):
            return None  # it would fail again, or has cost a minute already
        wait_s = _backoff(attempt.retries) if error.retry_after_s is None else error.retry_after_s
        if wait_s > (attempt.failed_at + FALLBACK_WAIT_S - now if has_fallback else MAX_WAIT_S):
            return None
        attempt.retries += 1
        _notify(f"{_brief(error)} Retry {attempt.retries} of {self.retries} in {format_wait(wait_s)}.")
        return wait_s

    async def close(self) -> None:
        for candidate in self.candidates:
            if candidate.model is not None:
                await candidate.model.provider.close()

    def _announce(self, index: int, round_: "_Round") -> None:
        """Log and notify the session if another candidate answers it than before."""
        now, context = self.candidates[index], call_context()
        if index != self._by_session.get(context.session_key, 0):
            put_bounded(self._by_session, context.session_key, index, _MAX_SESSIONS)
            switch = f"{now} answers instead of {self._first}. {round_.reasons()}" if index else f"{now} answers again."
            log.log(logging.WARNING if index else logging.INFO, "%s", switch)
            context.notify(switch)


@dataclass(slots=True)
class _Attempt:
    """One candidate's answer, at the first attempt or a later one."""

    model: ChosenProvider
    ticket: object
    announce: Callable[[], None]
    """Called once, with the first delta."""
    held: list[Delta] = field(default_factory=list)
    """Deltas of tool calls that may not go out yet."""
    has_begun: bool = False
    is_final: bool = False
    """Whether something was emitted that cannot be taken back."""
    finished: bool = False
    retries: int = 0
    failed_at: float | None = None

    def feed(self, delta: Delta) -> list[Delta]:
        """What may go out now."""
        if isinstance(delta, ToolCallDelta) and not self.is_final:
            self.held.append(delta)
            return []
        if not self.has_begun:
            self.has_begun = True
            self.model.breaker.record_first_token(self.ticket)
            self.announce()
        if not isinstance(delta, TextDelta | Finished):
            return [delta]
        if isinstance(delta, Finished):
            self.finished = True
            self.model.breaker.record_success()
        self.is_final, held, self.held = True, self.held, []
        return [*held, delta]


class _Round:
    """One call's way through the candidates, each at most once: who was asked, and why others were not."""

    def __init__(self, request: ModelRequest) -> None:
        self.ticket: object | None = None
        """Of the candidate's breaker."""
        self._request = request
        self._tokens: int | None = None
        self._failures: list[ModelCallError] = []
        self._skipped: list[str] = []
        self._paused: list[ChosenProvider] = []
        self._rejected_providers: set[str] = set()

    async def start(self, candidate: Candidate) -> ChosenProvider | None:
        """The model to ask now; None if this candidate is not asked, with the reason noted."""
        try:
            model = await candidate.created()
        except NanobotError as error:
            self._skipped.append(f"{candidate.name} cannot be used: {error}")
            return None
        if model.name in self._rejected_providers:
            self._skipped.append(f"{model} was not tried: it uses the same provider.")
            return None
        if not self._fits(candidate):
            self._skipped.append(
                f"{model} was not tried: the request has about {self._request_tokens():,} tokens, "
                f"its context window {candidate.window_tokens:,}."
            )
            return None
        self.ticket = model.breaker.start()
        if self.ticket is None:
            self._paused.append(model)
            self._skipped.append(model.pause)
            return None
        return model

    def may_answer(self, candidate: Candidate) -> bool:
        """Whether a later candidate is worth trying, as far as known."""
        model = candidate.model
        is_rejected = model is not None and model.name in self._rejected_providers
        return candidate.may_answer and not is_rejected and self._fits(candidate)

    def request_for(self, candidate: Candidate, model: ChosenProvider, *, named: bool) -> ModelRequest:
        """The request with the candidate's settings; `named`: for the model that it names, if any."""
        request = self._request
        max_tokens, window, temperature = candidate.max_tokens, candidate.window_tokens, candidate.temperature
        max_tokens = max_tokens or request.max_tokens
        return replace(
            request,
            model=(named and request.model) or model.model,
            max_tokens=max_tokens if window is None else min(max_tokens, window - self._request_tokens()),
            temperature=request.temperature if temperature is None else temperature,
        )

    def _fits(self, candidate: Candidate) -> bool:
        if candidate.window_tokens is None:
            return True
        reply_tokens = min(candidate.max_tokens or self._request.max_tokens, _MIN_REPLY_TOKENS)
        return candidate.window_tokens - self._request_tokens() >= reply_tokens

    def _request_tokens(self) -> int:
        if self._tokens is None:
            tools = json.dumps(list(self._request.tools))
            self._tokens = estimate_tokens(self._request.messages) + estimate_tokens(tools)
        return self._tokens

    def add_failure(self, model: ChosenProvider, error: ModelCallError) -> None:
        """This model is given up."""
        self._failures.append(error)
        if error.try_elsewhere is TryElsewhere.OTHER_PROVIDER:
            self._rejected_providers.add(model.name)
        if error.try_elsewhere is TryElsewhere.NOBODY:
            model.breaker.record_success()  # the model works, the request does not
        elif model.breaker.record_failure(self.ticket, error):
            log.warning("%s", model.pause)

    def reasons(self) -> str:
        """Why the candidates before this one did not answer."""
        return " ".join([*(error.summary() for error in self._failures), *self._skipped])

    def with_context(self, error: ModelCallError) -> ModelCallError:
        """The failure with the failures and skipped models before it."""
        error.previous = tuple(failure for failure in self._failures if failure is not error)
        error.skipped = tuple(self._skipped)
        return error

    def final_error(self) -> ModelCallError:
        """The error to raise if no model answered."""
        if self._failures:
            return self.with_context(self._failures[-1])
        soonest = min(self._paused, key=lambda model: model.breaker.remaining_s)
        detail = ""
        if (last := soonest.breaker.last_error) is not None:
            step = last.advice() if last.try_elsewhere is TryElsewhere.OTHER_PROVIDER else ""
            why = f"its last failure was that {last.brief()}: {last.detail}".rstrip(": ")
            detail = f"{why}. {step}".strip(" .")
        again_in_s = max(1.0, soonest.breaker.remaining_s)
        error = ModelUnavailableError(detail, target=soonest.target, retry_after_s=again_in_s)
        error.skipped = tuple(reason for reason in self._skipped if reason != soonest.pause)
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
