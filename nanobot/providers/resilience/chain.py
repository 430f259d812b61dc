"""Builds the provider of a session from the config: Fallback([Retry(Metered(A)), Retry(Metered(B))]).

Each model after the first is created on first use. With providerRetryMode "persistent" a single retry layer goes around
them all: Retry(Fallback([Metered(A), Metered(B)])).
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.config.provider_table import context_window
from nanobot.errors import ConfigError
from nanobot.providers.base import LLMProvider
from nanobot.providers.errors import CallTarget
from nanobot.providers.factory import ChosenProvider, choose_provider
from nanobot.providers.local_servers import LocalServer
from nanobot.providers.resilience.breaker import Breaker, Monotonic
from nanobot.providers.resilience.fallback import Candidate, CandidateModel, FallbackProvider
from nanobot.providers.resilience.retry import RetryPolicy, RetryProvider, Sleep

if TYPE_CHECKING:
    from nanobot.config.schema import Config

AddMeter = Callable[[LLMProvider, str], LLMProvider]
"""Wraps a provider in a meter, given the provider's name."""


def no_meter(provider: LLMProvider, name: str) -> LLMProvider:
    return provider


class ProviderChains:
    """Builds the provider chains of one bot. They share their breakers, so a failing model is paused for everyone."""

    def __init__(
        self,
        environ: Mapping[str, str],
        state_dir: Path | None = None,
        *,
        add_meter: AddMeter = no_meter,
        local_servers: Sequence[LocalServer] | None = None,
        sleep: Sleep = asyncio.sleep,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        """`local_servers` are probed if nothing is configured; None means the default ones."""
        self._environ = environ
        self._state_dir = state_dir
        self._add_meter = add_meter
        self._local_servers = local_servers
        self._sleep = sleep
        self._monotonic = monotonic
        self._breakers: dict[tuple[str, str | None, str], Breaker] = {}

    async def choose(self, config: "Config", model: str | None = None) -> ChosenProvider:
        """The provider of this model, or of the active one if none is given, followed by the config's fallback models.

        Raises ConfigError if the first cannot be used. A fallback that cannot be used is reported when it is needed.
        """
        chosen = await self._choose(config, model)
        persistent = config.agents.defaults.provider_retry_mode == "persistent"
        first = Candidate.ready(self._candidate_model(chosen, with_retries=not persistent))
        chain: LLMProvider = FallbackProvider([first, *self._fallbacks(config, model, with_retries=not persistent)])
        if persistent:
            chain = self._with_retries(chain, RetryPolicy.persistent())
        return replace(chosen, provider=chain)

    def _fallbacks(self, config: "Config", model: str | None, *, with_retries: bool) -> Iterator[Candidate]:
        active = config.active_preset()
        seen = {(model or active.model, active.provider)}
        for entry in config.agents.defaults.fallback_models:
            name, preset = (entry, config.model_presets[entry]) if isinstance(entry, str) else (entry.model, entry)
            if (preset.model, preset.provider) in seen:
                continue
            seen.add((preset.model, preset.provider))
            presets = {**config.model_presets, name: preset}
            fallback_config = with_preset(config.model_copy(update={"model_presets": presets}), name)
            yield Candidate(
                name,
                partial(self._build_fallback, fallback_config, with_retries=with_retries),
                max_tokens=preset.max_tokens,
                temperature=preset.temperature,
                window_tokens=fallback_config.active_preset().context_window_tokens or context_window(preset.model),
            )

    async def _build_fallback(self, config: "Config", *, with_retries: bool) -> CandidateModel:
        chosen = await self._choose(config, None)
        if chosen.name == "offline":
            raise ConfigError(
                f"No provider is set up for the model {config.active_preset().model}. Name it in the preset."
            )
        return self._candidate_model(chosen, with_retries=with_retries)

    async def _choose(self, config: "Config", model: str | None) -> ChosenProvider:
        return await choose_provider(
            config,
            model=model,
            environ=self._environ,
            state_dir=self._state_dir,
            local_servers=self._local_servers,
        )

    def _candidate_model(self, chosen: ChosenProvider, *, with_retries: bool) -> CandidateModel:
        provider = self._add_meter(chosen.provider, chosen.name)
        key = (chosen.name, chosen.provider.api_base, chosen.model)
        breaker = self._breakers.setdefault(key, Breaker(self._monotonic))
        if with_retries:
            provider = self._with_retries(provider, RetryPolicy(), CallTarget(chosen.name, chosen.model))
        return CandidateModel(provider, chosen.name, chosen.model, breaker)

    def _with_retries(
        self, provider: LLMProvider, policy: RetryPolicy, target: CallTarget | None = None
    ) -> RetryProvider:
        return RetryProvider(provider, policy, target=target, sleep=self._sleep, monotonic=self._monotonic)


def with_preset(config: "Config", name: str) -> "Config":
    """A copy of the config with this preset active."""
    defaults = config.agents.defaults.model_copy(update={"model_preset": name})
    return config.model_copy(update={"agents": config.agents.model_copy(update={"defaults": defaults})})
