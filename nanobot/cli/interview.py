"""The questions of `nanobot onboard`: which provider, which key, which model. Only what is not known yet is asked."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import typer

from nanobot.cli import questions
from nanobot.config.masking import shown
from nanobot.config.provider_table import DEFAULT_MODEL, PROVIDERS, ProviderSpec
from nanobot.config.schema import Config
from nanobot.providers.local_servers import models_of, usual_servers

WELL_KNOWN = ("openai", "anthropic", "gemini", "openrouter", "deepseek", "ollama", "custom")
KEEP, MORE, LATER = "keep", "more", "later"
ENVIRONMENT, CONFIG, BEFORE, ANOTHER = "environment", "config", "before", "another"
OFFERED_S = 3.0
"""How long somebody who waits for it gives a server to list its models."""


class NobodyAnswersError(EOFError):
    """There is nobody at the other end, from the first question on."""


@dataclass(frozen=True)
class Wish:
    """What shall be set. None leaves what the config has; an empty key means the one in the environment."""

    provider: ProviderSpec | None = None
    model: str | None = None
    api_key: str | None = None
    api_base: str | None = None

    def __bool__(self) -> bool:
        return self != Wish()

    def apply_to(self, config: Config) -> Config:
        """The same config with the wish in it."""
        defaults = config.agents.defaults
        if self.provider is not None:
            defaults.provider = self.provider.config_key
            section = config.providers.by_name()[self.provider.name]
            section.api_key = section.api_key if self.api_key is None else self.api_key
            section.api_base = self.api_base or section.api_base
        if self.model is not None:
            defaults.model = self.model
        if self:
            defaults.model_preset = None  # it would go before them
        return config


@dataclass(frozen=True)
class Found:
    """What is there without being set up: keys in the environment, servers on this machine with their models."""

    environ: Mapping[str, str]
    servers: Mapping[str, tuple[str, tuple[str, ...]]]

    @classmethod
    def look(cls) -> "Found":
        """Look now; takes a third of a second at most."""
        return cls(os.environ, asyncio.run(_local_servers(os.environ)))

    def note(self, spec: ProviderSpec) -> str:
        """Why this provider could be used at once, if it could."""
        if spec.name in self.servers:
            return f"answers at {self.servers[spec.name][0]}"
        variable = spec.variable_in(self.environ)
        return f"{variable} is in the environment" if variable else ""


def interview(config: Config, known: Wish, before: Wish, found: Found, *, may_keep: bool) -> Wish | None:
    """What the person wants; None for no model at all. `known` is not asked, `before` is what was answered last time.

    Raises EOFError where answers come from a pipe that ends in the middle, NobodyAnswersError where there are none.
    """
    provider = known.provider or _ask_provider(before.provider, found, may_keep=may_keep)
    if provider == LATER:
        return None
    if not isinstance(provider, ProviderSpec):
        return Wish()
    if provider != before.provider:
        before = Wish(provider)
    base = _whole(known.api_base or _ask_base(provider, config, before, found))
    key = known.api_key if known.api_key is not None else _ask_key(provider, config, before)
    if provider.needs_key and key == "" and not provider.key_in(os.environ):
        return None
    model = known.model or _ask_model(provider, config, before, base)
    return Wish(provider, model, key, base)


def _ask_provider(before: ProviderSpec | None, found: Found, *, may_keep: bool) -> ProviderSpec | str:
    """A provider, or KEEP or LATER. Those that could be used at once come first, then those that many use."""
    usable = {spec.name: spec for spec in PROVIDERS if not spec.is_oauth}
    ready = [name for name, spec in usable.items() if found.note(spec)]
    last = [before.name] if before else []
    first = list(dict.fromkeys([*last, *ready, *WELL_KNOWN]))
    options = [(name, _label(usable[name], found)) for name in first]
    if may_keep:
        options.insert(0, (KEEP, "What is configured already"))
    options += [(MORE, "Another one"), (LATER, "None for now: a stand-in shows how everything works")]
    try:
        answer = questions.choose("Which provider of models?", options, last[0] if last else None)
    except EOFError:
        if before or questions.in_terminal():
            raise
        raise NobodyAnswersError from None
    if answer == MORE:
        rest = [(name, spec.display_name) for name, spec in usable.items() if name not in first]
        answer = questions.choose("Which one?", sorted(rest, key=lambda option: option[1].lower()))
    return usable.get(answer, answer)


def _label(spec: ProviderSpec, found: Found) -> str:
    note = found.note(spec)
    return f"{spec.display_name} ({note})" if note else spec.display_name


def _ask_base(spec: ProviderSpec, config: Config, before: Wish, found: Found) -> str | None:
    """The base URL where it is nobody's but the owner's, or where nobody answers at the usual place."""
    if spec.name in found.servers:
        return _to_set(spec, config, found.servers[spec.name][0])
    default = before.api_base or config.providers.by_name()[spec.name].api_base or spec.default_api_base or ""
    if spec.brings_credentials or not (spec.is_local or spec.default_api_base is None):
        return before.api_base
    if spec.is_local:
        typer.echo(f"{spec.display_name} does not answer at {default}. Start it now, or say where it is.")
    base = ""
    while not base.startswith(("http://", "https://")):
        base = questions.ask("Base URL, such as http://localhost:8000/v1", default)
    return _to_set(spec, config, base)


def _whole(base: str | None) -> str | None:
    """The same; with the `/v1` that people forget, where a server has its models only behind that."""
    if base is None or urlsplit(base).path.strip("/"):
        return base
    whole = f"{base.rstrip('/')}/v1"
    here, there = asyncio.run(_models_of_both(base, whole))
    if here or not there:
        return base
    typer.echo(f"Its models are at {whole}; that is taken.")
    return whole


async def _models_of_both(one: str, other: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return await asyncio.gather(models_of(one, timeout_s=OFFERED_S), models_of(other, timeout_s=OFFERED_S))


def _to_set(spec: ProviderSpec, config: Config, base: str) -> str | None:
    """The base URL, if the config has to say it: neither the usual one nor what stands there already."""
    in_config = config.providers.by_name()[spec.name].api_base
    usual = base.replace("//127.0.0.1:", "//localhost:") == spec.default_api_base
    return None if base == in_config or (usual and not in_config) else base


def _ask_key(spec: ProviderSpec, config: Config, before: Wish) -> str | None:
    """A key, None to leave what the config has, or nothing to take the environment's."""
    if spec.is_local or spec.brings_credentials:
        return None
    in_config = config.providers.by_name()[spec.name].api_key
    variable = spec.variable_in(os.environ)
    options = [
        (BEFORE, f"The key from before ({_masked(before.api_key or '')})", bool(before.api_key)),
        (CONFIG, f"The key in the config ({_masked(in_config)})", bool(in_config)),
        (ENVIRONMENT, f"{variable} from the environment; nothing is stored", bool(variable)),
    ]
    offered = [(value, label) for value, label, there in options if there]
    if offered:
        answer = questions.choose("Which key?", [*offered, (ANOTHER, "Another one")])
        if answer != ANOTHER:
            return {BEFORE: before.api_key, CONFIG: None, ENVIRONMENT: ""}[answer]
    empty = "empty: go on without a model" if spec.needs_key else "empty for none"
    whose = "this endpoint" if spec.name == "custom" else spec.display_name
    return questions.ask_secret(f"Key for {whose} ({empty})")


def _ask_model(spec: ProviderSpec, config: Config, before: Wish, base: str | None) -> str:
    """A model: one that the server offers where it says so, else a name with a sensible default."""
    place = base or config.providers.by_name()[spec.name].api_base or spec.default_api_base
    offers = spec.is_local or spec.name == "custom"
    offered = asyncio.run(models_of(place, timeout_s=OFFERED_S)) if offers and place else ()
    if len(offered) == 1:
        typer.echo(f"Model: {offered[0]} (the only one it offers)")
        return offered[0]
    if offered:
        default = before.model if before.model in offered else None
        return questions.choose("Which model?", [(name, name) for name in offered], default)
    default = before.model or default_model(spec, config)
    model = ""
    while not model:
        model = questions.ask("Model", default)
    return model


def default_model(spec: ProviderSpec, config: Config) -> str:
    """What the provider is asked for when nobody names a model: the config's where it speaks of this provider."""
    match = config.match_provider()
    if match and match.spec == spec and match.model != DEFAULT_MODEL:
        return match.model
    return spec.default_model or ""


def moved_address(spec: ProviderSpec, config: Config) -> str | None:
    """Where the environment says that a local server is, if not at its usual place."""
    here = {server.provider: server.api_base for server in usual_servers(os.environ)}
    return _to_set(spec, config, here[spec.name]) if spec.name in here else None


def first_model_offered(spec: ProviderSpec, base: str | None) -> str:
    """The first model of a server that says what it has; nothing where it does not."""
    place = base or spec.default_api_base
    offered = asyncio.run(models_of(place, timeout_s=OFFERED_S)) if place else ()
    return offered[0] if offered else ""


def _masked(key: str) -> str:
    return str(shown(("apiKey",), key))


async def _local_servers(environ: Mapping[str, str]) -> dict[str, tuple[str, tuple[str, ...]]]:
    servers = usual_servers(environ)
    answers = await asyncio.gather(*(models_of(server.api_base) for server in servers))
    return {
        server.provider: (server.api_base, models) for server, models in zip(servers, answers, strict=True) if models
    }
