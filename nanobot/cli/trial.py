"""Which model would answer and why; and one real completion, to see whether it does before anybody relies on it."""

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path

from nanobot.cli.common import one_line
from nanobot.config.paths import Places
from nanobot.config.schema import Config
from nanobot.errors import ConfigError
from nanobot.providers.base import CallContext, LLMProvider, calling_for
from nanobot.providers.factory import Chosen, choose_provider
from nanobot.utils.clock import SystemClock, zone_named

QUESTION = "Say hello in one short sentence."
MAX_TOKENS = 1000
"""Room enough for a model that thinks before it speaks."""


@dataclass(frozen=True)
class Trial:
    """A model answered."""

    provider: str
    model: str
    answer: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.provider}, {self.model}: answered in {self.seconds:.1f} s: {self.answer}"


@dataclass(frozen=True)
class Choice:
    """Who would be asked now, and why. Without a provider, `reason` says what is wrong."""

    provider: str
    model: str
    reason: str

    def __str__(self) -> str:
        if not self.provider:
            return f"{self.model} cannot be asked: {self.reason}"
        if self.provider == "offline":
            return f"none yet, a stand-in answers: {self.reason}. Set one up with `nanobot onboard`."
        return f"{self.provider}, {self.model}: {self.reason}"


def choice_now(config: Config, data_dir: Path) -> Choice:
    """Who would be asked. No model is asked; local servers are, who they are, where nothing else is set up."""
    try:
        chosen = asyncio.run(_choose(config, data_dir))
    except ConfigError as error:
        return Choice("", config.active_preset().model, str(error))
    return Choice(chosen.name, chosen.model, chosen.reason)


def try_model(config: Config, data_dir: Path) -> Trial:
    """Ask the model that this config leads to. Raises ProviderError or ConfigError, which say what to change.

    The call is in the ledger like any other, unless there is no data folder yet: none is made for it.
    """
    return asyncio.run(_ask(config, data_dir))


async def chosen_and_counted(config: Config, data_dir: Path) -> tuple[Chosen, LLMProvider]:
    """Who would be asked, and that provider with the meter around it: close it. Raises ConfigError."""
    chosen = await _choose(config, data_dir)
    return chosen, _metered(chosen, config, data_dir)


async def _ask(config: Config, data_dir: Path) -> Trial:
    chosen, provider = await chosen_and_counted(config, data_dir)
    started = time.monotonic()
    try:
        with calling_for(CallContext("trial")):
            response = await provider.chat(
                [{"role": "user", "content": QUESTION}], model=chosen.model, max_tokens=MAX_TOKENS
            )
    finally:
        await provider.close()
    answer = one_line(response.content or "") or "(without words)"
    return Trial(chosen.name, chosen.model, answer, time.monotonic() - started)


def _metered(chosen: Chosen, config: Config, data_dir: Path) -> LLMProvider:
    if not data_dir.exists():
        return chosen.provider
    from nanobot.providers.spending import Spending  # only who counts pays for its import

    clock = SystemClock(zone_named(config.agents.defaults.timezone))
    return Spending(config, Places(data_dir), clock).metered(chosen.provider, chosen.name)


async def _choose(config: Config, data_dir: Path) -> Chosen:
    return await choose_provider(config, environ=os.environ, state_dir=Places(data_dir).state)
