"""Setting up a channel by questions: two doors lead here, `nanobot onboard` and `nanobot channels login`.

Only what is not known is asked. The platform is asked once, whether it lets the bot in, before anything is saved.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from shutil import get_terminal_size
from textwrap import fill

import typer

from nanobot.channels.registry import load_channel
from nanobot.cli import questions
from nanobot.cli.common import one_line
from nanobot.cli.platforms import PLATFORMS, Field, Platform, Values, find_platform
from nanobot.cli.through_gateway import ask_gateway
from nanobot.config.masking import shown
from nanobot.config.paths import Places
from nanobot.config.schema import Config
from nanobot.config.spelling import camel
from nanobot.errors import NanobotError
from nanobot.pairing.store import PairingStore

NONE, AGAIN, SAVE, LEAVE = "none", "again", "save", "leave"

_WIDEST = 110
"""Longer lines are hard to read."""

Load = Callable[[], Config]
"""The config as it would be without the channel, fresh at each call."""


@dataclass(frozen=True, slots=True)
class ChannelWish:
    """A channel that shall be switched on, and who is its owner if they said so."""

    platform: Platform
    values: Mapping[str, object] = field(repr=False)
    """By the names of the section's attributes."""
    owner: str = ""

    def apply_to(self, config: Config) -> Config:
        """The same config with the channel in it."""
        section = config.channels.section(self.platform.name)
        section.enabled = True
        for name, value in self.values.items():
            setattr(section, name, value)
        return config

    def admit_owner(self, places: Places) -> None:
        """Let the owner in for good. Raises StorageError."""
        if self.owner:
            PairingStore(places).admit(self.platform.name, self.owner, owner=True)

    def next_steps(self, places: Places, config_flag: str) -> str:
        """What the owner does now, in a few lines."""
        begin = self.platform.first_word.format(title=self.platform.title)
        if self.owner or PairingStore(places).people(self.platform.name).owners:
            return f"{begin}: it knows you."
        return (
            f"{begin}: it answers with a code. Let yourself in, in another terminal:\n"
            f"  nanobot pairing approve CODE --owner{config_flag}"
        )


def offer_channels(load: Load, places: Places) -> list[ChannelWish]:
    """Ask which channels there shall be, until it is enough. Without an answer, none.

    Raises EOFError where answers come from a pipe that ends in the middle of one, KeyboardInterrupt on Ctrl+C.
    """
    wishes: dict[str, ChannelWish] = {}

    def with_all_before() -> Config:
        config = load()
        for wish in wishes.values():
            wish.apply_to(config)
        return config

    while True:
        on = with_all_before().channels.switched_on()
        enough = "That is all" if any(on.values()) else "This terminal is enough for now"
        rows = [(one.name, f"{one.title}: {'set up' if on.get(one.name) else one.needs}") for one in PLATFORMS]
        try:
            chosen = questions.choose("\nOn which chat app do you want to reach it?", [(NONE, enough), *rows])
        except EOFError:
            if questions.in_terminal():
                raise
            typer.echo("")
            return [*wishes.values()]
        platform = find_platform(chosen)
        if platform is None:
            return [*wishes.values()]
        wish = set_up(platform, with_all_before, places)
        if wish is not None:
            wishes[platform.name] = wish


def how_it_starts(places: Places, config_flag: str) -> str:
    """What brings channels to life that were saved just now."""
    if ask_gateway(places, {"do": "report"}) is not None:
        return "The gateway that runs takes it over within seconds."
    return f"Start the gateway, and keep it running:\n  nanobot gateway{config_flag}"


def is_set_up(platform: Platform, config: Config) -> bool:
    """Whether it is switched on and nothing is left to ask."""
    section = config.channels.section(platform.name)
    agreed = not platform.consent or bool(getattr(section, "consent_granted", True))
    return section.enabled and agreed and all(getattr(section, one.name) for one in platform.fields)


def set_up(platform: Platform, load: Load, places: Places, *, anew: bool = False) -> ChannelWish | None:
    """Ask until the platform lets it in, or the person has enough: None for that. `anew`: ask what is known, too.

    Raises EOFError and KeyboardInterrupt, as questions do.
    """
    missing = problem_with_sdk(platform.name)
    typer.echo("")
    if missing:
        typer.echo(f"{missing} Until then it can be set up, but not tried.\n")
    typer.echo(fill(platform.steps, min(get_terminal_size().columns, _WIDEST), break_on_hyphens=False))
    if _agrees(platform, load(), anew=anew):
        while (values := _ask_values(platform, load(), anew=anew)) is not None:
            wish = ChannelWish(platform, values)
            has_to_be_tried = bool(platform.fields) and not missing
            decision = _try(platform, wish.apply_to(load()), places) if has_to_be_tried else SAVE
            if decision == SAVE:
                return replace(wish, owner=_ask_owner(platform, places))
            if decision == LEAVE:
                break
            anew = True
    typer.echo(f"{platform.title} stays as it is.")
    return None


def _agrees(platform: Platform, config: Config, *, anew: bool) -> bool:
    section = config.channels.section(platform.name)
    has_agreed = not platform.consent or (getattr(section, "consent_granted", False) and not anew)
    return has_agreed or questions.confirm(platform.consent)


def _try(platform: Platform, config: Config, places: Places) -> str:
    """Ask the platform once, and the person what now where it says no: SAVE, AGAIN or LEAVE."""
    typer.echo(f"Trying {platform.title} ...")
    try:
        asyncio.run(log_in(platform.name, config, places, force=False))
    except (NanobotError, OSError) as error:
        typer.echo(f"\n{one_line(str(error) or type(error).__name__)}\n")
        return questions.choose(
            "What now?",
            [
                (AGAIN, "Try again with other answers"),
                (SAVE, "Save it anyway"),
                (LEAVE, f"Leave {platform.title} as it is"),
            ],
        )
    return SAVE


def problem_with_sdk(name: str) -> str:
    """What has to be installed for this channel, with the line that does it; nothing where all is there."""
    try:
        load_channel(name)
    except NanobotError as error:
        return str(error)
    return ""


async def log_in(name: str, config: Config, places: Places, *, force: bool) -> None:
    """Let the channel do whatever it does once at a keyboard. Raises NanobotError where that is not done, OSError."""
    from nanobot.bus.queue import MessageBus  # the engine of channels: for those who have one
    from nanobot.gateway.roster import Roster
    from nanobot.utils.clock import SystemClock

    clock = SystemClock()
    roster = Roster(config, MessageBus(), places, clock, PairingStore(places, clock))
    if not await roster.open(name):
        raise NanobotError(roster.broken[name])
    channel = roster.manager.get(name)
    if channel is None or not await channel.login(force):
        raise NanobotError(f"{name} is not logged in yet. Try again with --force, or see its guide.")


def _ask_values(platform: Platform, config: Config, *, anew: bool) -> Values | None:
    """What the section shall say; None where the first answer is empty."""
    section = config.channels.section(platform.name)
    values: Values = {"consent_granted": True} if platform.consent else {}
    for one in platform.fields:
        answer = _ask_field(platform, one, str(getattr(section, one.name)), anew=anew)
        if not answer:
            return None
        values[one.name] = answer
    said = {name: value for name, value in values.items() if isinstance(value, str)}
    return values | platform.rest(said, section, anew)


def _ask_field(platform: Platform, one: Field, known: str, *, anew: bool) -> str:
    """The answer; nothing for a person who has enough of it."""
    if known and not anew:
        path = ("channels", platform.name, camel(one.name))
        typer.echo(f"{one.words}: {shown(path, known)}, which is set already.")
        return known
    return _shaped(one, "empty: leave it")


def _ask_owner(platform: Platform, places: Places) -> str:
    """How the owner is called there; nothing where they pair, or have."""
    if PairingStore(places).people(platform.name).owners:
        return ""
    try:
        return _shaped(platform.owner, "empty: pair with a code later")
    except EOFError:
        if questions.in_terminal():
            raise
        typer.echo("")
        return ""


def _shaped(one: Field, empty: str) -> str:
    ask = questions.ask_secret if one.is_secret else questions.ask
    while True:
        answer = ask(f"{one.words} ({empty})").strip()
        if not answer or one.shape.fullmatch(answer):
            return answer
        typer.echo(one.hint)
