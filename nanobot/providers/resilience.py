"""The one layer above the wire that retries, falls back to other models and pauses failing ones; nothing below retries.

Standard: each model is asked up to four times, after 1, 2 and 4 s or as long as the server asks for; then the next one.
Persistent (`agents.defaults.providerRetryMode`): each is asked once, and all of them again until the same failure
repeats, at most a minute apart. Each error type says who to try next (`try_elsewhere` in errors.py). No switch is
silent: the user is told once which model answers instead, and once when the first one is back.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass, replace
from typing import cast

from nanobot.errors import NanobotError
from nanobot.messages.tokens import estimate_tokens
from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers.base import (
    Delta,
    Finished,
    LLMProvider,
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
"""How often the user is told that a persistent call goes on."""
_MAX_SESSIONS = 1024
"""How many sessions to remember whose answers come from another model than the first."""
_MIN_REPLY_TOKENS = 1024
"""A context window that leaves fewer tokens for the reply is too small for the request."""


class Breaker:
    """A circuit breaker: whether one model at one endpoint may be called. Shared by all its callers; in memory only.

    The third failure in a row opens it for a minute. Then one call goes out as a probe; until its first token, no
    other. A call is the object that `start` returned.
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
        """Register a call that is about to go out; None if it must not. It must be ended in one of the ways below."""
        if not self.allows_call:
            return None
        call = object()
        if self._opened_at is not None:
            self._probe = call
        return call

    def record_first_token(self, call: object) -> None:
        if call is self._probe:  # the model responds: allow other calls; one more failure opens it again
            self._probe, self._opened_at, self._failures = None, None, MAX_FAILURES - 1

    def record_success(self) -> None:
        """A call was answered, or the request itself was rejected: the model works."""
        self._failures, self._opened_at, self._probe, self.last_error = 0, None, None, None

    def record_failure(self, call: object, error: ModelCallError) -> bool:
        """A call failed because of the model. Return True if that opened the breaker."""
        self.last_error = error
        if call is self._probe:
            self._probe = None
        elif self._opened_at is not None:  # a call from before it opened
            return False
        self._failures += 1
        if self._failures < MAX_FAILURES:
            return False
        self._opened_at = self._monotonic()
        return True

    def release(self, call: object) -> None:
        """A call ended without a result, such as by cancelling."""
        if call is self._probe:
            self._probe = None


@dataclass(frozen=True, slots=True)
class CandidateModel:
    """A usable model: its provider, the provider's name, the model name to send, and its breaker."""

    provider: LLMProvider
    provider_name: str
    model: str
    breaker: Breaker

    def __str__(self) -> str:
        return self.target.name

    @property
    def target(self) -> CallTarget:
        return CallTarget(self.provider_name, self.model)

    @property
    def pause(self) -> str:
        """A sentence: for how long it is paused and why."""
        breaker = self.breaker
        reason = f": {breaker.last_error.brief()}" if breaker.last_error is not None else ""
        when = f"for {format_wait(breaker.remaining_s)}" if breaker.remaining_s else "until it answers the next call"
        return f"{self} is paused {when}{reason}."


@dataclass(eq=False, slots=True)
class Candidate:
    """One of several models, created on first use. A setting that is None comes from the call.

    `window_tokens` is None if the caller has already fitted the request to this model.
    """

    name: str
    create: Callable[[], Awaitable[CandidateModel]]
    """Raises NanobotError if the model cannot be used."""
    _: KW_ONLY
    model: CandidateModel | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    window_tokens: int | None = None
    problem: str | None = None
    """Why it could not be created, as of the last attempt."""

    @classmethod
    def ready(cls, model: CandidateModel) -> "Candidate":
        """A candidate that is created already."""

        async def create() -> CandidateModel:
            return model

        return cls(str(model), create, model=model)

    async def created(self) -> CandidateModel:
        """The model, created if necessary. Raises NanobotError if that fails; the next call tries again."""
        model = self.model
        if model is not None:
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
        self._current = 0
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

    async def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> AsyncIterator[Delta]:
        """As in LLMProvider. `model` is for the first candidate; the others have names of their own.

        Raises the last failure, including which other models were tried; ModelUnavailableError if none may be called
        now. Emitted text is final: from then on there is no other attempt. Reasoning is not, a retried model thinks
        again. Deltas of tool calls wait until text goes out or the answer is complete, so that a call that was started
        twice does not look like one. Cancelling is safe during a wait, too.
        """
        call = _Call(self, messages, tools, max_tokens)
        try:
            while True:
                index, candidate, chosen = await call.choose()
                held: list[Delta] = []
                final = finished = False
                stream = chosen.provider.chat_stream(
                    messages,
                    tools,
                    model if index == 0 and model else chosen.model,
                    call.reply_tokens(candidate),
                    temperature if candidate.temperature is None else candidate.temperature,
                )
                try:
                    async with aclosing(cast("AsyncGenerator[Delta, None]", stream)) as source:
                        delta = await _first_delta(source, has_fallback=call.has_fallback)
                        while delta is not None:
                            if isinstance(delta, ToolCallDelta) and not final:
                                held.append(delta)
                            else:
                                if not call.has_begun:
                                    call.record_first_token()
                                    self._announce(call, index)
                                if isinstance(delta, TextDelta | Finished):
                                    final, finished = True, isinstance(delta, Finished)
                                if finished:
                                    call.record_success()
                                while final and held:
                                    yield held.pop(0)
                                yield delta
                            delta = await anext(source, None)
                    if finished:
                        return
                    raise StreamCutError("the stream ended without a complete answer")
                except ModelCallError as error:
                    await call.handle_failure(error, final=final)
        finally:
            call.release()

    async def close(self) -> None:
        """Close the candidates that were created."""
        for candidate in self.candidates:
            if candidate.model is not None:
                await candidate.model.provider.close()

    def _announce(self, call: "_Call", index: int) -> None:
        """Tell the log and the session if another candidate answers than before."""
        now, first = self.candidates[index], self._first
        reasons = call.reasons()
        if index != self._current:
            self._current = index
            if index:
                log.warning("%s answers instead of %s. %s", now, first, reasons)
            else:
                log.info("%s answers again", now)
        context = call_context()
        if index != self._by_session.get(context.session_key, 0):
            context.notify(f"{now} answers instead of {first}. {reasons}" if index else f"{now} answers again.")
            self._by_session.pop(context.session_key, None)
            if index:
                self._by_session[context.session_key] = index
            if len(self._by_session) > _MAX_SESSIONS:
                del self._by_session[next(iter(self._by_session))]


async def _first_delta(deltas: AsyncGenerator[Delta, None], *, has_fallback: bool) -> Delta | None:
    """Start the stream in a call context that says whether another model is left; its code reads that at its start."""
    context = call_context()
    if context.has_fallback == has_fallback:
        return await anext(deltas, None)
    with call_context_scope(replace(context, has_fallback=has_fallback)):
        return await anext(deltas, None)


class _Call:
    """The path of one call through the candidates: who is asked next, after which wait."""

    def __init__(
        self,
        provider: ResilientProvider,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None,
        max_tokens: int,
    ) -> None:
        self._provider = provider
        self._messages = messages
        self._tools = tools
        self._max_tokens = max_tokens
        self._context = call_context()
        self._tokens: int | None = None
        self._rounds = 0
        self._last_kind: tuple[type[ModelCallError], int | None] | None = None
        self._same_failures = 0
        self._notified_at: float | None = None
        self._retries = 0
        self._failed_at: float | None = None
        """When the chosen candidate failed first."""
        self._chosen: tuple[int, Candidate, CandidateModel] | None = None
        self._breaker_call: object | None = None
        self.has_begun = False
        """Whether the chosen candidate's breaker knows of its first token."""
        self.has_fallback = False
        """Whether any candidate after the chosen one is worth trying."""
        self._start_round()

    def _start_round(self) -> None:
        self._position = 0
        self._failures: list[ModelCallError] = []
        self._skipped: list[str] = []
        self._paused: list[CandidateModel] = []
        self._tried: list[CandidateModel] = []
        self._rejected_providers: set[str] = set()

    async def choose(self) -> tuple[int, Candidate, CandidateModel]:
        """The candidate to ask now: the same one after a wait, else the next. Raises the failure if none is left."""
        while self._chosen is None:
            if self._position == len(self._provider.candidates):
                error = self._final_error()
                wait_s = self._wait_for_next_round(error) if self._provider.retries is None else None
                if wait_s is None:
                    raise error
                await self._provider.sleep(wait_s)
                self._start_round()
            await self._try_next()
        return self._chosen

    async def _try_next(self) -> None:
        """Choose the next candidate, or note why it is not asked."""
        index, candidate = self._position, self._provider.candidates[self._position]
        self._position += 1
        try:
            model = await candidate.created()
        except NanobotError as error:
            self._skipped.append(f"{candidate.name} cannot be used: {error}")
            return
        if any(model.breaker is other.breaker for other in (*self._tried, *self._paused)):
            return  # the same model under another name
        if model.provider_name in self._rejected_providers:
            self._skipped.append(f"{model} was not tried: it uses the same provider.")
        elif not self._fits(candidate):
            self._skipped.append(
                f"{model} was not tried: the request has about {self._request_tokens():,} tokens, "
                f"its context window {candidate.window_tokens:,}."
            )
        elif (breaker_call := model.breaker.start()) is None:
            self._paused.append(model)
            self._skipped.append(model.pause)
        else:
            self._tried.append(model)
            self._chosen, self._breaker_call, self.has_begun = (index, candidate, model), breaker_call, False
            self._retries, self._failed_at = 0, None
            self.has_fallback = any(map(self._is_fallback, self._provider.candidates[index + 1 :]))

    def _is_fallback(self, candidate: Candidate) -> bool:
        model = candidate.model
        is_new = model is None or (
            model.provider_name not in self._rejected_providers
            and all(model.breaker is not tried.breaker for tried in self._tried)
        )
        return candidate.may_answer and is_new and self._fits(candidate)

    def _fits(self, candidate: Candidate) -> bool:
        if candidate.window_tokens is None:
            return True
        reply_tokens = min(candidate.max_tokens or self._max_tokens, _MIN_REPLY_TOKENS)
        return candidate.window_tokens - self._request_tokens() >= reply_tokens

    def reply_tokens(self, candidate: Candidate) -> int:
        """The maximum length of the reply to ask for."""
        limit = candidate.max_tokens or self._max_tokens
        return (
            limit if candidate.window_tokens is None else min(limit, candidate.window_tokens - self._request_tokens())
        )

    def _request_tokens(self) -> int:
        if self._tokens is None:
            self._tokens = estimate_tokens(self._messages) + estimate_tokens(json.dumps(list(self._tools or ())))
        return self._tokens

    def record_first_token(self) -> None:
        self.has_begun = True
        if self._chosen is not None:
            self._chosen[2].breaker.record_first_token(self._breaker_call)

    def record_success(self) -> None:
        """The chosen model answered, or it works and the request does not."""
        if self._chosen is not None and self._breaker_call is not None:
            self._chosen[2].breaker.record_success()
            self._breaker_call = None

    def release(self) -> None:
        """The call is over."""
        if self._chosen is not None and self._breaker_call is not None:
            self._chosen[2].breaker.release(self._breaker_call)

    async def handle_failure(self, error: ModelCallError, *, final: bool) -> None:
        """Return once another attempt may be made. Raises the error if none may: after `final` text, or because it
        would not help.
        """
        assert self._chosen is not None  # noqa: S101 it has just failed
        model = self._chosen[2]
        error.fill_target(model.target)
        wait_s = None if final else self._wait_for_retry(error)
        if wait_s is not None:
            await self._provider.sleep(wait_s)
            return
        self._failures.append(error)
        if error.try_elsewhere is TryElsewhere.OTHER_PROVIDER:
            self._rejected_providers.add(model.provider_name)
        if error.try_elsewhere is TryElsewhere.NOBODY:
            self.record_success()
        elif self._breaker_call is not None and model.breaker.record_failure(self._breaker_call, error):
            log.warning("%s", model.pause)
        self._chosen = self._breaker_call = None
        if final or error.try_elsewhere is TryElsewhere.NOBODY:
            raise self._with_context(error) from None

    def _wait_for_retry(self, error: ModelCallError) -> float | None:
        """The seconds before the same model is asked again, after telling the user; None to give it up."""
        retries = self._provider.retries
        if retries is None or self._retries == retries or error.try_elsewhere is not TryElsewhere.OTHER_MODEL:
            return None
        if isinstance(error, ProviderTimeoutError):
            return None  # that has cost a minute already
        wait_s = _backoff(self._retries) if error.retry_after_s is None else error.retry_after_s
        limit_s = MAX_WAIT_S
        if self.has_fallback:
            now = self._provider.monotonic()
            self._failed_at = now if self._failed_at is None else self._failed_at
            limit_s = self._failed_at + FALLBACK_WAIT_S - now
        if wait_s > limit_s:
            return None
        self._retries += 1
        self._notify(f"{_brief(error)} Retry {self._retries} of {retries} in {format_wait(wait_s)}.")
        return wait_s

    def _wait_for_next_round(self, error: ModelCallError) -> float | None:
        """The seconds before all models are asked again; None to give up."""
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
        now = self._provider.monotonic()
        if self._notified_at is None or now - self._notified_at >= _NOTICE_INTERVAL_S:
            self._notified_at = now
            wait = format_wait(wait_s)
            self._notify(f"{_brief(error)} Retrying until it answers, next in {wait}; /stop ends that.")
        return wait_s

    def _notify(self, text: str) -> None:
        log.info("%s", text)
        self._context.notify(text)

    def reasons(self) -> str:
        """Why the candidates before this one did not answer."""
        return " ".join([*(error.summary() for error in self._failures), *self._skipped])

    def _with_context(self, error: ModelCallError) -> ModelCallError:
        """The failure with the failures and skipped models before it."""
        error.previous = tuple(failure for failure in self._failures if failure is not error)
        error.skipped = tuple(self._skipped)
        return error

    def _final_error(self) -> ModelCallError:
        """The error to raise if no model answered."""
        if self._failures:
            return self._with_context(self._failures[-1])
        soonest = min(self._paused, key=lambda model: model.breaker.remaining_s)
        error = ModelUnavailableError.from_last_failure(
            soonest.breaker.last_error, target=soonest.target, again_in_s=max(1.0, soonest.breaker.remaining_s)
        )
        error.skipped = tuple(reason for reason in self._skipped if reason != soonest.pause)
        return error


def _backoff(retries: int) -> float:
    return float(min(FIRST_WAIT_S * 2.0 ** min(retries, 30), MAX_WAIT_S))


def _brief(error: ModelCallError) -> str:
    return f"{error.target.name}: {error.brief()}."
