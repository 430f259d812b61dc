"""`nanobot onboard`: from nothing to a model that answers on your phone, without editing a file.

What a flag, the config or the environment says is not asked. A model is asked once before it is saved, and so is the
platform of each channel. Nothing is saved before the last question.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from nanobot.cli import questions
from nanobot.cli.channel_setup import ChannelWish, how_it_starts, offer_channels
from nanobot.cli.common import ConfigOption, WorkspaceOption, warn
from nanobot.cli.interview import (
    Found,
    NobodyAnswersError,
    Wish,
    default_model,
    first_model_offered,
    interview,
    moved_address,
)
from nanobot.cli.trial import choice_now, try_model
from nanobot.config import paths
from nanobot.config.loader import load_config, load_warnings, save_config
from nanobot.config.paths import Places
from nanobot.config.provider_table import PROVIDERS, ProviderSpec, find_by_key, find_by_model, find_by_name
from nanobot.config.schema import Config
from nanobot.errors import ConfigError, ProviderError, StorageError, UsageError
from nanobot.utils.files import PRIVATE_FILE, write_atomic
from nanobot.utils.text import counted, nearest
from nanobot.utils.workspace import prepare_workspace

AGAIN, SAVE, LEAVE = "again", "save", "leave"

NEXT = """
Next:
  nanobot agent{config}                                  a chat in this terminal
  nanobot agent{config} -m "What is in my workspace?"    one answer and out
  nanobot status{config}                                 what is set up, and why"""
FOR_A_PHONE = "  nanobot channels login telegram{config}                reach it from your phone"


def onboard(
    provider: Annotated[str | None, typer.Option("--provider", metavar="NAME", help="The provider of models.")] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="The model.")] = None,
    api_key: Annotated[str | None, typer.Option("--api-key", metavar="KEY", help="The provider's key.")] = None,
    api_base: Annotated[
        str | None, typer.Option("--api-base", metavar="URL", help="Another base URL than the provider's own.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing; take defaults and what is found.")] = False,
    reset: Annotated[bool, typer.Option("--reset", help="Start over; the old config is kept beside.")] = False,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
) -> None:
    """Set up a model, the workspace and channels."""
    paths.use_config(config)
    home = Home(paths.get_config_path(), workspace, reset)
    known = _wish(provider, model, api_key, api_base)
    warn(load_warnings(home.load()))
    home.open()

    plan = Plan(_without_questions(known, home)) if yes else _with_questions(known, home)

    home.keep(plan)
    typer.echo(f"Model: {choice_now(load_config(), paths.get_data_dir())}")
    _say_what_is_next(plan, f" -c {config}" if config else "")


@dataclass(frozen=True)
class Plan:
    """All that shall be set."""

    wish: Wish
    channels: Sequence[ChannelWish] = ()

    def __bool__(self) -> bool:
        return bool(self.wish or self.channels)

    def apply_to(self, config: Config) -> Config:
        """The same config with the plan in it."""
        self.wish.apply_to(config)
        for channel in self.channels:
            channel.apply_to(config)
        return config


class Home:
    """The config and the workspace that are made, or kept."""

    def __init__(self, config_path: Path, workspace: Path | None, reset: bool) -> None:
        self.config_path = config_path
        self.exists = config_path.exists() and not reset
        self._was_there = config_path.exists()
        self._workspace = paths.absolute(workspace) if workspace else None

    def load(self) -> Config:
        """The config as it is, or as it would be without a file. Raises ConfigError."""
        # A file that is not there is how the loader is told of no config; the environment counts all the same.
        config = load_config(self.config_path if self.exists else self.config_path.with_name("no config yet"))
        if self._workspace is not None:
            config.agents.defaults.workspace = str(self._workspace)
        return config

    def open(self) -> None:
        """Make the workspace, so that a disk that refuses does so before anything is asked."""
        folder = self.load().workspace_path
        made = prepare_workspace(folder)
        if self.exists:
            typer.echo(f"Config already exists: {self.config_path} (existing values preserved)")
        typer.echo(f"Workspace: {folder} ({counted(len(made), 'new file') if made else 'complete'})")

    @property
    def places(self) -> Places:
        """Where things lie beside the config."""
        return Places(self.config_path.parent)

    def keep(self, plan: Plan) -> None:
        """Save the config with the plan in it, and let owners in. A config that stays as it is, is not written."""
        if not self.exists or plan or self._workspace is not None:
            self._save(plan)
        for channel in plan.channels:
            channel.admit_owner(self.places)

    def _save(self, plan: Plan) -> None:
        if self._was_there and not self.exists:
            backup = self.config_path.with_name(f"{self.config_path.name}.{time.strftime('%Y%m%d-%H%M%S')}.bak")
            try:
                write_atomic(backup, self.config_path.read_bytes(), mode=PRIVATE_FILE)
            except OSError as error:
                raise StorageError(f"{backup} cannot be written: {error.strerror}. Nothing was changed.") from error
            typer.echo(f"The old config is kept: {backup}")
        save_config(plan.apply_to(self.load()), self.config_path)
        typer.echo(f"Config saved: {self.config_path}")

    def problem_with(self, wish: Wish) -> str:
        """Ask the model once; what is wrong, or nothing."""
        typer.echo("Asking the model ...")
        try:
            typer.echo(try_model(wish.apply_to(self.load()), self.config_path.parent))
        except (ProviderError, ConfigError) as error:
            return str(error)
        return ""


def _without_questions(known: Wish, home: Home) -> Wish:
    """The flags, filled up with defaults. They are saved also where the model does not answer (yet)."""
    wish = _filled(known, home.load())
    if wish and (problem := home.problem_with(wish)):
        typer.echo(f"Warning: {problem}", err=True)
        typer.echo("It is saved all the same. Try again with `nanobot status --probe`.", err=True)
    return wish


def _with_questions(known: Wish, home: Home) -> Plan:
    """Ask for a model, then for channels. Leaving saves nothing."""
    try:
        wish = _ask_for_model(known, home)
    except NobodyAnswersError:
        typer.echo("\nNobody answers: going on without questions, as with --yes.")
        return Plan(Wish())
    return Plan(wish, offer_channels(lambda: wish.apply_to(home.load()), home.places))


def _ask_for_model(known: Wish, home: Home) -> Wish:
    """Ask until a model answers, or the person has enough. Raises NobodyAnswersError."""
    before, found = Wish(), Found.look()
    while True:
        wish = interview(home.load(), known, before, found, may_keep=home.exists)
        if wish is None:
            return Wish()
        problem = home.problem_with(wish)
        if not problem:
            return wish
        typer.echo(f"\n{problem}\n")
        decision = questions.choose(
            "What now?",
            [(AGAIN, "Try again with other answers"), (SAVE, "Save it anyway"), (LEAVE, "Leave without saving")],
        )
        if decision == SAVE:
            return wish
        if decision == LEAVE:
            raise typer.Exit(1)
        before, known = wish, Wish()


def _wish(provider: str | None, model: str | None, api_key: str | None, api_base: str | None) -> Wish:
    """What the flags say. Raises UsageError for a provider that nobody knows."""
    if provider is not None:
        spec = find_by_name(provider)
        if spec is None:
            near = ", ".join(nearest(provider, [spec.config_key for spec in PROVIDERS]))
            raise UsageError(
                f"There is no provider {provider!r}. {f'Did you mean {near}? ' if near else ''}"
                "See `nanobot provider list`; for an endpoint of your own, take custom with --api-base."
            )
    else:
        spec = _guess(model, api_key, api_base)
    return Wish(spec, model, api_key, api_base)


def _guess(model: str | None, api_key: str | None, api_base: str | None) -> ProviderSpec | None:
    """Whose key or address it is. Raises UsageError where nobody can know."""
    if api_key is None and api_base is None:
        return None
    spec = find_by_name("custom") if api_base else find_by_key(api_key or "") or find_by_model(model or "")
    if spec is None:
        raise UsageError("Whose key is it? Say so with --provider, such as --provider openai.")
    return spec


def _filled(known: Wish, config: Config) -> Wish:
    """The flags, and for a provider without a model where it is and what it is asked for."""
    if known.provider is None or known.model is not None:
        return known
    spec = known.provider
    base = known.api_base or config.providers.by_name()[spec.name].api_base or moved_address(spec, config)
    model = default_model(spec, config) or first_model_offered(spec, base)
    if not model:
        raise UsageError(
            f"{spec.display_name} does not answer, so nobody knows its models. Start it, or name one with --model."
            if spec.is_local
            else f"{spec.display_name} has no model that is everybody's. Name one with --model."
        )
    return Wish(spec, model, known.api_key, base)


def _say_what_is_next(plan: Plan, config: str) -> None:
    typer.echo(NEXT.format(config=config))
    if not any(load_config().channels.switched_on().values()):
        typer.echo(FOR_A_PHONE.format(config=config))
    if plan.channels:
        places = Places(paths.get_data_dir())
        typer.echo(f"\n{how_it_starts(places, config)}")
        for line in {channel.next_steps(places, config): None for channel in plan.channels}:
            typer.echo(line)
