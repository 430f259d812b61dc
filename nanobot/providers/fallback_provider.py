"""Several models in order: the first that answers. Who fails too often is left alone for a minute, then tried again.

Which failure leads to whom is said by the failure (`try_elsewhere` in errors.py). Nobody is switched in silence: the
person is told once who answers instead, and once when the first one is back; `notes` tells it at any time.
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
from nanobot.providers.attempt import Attempt
from nanobot.providers.base import Delta, Finished, LLMProvider, call_context, calling_for
from nanobot.providers.breaker import Breaker, BreakerCall
from nanobot.providers.errors import CallTarget, ModelCallError, ModelsOutError, TryElsewhere, in_words

log = logging.getLogger(__name__)

_MOST_REMEMBERED = 1024
"""Sessions of which we know who answered last; only those that another model answers take a place."""
_SMALLEST_REPLY = 1024
"""Tokens; a window that leaves less for the reply is too small for the request."""


@dataclass(frozen=True, slots=True)
class Answerer:
    """A model that can be asked: the way to it, whose it is, its name as it goes out, whether it is worth asking."""

    provider: LLMProvider
    provider_name: str
    model: str
    breaker: Breaker

    def __str__(self) -> str:
        return CallTarget(self.provider_name, self.model).name


class Candidate:
    """One of several models. It is made when it is first needed; what is None is as the call says.

    `window_tokens`: None where whoever calls has fitted the request to this model already.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Awaitable[Answerer]],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        window_tokens: int | None = None,
    ) -> None:
        self.name = name
        self.max_tokens = max_tokens
        self.temperature = temperature
        self.window_tokens = window_tokens
        self.made: Answerer | None = None
        self.problem: str | None = None
        """Why it could not be made, the last time."""
        self._make = make

    @classmethod
    def ready(cls, answerer: Answerer) -> "Candidate":
        """One that is made already."""
        candidate = cls(str(answerer), lambda: _no_second_time(answerer))
        candidate.made = answerer
        return candidate

    async def make(self) -> Answerer:
        """It, made if it was not yet. Raises NanobotError where that cannot be; the next time may be luckier."""
        if self.made is not None:
            return self.made
        try:
            made = await self._make()
        except NanobotError as error:
            self.problem = str(error)
            raise
        kept = self._keep(made)
        if kept is not made:
            await made.provider.close()
        return kept

    def _keep(self, made: Answerer) -> Answerer:
        """The first that was made, if two calls made it at once."""
        self.made, self.problem = self.made or made, None
        return self.made

    @property
    def may_answer(self) -> bool:
        """Whether asking it is worth a try, as far as is known."""
        return self.problem is None if self.made is None else self.made.breaker.admits

    def __str__(self) -> str:
        return str(self.made or self.name)


async def _no_second_time(answerer: Answerer) -> Answerer:
    return answerer


class FallbackProvider(LLMProvider):
    """The first of the candidates that answers. One alone is held, too: its breaker stops asking a dead model."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        """The first is made already; the others are made when they are needed."""
        first = candidates[0].made
        if first is None:
            raise ValueError("the first candidate must be ready")
        super().__init__(first.provider.api_key, first.provider.api_base)
        self._candidates = list(candidates)
        self._first = first
        self._answering = 0
        self._elsewhere: dict[str, int] = {}

    def get_default_model(self) -> str:
        """The first one's."""
        return self._first.model

    def prepare(self) -> None:
        """A call is near: for whom it will reach."""
        found = next((candidate.made for candidate in self._candidates if candidate.may_answer), None)
        if found is not None:
            found.provider.prepare()

    def notes(self) -> list[str]:
        """Who is out, for how long and why, and who answers instead."""
        notes: list[str] = []
        for candidate in self._candidates:
            if candidate.made is not None and candidate.made.breaker.is_open:
                notes.append(_out(candidate.made))
            elif candidate.problem is not None:
                notes.append(f"{candidate.name} cannot be used: {candidate.problem}")
            if candidate.made is not None:
                notes += candidate.made.provider.notes()
        if self._first.breaker.is_open and not self._first.breaker.admits:
            instead = next((candidate for candidate in self._candidates if candidate.may_answer), None)
            notes.append("Nobody else can be asked." if instead is None else f"{instead} is asked instead.")
        return list(dict.fromkeys(notes))

    async def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> AsyncIterator[Delta]:
        """As the port says. `model` is for the first; the others have names of their own.

        Raises the last failure, with a word on who else was asked; ModelsOutError where nobody may be asked now.
        """
        search = _Search(self._candidates, messages, tools, max_tokens)
        while (found := await search.next()) is not None:
            index, candidate, made, call = found
            attempt, began = Attempt(), False
            stream = made.provider.chat_stream(
                messages,
                tools,
                model if index == 0 and model else made.model,
                search.reply_tokens(candidate),
                temperature if candidate.temperature is None else candidate.temperature,
            )
            try:
                async with aclosing(cast("AsyncGenerator[Delta, None]", stream)) as source:
                    said = await _first_of(source, others_left=search.others_left(index))
                    while said is not None:
                        for delta in attempt.passed(said):
                            if not began:
                                began = True
                                call.began()
                                self._tell(search, index)
                            if isinstance(delta, Finished):
                                call.succeeded()
                            yield delta
                        said = await anext(source, None)
                attempt.end()
                return
            except ModelCallError as error:
                search.failed(made, error)
                if error.try_elsewhere is TryElsewhere.NOBODY:
                    call.succeeded()  # it works; it is the request that does not
                    raise search.with_the_others(error) from None
                if call.failed(error):
                    log.warning("%s", _out(made))
                if attempt.final:
                    raise search.with_the_others(error) from None
            finally:
                call.left()
        raise search.error()

    async def close(self) -> None:
        """Close those that were made."""
        for candidate in self._candidates:
            if candidate.made is not None:
                await candidate.made.provider.close()

    def _tell(self, search: "_Search", index: int) -> None:
        now, first = self._candidates[index], self._first
        why = search.why()
        if index != self._answering:
            self._answering = index
            if index:
                log.warning("%s answers instead of %s. %s", now, first, why)
            else:
                log.info("%s answers again", now)
        context = call_context()
        if index != self._elsewhere.get(context.session_key, 0):
            context.notify(f"{now} answers instead of {first}. {why}" if index else f"{now} answers again.")
            self._elsewhere.pop(context.session_key, None)
            if index:
                self._elsewhere[context.session_key] = index
            if len(self._elsewhere) > _MOST_REMEMBERED:
                del self._elsewhere[next(iter(self._elsewhere))]


async def _first_of(deltas: AsyncGenerator[Delta, None], *, others_left: bool) -> Delta | None:
    context = call_context()
    if context.others_left == others_left:
        return await anext(deltas, None)
    with calling_for(replace(context, others_left=others_left)):
        return await anext(deltas, None)


class _Search:
    """The way of one call through the candidates: who failed, who was passed over."""

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
        self._next = 0
        self._failures: list[ModelCallError] = []
        self._passed_over: list[str] = []
        self._out: list[Answerer] = []
        self._asked: list[Answerer] = []
        self._refused: set[str] = set()

    async def next(self) -> tuple[int, Candidate, Answerer, BreakerCall] | None:
        """Whom to ask now, and the call, which is to be ended; None when nobody is left."""
        while self._next < len(self._candidates):
            index, candidate = self._next, self._candidates[self._next]
            self._next += 1
            try:
                made = await candidate.make()
            except NanobotError as error:
                self._passed_over.append(f"{candidate.name} cannot be used: {error}")
                continue
            if any(made.breaker is other.breaker for other in (*self._asked, *self._out)):
                continue
            if made.provider_name in self._refused:
                self._passed_over.append(f"{made} was not asked: it is with the same provider.")
            elif not self._fits(candidate):
                self._passed_over.append(
                    f"{made} was not asked: the request has about {self._size():,} tokens, "
                    f"its window {candidate.window_tokens:,}."
                )
            elif (call := made.breaker.enter()) is None:
                self._out.append(made)
                self._passed_over.append(_out(made))
            else:
                self._asked.append(made)
                return index, candidate, made, call
        return None

    def others_left(self, index: int) -> bool:
        """Whether anybody behind this one is worth a try."""
        return any(
            candidate.may_answer
            and (candidate.made is None or candidate.made.provider_name not in self._refused)
            and (candidate.made is None or all(candidate.made.breaker is not one.breaker for one in self._asked))
            and self._fits(candidate)
            for candidate in self._candidates[index + 1 :]
        )

    def reply_tokens(self, candidate: Candidate) -> int:
        """How long a reply to ask for."""
        wanted = candidate.max_tokens or self._max_tokens
        return wanted if candidate.window_tokens is None else min(wanted, candidate.window_tokens - self._size())

    def failed(self, made: Answerer, error: ModelCallError) -> None:
        """It gave no answer."""
        error.told_by(CallTarget(made.provider_name, made.model))
        self._failures.append(error)
        if error.try_elsewhere is TryElsewhere.OTHER_PROVIDER:
            self._refused.add(made.provider_name)
            log.warning("%s", error)

    def why(self) -> str:
        """What became of those that came first."""
        return " ".join([*(error.aside() for error in self._failures), *self._passed_over])

    def with_the_others(self, error: ModelCallError) -> ModelCallError:
        """The failure that goes up, with a word on the others."""
        error.earlier = tuple(one for one in self._failures if one is not error)
        error.passed_over = tuple(self._passed_over)
        return error

    def error(self) -> ModelCallError:
        """What goes up when nobody answered."""
        if self._failures:
            return self.with_the_others(self._failures[-1])
        soonest = min(self._out, key=lambda made: made.breaker.out_for_s)
        error = ModelsOutError.because_of(
            soonest.breaker.last_error,
            target=CallTarget(soonest.provider_name, soonest.model),
            again_in_s=max(1.0, soonest.breaker.out_for_s),
        )
        error.passed_over = tuple(one for one in self._passed_over if one != _out(soonest))
        return error

    def _fits(self, candidate: Candidate) -> bool:
        if candidate.window_tokens is None:
            return True
        wanted = min(candidate.max_tokens or self._max_tokens, _SMALLEST_REPLY)
        return candidate.window_tokens - self._size() >= wanted

    def _size(self) -> int:
        if self._tokens is None:
            self._tokens = estimate_tokens(self._messages) + estimate_tokens(json.dumps(list(self._tools or ())))
        return self._tokens


def _out(made: Answerer) -> str:
    breaker = made.breaker
    why = f": {breaker.last_error.brief()}" if breaker.last_error is not None else ""
    when = f"for {in_words(breaker.out_for_s)}" if breaker.out_for_s else "until it answers the next call"
    return f"{made} is out of order {when}{why}."
