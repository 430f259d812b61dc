"""The meter around a provider: a ledger row for every request sent, its cost, and a check of the spending limits.

It is the innermost wrapper, `Retry(Metered(A))`, so that retried, failed, stopped and empty requests count, too.
"""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, cast

from nanobot.config.provider_table import find_by_name
from nanobot.errors import BudgetExceededError, ProviderError
from nanobot.messages.tokens import estimate_tokens
from nanobot.messages.types import ChatMessage, ToolSchema
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
    ignore_notice,
)
from nanobot.providers.errors import ProviderTimeoutError, StreamCutError
from nanobot.providers.wire.chat_response import REPORTS_COST
from nanobot.usage.budget import Budget, BudgetedCall
from nanobot.usage.ledger import Ledger
from nanobot.usage.prices import FREE, Price, PriceTable, matching_price
from nanobot.usage.types import LedgerRow, Tokens
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock

log = logging.getLogger(__name__)


class ProviderPrices:
    """Prices of one provider's models: `overrides` holds the owner's prices, which override the table.

    Otherwise the offline provider, local servers and accounts with a monthly fee cost nothing.
    """

    def __init__(self, provider: str, table: PriceTable, overrides: Mapping[str, Price] | None = None) -> None:
        spec = find_by_name(provider)
        self._provider = provider
        self._key = spec.config_key if spec else provider
        self._prefix = spec.litellm_prefix if spec else ""
        self._table = table
        self._overrides = overrides or {}
        self._is_free = provider == "offline" or (spec is not None and (spec.is_local or spec.is_oauth))

    @property
    def loaded(self) -> bool:
        """Whether `find` works without reading a file."""
        return self._is_free or self._table.loaded

    def load(self) -> None:
        """Load the table if it is needed. Never raises."""
        if not self._is_free:
            self._table.load()

    def find(self, model: str) -> Price | None:
        """The price of a model; None if unknown. May read a file."""
        overrides = matching_price(self._overrides, model)
        if overrides is not None or self._is_free:
            return overrides or FREE
        return self._table.find(model, self._prefix, self._provider)

    def missing(self, model: str) -> str:
        """A sentence about a missing price and what to set; empty if limits in dollars can count the model. May read a
        file.
        """
        if self.find(model) is not None or self._provider == REPORTS_COST:
            return ""
        example = json.dumps({model: {"input": 1.25, "output": 10}}, ensure_ascii=False)
        return (
            f"No price is known for the model {model} of {self._provider}. Set providers.{self._key}.prices in the "
            f"config to what a million tokens cost, for example {example} (0 where it costs nothing)."
        )


class MeteredProvider(LLMProvider):
    """Meters another provider. Deltas and errors pass through unchanged; the response gets its cost."""

    def __init__(
        self,
        inner: LLMProvider,
        provider_name: str,
        ledger: Ledger,
        budget: Budget,
        prices: ProviderPrices,
        clock: Clock,
    ) -> None:
        super().__init__(getattr(inner, "api_key", None), getattr(inner, "api_base", None))
        self._inner = inner
        self._prepared = False
        self._meter = _Meter(provider_name, ledger, budget, prices, clock)
        inner.on_fixup(self._meter.record_fixup)

    def get_default_model(self) -> str:
        """The model used when a call names none."""
        return self._inner.get_default_model()

    def prepare(self) -> None:
        """Prepare the provider, and load the prices in a thread."""
        self._inner.prepare()
        if not self._prepared and not self._meter.prices.loaded:
            self._prepared = True
            threading.Thread(target=self._meter.prices.load, name="load-prices", daemon=True).start()

    def notes(self) -> list[str]:
        return self._inner.notes()

    async def list_models(self) -> tuple[str, ...]:
        return await self._inner.list_models()

    async def context_length(self, model: str) -> int | None:
        return await self._inner.context_length(model)

    async def close(self) -> None:
        await self._inner.close()

    async def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> AsyncIterator[Delta]:
        """Yield the inner provider's deltas. Raises BudgetExceededError before sending anything if a limit forbids the
        call.

        The row of a request that has ended is written with the next commit, see `Ledger.write_soon`.
        """
        model = model or self.get_default_model()
        call = _MeteredCall(self._meter, messages, tools or (), model)
        await call.reserve(max_tokens)
        try:
            await call.begin()
            stream = self._inner.chat_stream(messages, tools, model, max_tokens, temperature)
            async with aclosing(cast("Any", stream)) as deltas:
                async for delta in deltas:
                    if isinstance(delta, Finished):
                        yield Finished(await call.answered(delta.response))
                    else:
                        call.emitted.append(delta)
                        yield delta
            await call.end(StreamCutError())  # if it ended without an answer; after an answer this does nothing
        except BaseException as error:
            await finish(call.end(error))
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and not task.cancelling():
                # The turn was not stopped: the provider cancelled itself, which is a failure to report.
                raise StreamCutError("the provider cancelled its own call") from error
            raise


class _MeteredCall:
    """One request: its maximum cost, its outcome and its ledger row."""

    def __init__(
        self, meter: "_Meter", messages: Sequence[ChatMessage], tools: Sequence[ToolSchema], model: str
    ) -> None:
        self.emitted: list[Delta] = []
        self._meter = meter
        self._model = model
        self._context = call_context()
        self._prompt_tokens = self._context.prompt_tokens or estimate_tokens(messages) + estimate_tokens(
            json.dumps(tools, default=str) if tools else ""
        )
        notify = self._context.notify
        self._budgeted = BudgetedCall(
            self._context.turn_id,
            turn_budget_usd=self._context.budget_usd,
            notify=None if notify is ignore_notice else notify,
        )
        self._response: LLMResponse | None = None
        self._was_sent = False
        self._ended = False

    async def reserve(self, max_tokens: int) -> None:
        """Reserve the maximum cost. `end` must follow. Raises BudgetExceededError."""
        meter, limits, prompt_tokens = self._meter, self._meter.budget.limits, self._prompt_tokens
        has_turn_budget = self._budgeted.turn_budget_usd is not None
        if limits.any or has_turn_budget:
            in_dollars = limits.in_dollars or has_turn_budget
            max_usd = await meter.max_usd(self._model, prompt_tokens, max_tokens) if in_dollars else None
            self._budgeted = replace(
                self._budgeted, prompt_tokens=prompt_tokens, max_tokens=max_tokens, max_usd=max_usd
            )
        await meter.budget.reserve(self._budgeted)
        self._facts = _RequestFacts(
            meter.ledger.new_id(), self._context, meter.clock.now().isoformat(timespec="milliseconds"), self._model
        )
        self._started = meter.clock.monotonic()

    async def begin(self) -> None:
        """Write the row of the request that is about to be sent: it stays if the process is killed."""
        meter, tokens = self._meter, Tokens(self._prompt_tokens)
        # A request does not wait for the price table: if the process dies before it is loaded, the row has no price.
        usd = await meter.cost(self._model, tokens, None) if meter.prices.loaded else None
        await meter.ledger.write(meter.row(self._facts, "unfinished", tokens, usd, estimated=True))
        self._was_sent = True

    async def answered(self, response: LLMResponse) -> LLMResponse:
        """End the call and return the response with its cost."""
        self._response = response
        await self.end()
        assert self._response is not None  # noqa: S101 set above
        return self._response

    async def end(self, error: BaseException | None = None) -> None:
        """Write the row and release the reservation. Idempotent."""
        meter, response = self._meter, self._response
        error = None if response is not None else error
        tokens = Tokens.of(response.usage) if response is not None else Tokens()
        estimated = not tokens.total and self._was_processed(error)
        if estimated:
            tokens = Tokens(self._prompt_tokens, completion=_estimate_tokens(self.emitted))
        usd = await meter.cost(self._model, tokens, response.cost_usd if response is not None else None)
        if self._ended:
            return
        self._ended = True
        if response is not None:
            self._response = replace(response, cost_usd=usd)
        meter.budget.settle(self._budgeted, self._facts.sent_at, usd, tokens.total)
        facts = replace(self._facts, seconds=meter.clock.monotonic() - self._started, error=error)
        meter.ledger.write_soon(meter.row(facts, _outcome(error), tokens, usd, estimated=estimated))
        await meter.budget.notify_limits(self._budgeted)

    def _was_processed(self, error: BaseException | None) -> bool:
        """Whether a model read the request, as far as one can know: a rejected request or a failed connection costs
        nothing.
        """
        if not self._was_sent:
            return False
        return error is None or bool(self.emitted) or _was_stopped(error) or isinstance(error, ProviderTimeoutError)


@dataclass(frozen=True, slots=True)
class _RequestFacts:
    """The facts for one ledger row."""

    id: str
    context: CallContext
    sent_at: str
    model: str
    seconds: float = 0.0
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Meter:
    """What all calls of one provider share."""

    provider: str
    ledger: Ledger
    budget: Budget
    prices: ProviderPrices
    clock: Clock
    unpriced: set[str] = field(default_factory=set)

    async def max_usd(self, model: str, prompt_tokens: int, max_tokens: int) -> float | None:
        """The maximum cost of a call; None if it does not count for limits in dollars.

        Raises BudgetExceededError if the price is unknown and the owner does not allow that.
        """
        price = await self._price(model)
        if price is not None:
            return price.max_cost(prompt_tokens, max_tokens) or None
        if self.provider == REPORTS_COST:
            return 0.0
        if not self.budget.limits.unknown_price:
            raise BudgetExceededError(
                f"{self.prices.missing(model)} Until then the model is not used, since a limit in dollars is set; "
                'limits.unknownPrice "allow" permits uncounted calls.'
            )
        if model not in self.unpriced:
            self.unpriced.add(model)
            log.warning("Limits in dollars do not count %s of %s: its price is unknown", model, self.provider)
        return None

    async def cost(self, model: str, tokens: Tokens, reported: float | None) -> float | None:
        """The cost of a call: `reported` if the provider reported it, else from the price. None if unknown."""
        if reported is not None:
            return reported
        if not tokens.total:
            return 0.0
        price = await self._price(model)
        return None if price is None else price.cost(tokens)

    async def _price(self, model: str) -> Price | None:
        if not self.prices.loaded:
            await asyncio.to_thread(self.prices.load)
        return self.prices.find(model)

    def record_fixup(self, error: ProviderError, model: str, seconds: float) -> None:
        """Record a request that was rejected and is sent again after a fix-up."""
        now = self.clock.now().isoformat(timespec="milliseconds")
        facts = _RequestFacts(self.ledger.new_id(), call_context(), now, model, seconds, error)
        self.ledger.write_soon(self.row(facts, _outcome(error), Tokens(), 0.0))

    def row(
        self, request: _RequestFacts, outcome: str, tokens: Tokens, usd: float | None, *, estimated: bool = False
    ) -> LedgerRow:
        """The ledger row of a request."""
        context, error = request.context, request.error
        return {
            "id": request.id,
            "sent_at": request.sent_at,
            "cause": context.cause,
            "session": context.session_key,
            "turn": context.turn_id,
            "provider": self.provider,
            "model": request.model,
            "outcome": outcome,
            "error": type(error).__name__ if outcome == "failed" else None,
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


def _outcome(error: BaseException | None) -> str:
    return "ok" if error is None else "stopped" if _was_stopped(error) else "failed"


def _was_stopped(error: BaseException) -> bool:
    """Whether the call was ended from outside: cancelled, or its stream was closed early."""
    return not isinstance(error, Exception)


def _estimate_tokens(emitted: Sequence[Delta]) -> int:
    """Estimated completion tokens of the deltas so far."""
    parts = []
    for delta in emitted:
        match delta:
            case TextDelta(text) | ReasoningDelta(text):
                parts.append(text)
            case ToolCallDelta(_, name, arguments_text):
                parts.append(name + arguments_text)
            case _:
                pass
    return estimate_tokens("".join(parts))
