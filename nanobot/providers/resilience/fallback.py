"""Tries several models in order. A model that fails repeatedly is paused for a minute, then tried again.

Each error type says who to try next (`try_elsewhere` in errors.py). No switch is silent: the user is told once which
model answers instead, and once when the first one is back; `notes` always shows the current state.
"""

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import cast

from nanobot.errors import NanobotError
from nanobot.messages.tokens import estimate_tokens
from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers.base import Delta, Finished, LLMProvider, call_context, call_context_scope
from nanobot.providers.errors import CallTarget, ModelCallError, ModelUnavailableError, TryElsewhere, format_wait
from nanobot.providers.resilience.breaker import Breaker, BreakerCall
from nanobot.providers.resilience.retry import StreamGuard

log = logging.getLogger(__name__)

_MAX_SESSIONS = 1024
"""How many sessions to remember whose answers come from another model than the first."""
_MIN_REPLY_TOKENS = 1024
"""A context window that leaves fewer tokens for the reply is too small for the request."""


@dataclass(frozen=True, slots=True)
class CandidateModel:
    """A usable model: its provider, the provider's name, the model name to send, and its breaker."""

    provider: LLMProvider
    provider_name: str
    model: str
    breaker: Breaker

    def __str__(self) -> str:
        return CallTarget(self.provider_name, self.model).name


class Candidate:
    """One of several models, created on first use. A setting that is None comes from the call.

    `window_tokens` is None if the caller has already fitted the request to this model.
    """

    def __init__(
        self,
        name: str,
        create: Callable[[], Awaitable[CandidateModel]],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        window_tokens: int | None = None,
    ) -> None:
        self.name = name
        self.max_tokens = max_tokens
        self.temperature = temperature
        self.window_tokens = window_tokens
        self.model: CandidateModel | None = None
        self.problem: str | None = None
        """Why it could not be created, as of the last attempt."""
        self._create = create

    @classmethod
    def ready(cls, model: CandidateModel) -> "Candidate":
        """A candidate that is created already."""
        candidate = cls(str(model), lambda: _return_ready(model))
        candidate.model = model
        return candidate

    async def create(self) -> CandidateModel:
        """Return the model, created if necessary. Raises NanobotError if that fails; the next call tries again."""
        if self.model is not None:
            return self.model
        try:
            created = await self._create()
        except NanobotError as error:
            self.problem = str(error)
            raise
        model = self._keep_first(created)
        if model is not created:
            await created.provider.close()
        return model

    def _keep_first(self, created: CandidateModel) -> CandidateModel:
        """Keep the first one if two calls created it concurrently."""
        self.model, self.problem = self.model or created, None
        return self.model

    @property
    def may_answer(self) -> bool:
        """Whether it is worth trying, as far as known."""
        return self.problem is None if self.model is None else self.model.breaker.allows_call

    def __str__(self) -> str:
        return str(self.model or self.name)


async def _return_ready(model: CandidateModel) -> CandidateModel:
    return model


class FallbackProvider(LLMProvider):
    """The first candidate that answers. A single one is wrapped, too: its breaker stops calls to a failing model."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        """The first candidate must be created already; the others are created on first use."""
        first = candidates[0].model
        if first is None:
            raise ValueError("the first candidate must be ready")
        super().__init__(first.provider.api_key, first.provider.api_base)
        self._candidates = list(candidates)
        self._first = first
        self._current = 0
        self._by_session: dict[str, int] = {}

    def get_default_model(self) -> str:
        return self._first.model

    def prepare(self) -> None:
        """Prepare the candidate that the next call will reach."""
        model = next((candidate.model for candidate in self._candidates if candidate.may_answer), None)
        if model is not None:
            model.provider.prepare()

    async def list_models(self) -> tuple[str, ...]:
        return await self._first.provider.list_models()

    async def context_length(self, model: str) -> int | None:
        return await self._first.provider.context_length(model)

    def notes(self) -> list[str]:
        """Which models are paused, for how long and why, and which one is used instead."""
        notes: list[str] = []
        for candidate in self._candidates:
            if candidate.model is not None and candidate.model.breaker.is_open:
                notes.append(describe_pause(candidate.model))
            elif candidate.problem is not None:
                notes.append(f"{candidate.name} cannot be used: {candidate.problem}")
            if candidate.model is not None:
                notes += candidate.model.provider.notes()
        if self._first.breaker.is_open and not self._first.breaker.allows_call:
            instead = next((candidate for candidate in self._candidates if candidate.may_answer), None)
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
        now.
        """
        search = _CandidateSearch(self._candidates, messages, tools, max_tokens)
        while (choice := await search.next()) is not None:
            index, candidate, chosen, call = choice
            attempt, began = StreamGuard(), False
            stream = chosen.provider.chat_stream(
                messages,
                tools,
                model if index == 0 and model else chosen.model,
                search.reply_tokens(candidate),
                temperature if candidate.temperature is None else candidate.temperature,
            )
            try:
                async with aclosing(cast("AsyncGenerator[Delta, None]", stream)) as source:
                    received = await _first_delta(source, has_fallback=search.has_fallback(index))
                    while received is not None:
                        for delta in attempt.filter(received):
                            if not began:
                                began = True
                                call.record_first_token()
                                self._announce(search, index)
                            if isinstance(delta, Finished):
                                call.record_success()
                            yield delta
                        received = await anext(source, None)
                attempt.end()
                return
            except ModelCallError as error:
                search.record_failure(chosen, error)
                if error.try_elsewhere is TryElsewhere.NOBODY:
                    call.record_success()  # the model works, the request does not
                    raise search.add_context(error) from None
                if call.record_failure(error):
                    log.warning("%s", describe_pause(chosen))
                if attempt.final:
                    raise search.add_context(error) from None
            finally:
                call.release()
        raise search.error()

    async def close(self) -> None:
        """Close the candidates that were created."""
        for candidate in self._candidates:
            if candidate.model is not None:
                await candidate.model.provider.close()

    def _announce(self, search: "_CandidateSearch", index: int) -> None:
        now, first = self._candidates[index], self._first
        reasons = search.reasons()
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
    context = call_context()
    if context.has_fallback == has_fallback:
        return await anext(deltas, None)
    with call_context_scope(replace(context, has_fallback=has_fallback)):
        return await anext(deltas, None)


class _CandidateSearch:
    """The path of one call through the candidates."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None,
        max_tokens: int,
    ) -> None:
        self._candidates = candidates
        self._messages = messages
        self._tools = tools
        self._max_tokens = max_tokens
        self._tokens: int | None = None
        self._position = 0
        self._failures: list[ModelCallError] = []
        self._skipped: list[str] = []
        self._paused: list[CandidateModel] = []
        self._tried: list[CandidateModel] = []
        self._rejected_providers: set[str] = set()

    async def next(self) -> tuple[int, Candidate, CandidateModel, BreakerCall] | None:
        """The next candidate and its registered call, which the caller must end; None if no candidate is left."""
        while self._position < len(self._candidates):
            index, candidate = self._position, self._candidates[self._position]
            self._position += 1
            try:
                model = await candidate.create()
            except NanobotError as error:
                self._skipped.append(f"{candidate.name} cannot be used: {error}")
                continue
            if any(model.breaker is other.breaker for other in (*self._tried, *self._paused)):
                continue
            if model.provider_name in self._rejected_providers:
                self._skipped.append(f"{model} was not tried: it uses the same provider.")
            elif not self._fits(candidate):
                self._skipped.append(
                    f"{model} was not tried: the request has about {self._request_tokens():,} tokens, "
                    f"its context window {candidate.window_tokens:,}."
                )
            elif (call := model.breaker.start_call()) is None:
                self._paused.append(model)
                self._skipped.append(describe_pause(model))
            else:
                self._tried.append(model)
                return index, candidate, model, call
        return None

    def has_fallback(self, index: int) -> bool:
        """Whether any later candidate is worth trying."""
        return any(
            candidate.may_answer
            and (
                candidate.model is None
                or (
                    candidate.model.provider_name not in self._rejected_providers
                    and all(candidate.model.breaker is not tried.breaker for tried in self._tried)
                )
            )
            and self._fits(candidate)
            for candidate in self._candidates[index + 1 :]
        )

    def reply_tokens(self, candidate: Candidate) -> int:
        """The maximum length of the reply to ask for."""
        limit = candidate.max_tokens or self._max_tokens
        if candidate.window_tokens is None:
            return limit
        return min(limit, candidate.window_tokens - self._request_tokens())

    def record_failure(self, model: CandidateModel, error: ModelCallError) -> None:
        error.fill_target(CallTarget(model.provider_name, model.model))
        self._failures.append(error)
        if error.try_elsewhere is TryElsewhere.OTHER_PROVIDER:
            self._rejected_providers.add(model.provider_name)

    def reasons(self) -> str:
        """Why the candidates before this one did not answer."""
        return " ".join([*(error.summary() for error in self._failures), *self._skipped])

    def add_context(self, error: ModelCallError) -> ModelCallError:
        """The failure with the failures and skipped models before it."""
        error.previous = tuple(failure for failure in self._failures if failure is not error)
        error.skipped = tuple(self._skipped)
        return error

    def error(self) -> ModelCallError:
        """The error to raise if no model answered."""
        if self._failures:
            return self.add_context(self._failures[-1])
        soonest = min(self._paused, key=lambda model: model.breaker.remaining_s)
        error = ModelUnavailableError.from_last_failure(
            soonest.breaker.last_error,
            target=CallTarget(soonest.provider_name, soonest.model),
            again_in_s=max(1.0, soonest.breaker.remaining_s),
        )
        error.skipped = tuple(reason for reason in self._skipped if reason != describe_pause(soonest))
        return error

    def _fits(self, candidate: Candidate) -> bool:
        if candidate.window_tokens is None:
            return True
        reply_tokens = min(candidate.max_tokens or self._max_tokens, _MIN_REPLY_TOKENS)
        return candidate.window_tokens - self._request_tokens() >= reply_tokens

    def _request_tokens(self) -> int:
        if self._tokens is None:
            self._tokens = estimate_tokens(self._messages) + estimate_tokens(json.dumps(list(self._tools or ())))
        return self._tokens


def describe_pause(model: CandidateModel) -> str:
    breaker = model.breaker
    reason = f": {breaker.last_error.brief()}" if breaker.last_error is not None else ""
    when = f"for {format_wait(breaker.remaining_s)}" if breaker.remaining_s else "until it answers the next call"
    return f"{model} is paused {when}{reason}."
