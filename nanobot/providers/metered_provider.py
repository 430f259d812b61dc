"""The meter around a provider: a row in the ledger for every request sent, what it cost, and no request above a limit.

It stands innermost, `Retry(Metered(A))`, so that what is tried again, fails, is stopped or says nothing is counted too.
"""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, cast

from nanobot.config.provider_table import find_by_name
from nanobot.errors import ProviderError
from nanobot.messages.tokens import estimate_tokens
from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers.answer import TELLS_COST
from nanobot.providers.base import (
    CallContext,
    Delta,
    Finished,
    LLMProvider,
    LLMResponse,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    call_context,
    unheard,
)
from nanobot.providers.errors import ProviderTimeoutError, StreamCutError
from nanobot.usage.budget import Budget, PlannedCall
from nanobot.usage.ledger import Ledger
from nanobot.usage.prices import FREE, Price, PriceTable
from nanobot.usage.types import LedgerRow, Tokens
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock

log = logging.getLogger(__name__)


class MeteredProvider(LLMProvider):
    """Another provider, counted. What comes and what fails goes through as it is; the response learns its cost."""

    def __init__(
        self, inner: LLMProvider, provider_name: str, ledger: Ledger, budget: Budget, prices: PriceTable, clock: Clock
    ) -> None:
        super().__init__(getattr(inner, "api_key", None), getattr(inner, "api_base", None))
        self._inner = inner
        self._prepared = False
        spec = find_by_name(provider_name)
        self._meter = _Meter(
            provider_name,
            ledger,
            budget,
            prices,
            clock,
            prefix=spec.litellm_prefix if spec else "",
            is_free=provider_name == "offline" or (spec is not None and (spec.is_local or spec.is_oauth)),
        )
        inner.watch_mends(self._meter.mended)

    def get_default_model(self) -> str:
        """The model asked when a call names none."""
        return self._inner.get_default_model()

    def prepare(self) -> None:
        """A call is near: begin to load what it needs, and the prices, in a thread."""
        self._inner.prepare()
        if not self._prepared and not self._meter.is_free:
            self._prepared = True
            threading.Thread(target=self._meter.prices.load, name="load-prices", daemon=True).start()

    def notes(self) -> list[str]:
        """What is out of order right now."""
        return self._inner.notes()

    async def close(self) -> None:
        """Let go of connections, and of the note of calls under way."""
        await self._inner.close()
        self._meter.ledger.close()

    async def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> AsyncIterator[Delta]:
        """What the inner provider streams. Raises BudgetExceededError, before anything is sent, where a limit forbids.

        The row is written before the last delta goes out: who has the response finds it in the ledger.
        """
        asked = model or self.get_default_model()
        call = _Call(self._meter, messages, tools or (), asked)
        await call.begin(max_tokens)
        try:
            stream = self._inner.chat_stream(messages, tools, asked, max_tokens, temperature)
            async with aclosing(cast("Any", stream)) as deltas:
                async for delta in deltas:
                    if isinstance(delta, Finished):
                        yield Finished(await call.answered(delta.response))
                    else:
                        call.heard.append(delta)
                        yield delta
            await call.end(StreamCutError())  # where it ended without a word; after an answer it changes nothing
        except BaseException as error:
            await finish(call.end(error))
            raise


class _Call:
    """One request: what it may cost, what came of it, and the row it leaves."""

    def __init__(
        self, meter: "_Meter", messages: Sequence[ChatMessage], tools: Sequence[ToolSchema], model: str
    ) -> None:
        self.heard: list[Delta] = []
        self._meter = meter
        self._messages = messages
        self._tools = tools
        self._model = model
        self._context = call_context()
        notify = self._context.notify
        self._planned = PlannedCall(self._context.turn_id, notify=None if notify is unheard else notify)
        self._response: LLMResponse | None = None
        self._ended = False

    async def begin(self, max_tokens: int) -> None:
        """Set aside what it may cost, and note that it begins. Raises BudgetExceededError."""
        meter, sent = self._meter, self._estimated_prompt()
        if not meter.ledger.caught_up:
            await asyncio.to_thread(meter.ledger.catch_up)
        if meter.budget.limits.any:
            most = await meter.most_usd(self._model, sent, max_tokens) if meter.budget.limits.in_dollars else None
            self._planned = replace(self._planned, prompt_tokens=sent, max_tokens=max_tokens, most_usd=most)
        # A request does not wait for its price: one that is killed before the table is read is written without.
        usd = await meter.cost(self._model, Tokens(sent), None) if meter.is_free or meter.prices.loaded else None
        await meter.budget.reserve(self._planned)
        self._when = meter.clock.now().isoformat(timespec="milliseconds")
        self._started = meter.clock.monotonic()
        killed = _Request(self._context, self._when, self._model, 0.0, asyncio.CancelledError())
        self._number = meter.ledger.begin(meter.row(killed, Tokens(sent), usd, estimated=True))

    async def answered(self, response: LLMResponse) -> LLMResponse:
        """The whole answer is here; the same with its cost."""
        self._response = response
        await self.end()
        assert self._response is not None  # noqa: S101 it was set above
        return self._response

    async def end(self, error: BaseException | None = None) -> None:
        """Write the row and give back what was set aside. Ending twice is harmless."""
        meter, response = self._meter, self._response
        error = None if response is not None else error
        tokens = Tokens.of(response.usage) if response is not None else Tokens()
        estimated = not tokens.total and self._was_worked_on(error)
        if estimated:
            tokens = Tokens(self._estimated_prompt(), completion=_estimated(self.heard))
        usd = await meter.cost(self._model, tokens, response.cost_usd if response is not None else None)
        if self._ended:
            return
        self._ended = True
        if response is not None:
            self._response = replace(response, cost_usd=usd)
        meter.budget.settle(self._planned, self._when, usd, tokens.total)
        meter.record(
            _Request(self._context, self._when, self._model, meter.clock.monotonic() - self._started, error),
            tokens,
            usd,
            estimated=estimated,
        )
        meter.ledger.end(self._number)
        await meter.budget.tell(self._planned)

    def _was_worked_on(self, error: BaseException | None) -> bool:
        """Whether a model read the request, as far as one can know: a refusal and a dead line cost nothing."""
        return error is None or bool(self.heard) or _is_stop(error) or isinstance(error, ProviderTimeoutError)

    def _estimated_prompt(self) -> int:
        return self._context.prompt_tokens or estimate_tokens(self._messages) + estimate_tokens(
            json.dumps(self._tools, default=str) if self._tools else ""
        )


@dataclass(frozen=True, slots=True)
class _Request:
    """What is known of any request, answered or not."""

    context: CallContext
    when: str
    model: str
    seconds: float
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class _Meter:
    """What all calls of one provider are counted with."""

    provider: str
    ledger: Ledger
    budget: Budget
    prices: PriceTable
    clock: Clock
    prefix: str
    """The name that the table of prices has for the provider."""
    is_free: bool
    """Whether its calls cost nothing: a machine of one's own, or an account that is paid for by the month."""
    unpriced: set[str] = field(default_factory=set)

    async def most_usd(self, model: str, prompt_tokens: int, max_tokens: int) -> float | None:
        """The most a call may cost; None where it does not count for limits in dollars."""
        price = await self._price(model)
        if price is not None:
            return price.most(prompt_tokens, max_tokens) or None
        if self.provider == TELLS_COST:
            return 0.0
        if model not in self.unpriced:
            self.unpriced.add(model)
            log.warning("Limits in dollars do not count %s of %s: no price of it is known", model, self.provider)
        return None

    async def cost(self, model: str, tokens: Tokens, told: float | None) -> float | None:
        """What a call cost; `told` is what its provider said of it. None where that is not known."""
        if told is not None:
            return told
        if not tokens.total:
            return 0.0
        price = await self._price(model)
        return None if price is None else price.cost(tokens)

    async def _price(self, model: str) -> Price | None:
        if self.is_free:
            return FREE
        if not self.prices.loaded:
            await asyncio.to_thread(self.prices.load)
        return self.prices.find(model, self.prefix, self.provider)

    def mended(self, error: ProviderError, model: str, seconds: float) -> None:
        """A request was refused, and is sent again with less: each has its row."""
        now = self.clock.now().isoformat(timespec="milliseconds")
        self.record(_Request(call_context(), now, model, seconds, error), Tokens(), 0.0)

    def record(self, request: _Request, tokens: Tokens, usd: float | None, *, estimated: bool = False) -> None:
        """Write a request down. Never raises."""
        self.ledger.add(self.row(request, tokens, usd, estimated=estimated))

    def row(self, request: _Request, tokens: Tokens, usd: float | None, *, estimated: bool = False) -> LedgerRow:
        """A request as it stands in the ledger."""
        context, error = request.context, request.error
        stopped = error is not None and _is_stop(error)
        return {
            "when": request.when,
            "cause": context.cause,
            "session": context.session_key,
            "turn": context.turn_id,
            "provider": self.provider,
            "model": request.model,
            "outcome": "ok" if error is None else "stopped" if stopped else "failed",
            "error": None if error is None or stopped else type(error).__name__,
            "prompt_tokens": tokens.prompt,
            "cached_tokens": tokens.cached,
            "cache_written_tokens": tokens.cache_written,
            "completion_tokens": tokens.completion,
            "reasoning_tokens": tokens.reasoning,
            "usd": usd,
            "ms": round(request.seconds * 1000),
            "estimated": estimated,
            "process": self.ledger.process,
        }


def _is_stop(error: BaseException) -> bool:
    """Whether somebody wanted no more of it: a cancel, or a stream that was closed early."""
    return not isinstance(error, Exception)


def _estimated(heard: Sequence[Delta]) -> int:
    """About what was said by then."""
    said = []
    for delta in heard:
        match delta:
            case TextDelta(text) | ReasoningDelta(text):
                said.append(text)
            case ToolCallDelta(_, name, arguments_text):
                said.append(name + arguments_text)
            case _:
                pass
    return estimate_tokens("".join(said))
