"""From a config to what a session asks: Fallback([Retry(Metered(A)), Retry(Metered(B))]), each made when it is needed.

With providerRetryMode "persistent" the one layer that asks again goes around them all instead:
Retry(Fallback([Metered(A), Metered(B)])).
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
from nanobot.providers.breaker import Breaker, Monotonic
from nanobot.providers.errors import CallTarget
from nanobot.providers.factory import Chosen, choose_provider
from nanobot.providers.fallback_provider import Answerer, Candidate, FallbackProvider
from nanobot.providers.local_servers import LocalServer
from nanobot.providers.retry_provider import RetryPolicy, RetryProvider, Sleep

if TYPE_CHECKING:
    from nanobot.config.schema import Config

Metered = Callable[[LLMProvider, str], LLMProvider]
"""What counts the calls of a provider; it is told the provider's name."""


def unmetered(provider: LLMProvider, name: str) -> LLMProvider:
    """Nobody counts."""
    return provider


class Chains:
    """Makes the chains of one bot. All of them share their breakers: who is out is out for every session and preset."""

    def __init__(
        self,
        environ: Mapping[str, str],
        state_dir: Path | None = None,
        *,
        metered: Metered = unmetered,
        local_servers: Sequence[LocalServer] | None = None,
        sleep: Sleep = asyncio.sleep,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        """`local_servers` are asked where nothing is set up; None means the usual ones."""
        self._environ = environ
        self._state_dir = state_dir
        self._metered = metered
        self._local_servers = local_servers
        self._sleep = sleep
        self._monotonic = monotonic
        self._breakers: dict[tuple[str, str | None, str], Breaker] = {}

    async def choose(self, config: "Config", model: str | None = None) -> Chosen:
        """The provider for this model, the active one if none is given, with the config's fallback models behind it.

        Raises ConfigError where the first cannot be reached; a fallback that cannot is a matter of the call it is for.
        """
        chosen = await self._choose(config, model)
        persistent = config.agents.defaults.provider_retry_mode == "persistent"
        first = Candidate.ready(self._answerer(chosen, retried=not persistent))
        chain: LLMProvider = FallbackProvider([first, *self._fallbacks(config, model, retried=not persistent)])
        if persistent:
            chain = self._retried(chain, RetryPolicy.persistent())
        return replace(chosen, provider=chain)

    def _fallbacks(self, config: "Config", model: str | None, *, retried: bool) -> Iterator[Candidate]:
        active = config.active_preset()
        met = {(model or active.model, active.provider)}
        for entry in config.agents.defaults.fallback_models:
            name, preset = (entry, config.model_presets[entry]) if isinstance(entry, str) else (entry.model, entry)
            if (preset.model, preset.provider) in met:
                continue
            met.add((preset.model, preset.provider))
            presets = {**config.model_presets, name: preset}
            own = with_preset(config.model_copy(update={"model_presets": presets}), name)
            yield Candidate(
                name,
                partial(self._fallback, own, retried=retried),
                max_tokens=preset.max_tokens,
                temperature=preset.temperature,
                window_tokens=own.active_preset().context_window_tokens or context_window(preset.model),
            )

    async def _fallback(self, config: "Config", *, retried: bool) -> Answerer:
        chosen = await self._choose(config, None)
        if chosen.name == "offline":
            raise ConfigError(
                f"No provider is set up for the model {config.active_preset().model}. Name it in the preset."
            )
        return self._answerer(chosen, retried=retried)

    async def _choose(self, config: "Config", model: str | None) -> Chosen:
        return await choose_provider(
            config,
            model=model,
            environ=self._environ,
            state_dir=self._state_dir,
            local_servers=self._local_servers,
        )

    def _answerer(self, chosen: Chosen, *, retried: bool) -> Answerer:
        provider = self._metered(chosen.provider, chosen.name)
        place = (chosen.name, chosen.provider.api_base, chosen.model)
        breaker = self._breakers.setdefault(place, Breaker(self._monotonic))
        if retried:
            provider = self._retried(provider, RetryPolicy(), CallTarget(chosen.name, chosen.model))
        return Answerer(provider, chosen.name, chosen.model, breaker)

    def _retried(self, provider: LLMProvider, policy: RetryPolicy, target: CallTarget | None = None) -> RetryProvider:
        return RetryProvider(provider, policy, target=target, sleep=self._sleep, monotonic=self._monotonic)


def with_preset(config: "Config", name: str) -> "Config":
    """The config as it would be with this preset in force."""
    defaults = config.agents.defaults.model_copy(update={"model_preset": name})
    return config.model_copy(update={"agents": config.agents.model_copy(update={"defaults": defaults})})
