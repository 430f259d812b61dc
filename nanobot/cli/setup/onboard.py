"""`nanobot onboard`: set up a model, the workspace and channels, without editing a file.

Asks only for what flags, config and environment leave open. The model and each channel are tried before anything is
saved, and nothing is saved before the last question.
"""

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated
from urllib.parse import urlsplit

import typer

from nanobot.channels.setup import ChannelSetup
from nanobot.cli.common import print_warnings, selected
from nanobot.cli.output import print_heading, print_line, print_warning
from nanobot.cli.setup import prompts
from nanobot.cli.setup.channels import next_steps, offer_channels, start_instructions
from nanobot.cli.setup.probe import current_selection, rejected_key, try_model
from nanobot.cli.setup.prompts import LEAVE, RETRY, SAVE
from nanobot.config import paths
from nanobot.config.keypath import mask_value
from nanobot.config.loader import change_config, load_config, load_warnings, repair_config
from nanobot.config.paths import DataPaths
from nanobot.config.provider_table import (
    DEFAULT_MODEL,
    PROVIDERS,
    ProviderSpec,
    find_by_key,
    find_by_model,
    find_by_name,
)
from nanobot.config.saver import require_valid
from nanobot.config.schema import Config
from nanobot.errors import ConfigError, ProviderError, UsageError
from nanobot.providers.factory import choose_provider
from nanobot.providers.local_servers import default_servers, is_model_server, running_servers
from nanobot.utils.files import PRIVATE_FILE, write_atomic
from nanobot.utils.installation import prepare_workspace
from nanobot.utils.storage_error import storage_error
from nanobot.utils.text import count_noun, nearest

_NEXT_STEPS = """
Next:
  nanobot agent{config}                     chat in this terminal
  nanobot status{config}                    show the configuration"""
_PHONE_STEP = "  nanobot channels login telegram{config}   connect your phone"
_WELL_KNOWN = ("openai", "anthropic", "gemini", "openrouter", "deepseek", "ollama", "custom")
KEEP, MORE, LATER = "keep", "more", "later"
ENVIRONMENT, SET, ANOTHER = "environment", "set", "another"
_MAX_MENU = 20
"""More models than this are completed as the name is typed, not listed."""
_LIST_MODELS_TIMEOUT_S = 3.0
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


def onboard(
    provider: Annotated[str | None, typer.Option("--provider", metavar="NAME", help="The model provider.")] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="The model.")] = None,
    api_key: Annotated[str | None, typer.Option("--api-key", metavar="KEY", help="The provider's API key.")] = None,
    api_base: Annotated[
        str | None, typer.Option("--api-base", metavar="URL", help="The base URL of a custom endpoint.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing; use defaults.")] = False,
    reset: Annotated[bool, typer.Option("--reset", help="Start over; the old config is kept as a backup.")] = False,
) -> None:
    target = SetupTarget(paths.get_config_path(), selected.workspace, reset)
    given = _parse_choice(provider, model, api_key, api_base)
    print_warnings(load_warnings(target.load()))
    require_valid(given.apply_to(target.load()))
    target.require_writable()
    if target.exists:
        print_line(f"Config already exists: {target.config_path} (existing values preserved)")

    problem = ""
    channels: list[ChannelSetup] = []
    if yes:
        choice = _with_defaults(given, target.load())
        problem = target.problem_with(choice) if choice else ""
    else:
        choice, channels = _ask_setup(given, target)

    target.save(choice, channels)
    saved = load_config()
    chosen = current_selection(saved, target.places.data)
    print_line(f"Model: {f'{chosen.model} ({chosen.provider})' if choice else chosen}", indent=2)
    if problem:
        print_warning(
            f"{problem}\nThe settings are saved, but the model does not answer. Try again: nanobot status --probe"
        )
        raise typer.Exit(1)
    flag = selected.config_flag
    typer.echo(_NEXT_STEPS.format(config=flag))
    if not saved.channels.enabled:
        typer.echo(_PHONE_STEP.format(config=flag))
    if channels:
        typer.echo(f"\n{start_instructions()}")
        for line in dict.fromkeys(map(next_steps, channels)):
            print_line(line)


class SetupTarget:
    """The config file and the workspace to create or update."""

    def __init__(self, config_path: Path, workspace: Path | None, reset: bool) -> None:
        """Prints what is left out of a file that cannot be used as it is."""
        self.config_path = config_path
        self.places = DataPaths(config_path.parent)
        self.exists = config_path.exists() and not reset
        self._workspace = paths.absolute(workspace) if workspace else None
        self._repaired: Config | None = None
        if self.exists:
            try:
                load_config(config_path)
            except ConfigError:
                self._repaired, left_out = repair_config(config_path)
                for line in left_out:
                    print_line(f"Left out: {line}", err=True)
                print_line(f"The rest of {config_path} is used; saving keeps a copy of the old file.", err=True)

    def load(self) -> Config:
        """The existing config, or the defaults. Raises ConfigError."""
        if self._repaired is not None:
            config = self._repaired.model_copy(deep=True)
        else:  # a path that does not exist makes the loader use defaults and the environment
            config = load_config(self.config_path if self.exists else self.config_path.with_name("no config yet"))
        if self._workspace is not None:
            config.agents.defaults.workspace = str(self._workspace)
        return config

    def require_writable(self) -> None:
        """Raise StorageError if the answers could not be saved."""
        for folder in (self.config_path.parent, self.load().workspace_path):
            try:
                with TemporaryFile(dir=next(path for path in (folder, *folder.parents) if path.exists())):
                    pass
            except OSError as error:
                raise storage_error(f"{folder} cannot be written", error) from error

    def save(self, provider: ProviderChoice, channels: Sequence[ChannelSetup]) -> None:
        """Create the workspace, save the config, and admit the owners. An unchanged config is not written."""
        folder = self.load().workspace_path
        made = prepare_workspace(folder)
        print_line(f"Workspace: {folder} ({count_noun(len(made), 'new file') if made else 'complete'})", indent=2)
        if self.exists and self._repaired is None and not provider and not channels and self._workspace is None:
            return
        if self.config_path.exists() and (not self.exists or self._repaired is not None):
            backup = self.config_path.with_name(f"{self.config_path.name}.{time.strftime('%Y%m%d-%H%M%S')}.bak")
            write_atomic(backup, self.config_path.read_bytes(), mode=PRIVATE_FILE)
            print_line(f"The old config is saved as {backup}", indent=2)

        def apply(config: Config) -> Config:
            provider.apply_to(config)
            for channel in channels:
                channel.apply_to(config)
            return config

        change_config(self.load, apply, self.config_path)
        print_line(f"Config saved: {self.config_path}", indent=2)
        for channel in channels:
            channel.admit_owner(self.places)

    def problem_with(self, provider: ProviderChoice) -> str:
        """Send one request to the model; return what is wrong, or an empty text."""
        typer.echo("Asking the model ...")
        try:
            print_line(str(try_model(provider.apply_to(self.load()), self.places.data)), indent=2)
        except (ProviderError, ConfigError) as error:
            return str(error)
        return ""


def _ask_setup(given: ProviderChoice, target: SetupTarget) -> tuple[ProviderChoice, list[ChannelSetup]]:
    """Ask for a model, then for channels. Ctrl+C saves nothing."""
    print_heading("nanobot setup")
    if prompts.is_interactive():
        print_line("Ctrl+C leaves at any time. Nothing is saved before step 3.")
    with prompts.on_interrupt("Nothing was saved."):
        try:
            print_heading("Step 1 of 3: Model")
            provider = _ask_for_model(given, target)
            print_heading("Step 2 of 3: Chat apps")
            channels = offer_channels(lambda: provider.apply_to(target.load()))
            print_heading("Step 3 of 3: Save")
            return provider, channels
        except NonInteractiveError:
            print_line("\nNo interactive input; continuing with defaults (--yes).")
            return ProviderChoice(), []


def _ask_for_model(given: ProviderChoice, target: SetupTarget) -> ProviderChoice:
    """Ask until a model answers or the user gives up. Raises NonInteractiveError."""
    previous, servers = ProviderChoice(), _find_local_servers()
    while True:
        provider = _ask_choice(target.load(), given, previous, servers, may_keep=target.exists)
        if provider is None:
            return ProviderChoice()
        problem = target.problem_with(provider)
        if not problem:
            return provider
        typer.echo()
        print_line(problem)
        typer.echo()
        decision = prompts.choose_after_failure("Quit without saving")
        if decision == SAVE:
            return provider
        if decision == LEAVE:
            typer.echo("Nothing was saved.", err=True)
            raise typer.Exit(1)
        previous, given = provider, provider if decision == RETRY else ProviderChoice()


def _parse_choice(provider: str | None, model: str | None, api_key: str | None, api_base: str | None) -> ProviderChoice:
    """The provider that was named, or the one of the key or address. Raises UsageError for an unknown one."""
    if provider is not None:
        spec = find_by_name(provider)
        if spec is None:
            near = ", ".join(nearest(provider, [spec.config_key for spec in PROVIDERS]))
            raise UsageError(
                f"There is no provider {provider!r}. {f'Did you mean {near}? ' if near else ''}"
                "See `nanobot provider list`; for your own endpoint use custom with --api-base."
            )
    elif api_base:
        spec = find_by_name("custom")
    elif api_key is not None:
        spec = find_by_key(api_key) or find_by_model(model or "")
        if spec is None:
            raise UsageError("Which provider is this key for? Add --provider, for example --provider openai.")
    else:
        spec = None
    return ProviderChoice(spec, model, api_key, api_base)


def _with_defaults(given: ProviderChoice, config: Config) -> ProviderChoice:
    """Complete a provider: its base URL, and its default or first model."""
    if given.provider is None:
        return given
    spec = given.provider
    base = given.api_base or config.providers.by_name()[spec.name].api_base
    if not base and (local_base := default_servers(os.environ).get(spec.name)):
        base = _base_url_to_store(spec, config, local_base)
    base = _complete_base_url(base)
    model = given.model or _default_model(spec, config)
    model = model or next(iter(_offered_models(ProviderChoice(spec, None, given.api_key, base), config)), "")
    if not model:
        raise UsageError(
            f"{spec.display_name} does not answer, so its models are unknown. Start it, or give one with --model."
            if spec.is_local
            else f"{spec.display_name} has no default model. Give one with --model."
        )
    return ProviderChoice(spec, model, given.api_key, base)


def _find_local_servers() -> dict[str, str]:
    """The addresses of the local model servers that answer, by provider; takes at most a third of a second."""
    servers = default_servers(os.environ)
    return {provider: servers[provider] for provider in asyncio.run(running_servers(servers))}


def _ask_choice(
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
    base = _complete_base_url(given.api_base or _ask_base(spec, config, servers))
    key, decision = given.api_key, KEEP if given.api_key is not None else ANOTHER
    while decision == ANOTHER:
        key = _ask_key(spec, config)
        if spec.needs_key and key == "" and not spec.env_key(os.environ):
            return None
        decision = _check_key(spec, config, key, base)
    if decision == LATER:
        return None
    model = given.model or _ask_model(ProviderChoice(spec, _default_model(spec, config), key, base), config)
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
    first = list(dict.fromkeys([*last, *notes, *_WELL_KNOWN]))
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


def _complete_base_url(base: str | None) -> str | None:
    """Append the `/v1` that people forget, if the server lists its models only there."""
    if not base or urlsplit(base).path.strip("/"):
        return base
    with_v1 = f"{base.rstrip('/')}/v1"

    async def are_servers() -> list[bool]:
        urls = (base, with_v1)
        return await asyncio.gather(*(is_model_server(url, timeout_s=_LIST_MODELS_TIMEOUT_S) for url in urls))

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
    model, stored = _default_model(spec, config), config.providers.by_name()[spec.name].api_key
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
    offered, default = _offered_models(choice, config), choice.model or ""
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


def _offered_models(choice: ProviderChoice, config: Config) -> tuple[str, ...]:
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


def _default_model(spec: ProviderSpec, config: Config) -> str:
    """The model to use without a name: the config's if it belongs to this provider, else the provider's default."""
    match = config.match_provider()
    if match and match.spec == spec and match.model != DEFAULT_MODEL:
        return match.model
    return spec.default_model or ""
