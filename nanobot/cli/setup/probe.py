"""Which model would answer and why, and one real request to check that it does."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.cli.output import to_one_line
from nanobot.config.paths import DataPaths
from nanobot.config.schema import Config
from nanobot.errors import ConfigError, ProviderError
from nanobot.providers.base import CallContext, LLMProvider, call_context_scope
from nanobot.providers.errors import AuthenticationError
from nanobot.providers.factory import choose_provider, with_preset
from nanobot.providers.resilience import ChosenProvider
from nanobot.utils.clock import SystemClock, find_zone
from nanobot.utils.text import count_noun

if TYPE_CHECKING:
    from nanobot.providers.metering import Spending

QUESTION = "Say hello in one short sentence."
MAX_TOKENS = 1000
"""Enough for a model that reasons before it answers."""
KEY_CHECK_S = 15.0


@dataclass(frozen=True)
class ProbeResult:
    provider: str
    model: str
    answer: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.model} ({self.provider}) answered in {self.seconds:.1f} s: {self.answer}"


@dataclass(frozen=True)
class ProviderSelection:
    """The provider and model in use, and why. Without a provider, `reason` says what is wrong."""

    provider: str
    model: str
    reason: str

    def __str__(self) -> str:
        if not self.provider:
            return f"{self.model} cannot be used: {self.reason}"
        if self.provider == "offline":
            return f"none yet, a stand-in answers: {self.reason}. Set one up with `nanobot onboard`."
        return f"{self.model} ({self.provider}): {self.reason}"


def current_selection(config: Config, data_dir: Path, model: str | None = None) -> ProviderSelection:
    """The provider of this model, or of the active model. Sends no request to a model.

    Where nothing is set up, local servers are asked for their models.
    """
    try:
        chosen = asyncio.run(_choose(config, data_dir, model))
    except ConfigError as error:
        return ProviderSelection("", model or config.active_preset().model, str(error))
    return ProviderSelection(chosen.name, chosen.model, chosen.reason)


def format_limits(config: Config) -> str:
    """`2.5 USD a day, 200,000 tokens a turn`; empty without limits."""
    limits = config.limits
    usd = {"a day": limits.daily_usd, "a month": limits.monthly_usd}
    words = [f"{amount:g} USD {period}" for period, amount in usd.items() if amount is not None]
    if limits.turn_tokens is not None:
        words.append(f"{count_noun(limits.turn_tokens, 'token')} a turn")
    return ", ".join(words)


def missing_prices(config: Config, data_dir: Path) -> list[str]:
    """A sentence for each model in use (active, fallback, background) that has no known price, with what to set.

    Empty without a limit in dollars.
    """
    if config.limits.daily_usd is None and config.limits.monthly_usd is None:
        return []
    presets = config.model_presets
    entries = [entry for entry in config.agents.defaults.fallback_models if not isinstance(entry, str)]
    named = {f"fallback {number}": entry for number, entry in enumerate(entries)}
    names = [name for name in config.agents.defaults.fallback_models if isinstance(name, str) and name in presets]
    every = config.model_copy(update={"model_presets": {**presets, **named}})
    choices = [current_selection(config, data_dir)]
    choices += [current_selection(with_preset(every, name), data_dir) for name in [*names, *named]]
    if (background := config.agents.defaults.background_model) in presets:
        choices.append(current_selection(with_preset(config, background), data_dir))
    elif background:
        choices.append(current_selection(config, data_dir, background))
    spending = _spending(config, data_dir)
    missing = [spending.missing_price(choice.provider, choice.model) for choice in choices if choice.provider]
    return list(dict.fromkeys(filter(None, missing)))


def try_model(config: Config, data_dir: Path) -> ProbeResult:
    """Send one request with this config. Raises ProviderError or ConfigError, which say what to change.

    The request is recorded in the ledger, unless there is no data folder yet.
    """

    async def ask() -> ProbeResult:
        started = time.monotonic()
        async with select_metered(config, data_dir) as (chosen, provider):
            with call_context_scope(CallContext("trial")):
                response = await provider.chat(
                    [{"role": "user", "content": QUESTION}], model=chosen.model, max_tokens=MAX_TOKENS
                )
        answer = to_one_line(response.content or "") or "(empty answer)"
        return ProbeResult(chosen.name, chosen.model, answer, time.monotonic() - started)

    return asyncio.run(ask())


def rejected_key(config: Config) -> AuthenticationError | None:
    """Why the provider rejects its key; None if it does not, or if nothing can be said about the key yet."""

    async def check() -> None:
        chosen = await choose_provider(config, environ=os.environ)
        try:
            async with asyncio.timeout(KEY_CHECK_S):
                await chosen.provider.check_key()
        finally:
            await chosen.provider.close()

    try:
        asyncio.run(check())
    except AuthenticationError as error:
        return error
    except (ConfigError, ProviderError, TimeoutError):
        pass
    return None


@asynccontextmanager
async def select_metered(config: Config, data_dir: Path) -> AsyncIterator[tuple[ChosenProvider, LLMProvider]]:
    """The selected provider, and the same recording its usage, if there is a data folder. Raises ConfigError."""
    chosen = await _choose(config, data_dir)
    async with _spending(config, data_dir) as spending:
        has_ledger = data_dir.exists()  # noqa: ASYNC240 nothing else runs in this loop
        provider = spending.add_meter(chosen.provider, chosen.name) if has_ledger else chosen.provider
        try:
            yield chosen, provider
        finally:
            await provider.close()


def _spending(config: Config, data_dir: Path) -> "Spending":
    from nanobot.providers.metering import Spending  # slow to import

    return Spending(config, DataPaths(data_dir), SystemClock(find_zone(config.agents.defaults.timezone)))


async def _choose(config: Config, data_dir: Path, model: str | None = None) -> ChosenProvider:
    return await choose_provider(config, model=model, environ=os.environ, state_dir=DataPaths(data_dir).state)
