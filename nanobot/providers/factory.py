"""Chooses the provider of a model, and builds what a session asks: that model with its fallbacks.

A provider is chosen in this order: the config; a key in the environment; a logged-in account; a model server on this
machine; the offline provider.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from nanobot.config.provider_table import (
    DEFAULT_MODEL,
    ProviderMatch,
    ProviderSpec,
    context_window,
    find_by_model,
    find_by_name,
    plain_name,
    spec_for,
)
from nanobot.errors import ConfigError, NanobotError, PluginError
from nanobot.plugins import entry_points, load, names, package_of
from nanobot.providers.accounts.store import AccountStore, command_name
from nanobot.providers.base import LLMProvider
from nanobot.providers.endpoint import CapabilityStore, Timeouts, is_loopback_url, timeouts_for
from nanobot.providers.local_servers import default_servers, list_models, running_servers
from nanobot.providers.resilience import (
    RETRIES,
    Breaker,
    ChosenProvider,
    Monotonic,
    ResilientProvider,
    Sleep,
)

if TYPE_CHECKING:
    from nanobot.config.schema import Config, ModelPreset, ProviderConfig
    from nanobot.providers.wire.stream import EndpointSettings

DIRECT = "nanobot.providers.custom_provider:CustomProvider"
LITELLM = "nanobot.providers.litellm_provider:LiteLLMProvider"
OFFLINE = "nanobot.providers.offline_provider:OfflineProvider"
ACCOUNTS = {
    "openai_codex": "nanobot.providers.accounts.openai:OpenAICodexProvider",
    "github_copilot": "nanobot.providers.accounts.github:CopilotProvider",
}
"""Providers that use an account instead of an API key."""


async def choose_provider(
    config: "Config",
    *,
    model: str | None = None,
    environ: Mapping[str, str],
    state_dir: Path | None = None,
    local_servers: Mapping[str, str] | None = None,
) -> ChosenProvider:
    """The provider for this model, or for the active model if none is given.

    Raises ConfigError, naming the key to set, if the owner named a model or provider that is not usable: there is no
    silent switch. If nothing is configured, `local_servers` are probed, base URLs by provider; None: the default ones.
    """
    requested = model or config.active_preset().model
    match = config.match_provider(requested, environ)
    if match is None or (match.reason == "environment" and match.model != requested):
        # Nothing serves the requested model. Raise if it was named explicitly; else take what there is.
        spec = find_by_model(requested)
        if requested != DEFAULT_MODEL and spec is not None and spec.needs_key:
            raise ConfigError(_missing_key_message(spec, requested))
    if match is not None:
        return await _for_match(config, match, environ, state_dir)
    store = AccountStore.in_state(state_dir) if state_dir is not None and requested == DEFAULT_MODEL else None
    for name in ACCOUNTS if store is not None else ():
        if store is not None and store.path(name).exists():
            spec = spec_for(name)
            return _for_account(config, spec, requested, f"you are logged in to {spec.display_name}", state_dir)
    servers = default_servers(environ, config.providers.by_name()) if local_servers is None else local_servers
    for name, models in (await running_servers(servers)).items():
        spec, base = spec_for(name), servers[name]
        served = requested if requested in models else models[0]
        provider = _create_provider(config, spec, served, None, base, state_dir)
        reason = f"{spec.display_name} answers on {urlsplit(base).netloc}"
        return ChosenProvider(provider, spec.name, served, reason=reason)
    reason = "no key is set in the config or the environment, and no local model server answers"
    return ChosenProvider(load(OFFLINE)(), "offline", "offline", reason=reason)


def _missing_key_message(spec: ProviderSpec, model: str) -> str:
    return f"{spec.missing_key(f'serves the model {model}')} Or run `nanobot onboard`."


async def _for_match(
    config: "Config", match: ProviderMatch, environ: Mapping[str, str], state_dir: Path | None
) -> ChosenProvider:
    spec, model = match.spec, match.wire_model
    section = _section(config, spec.name)
    if spec.name in ACCOUNTS and not (spec.name == "github_copilot" and section.backend == "litellm"):
        return _for_account(config, spec, model, match.explanation, state_dir)
    key = section.api_key or spec.env_key(environ)
    base = section.api_base or spec.default_api_base
    if spec.needs_key and not key and not is_loopback_url(base):
        raise ConfigError(_missing_key_message(spec, match.model))
    plugin = _plugin(spec.name, config.plugins.disabled)
    if plugin is not None:
        reason = f"{match.explanation}; an installed package provides it"
        return ChosenProvider(plugin(key or None, base), spec.name, model, reason=reason)
    if not base and spec.is_direct(section.backend):
        raise ConfigError(f"providers.{spec.config_key}.apiBase is empty. Set it to the base URL of the endpoint.")
    if spec.is_local and match.model == DEFAULT_MODEL and base:
        served = await list_models(base)
        if not served:
            raise ConfigError(
                f"{spec.display_name} does not answer at {base}. Start it, or set agents.defaults.model to its model."
            )
        model = served[0]
    provider = _create_provider(config, spec, model, key, base, state_dir)
    return ChosenProvider(provider, spec.name, model, reason=_explain_choice(match, section, environ))


def _for_account(
    config: "Config", spec: ProviderSpec, model: str, reason: str, state_dir: Path | None
) -> ChosenProvider:
    section = _section(config, spec.name)
    if section.backend == "litellm":
        raise ConfigError(f"providers.{spec.config_key}.backend cannot be litellm. Remove that setting.")
    if state_dir is None or not (store := AccountStore.in_state(state_dir)).path(spec.name).exists():
        raise ConfigError(
            f"You are not logged in to {spec.display_name}. Run `nanobot provider login {command_name(spec.name)}`."
        )
    model = (spec.default_model or model) if model == DEFAULT_MODEL else model
    settings = _settings(config, spec, model, local=is_loopback_url(section.api_base), state_dir=state_dir)
    provider: LLMProvider = load(ACCOUNTS[spec.name])(store, model, api_base=section.api_base, **settings)
    return ChosenProvider(provider, spec.name, model, reason=reason)


def _settings(
    config: "Config", spec: ProviderSpec, model: str, *, local: bool, state_dir: Path | None
) -> "EndpointSettings":
    """What every kind of provider of ours takes from its section of the config."""
    section = _section(config, spec.name)
    effort = config.active_preset().reasoning_effort
    return {
        "name": spec.name,
        "extra_headers": section.extra_headers,
        "extra_body": section.extra_body,
        "proxy": section.proxy or None,
        "timeouts": limits_of(section, timeouts_for(model, local=local, reasoning_effort=effort)),
        "reasoning_effort": effort,
        "capabilities": CapabilityStore(state_dir / "capabilities.json" if state_dir else None),
    }


def _plugin(name: str, disabled: Sequence[str]) -> Callable[[str | None, str | None], LLMProvider] | None:
    """The factory that an installed package registers for this provider name, unless the name is built in.

    It is called with the section's key and base URL. Raises PluginError if it cannot be loaded.
    """
    if find_by_name(name) is not None:
        return None
    entry_point = next(
        (entry for entry in entry_points("nanobot.providers") if plain_name(entry.name) == plain_name(name)), None
    )
    if entry_point is None:
        return None
    if names(disabled, package_of(entry_point)):
        raise PluginError(
            f"providers.{name} belongs to the package {package_of(entry_point)}, which plugins.disabled lists. Remove "
            "it there, or choose another provider."
        )
    plugin: Callable[[str | None, str | None], LLMProvider] = load(entry_point.value)
    return plugin


def _explain_choice(match: ProviderMatch, section: "ProviderConfig", environ: Mapping[str, str]) -> str:
    """Where the decision came from, for `status`."""
    spec = match.spec
    if section.api_key:
        source = f"providers.{spec.config_key}.apiKey in config.json"
    elif variable := spec.env_variable(environ):
        source = f"{variable} is set in the environment"
    elif section.api_base:
        source = f"providers.{spec.config_key}.apiBase in config.json"
    else:
        return match.explanation
    return source if match.reason in ("environment", "key") else f"{match.explanation}; {source}"


def _create_provider(
    config: "Config", spec: ProviderSpec, model: str, key: str | None, base: str | None, state_dir: Path | None
) -> LLMProvider:
    section = _section(config, spec.name)
    settings = _settings(config, spec, model, local=spec.is_local or is_loopback_url(base), state_dir=state_dir)
    settings["config_key"] = f"providers.{spec.config_key}.apiKey"
    if spec.is_direct(section.backend):
        direct: LLMProvider = load(DIRECT)(key or None, base, model, api_type=section.api_type, **settings)
        return direct
    if section.api_type == "responses":
        raise ConfigError(
            f"providers.{spec.config_key}.apiType is responses, but LiteLLM makes these requests. Set "
            f"providers.{spec.config_key}.backend to direct, with the apiBase of an endpoint that has /responses, or "
            "remove apiType."
        )
    options = {"aws_region_name": section.region, "aws_profile_name": section.profile}
    litellm: LLMProvider = load(LITELLM)(
        key or None,
        # LiteLLM keeps its own default addresses: some of its providers want another form of the URL.
        section.api_base or (base if spec.speaks_chat_completions else None),
        model,
        litellm_prefix=spec.litellm_prefix,
        prompt_cache=True if spec.prompt_cache == "anthropic" and "claude" in model.lower() else None,
        options={name: value for name, value in options.items() if value},
        connect_s=section.connect_timeout_s,
        **settings,
    )
    return litellm


def limits_of(section: "ProviderConfig", defaults: Timeouts) -> Timeouts:
    """The default limits, overridden by the config. A limit set in the config also applies while a fallback is left."""
    configured = {
        "connect_s": section.connect_timeout_s,
        "first_token_s": section.first_token_timeout_s,
        "idle_s": section.idle_timeout_s,
        "total_s": section.total_timeout_s,
        "fallback_first_token_s": section.first_token_timeout_s and math.inf,
    }
    return replace(defaults, **{name: seconds for name, seconds in configured.items() if seconds})


def _section(config: "Config", name: str) -> "ProviderConfig":
    from nanobot.config.schema import ProviderConfig  # loaded already: the caller has a Config

    return config.providers.by_name().get(name) or ProviderConfig()


AddMeter = Callable[[LLMProvider, str], LLMProvider]
"""Wraps a provider in a meter, given the provider's name."""


def no_meter(provider: LLMProvider, name: str) -> LLMProvider:
    return provider


@dataclass(eq=False, slots=True)
class ProviderChains:
    """Builds the providers of one bot's sessions. They share their breakers: a failing model is paused for everyone."""

    environ: Mapping[str, str]
    state_dir: Path | None = None
    _: KW_ONLY
    add_meter: AddMeter = no_meter
    local_servers: Mapping[str, str] | None = None
    """As in `choose_provider`."""
    sleep: Sleep = asyncio.sleep
    monotonic: Monotonic = time.monotonic
    _breakers: dict[tuple[str, str | None, str], Breaker] = field(default_factory=dict, init=False)

    async def choose(self, config: "Config", model: str | None = None) -> ChosenProvider:
        """The provider of this model, or of the active one if none is given, followed by the config's fallback models.

        Raises ConfigError if the first cannot be used. A fallback that cannot be used is reported when it is needed.
        """
        models, unusable = [await self._choose(config, model)], []
        for name, preset in self._fallbacks(config, model):
            presets = {**config.model_presets, name: preset}
            fallback_config = with_preset(config.model_copy(update={"model_presets": presets}), name)
            try:
                models.append(await self._fallback(fallback_config, preset))
            except NanobotError as error:
                unusable.append(f"{name} cannot be used: {error}")
        retries = None if config.agents.defaults.provider_retry_mode == "persistent" else RETRIES
        provider = ResilientProvider(
            models, unusable=unusable, retries=retries, sleep=self.sleep, monotonic=self.monotonic
        )
        return replace(models[0], provider=provider)

    def _fallbacks(self, config: "Config", model: str | None) -> Iterator[tuple[str, "ModelPreset"]]:
        """The fallback models by name, each once, without the first one."""
        active = config.active_preset()
        seen = {(model or active.model, active.provider)}
        for entry in config.agents.defaults.fallback_models:
            name, preset = (entry, config.model_presets[entry]) if isinstance(entry, str) else (entry.model, entry)
            if (preset.model, preset.provider) not in seen:
                seen.add((preset.model, preset.provider))
                yield name, preset

    async def _fallback(self, config: "Config", preset: "ModelPreset") -> ChosenProvider:
        chosen = await self._choose(config)
        if chosen.name == "offline":
            raise ConfigError(f"No provider is set up for the model {preset.model}. Name it in the preset.")
        window = config.active_preset().context_window_tokens or context_window(preset.model)
        return replace(chosen, max_tokens=preset.max_tokens, temperature=preset.temperature, window_tokens=window)

    async def _choose(self, config: "Config", model: str | None = None) -> ChosenProvider:
        """The provider with a meter, and the breaker that it shares."""
        chosen = await choose_provider(
            config, model=model, environ=self.environ, state_dir=self.state_dir, local_servers=self.local_servers
        )
        key = (chosen.name, chosen.provider.api_base, chosen.model)
        breaker = self._breakers.setdefault(key, Breaker(self.monotonic))
        return replace(chosen, provider=self.add_meter(chosen.provider, chosen.name), breaker=breaker)


def with_preset(config: "Config", name: str) -> "Config":
    defaults = config.agents.defaults.model_copy(update={"model_preset": name})
    return config.model_copy(update={"agents": config.agents.model_copy(update={"defaults": defaults})})
