"""The cost control of one bot: its ledger, prices and limits, and the meters around its providers."""

import asyncio
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

from nanobot.config.paths import DataPaths
from nanobot.providers.base import LLMProvider
from nanobot.providers.resilience.metering import MeteredProvider, ProviderPrices
from nanobot.usage.budget import Budget, SpendingLimits
from nanobot.usage.ledger import SCHEMA, Ledger
from nanobot.usage.prices import PriceTable, price_per_million
from nanobot.usage.sums import By, UsageReport, UsageSum, UsageSummary, read_usage, session_sums, sum_up
from nanobot.utils.clock import Clock
from nanobot.utils.database import Database, reading

if TYPE_CHECKING:
    from nanobot.config.schema import Config


class Spending:
    """Wraps providers in meters with one ledger and shared limits, and reports usage. A context manager."""

    def __init__(self, config: "Config", places: DataPaths, clock: Clock, database: Database | None = None) -> None:
        """`database` is shared and has the ledger's tables; without one, a connection is opened, and closed on exit."""
        self._database = database or Database(places.database, SCHEMA)
        self._is_shared = database is not None
        self._sections = config.providers.by_name()
        self._clock = clock
        self._ledger = Ledger(self._database)
        self._budget = Budget(config.limits.spending_limits(), self._ledger, clock)
        self._prices = PriceTable(places.prices)

    def add_meter(self, provider: LLMProvider, name: str) -> LLMProvider:
        """The provider with a meter, under this name in the ledger."""
        return MeteredProvider(provider, name, self._ledger, self._budget, self._prices_of(name), self._clock)

    def missing_price(self, name: str, model: str) -> str:
        """A sentence about a missing price and what to set; empty unless a dollar limit needs one. Blocks briefly."""
        return self._prices_of(name).missing(model) if self._budget.limits.in_dollars else ""

    def _prices_of(self, name: str) -> ProviderPrices:
        section = self._sections.get(name)
        overrides = section.prices if section is not None else {}
        prices = {
            model: price_per_million(price.input, price.output, price.cached) for model, price in overrides.items()
        }
        return ProviderPrices(name, self._prices, prices)

    def renew(self, config: "Config") -> None:
        """Apply the config's limits and prices from the next model call on."""
        self._budget.limits = config.limits.spending_limits()
        self._sections = config.providers.by_name()

    async def limits_now(self) -> SpendingLimits:
        """The limits, including what was added for today or this month."""
        return await self._budget.limits_now()

    async def raise_limits(self, usd: float | None) -> list[str]:
        """Raise the limit that is about to be reached: see `Budget.raise_by`. Raises StorageError."""
        return await self._budget.raise_by(usd)

    async def summary(self, session_key: str = "") -> UsageSummary:
        """Usage of today, this month and this session. Raises StorageError if the ledger cannot be read."""
        await self._ledger.flush()
        return await asyncio.to_thread(_summary, self._database.path, self._clock.now(), session_key)

    async def report(self, by: By, days: int) -> UsageReport:
        """Usage in groups over some days, with the limits. Raises StorageError if the ledger cannot be read."""
        await self._ledger.flush()
        limits, now = self._budget.limits, self._clock.now()
        return await asyncio.to_thread(read_usage, self._database.path, limits, now, by, days)

    async def of_sessions(self, prefix: str) -> dict[str, tuple[int, UsageSum]]:
        """This month's turns and usage of each session with this prefix. Raises StorageError."""
        await self._ledger.flush()

        def read() -> dict[str, tuple[int, UsageSum]]:
            with reading(self._database.path, SCHEMA) as db:
                return session_sums(db, prefix, f"{self._clock.now():%Y-%m}-01")

        return await asyncio.to_thread(read)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._is_shared:
            await self._database.close()


def _summary(path: Path, now: datetime, session_key: str) -> UsageSummary:
    with reading(path, SCHEMA) as db:
        return sum_up(db, now, days=1, session=session_key)
