"""The model part of `nanobot onboard`: asks for provider, key and model, skipping what is known already."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import typer

from nanobot.cli.output import print_line
from nanobot.cli.setup import prompts
from nanobot.cli.setup.probe import rejected_key
from nanobot.config.keypath import mask_value
from nanobot.config.provider_table import DEFAULT_MODEL, PROVIDERS, ProviderSpec
from nanobot.config.schema import Config
from nanobot.errors import ConfigError
from nanobot.providers.factory import choose_provider
from nanobot.providers.local_servers import default_servers, is_model_server, list_models

WELL_KNOWN = ("openai", "anthropic", "gemini", "openrouter", "deepseek", "ollama", "custom")
KEEP, MORE, LATER = "keep", "more", "later"
ENVIRONMENT, SET, ANOTHER = "environment", "set", "another"
_MAX_MENU = 20
"""More models than this are completed as the name is typed, not listed."""
LIST_MODELS_TIMEOUT_S = 3.0
"""Timeout for a server to list its models."""


class NonInteractiveError(EOFError):
    """There was no input at all, not even for the first question."""


@dataclass(frozen=True)
class ProviderChoice:
    """Values to set. None keeps the config's value; an empty key means the one from the environment."""

    provider: ProviderSpec | None = None
    model: str | None = None
    api_key: str | None = None
    api_base: str | None = None

    def __bool__(self) -> bool:
        return self != ProviderChoice()

    def apply_to(self, config: Config) -> Config:
        """Apply to the config and return it."""
        defaults = config.agents.defaults
        if self.provider is not None:
            defaults.provider = self.provider.config_key
            section = config.providers.by_name()[self.provider.name]
            section.api_key = section.api_key if self.api_key is None else self.api_key
            section.api_base = self.api_base or section.api_base
        if self.model is not None:
            defaults.model = self.model
        if self:
            defaults.model_preset = None  # a preset would take precedence
        return config


def find_local_servers() -> dict[str, str]:
    """The addresses of the local model servers that answer, by provider; takes at most a third of a second."""
    servers = default_servers(os.environ)

    async def ask_all() -> list[tuple[str, ...]]:
        return await asyncio.gather(*(list_models(server.api_base) for server in servers))

    answers = zip(servers, asyncio.run(ask_all()), strict=True)
    return {server.provider: server.api_base for server, models in answers if models}


def ask_provider(
    config: Config, given: ProviderChoice, previous: ProviderChoice, servers: Mapping[str, str], *, may_keep: bool
) -> ProviderChoice | None:
    """Ask for what `given` leaves open, with `previous` answers as defaults. None means: no model for now.

    `servers` are the addresses of local servers, by provider.
    Raises NonInteractiveError if there is no input at all, EOFError if a pipe ends in the middle.
    """
    spec = given.provider or _ask_provider(previous.provider, servers, may_keep=may_keep)
    if spec == LATER:
        return None
    if not isinstance(spec, ProviderSpec):
        return ProviderChoice()
    if spec == previous.provider:
        previous.apply_to(config)
    else:
        previous = ProviderChoice(spec)
    base = complete_base_url(given.api_base or _ask_base(spec, config, servers))
    key, decision = given.api_key, KEEP if given.api_key is not None else ANOTHER
    while decision == ANOTHER:
        key = _ask_key(spec, config)
        if spec.needs_key and key == "" and not spec.env_key(os.environ):
            return None
        decision = _check_key(spec, config, key, base)
    if decision == LATER:
        return None
    model = given.model or _ask_model(ProviderChoice(spec, default_model(spec, config), key, base), config)
    return ProviderChoice(spec, model, previous.api_key if key is None else key, base or previous.api_base)


def _ask_provider(previous: ProviderSpec | None, servers: Mapping[str, str], *, may_keep: bool) -> ProviderSpec | str:
    """A provider, or KEEP or LATER. Providers usable without setup come first, then popular ones."""
    by_name = {spec.name: spec for spec in PROVIDERS if not spec.is_oauth}
    notes = {
        name: f" (running at {servers[name]})" if name in servers else f" ({variable} is in the environment)"
        for name, spec in by_name.items()
        if (variable := spec.env_variable(os.environ)) or name in servers
    }
    last = [previous.name] if previous else []
    first = list(dict.fromkeys([*last, *notes, *WELL_KNOWN]))
    options = [(KEEP, "Keep the current configuration")] if may_keep else []
    options += [(name, by_name[name].display_name + notes.get(name, "")) for name in first]
    options += [(MORE, "More providers ..."), (LATER, "None for now: a stand-in model shows how everything works")]
    try:
        answer = prompts.choose("Which model provider?", options, last[0] if last else None)
    except EOFError:
        if previous or prompts.is_interactive():
            raise
        raise NonInteractiveError from None
    if answer == MORE:
        rest = [(name, spec.display_name) for name, spec in by_name.items() if name not in first]
        answer = prompts.choose("Which provider?", sorted(rest, key=lambda option: option[1].lower()))
    return by_name.get(answer, answer)


def _ask_base(spec: ProviderSpec, config: Config, servers: Mapping[str, str]) -> str | None:
    """Ask for the base URL of a custom endpoint, or of a local server that does not answer at its default."""
    if spec.name in servers:
        return _base_url_to_store(spec, config, servers[spec.name])
    if spec.brings_credentials or not (spec.is_local or spec.default_api_base is None):
        return None
    default = config.providers.by_name()[spec.name].api_base or spec.default_api_base or ""
    if spec.is_local:
        print_line(f"{spec.display_name} does not answer at {default}. Start it now, or enter its URL.")
    while True:
        base = prompts.ask("Base URL" if default else "Base URL, for example http://localhost:8000/v1", default)
        if base.startswith(("http://", "https://")):
            return _base_url_to_store(spec, config, base)
        print_line(f"{base!r} is not a URL: it must begin with http:// or https://." if base else "A URL is needed.")


def complete_base_url(base: str | None) -> str | None:
    """Append the `/v1` that people forget, if the server lists its models only there."""
    if not base or urlsplit(base).path.strip("/"):
        return base
    with_v1 = f"{base.rstrip('/')}/v1"

    async def are_servers() -> list[bool]:
        urls = (base, with_v1)
        return await asyncio.gather(*(is_model_server(url, timeout_s=LIST_MODELS_TIMEOUT_S) for url in urls))

    if asyncio.run(are_servers()) != [False, True]:
        return base
    print_line(f"Found the API at {with_v1}.")
    return with_v1


def _base_url_to_store(spec: ProviderSpec, config: Config, base: str) -> str | None:
    """The base URL to store in the config; None for the default and for what it holds already."""
    in_config = config.providers.by_name()[spec.name].api_base
    is_default = base.replace("//127.0.0.1:", "//localhost:") == spec.default_api_base
    return None if base == in_config or (is_default and not in_config) else base


def _ask_key(spec: ProviderSpec, config: Config) -> str | None:
    """Ask for a key: None keeps the one that is set, an empty text uses the one from the environment."""
    if spec.is_local or spec.brings_credentials:
        return None
    if spec.key_page:
        print_line(f"Make or look up a key at {spec.key_page}")
    offered = []
    if key := config.providers.by_name()[spec.name].api_key:
        offered.append((SET, f"The key that is set ({mask_value(('apiKey',), key)})"))
    if variable := spec.env_variable(os.environ):
        offered.append((ENVIRONMENT, f"{variable} from the environment (nothing is stored)"))
    if offered and (answer := prompts.choose("Which key?", [*offered, (ANOTHER, "Another key")])) != ANOTHER:
        return None if answer == SET else ""
    empty = "empty: continue without a model" if spec.needs_key else "empty: none"
    whose = "this endpoint" if spec.name == "custom" else spec.display_name
    return prompts.ask_secret(f"API key for {whose} ({empty})")


def _check_key(spec: ProviderSpec, config: Config, key: str | None, base: str | None) -> str:
    """Try the key, and ask what to do if it is rejected. Returns KEEP, ANOTHER or LATER."""
    model, stored = default_model(spec, config), config.providers.by_name()[spec.name].api_key
    if not (stored if key is None else key or spec.env_key(os.environ)):  # none is needed
        return KEEP
    if not (model or spec.speaks_chat_completions):  # LiteLLM checks a key with a call to a model only
        return KEEP
    typer.echo("Checking the key ...")
    error = rejected_key(ProviderChoice(spec, model or "any", key, base).apply_to(config.model_copy(deep=True)))
    if error is None:
        return KEEP
    print_line(f"{spec.display_name}: {error.brief()}: {error.detail or 'no reason was given'}", indent=2)
    options = [(ANOTHER, "Enter the key again"), (KEEP, "Keep it anyway"), (LATER, "Continue without a model")]
    return prompts.choose("What now?", options)


def _ask_model(choice: ProviderChoice, config: Config) -> str:
    """Ask for a model, by default the choice's: from the list of the endpoint if it has one, else by name."""
    offered, default = offered_models(choice, config), choice.model or ""
    if len(offered) == 1:
        print_line(f"Model: {offered[0]} (the only one it offers)")
        return offered[0]
    if offered and default not in offered:
        default = ""
    if 0 < len(offered) <= _MAX_MENU:
        return prompts.choose("Which model?", [(name, name) for name in offered], default or None)
    question = f"Model (Tab shows the {len(offered)} it offers)" if offered else "Model"
    while not (model := prompts.ask(question, default, completions=offered)):
        print_line("A model's name is needed, as the provider writes it.")
    return model


def offered_models(choice: ProviderChoice, config: Config) -> tuple[str, ...]:
    """The models that this provider lists; empty if it lists none or cannot be used."""
    config = replace(choice, model=choice.model or "any").apply_to(config.model_copy(deep=True))

    async def list_all() -> tuple[str, ...]:
        chosen = await choose_provider(config, environ=os.environ)
        try:
            return await chosen.provider.list_models()
        finally:
            await chosen.provider.close()

    if choice.provider is None or not choice.provider.speaks_chat_completions:
        return ()
    try:
        return asyncio.run(list_all())
    except ConfigError:
        return ()


def default_model(spec: ProviderSpec, config: Config) -> str:
    """The model to use without a name: the config's if it belongs to this provider, else the provider's default."""
    match = config.match_provider()
    if match and match.spec == spec and match.model != DEFAULT_MODEL:
        return match.model
    return spec.default_model or ""


def local_server_address(spec: ProviderSpec, config: Config) -> str | None:
    """The address of a local server from the environment, if it differs from the default."""
    addresses = {server.provider: server.api_base for server in default_servers(os.environ)}
    return _base_url_to_store(spec, config, addresses[spec.name]) if spec.name in addresses else None
