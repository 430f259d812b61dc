"""Which provider, and why: from the config, the environment and the local machine to one that can be asked.

In this order: what the config says; a key in the environment; an account somebody is logged in to; a model server that
answers here; the stand-in.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanobot.config.provider_match import ProviderMatch
from nanobot.config.provider_table import (
    DEFAULT_MODEL,
    ProviderSpec,
    find_by_model,
    find_by_name,
    plain_name,
    spec_for,
)
from nanobot.errors import ConfigError, PluginError
from nanobot.plugins import entry_points, load, names, package_of
from nanobot.providers.base import LLMProvider
from nanobot.providers.capabilities import CapabilityStore
from nanobot.providers.limits import Timeouts, timeouts_for
from nanobot.providers.local_servers import LocalServer, find_local_server, models_of, usual_servers
from nanobot.providers.oauth.accounts import AccountStore
from nanobot.utils.http import is_loopback

if TYPE_CHECKING:
    from nanobot.config.schema import Config, ProviderConfig

DIRECT = "nanobot.providers.custom_provider:CustomProvider"
LITELLM = "nanobot.providers.litellm_provider:LiteLLMProvider"
OFFLINE = "nanobot.providers.offline_provider:OfflineProvider"
ACCOUNTS = {
    "openai_codex": "nanobot.providers.openai_codex_provider:OpenAICodexProvider",
    "github_copilot": "nanobot.providers.copilot_provider:CopilotProvider",
}
"""Those that are reached by an account instead of a key."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A provider that can be asked, its name, the model as it goes out, and why it is this one, in a sentence."""

    provider: LLMProvider
    name: str
    model: str
    reason: str


async def choose_provider(
    config: "Config",
    *,
    model: str | None = None,
    environ: Mapping[str, str],
    state_dir: Path | None = None,
    local_servers: Sequence[LocalServer] | None = None,
) -> Chosen:
    """The provider for this model, the active one if none is given.

    Raises ConfigError, with the key to set, where the owner named a model or a provider that cannot be reached: nobody
    is switched silently. `local_servers` are asked where nothing is set up; None means the usual ones.
    """
    active = config.active_preset()
    asked = model or active.model
    match = config.match_provider(asked, environ)
    if match is None or (match.reason == "environment" and match.model != asked):
        # Nothing fits what was asked. If somebody asked for it by name, say so; else take what there is.
        _refuse_if_named(asked)
    if match is not None:
        return await _for_match(config, match, environ, state_dir)
    account = _logged_in(state_dir) if asked == DEFAULT_MODEL else None
    if account is not None:
        return _for_account(config, account, asked, f"somebody is logged in to {account.display_name}", state_dir)
    servers = _local_servers(config, environ) if local_servers is None else local_servers
    found = await find_local_server(servers)
    if found is not None:
        spec = spec_for(found.server.provider)
        served = next((name for name in found.models if name == asked), found.models[0])
        provider = _make(config, spec, served, None, found.server.api_base, state_dir)
        return Chosen(provider, spec.name, served, found.reason)
    return Chosen(
        load(OFFLINE)(),
        "offline",
        "offline",
        "no key is set in the config or the environment, and no local model server answers",
    )


def _refuse_if_named(asked: str) -> None:
    spec = find_by_model(asked)
    if asked != DEFAULT_MODEL and spec is not None and spec.needs_key:
        raise ConfigError(_no_key(spec, asked))


def _no_key(spec: ProviderSpec, model: str) -> str:
    variables = f", set {spec.env_keys[0]} in the environment," if spec.env_keys else ""
    return (
        f"There is no key for {spec.display_name}, which serves the model {model}. "
        f"Set providers.{spec.config_key}.apiKey in the config{variables} or run `nanobot onboard`."
    )


async def _for_match(
    config: "Config", match: ProviderMatch, environ: Mapping[str, str], state_dir: Path | None
) -> Chosen:
    spec = match.spec
    section = _section(config, spec.name)
    if spec.name in ACCOUNTS and not (spec.name == "github_copilot" and section.backend == "litellm"):
        return _for_account(config, spec, match.wire_model, match.because, state_dir)
    key = section.api_key or spec.key_in(environ)
    base = section.api_base or spec.default_api_base
    if spec.needs_key and not key and not _is_local(base):
        raise ConfigError(_no_key(spec, match.model))
    model = match.wire_model
    plugin = _plugin(spec.name, config.plugins.disabled)
    if plugin is not None:
        own: LLMProvider = plugin(key or None, base)
        return Chosen(own, spec.name, model, f"{match.because}; an installed package reaches it")
    if not base and spec.is_direct(section.backend):
        raise ConfigError(f"providers.{spec.config_key}.apiBase is empty. Set it to the base URL of the endpoint.")
    if spec.is_local and match.model == DEFAULT_MODEL and base:
        served = await models_of(base)
        if not served:
            raise ConfigError(
                f"{spec.display_name} does not answer at {base}. Start it, or set agents.defaults.model to its model."
            )
        model = served[0]
    return Chosen(_make(config, spec, model, key, base, state_dir), spec.name, model, _because(match, section, environ))


def _logged_in(state_dir: Path | None) -> ProviderSpec | None:
    """The first provider that somebody is logged in to, where nothing else was chosen."""
    store = AccountStore.in_state(state_dir) if state_dir else None
    names = (name for name in ACCOUNTS if store is not None and store.path(name).exists())
    return next(map(spec_for, names), None)


def _for_account(config: "Config", spec: ProviderSpec, model: str, because: str, state_dir: Path | None) -> Chosen:
    section = _section(config, spec.name)
    if section.backend == "litellm":
        raise ConfigError(f"providers.{spec.config_key}.backend cannot be litellm. Take the line out.")
    if state_dir is None or not (store := AccountStore.in_state(state_dir)).path(spec.name).exists():
        raise ConfigError(
            f"Nobody is logged in to {spec.display_name}. Run `nanobot provider login {spec.name.replace('_', '-')}`."
        )
    model = (spec.default_model or model) if model == DEFAULT_MODEL else model
    effort = config.active_preset().reasoning_effort
    usual = timeouts_for(model, local=_is_local(section.api_base), reasoning_effort=effort)
    provider: LLMProvider = load(ACCOUNTS[spec.name])(
        store,
        model,
        name=spec.name,
        api_base=section.api_base,
        extra_headers=section.extra_headers,
        extra_body=section.extra_body,
        proxy=section.proxy or None,
        timeouts=limits_of(section, usual),
        reasoning_effort=effort,
        capabilities=CapabilityStore(state_dir / "capabilities.json"),
    )
    return Chosen(provider, spec.name, model, because)


def _plugin(name: str, disabled: Sequence[str]) -> Callable[[str | None, str | None], LLMProvider] | None:
    """The class that an installed package offers for a provider of this name, where the name is none of ours.

    It is called with the section's key and base URL. Raises PluginError where it cannot be loaded.
    """
    if find_by_name(name) is not None:
        return None
    found = next(
        (entry for entry in entry_points("nanobot.providers") if plain_name(entry.name) == plain_name(name)), None
    )
    if found is None:
        return None
    if names(disabled, package_of(found)):
        raise PluginError(
            f"providers.{name} is of the package {package_of(found)}, which plugins.disabled names. Take it out there, "
            "or choose another provider."
        )
    made: Callable[[str | None, str | None], LLMProvider] = load(found.value)
    return made


def _because(match: ProviderMatch, section: "ProviderConfig", environ: Mapping[str, str]) -> str:
    """Where the decision came from, for `status`."""
    spec = match.spec
    if section.api_key:
        where = f"providers.{spec.config_key}.apiKey in config.json"
    elif variable := spec.variable_in(environ):
        where = f"{variable} is set in the environment"
    elif section.api_base:
        where = f"providers.{spec.config_key}.apiBase in config.json"
    else:
        return match.because
    return where if match.reason in ("environment", "key") else f"{match.because}; {where}"


def _make(
    config: "Config", spec: ProviderSpec, model: str, key: str | None, base: str | None, state_dir: Path | None
) -> LLMProvider:
    section = _section(config, spec.name)
    local = spec.is_local or _is_local(base)
    effort = config.active_preset().reasoning_effort
    settings: dict[str, Any] = {
        "name": spec.name,
        "extra_headers": section.extra_headers,
        "extra_body": section.extra_body,
        "timeouts": limits_of(section, timeouts_for(model, local=local, reasoning_effort=effort)),
        "reasoning_effort": effort,
        "config_key": f"providers.{spec.config_key}.apiKey",
    }
    if spec.is_direct(section.backend):
        store = CapabilityStore(state_dir / "capabilities.json" if state_dir else None)
        settings |= {"proxy": section.proxy or None, "capabilities": store}
        direct: LLMProvider = load(DIRECT)(key or None, base, model, **settings)
        return direct
    options = {"aws_region_name": section.region, "aws_profile_name": section.profile}
    settings |= {
        "litellm_prefix": spec.litellm_prefix,
        "prompt_cache": True if spec.prompt_cache == "anthropic" and "claude" in model.lower() else None,
        "options": {name: value for name, value in options.items() if value},
        "proxy": section.proxy or None,
        "connect_s": section.connect_timeout_s,
    }
    # An address that is LiteLLM's own default is left to it: some of its providers want another form of it.
    own_base = section.api_base or (base if spec.speaks_chat_completions else None)
    through: LLMProvider = load(LITELLM)(key or None, own_base, model, **settings)
    return through


def limits_of(section: "ProviderConfig", usual: Timeouts) -> Timeouts:
    """The preset, and what the config says instead. A limit that somebody set holds whether others are left or not."""
    set_by_hand = {
        "connect_s": section.connect_timeout_s,
        "first_token_s": section.first_token_timeout_s,
        "idle_s": section.idle_timeout_s,
        "total_s": section.total_timeout_s,
        "hurried_s": section.first_token_timeout_s and math.inf,
    }
    return replace(usual, **{name: seconds for name, seconds in set_by_hand.items() if seconds})


def _section(config: "Config", name: str) -> "ProviderConfig":
    from nanobot.config.schema import ProviderConfig  # whoever has a Config has it loaded

    return config.providers.by_name().get(name) or ProviderConfig()


def _local_servers(config: "Config", environ: Mapping[str, str]) -> tuple[LocalServer, ...]:
    """The usual ones, each where the config says it is."""
    sections = config.providers.by_name()
    return tuple(
        LocalServer(server.provider, server.display_name, section.api_base)
        if (section := sections.get(server.provider)) and section.api_base
        else server
        for server in usual_servers(environ)
    )


def _is_local(base: str | None) -> bool:
    from urllib.parse import urlsplit

    return bool(base) and is_loopback(urlsplit(base or "").hostname or "")
