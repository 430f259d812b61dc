"""`nanobot onboard`: set up a model, the workspace and channels, without editing a file.

Asks only for what flags, config and environment leave open. The model and each channel are tried before anything is
saved, and nothing is saved before the last question.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

import typer

from nanobot.channels.setup import ChannelSetup
from nanobot.cli.common import print_warnings, selected
from nanobot.cli.output import print_heading, print_line, print_warning
from nanobot.cli.setup import prompts
from nanobot.cli.setup.channels import next_steps, offer_channels, start_instructions
from nanobot.cli.setup.probe import current_selection, try_model
from nanobot.cli.setup.prompts import LEAVE, RETRY, SAVE
from nanobot.cli.setup.provider import (
    NonInteractiveError,
    ProviderChoice,
    ask_provider,
    complete_base_url,
    default_model,
    find_local_servers,
    local_server_address,
    offered_models,
)
from nanobot.config import paths
from nanobot.config.loader import change_config, load_config, load_warnings, repair_config
from nanobot.config.paths import DataPaths
from nanobot.config.provider_table import PROVIDERS, find_by_key, find_by_model, find_by_name
from nanobot.config.saver import require_valid
from nanobot.config.schema import Config
from nanobot.errors import ConfigError, ProviderError, UsageError
from nanobot.utils.files import PRIVATE_FILE, write_atomic
from nanobot.utils.installation import prepare_workspace
from nanobot.utils.storage_error import storage_error
from nanobot.utils.text import count_noun, nearest

NEXT_STEPS = """
Next:
  nanobot agent{config}                     chat in this terminal
  nanobot status{config}                    show the configuration"""
PHONE_STEP = "  nanobot channels login telegram{config}   connect your phone"


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
    typer.echo(NEXT_STEPS.format(config=flag))
    if not saved.channels.enabled:
        typer.echo(PHONE_STEP.format(config=flag))
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
    previous, servers = ProviderChoice(), find_local_servers()
    while True:
        provider = ask_provider(target.load(), given, previous, servers, may_keep=target.exists)
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
    base = given.api_base or config.providers.by_name()[spec.name].api_base or local_server_address(spec, config)
    base = complete_base_url(base)
    model = given.model or default_model(spec, config)
    model = model or next(iter(offered_models(ProviderChoice(spec, None, given.api_key, base), config)), "")
    if not model:
        raise UsageError(
            f"{spec.display_name} does not answer, so its models are unknown. Start it, or give one with --model."
            if spec.is_local
            else f"{spec.display_name} has no default model. Give one with --model."
        )
    return ProviderChoice(spec, model, given.api_key, base)
