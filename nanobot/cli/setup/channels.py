"""`nanobot channels login`: interactive setup of a channel, also for `nanobot onboard`.

Asks only for what is not known, and tries to log in before anything is saved.
"""

import asyncio
import importlib
import subprocess
from collections.abc import Callable, Container
from dataclasses import replace
from typing import Annotated

import typer

from nanobot.channels.access import AccessControl, AccessPolicy, Decision, Ignored
from nanobot.channels.base import print_step
from nanobot.channels.errors import ChannelSetupError
from nanobot.channels.incoming import Incoming
from nanobot.channels.platforms import PLATFORMS, PlatformSetup, SetupField, find_platform
from nanobot.channels.registry import CHANNELS, find, load_channel, plugin_names
from nanobot.channels.setup import (
    ChannelSetup,
    SetupForm,
    is_set_up,
    load_sign_in,
    log_in,
    open_channel,
    read_form,
    sdk_problem,
    try_form,
)
from nanobot.cli.common import Setup, ask_gateway, get_data_paths, read_setup, selected, unknown_name_error
from nanobot.cli.output import print_heading, print_line, to_one_line
from nanobot.cli.setup import prompts
from nanobot.cli.setup.prompts import LEAVE, RETRY, SAVE
from nanobot.config.channels import ChannelConfig
from nanobot.config.keypath import camel, mask_value
from nanobot.config.loader import load_config
from nanobot.config.schema import Config
from nanobot.errors import NanobotError, UsageError
from nanobot.pairing.senders import Sender
from nanobot.pairing.store import PairingStore
from nanobot.utils.installation import install_arguments
from nanobot.utils.storage_error import error_text

NONE = "none"
CONNECTED = "connected"
OWNER_WAIT_S = 180.0
"""How long the setup waits for the owner's first message."""

_BUILT_IN = tuple(spec.name for spec in CHANNELS)
LoadConfig = Callable[[], Config]
"""Load the config without the new channel, fresh at each call."""


def login(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help=f"The channel: {', '.join(_BUILT_IN)}.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Ask for all settings again.")] = False,
    phone: Annotated[
        str, typer.Option("--phone", metavar="NUMBER", help="WhatsApp: link by a code for this number, not a QR code.")
    ] = "",
) -> None:
    """Set up a channel step by step. If it is set up already, check that it can connect. Without a name, ask which."""
    setup = read_setup()
    name = (name or _ask_name(setup.config)).lower()
    platform = find_platform(name)
    if platform is not None and (force or not is_set_up(platform, setup.config)):
        _run_setup(platform, setup, force=force, phone=phone)
        return
    setup.config.channels.whatsapp.phone = phone or setup.config.channels.whatsapp.phone
    known = dict.fromkeys([*_BUILT_IN, *plugin_names(), *setup.config.channels.enabled])
    if name not in known:
        raise unknown_name_error("channel", name, known, hint=f"Channels: {', '.join(known)}.")
    load_channel(name, setup.config.plugins.disabled)  # reports a missing package before `log_in` also logs it
    try:
        asyncio.run(log_in(name, setup.config, setup.paths, print_step, force=force))
    except ChannelSetupError as error:
        again = f"nanobot channels login {name} --force"
        hint = f" To enter it again: {again}" if platform is not None and again not in str(error) else ""
        raise ChannelSetupError(f"{error}{hint}") from error
    print_line(f"{name} is configured and its credentials work.")


def _ask_name(config: Config) -> str:
    """Ask for one of the channels, shown with their states. Raises UsageError without input."""
    rows = [
        (it.name, f"{it.title}: {'set up' if is_set_up(it, config) else f'not set up (needs {it.requires})'}")
        for it in PLATFORMS
    ]
    rows += [(name, f"{name}: enabled, of a plugin") for name in config.channels.enabled if find(name) is None]
    with prompts.on_interrupt("Nothing was changed."):
        try:
            return prompts.choose("Which channel?", rows)
        except EOFError:
            raise UsageError(f"Which channel? For example: nanobot channels login {_BUILT_IN[0]}") from None


def _run_setup(platform: PlatformSetup, setup: Setup, *, force: bool, phone: str) -> None:
    try:
        with prompts.on_interrupt("Nothing was saved."):
            channel_setup = _ask_channel_setup(platform, load_config, ask_all=force, phone=phone)
    except EOFError:
        keys = ", ".join(f"channels.{platform.name}.{camel(field.name)}" for field in platform.required)
        raise NanobotError(
            f"{platform.title} is not set up, and there is no interactive input. Run this in a terminal, or set {keys} "
            f"in {setup.config_path}."
        ) from None
    if channel_setup is None:
        raise NanobotError("Nothing was saved.")
    channel_setup.save(load_config, setup.config_path, setup.paths)
    print_line(f"Config saved: {setup.config_path}")
    if sdk_problem(platform.name):
        print_line(f"Install its package, then start (or restart) the gateway: nanobot gateway{selected.config_flag}")
    else:
        print_line(start_instructions())
    print_line(next_steps(channel_setup))


def next_steps(setup: ChannelSetup) -> str:
    """What the owner does next, in a few lines."""
    first_step = setup.platform.first_step.format(title=setup.platform.title)
    if setup.owner or PairingStore(get_data_paths()).people(setup.platform.name).owners:
        return f"{first_step}: it recognises you as its owner."
    return (
        f"{first_step}: it answers with a code. Then run in another terminal:\n"
        f"  nanobot pairing approve CODE --owner{selected.config_flag}"
    )


def offer_channels(load: LoadConfig) -> list[ChannelSetup]:
    """Ask which channels to set up, until the user is done. Without input, none.

    Raises EOFError if a pipe ends in the middle of a channel, KeyboardInterrupt on Ctrl+C.
    """
    setups: dict[str, ChannelSetup] = {}

    def config_so_far() -> Config:
        config = load()
        for channel_setup in setups.values():
            channel_setup.apply_to(config)
        return config

    while True:
        enabled = config_so_far().channels.enabled_by_name()
        done_label = "Done" if any(enabled.values()) else "This terminal is enough for now"
        rows = [
            (known.name, f"{known.title}: {'set up' if enabled.get(known.name) else known.requires}")
            for known in PLATFORMS
        ]
        try:
            chosen = prompts.choose("Which chat app do you want to connect?", [(NONE, done_label), *rows])
        except EOFError:
            if prompts.is_interactive():
                raise
            typer.echo("")
            return [*setups.values()]
        platform = find_platform(chosen)
        if platform is None:
            return [*setups.values()]
        if (channel_setup := _ask_channel_setup(platform, config_so_far)) is not None:
            setups[platform.name] = channel_setup
        typer.echo()


def start_instructions() -> str:
    """How newly saved channels take effect."""
    if ask_gateway({"do": "report"}) is not None:
        return "The running gateway applies this within seconds."
    return f"Start the gateway, and keep it running:\n  nanobot gateway{selected.config_flag}"


def _ask_channel_setup(
    platform: PlatformSetup, load: LoadConfig, *, ask_all: bool = False, phone: str = ""
) -> ChannelSetup | None:
    """Ask until the login works or the user gives up (None). `ask_all` also asks for what is set already.

    Raises EOFError and KeyboardInterrupt, as prompts do.
    """
    print_heading(platform.title)
    if missing := sdk_problem(platform.name) and _install(platform.name):
        print_line(f"{missing} Until then it can be set up, but not tested.\n")
    print_line(platform.instructions)
    typer.echo()
    section = load().channels.section(platform.name)
    has_agreed = not platform.consent or (getattr(section, "consent_granted", False) and not ask_all)
    if has_agreed or prompts.confirm(platform.consent):
        while (form := _ask_form(platform, section, ask_all=ask_all)) is not None:
            form.phone, form.untested = phone, bool(missing) or not platform.is_tested
            try:
                setup = asyncio.run(read_form(platform, form, section, print_step, _ask, replaces=ask_all))
            except (NanobotError, OSError) as error:
                print_line(to_one_line(error_text(error)))
                break
            decision = SAVE if form.untested else _try_login(setup, form, load)
            if decision in (CONNECTED, SAVE):
                if setup.owner:
                    return setup
                owner, name = _ask_owner(setup, load, can_wait=decision == CONNECTED)
                return setup.with_owner(owner, section, print_step, name)
            if decision == LEAVE:
                break
            ask_all = True
    typer.echo(f"{platform.title} is unchanged.")
    return None


def _try_login(setup: ChannelSetup, form: SetupForm, load: LoadConfig) -> str:
    """Try to log in; if that fails, ask what to do. Returns CONNECTED, SAVE, AGAIN or LEAVE."""
    title = setup.platform.title
    while True:
        typer.echo(f"Trying {title} ...")
        try:
            asyncio.run(try_form(setup, form, load(), get_data_paths(), print_step))
        except (NanobotError, OSError) as error:
            typer.echo()
            print_line(to_one_line(error_text(error)))
            typer.echo()
            if (decision := prompts.choose_after_failure(f"Skip {title}")) != RETRY:
                return decision
        else:
            return CONNECTED


def _install(name: str) -> str:
    """Offer to install the channel's package, in a terminal. Return what is missing after that; empty for nothing."""
    spec = find(name)
    if spec is not None and spec.extra is not None and prompts.is_interactive():
        question = f"{spec.title} needs a package that is not installed. Install it now?"
        if prompts.confirm(question, default=True):
            failed = subprocess.run(install_arguments(spec.extra), check=False).returncode
            importlib.invalidate_caches()
            if failed:
                print_line("\nThe installation failed.")
    return sdk_problem(name)


class _SenderWatch(AccessControl):
    """Lets nobody in, and reports who writes to the bot in private first."""

    def __init__(self, policy: AccessPolicy, store: PairingStore, refused: Container[str]) -> None:
        """`refused`: the keys of senders to ignore."""
        super().__init__(policy, store)
        self._refused = refused
        self.first: asyncio.Future[Incoming] = asyncio.get_running_loop().create_future()

    async def decide(self, incoming: Incoming) -> Decision:
        """Hold the first message until the end of the channel cancels this: then the platform keeps it."""
        if incoming.is_private and incoming.is_verified and Sender.of(incoming.sender_id).key not in self._refused:
            if not self.first.done():
                self.first.set_result(incoming)
            await asyncio.Event().wait()
        return Ignored()


async def _first_sender(name: str, config: Config, refused: Container[str]) -> Incoming | None:
    """Run the channel until somebody else than `refused` writes to the bot in private. None after OWNER_WAIT_S."""
    from nanobot.channels.supervisor import ChannelSupervisor

    places = get_data_paths()
    channel = await open_channel(name, config, places)
    watch = _SenderWatch(AccessPolicy.of(name, config.channels.section(name)), PairingStore(places), refused)
    channel.attach(replace(channel.services, access=watch, state=None))
    serving = asyncio.create_task(ChannelSupervisor(channel).run())
    try:
        async with asyncio.timeout(OWNER_WAIT_S):
            return await watch.first
    except TimeoutError:
        return None
    finally:
        serving.cancel()
        await asyncio.wait([serving])


def _ask_form(platform: PlatformSetup, section: ChannelConfig, *, ask_all: bool) -> SetupForm | None:
    """What the user answers. None if a required setting is missing."""
    can_sign_in = (ask_all or platform.missing_settings(section)) and load_sign_in(platform)
    if can_sign_in and (not platform.ways or prompts.choose("Which app?", platform.ways) == platform.ways[0][0]):
        return SetupForm(agrees=True, signs_in=True)
    answers: dict[str, str] = {}
    for field_ in platform.fields:
        if field_.suggest is not None:
            if suggested := field_.suggest(answers, section, ask_all):
                answers[field_.name] = _ask_valid(field_, default=suggested)
        elif ask_all or not field_.is_set(section):
            if not (answer := _ask_valid(field_, "empty: skip")):
                return None
            answers[field_.name] = answer
        elif current := str(getattr(section, field_.name)):
            answers[field_.name] = current
            path = ("channels", platform.name, camel(field_.name))
            print_line(f"{field_.label}: {mask_value(path, current)}, already set")
    return SetupForm(answers=answers, agrees=True)


async def _ask(question: str) -> str:
    return await asyncio.to_thread(prompts.ask, question)


def _ask_owner(setup: ChannelSetup, load: LoadConfig, *, can_wait: bool) -> tuple[str, str]:
    """The owner's id and name on the platform; empty if one is paired already or will pair with a code."""
    platform = setup.platform
    if PairingStore(get_data_paths()).people(platform.name).owners:
        return "", ""
    if can_wait and platform.waits_for_owner and prompts.is_interactive():
        report = ask_gateway({"do": "report"})
        if report is None or platform.name not in report["channels"]:  # else the gateway receives the message
            return _wait_for_owner(platform, setup.apply_to(load()))
    try:
        return _ask_valid(platform.owner, "empty: pair with a code"), ""
    except EOFError:
        if prompts.is_interactive():
            raise
        typer.echo("")
        return "", ""


def _wait_for_owner(platform: PlatformSetup, config: Config) -> tuple[str, str]:
    """Wait for a message and ask whether it is the owner's. Returns id and name; empty after Ctrl+C or a timeout."""
    refused: set[str] = set()
    minutes = f"{OWNER_WAIT_S / 60:.0f} minutes"
    print_line(
        f"Now write anything to your bot on {platform.title}, so that it knows you as its owner. "
        f"(Waiting {minutes}; Ctrl+C: pair with a code later.)"
    )
    try:
        while (incoming := asyncio.run(_first_sender(platform.name, config, refused))) is not None:
            sender = Sender.of(incoming.sender_id)
            who = f"{incoming.display_name}, ID {sender.id}," if incoming.display_name else f"ID {sender.id}"
            if prompts.confirm(f"{to_one_line(who)} just wrote: is that you?", default=True):
                return sender.id, incoming.display_name
            refused.add(sender.key)
            print_line("Then write to it now.")
    except KeyboardInterrupt:
        typer.echo()
    print_line("You can pair with a code.")
    return "", ""


def _ask_valid(field_: SetupField, empty: str = "", default: str = "") -> str:
    label = f"{field_.label} ({empty})" if empty else field_.label
    while True:
        answer = (prompts.ask_secret(label) if field_.is_secret else prompts.ask(label, default)).strip()
        if not answer or field_.accepts(answer):
            return answer
        print_line(field_.hint)
