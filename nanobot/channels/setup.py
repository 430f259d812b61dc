"""Setting up a channel: from answers to settings, the login, and saving. For the terminal's wizard and the page."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from nanobot.bus.queue import MessageBus
from nanobot.channels.access import AccessControl, AccessPolicy
from nanobot.channels.base import AskPerson, BaseChannel, ChannelServices, ShowStep, SignedIn
from nanobot.channels.media import MediaStore
from nanobot.channels.platforms import PlatformSetup
from nanobot.channels.registry import create_channel, load_channel
from nanobot.config.channels import ChannelConfig
from nanobot.config.loader import change_config
from nanobot.config.paths import DataPaths
from nanobot.config.schema import Config
from nanobot.errors import NanobotError, PluginError
from nanobot.pairing.store import PairingStore
from nanobot.plugins import load
from nanobot.security.secrets import learn_secrets, named_secrets


@dataclass(frozen=True, slots=True)
class ChannelSetup:
    """A channel to enable, its settings, and its owner if given."""

    platform: PlatformSetup
    values: Mapping[str, object] = field(repr=False)
    """By attribute name of the channel's config section."""
    owner: str = ""
    owner_name: str = ""
    """As the platform shows them; empty if unknown."""

    def apply_to(self, config: Config) -> Config:
        section = config.channels.section(self.platform.name)
        section.enabled = True
        for name, value in self.values.items():
            setattr(section, name, value)
        return config

    def with_owner(self, owner: str, section: ChannelConfig, show: ShowStep, name: str = "") -> "ChannelSetup":
        """The same with this owner, or without one; shows what the owner has to know."""
        values = self.platform.owner_values(owner, section, show) if owner else {}
        return replace(self, values={**self.values, **values}, owner=owner, owner_name=name)

    def save(self, load_config: Callable[[], Config], path: Path, places: DataPaths) -> None:
        """Change this config file, and pair the owner. Raises NanobotError."""
        change_config(load_config, self.apply_to, path)
        self.admit_owner(places)

    def admit_owner(self, places: DataPaths) -> None:
        """Pair the owner. Raises StorageError."""
        if self.owner:
            PairingStore(places).admit(self.platform.name, self.owner, owner=True, name=self.owner_name)


def is_set_up(platform: PlatformSetup, config: Config) -> bool:
    """Whether it is enabled and all required settings are set."""
    section = config.channels.section(platform.name)
    return section.enabled and not platform.missing_settings(section)


def can_start(platform: PlatformSetup, config: Config) -> bool:
    """Whether it only has to be switched on, or is on already: nothing has to be filled in or linked."""
    section = config.channels.section(platform.name)
    return not platform.missing_settings(section) and (section.enabled or not platform.links_account)


def sdk_problem(name: str) -> str:
    """What has to be installed for this channel, and how; empty if nothing is missing."""
    try:
        load_channel(name)
    except NanobotError as error:
        return str(error)
    return ""


SignIn = Callable[[ChannelConfig, ShowStep, AskPerson], Coroutine[Any, Any, SignedIn]]
"""Raises NanobotError, OSError; safe to cancel."""


def load_sign_in(platform: PlatformSetup) -> SignIn | None:
    """How to get the settings by signing in; None if there is no way, or its package is not installed."""
    try:
        return load(platform.sign_in) if platform.sign_in else None
    except PluginError:
        return None


class SetupForm(BaseModel):
    """What a person has filled in. An empty answer keeps the existing setting."""

    answers: dict[str, str] = Field(default_factory=dict, repr=False)
    """By name of the field."""
    agrees: bool = False
    """To what the platform needs consent for."""
    signs_in: bool = False
    """With a QR code, instead of answers."""
    phone: str = ""
    """Link a WhatsApp account with a code for this number; it is not saved."""
    owner: str = ""
    untested: bool = False
    """Save it without trying to log in."""


async def read_form(
    platform: PlatformSetup,
    form: SetupForm,
    section: ChannelConfig,
    show: ShowStep,
    ask: AskPerson,
    *,
    replaces: bool = False,
) -> ChannelSetup:
    """Make a form that was filled in to settings, or sign in. `replaces`: also what was derived from earlier answers.

    Raises NanobotError, which says what is wrong, and OSError; safe to cancel.
    """
    owner = form.owner.strip()
    if platform.consent and not form.agrees and not getattr(section, "consent_granted", False):
        raise NanobotError(f"This needs your consent. {platform.consent}")
    if owner and not platform.owner.accepts(owner):
        raise NanobotError(f"{platform.owner.label}: {platform.owner.hint}")
    if form.signs_in and (sign_in := load_sign_in(platform)) is not None:
        signed_in = await sign_in(section, show, ask)
        return ChannelSetup(platform, signed_in.values).with_owner(owner or signed_in.owner, section, show)
    answers: dict[str, str] = {}  # completed with the existing settings and the defaults
    for one in platform.fields:
        answer = form.answers.get(one.name, "").strip()
        current = str(getattr(section, one.name)) if one.suggest is None else one.suggest(answers, section, False)
        if answer not in ("", current) and not one.accepts(answer):
            raise NanobotError(f"{one.label}: {one.hint}")
        if not answer and not one.is_set(section):
            raise NanobotError(f"{one.label} is missing. {one.hint}")
        answers[one.name] = answer or current
    values: dict[str, object] = {one.name: answers[one.name] for one in platform.required if answers[one.name]}
    values |= {"consent_granted": True} if platform.consent else {}
    values |= platform.derive_values(answers, section, replaces)
    return ChannelSetup(platform, values).with_owner(owner, section, show)


async def try_form(setup: ChannelSetup, form: SetupForm, config: Config, places: DataPaths, show: ShowStep) -> None:
    """Log in with what a form has given, unless that is not wanted. Raises what `log_in` raises; changes `config`."""
    if not form.untested and setup.platform.is_tested:
        setup.apply_to(config)
        config.channels.whatsapp.phone = form.phone.strip() or config.channels.whatsapp.phone
        await log_in(setup.platform.name, config, places, show)


async def log_in(name: str, config: Config, places: DataPaths, show: ShowStep, *, force: bool = False) -> None:
    """Run the channel's login. Raises NanobotError if it fails, OSError."""
    learn_secrets(named_secrets(config.channels.model_dump(), {}))
    channel = await open_channel(name, config, places)
    if not await channel.run_login(show, force=force):
        raise NanobotError(f"{name} is not logged in yet. Try again with --force, or see its guide.")


async def open_channel(name: str, config: Config, places: DataPaths) -> BaseChannel:
    """Create the channel outside of a gateway. Raises NanobotError."""
    channel = await create_channel(name, config, MessageBus())
    access = AccessControl(AccessPolicy.of(name, config.channels.own_section(name)), PairingStore(places))
    channel.attach(ChannelServices(access, MediaStore(places.media / name), state=places.state / "channels" / name))
    return channel
