"""What one bot spends: its ledger, prices and limits, and the meters that stand around its providers."""

import asyncio
from typing import TYPE_CHECKING

from nanobot.config.paths import Places
from nanobot.providers.base import LLMProvider
from nanobot.providers.metered_provider import MeteredProvider
from nanobot.usage.budget import Budget, Limits
from nanobot.usage.ledger import Ledger
from nanobot.usage.prices import PriceTable
from nanobot.usage.sums import Summary, sum_up
from nanobot.utils.clock import Clock

if TYPE_CHECKING:
    from nanobot.config.schema import Config


class Spending:
    """Puts meters around providers that share a ledger and its limits, and tells what was used."""

    def __init__(self, config: "Config", places: Places, clock: Clock) -> None:
        set_by_owner = config.limits
        limits = Limits(set_by_owner.daily_usd, set_by_owner.monthly_usd, set_by_owner.turn_tokens)
        self._clock = clock
        self._ledger = Ledger(places.usage)
        self._budget = Budget(limits, self._ledger, clock)
        self._prices = PriceTable(places.prices)

    def metered(self, provider: LLMProvider, name: str) -> LLMProvider:
        """The provider with a meter around it, under this name in the ledger."""
        return MeteredProvider(provider, name, self._ledger, self._budget, self._prices, self._clock)

    async def limits_now(self) -> Limits:
        """What may be spent, with what was added for today or this month."""
        return await self._budget.limits_now()

    async def raise_limits(self, usd: float | None) -> list[str]:
        """Let what is about to stop go on: see `Budget.raise_by`. Raises OSError."""
        return await self._budget.raise_by(usd)

    async def summary(self, session_key: str = "") -> Summary:
        """What was used today, this month and by this session. Raises OSError where the ledger cannot be read."""
        return await asyncio.to_thread(sum_up, self._ledger, self._clock.now(), days=1, session=session_key)
