"""The cost control of a bot: a meter around each provider writes a ledger row with its cost for every request sent, and
checks the spending limits.

The meter is the innermost wrapper, so that retried, failed, stopped and empty requests count, too.
"""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from nanobot.config.paths import DataPaths
from nanobot.config.provider_table import REPORTS_COST, find_by_name
from nanobot.errors import BudgetExceededError, ProviderError
from nanobot.messages.tokens import estimate_tokens
from nanobot.providers.base import (
    Delta,
    Finished,
    LLMProvider,
    LLMResponse,
    ModelRequest,
    ToolCallDelta,
    call_context,
    ignore_notice,
)
from nanobot.providers.errors import ProviderTimeoutError, StreamCutError
from nanobot.usage.budget import Budget, BudgetedCall, UsageReport, usage_report
from nanobot.usage.ledger import SCHEMA, By, Ledger, UsageSum, UsageSummary, session_sums, sum_up
from nanobot.usage.prices import FREE, Price, find_price, matching_price, price_per_million
from nanobot.usage.types import LedgerRow, Tokens
from nanobot.utils.aio import is_being_cancelled
from nanobot.utils.clock import Clock
from nanobot.utils.database import Database, reading

if TYPE_CHECKING:
    from sqlite3 import Connection

    from nanobot.config.schema import Config

T = TypeVar("T")
log = logging.getLogger(__name__)


class ProviderPrices:
    """Prices of one provider's models: `overrides` holds the owner's prices, which override the table.

    Otherwise the offline provider, local servers and accounts with a monthly fee cost nothing.
    """

    def __init__(self, provider: str, overrides: Mapping[str, Price] | None = None, table: Path | None = None) -> None:
        spec = find_by_name(provider)
        self._provider = provider
        self._key = spec.config_key if spec else provider
        self._prefix = spec.litellm_prefix if spec else ""
        self._table = table
        self._overrides = overrides or {}
        self._is_free = provider == "offline" or (spec is not None and (spec.is_local or spec.is_oauth))

    def find(self, model: str) -> Price | None:
        """The price of a model; None if unknown. May read a file."""
        overrides = matching_price(self._overrides, model)
        if overrides is not None or self._is_free:
            return overrides or FREE
        return find_price(model, self._prefix, self._provider, table=self._table)

    def explain_missing(self, model: str) -> str:
        """A sentence about a missing price and what to set."""
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
        self.provider_name = provider_name
        self.ledger = ledger
        self.budget = budget
        self.prices = prices
        self.clock = clock
        self._inner = inner
        self._unpriced: set[str] = set()
        self._prices: dict[str, Price | None] = {}
        self._lock = threading.Lock()
        inner.on_fixup(self._record_fixup)

    def get_default_model(self) -> str:
        return self._inner.get_default_model()

    def prepare(self) -> None:
        """Prepare the provider, and look up the price of its model in a thread."""
        self._inner.prepare()
        with suppress(NotImplementedError):  # somebody's own provider may have no default model
            if (model := self.get_default_model()) not in self._prices:
                threading.Thread(target=self._find_price, args=(model,), name="find-price", daemon=True).start()

    def _find_price(self, model: str) -> None:
        with self._lock:
            if model not in self._prices:
                self._prices[model] = self.prices.find(model)

    def notes(self) -> list[str]:
        return self._inner.notes()

    async def list_models(self) -> tuple[str, ...]:
        return await self._inner.list_models()

    async def context_length(self, model: str) -> int | None:
        return await self._inner.context_length(model)

    async def close(self) -> None:
        await self._inner.close()

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Yield the inner provider's deltas. Raises BudgetExceededError before sending anything if a limit forbids the
        call.

        The row of a request that has ended is written with the next commit, see `Ledger.write_soon`.
        """
        request = replace(request, model=request.model or self.get_default_model())
        call = await self._reserve(request)
        try:
            await call.write_unfinished()
            async with aclosing(request.send(self._inner)) as deltas:
                async for delta in deltas:
                    if isinstance(delta, Finished):
                        usd = call.end(delta.response)
                        await self.budget.notify_limits(call.reserved)
                        yield Finished(replace(delta.response, cost_usd=usd))
                    else:
                        call.emitted.append(delta)
                        yield delta
            call.end(StreamCutError())  # if it ended without an answer; after an answer this does nothing
        except BaseException as error:
            call.end(error)
            if isinstance(error, asyncio.CancelledError) and not is_being_cancelled():
                # The turn was not stopped: the provider cancelled itself, which is a failure to report.
                raise StreamCutError("the provider cancelled its own call") from error
            raise

    async def _reserve(self, request: ModelRequest) -> "_MeteredCall":
        """Reserve the most the call may cost; its `end` must follow. Raises BudgetExceededError."""
        context, limits = call_context(), self.budget.limits
        prompt_tokens = context.prompt_tokens or estimate_tokens(request.messages) + estimate_tokens(
            json.dumps(request.tools, default=str) if request.tools else ""
        )
        if request.model not in self._prices:
            await asyncio.to_thread(self._find_price, request.model)
        in_dollars = limits.in_dollars or context.budget_usd is not None
        reserved = BudgetedCall(
            context.turn_id,
            prompt_tokens,
            request.max_tokens,
            self._max_usd(request.model, prompt_tokens, request.max_tokens) if in_dollars else None,
            None if context.notify is ignore_notice else context.notify,
            context.budget_usd,
        )
        await self.budget.reserve(reserved)
        return _MeteredCall(self, reserved, self._new_row(request.model), self.clock.monotonic())

    def _max_usd(self, model: str, prompt_tokens: int, max_tokens: int) -> float | None:
        """The maximum cost of a call; None if it does not count for limits in dollars.

        Raises BudgetExceededError if the price is unknown and the owner does not allow that.
        """
        price = self._prices[model]
        if price is not None:
            return price.max_cost(prompt_tokens, max_tokens) or None
        if self.provider_name == REPORTS_COST:
            return 0.0
        if not self.budget.limits.unknown_price:
            raise BudgetExceededError(
                f"{self.prices.explain_missing(model)} Until then the model is not used, since a limit in dollars is "
                'set; limits.unknownPrice "allow" permits uncounted calls.'
            )
        if model not in self._unpriced:
            self._unpriced.add(model)
            log.warning("Limits in dollars do not count %s of %s: its price is unknown", model, self.provider_name)
        return None

    def cost(self, model: str, tokens: Tokens) -> float | None:
        price = self._prices[model] if tokens.total else FREE
        return None if price is None else price.cost(tokens)

    def _record_fixup(self, error: ProviderError, model: str, seconds: float) -> None:
        self.ledger.write_soon(_ended(self._new_row(model), error, Tokens(), 0.0, seconds))

    def _new_row(self, model: str) -> LedgerRow:
        """The row of a request that is about to be sent."""
        context = call_context()
        return LedgerRow(
            id=self.ledger.new_id(),
            sent_at=self.clock.now().isoformat(timespec="milliseconds"),
            cause=context.cause,
            session=context.session_key,
            turn=context.turn_id,
            provider=self.provider_name,
            model=model,
            process=self.ledger.process,
        )


@dataclass(eq=False, slots=True)
class _MeteredCall:
    """One request and its row."""

    _meter: MeteredProvider
    reserved: BudgetedCall
    _row: LedgerRow
    _started: float
    emitted: list[Delta] = field(default_factory=list)
    _was_sent: bool = False
    _has_ended: bool = False

    async def write_unfinished(self) -> None:
        """Write the row of the request that is about to be sent: it stays if the process is killed."""
        tokens = Tokens(self.reserved.prompt_tokens)
        usd = self._meter.cost(self._row.model, tokens)
        await self._meter.ledger.write(replace(self._row, prompt_tokens=tokens.prompt, usd=usd, estimated=True))
        self._was_sent = True

    def end(self, result: LLMResponse | BaseException) -> float | None:
        """Write the row, release the reservation and return the cost in dollars. Only the first result counts."""
        if self._has_ended:
            return None
        self._has_ended = True
        meter, error = self._meter, result if isinstance(result, BaseException) else None
        tokens, usd = (
            (Tokens.of(result.usage), result.cost_usd) if isinstance(result, LLMResponse) else (Tokens(), None)
        )
        # Whether a model read the request, as far as one can know: a rejected one or a failed connection costs nothing.
        was_processed = self._was_sent and (
            error is None or bool(self.emitted) or _was_stopped(error) or isinstance(error, ProviderTimeoutError)
        )
        estimated = not tokens.total and was_processed
        if estimated:
            tokens = Tokens(self.reserved.prompt_tokens, completion=_estimate_tokens(self.emitted))
        usd = meter.cost(self._row.model, tokens) if usd is None else usd
        seconds = meter.clock.monotonic() - self._started
        meter.budget.settle(self.reserved)
        meter.ledger.write_soon(_ended(self._row, error, tokens, usd, seconds, estimated=estimated))
        return usd


def _ended(
    row: LedgerRow,
    error: BaseException | None,
    tokens: Tokens,
    usd: float | None,
    seconds: float,
    *,
    estimated: bool = False,
) -> LedgerRow:
    """The row of a request that has ended, with its failure or an answer."""
    outcome = "ok" if error is None else "stopped" if _was_stopped(error) else "failed"
    return replace(
        row,
        outcome=outcome,
        error=type(error).__name__ if outcome == "failed" else None,
        prompt_tokens=tokens.prompt,
        cached_tokens=tokens.cached,
        cache_written_tokens=tokens.cache_written,
        completion_tokens=tokens.completion,
        reasoning_tokens=tokens.reasoning,
        usd=usd,
        ms=round(seconds * 1000),
        estimated=estimated,
    )


def _was_stopped(error: BaseException) -> bool:
    """Whether the call was ended from outside: cancelled, or its stream was closed early."""
    return not isinstance(error, Exception)


def _estimate_tokens(emitted: Sequence[Delta]) -> int:
    texts = [
        delta.name + delta.arguments_text if isinstance(delta, ToolCallDelta) else delta.text
        for delta in emitted
        if not isinstance(delta, Finished)
    ]
    return estimate_tokens("".join(texts))


class Spending:
    """Wraps providers in meters with one ledger and shared limits, and reports usage. A context manager."""

    def __init__(self, config: "Config", places: DataPaths, clock: Clock, database: Database | None = None) -> None:
        """`database` is shared and has the ledger's tables; without one, a connection is opened, and closed on exit."""
        self._database = database or Database(places.database, SCHEMA)
        self._is_shared = database is not None
        self._sections = config.providers.by_name()
        self._clock = clock
        self._ledger = Ledger(self._database)
        self.budget = Budget(config.limits.spending_limits(), self._ledger, clock)

    def add_meter(self, provider: LLMProvider, name: str) -> LLMProvider:
        """The provider with a meter, under this name in the ledger."""
        return MeteredProvider(provider, name, self._ledger, self.budget, self._prices_of(name), self._clock)

    def missing_price(self, name: str, model: str) -> str:
        """A sentence about a missing price and what to set; empty unless a dollar limit needs one. Blocks briefly."""
        prices = self._prices_of(name)
        if not self.budget.limits.in_dollars or name == REPORTS_COST or prices.find(model) is not None:
            return ""
        return prices.explain_missing(model)

    def _prices_of(self, name: str) -> ProviderPrices:
        section = self._sections.get(name)
        overrides = section.prices if section is not None else {}
        prices = {
            model: price_per_million(price.input, price.output, price.cached) for model, price in overrides.items()
        }
        return ProviderPrices(name, prices)

    def renew(self, config: "Config") -> None:
        """Apply the config's limits and prices from the next model call on."""
        self.budget.limits = config.limits.spending_limits()
        self._sections = config.providers.by_name()

    async def summary(self, session_key: str = "") -> UsageSummary:
        """Usage of today, this month and this session. Raises StorageError if the ledger cannot be read."""
        return await self._read(lambda db: sum_up(db, self._clock.now(), days=1, session=session_key))

    async def report(self, by: By, days: int) -> UsageReport:
        """Usage in groups over some days, with the limits. Raises StorageError if the ledger cannot be read."""
        limits, now = self.budget.limits, self._clock.now()
        return await self._read(lambda db: usage_report(db, limits, now, by, days))

    async def of_sessions(self, prefix: str) -> dict[str, tuple[int, UsageSum]]:
        """This month's turns and usage of each session with this prefix. Raises StorageError."""
        return await self._read(lambda db: session_sums(db, prefix, f"{self._clock.now():%Y-%m}-01"))

    async def _read(self, query: "Callable[[Connection], T]") -> T:
        """The query's result, after all rows are written."""
        await self._ledger.flush()

        def read() -> T:
            with reading(self._database.path, SCHEMA) as db:
                return query(db)

        return await asyncio.to_thread(read)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._is_shared:
            await self._database.close()
