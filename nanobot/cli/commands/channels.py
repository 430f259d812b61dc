"""`nanobot channels`: connection status, setup, and test messages."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanobot.channels.errors import ChannelSetupError, MissingSettingsError
from nanobot.channels.registry import CHANNELS, check_channel, find, load_channel, plugin_names
from nanobot.cli.common import (
    NO_GATEWAY,
    JsonOption,
    Setup,
    ask_gateway,
    get_data_paths,
    read_setup,
    require_gateway,
    selected,
    unknown_name_error,
)
from nanobot.cli.output import Column, print_json, print_line, print_list, to_one_line, when
from nanobot.config.keypath import camel
from nanobot.config.schema import Config
from nanobot.errors import NanobotError, UsageError

if TYPE_CHECKING:
    from nanobot.channels.platforms import PlatformSetup

BUILTIN_CHANNELS = tuple(spec.name for spec in CHANNELS)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help=f"The channel: {', '.join(BUILTIN_CHANNELS)}.")]


def status(json: JsonOption = False) -> None:
    """Show each enabled channel: its state, last messages received and sent, and last error."""
    report = ask_gateway({"do": "report"})
    channels = report["channels"] if report is not None else offline_status(read_setup(secrets=False).config)
    if json:
        print_json({"running": report is not None, "channels": channels})
        return
    columns: dict[str, Column] = {
        "Channel": "name",
        "State": "state",
        "Last received": when("lastReceived"),
        "Last sent": when("lastSent"),
        "Last error": lambda row: (row["lastError"] or "").removeprefix(f"{row['name']}: "),
    }
    rows = [{"name": name, "lastReceived": "", "lastSent": "", **row} for name, row in channels.items()]
    names = ", ".join(BUILTIN_CHANNELS)
    print_list(rows, columns, empty=f"No channel is enabled. Set one up with `nanobot channels login NAME`: {names}.")
    if report is None and channels:
        print_line(NO_GATEWAY.format(data=get_data_paths().data), err=True)


def offline_status(config: Config) -> dict[str, dict[str, Any]]:
    """The state of each enabled channel while no gateway is running: `failed` if it could not start, else `off`."""
    from nanobot.channels.platforms import find_platform

    states: dict[str, dict[str, Any]] = {}
    for name in config.channels.enabled:
        problem = ""
        try:
            check_channel(name, config.plugins.disabled)
            if (platform := find_platform(name)) is not None:
                missing = platform.missing_settings(config.channels.section(name))
                problem = str(MissingSettingsError(name, *map(camel, missing))) if missing else ""
        except NanobotError as error:
            problem = str(error)
        states[name] = {"state": "failed" if problem else "off", "lastError": problem}
    return states


def login(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help=f"The channel: {', '.join(BUILTIN_CHANNELS)}.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Ask for all settings again.")] = False,
    phone: Annotated[
        str, typer.Option("--phone", metavar="NUMBER", help="WhatsApp: link by a code for this number, not a QR code.")
    ] = "",
) -> None:
    """Set up a channel step by step. If it is set up already, check that it can connect. Without a name, ask which."""
    from nanobot.channels.base import print_step
    from nanobot.channels.platforms import find_platform
    from nanobot.channels.setup import is_set_up, log_in  # slow to import

    setup = read_setup()
    name = (name or _ask_name(setup.config)).lower()
    platform = find_platform(name)
    if platform is not None and (force or not is_set_up(platform, setup.config)):
        _run_setup(platform, setup, force=force, phone=phone)
        return
    setup.config.channels.whatsapp.phone = phone or setup.config.channels.whatsapp.phone
    known = dict.fromkeys([*BUILTIN_CHANNELS, *plugin_names(), *setup.config.channels.enabled])
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
    from nanobot.channels.platforms import PLATFORMS
    from nanobot.channels.setup import is_set_up
    from nanobot.cli.setup import prompts

    rows = [
        (it.name, f"{it.title}: {'set up' if is_set_up(it, config) else f'not set up (needs {it.requires})'}")
        for it in PLATFORMS
    ]
    rows += [(name, f"{name}: enabled, of a plugin") for name in config.channels.enabled if find(name) is None]
    with prompts.on_interrupt("Nothing was changed."):
        try:
            return prompts.choose("Which channel?", rows)
        except EOFError:
            raise UsageError(f"Which channel? For example: nanobot channels login {BUILTIN_CHANNELS[0]}") from None


def _run_setup(platform: "PlatformSetup", setup: Setup, *, force: bool, phone: str) -> None:
    from nanobot.channels.setup import sdk_problem
    from nanobot.cli.setup import prompts
    from nanobot.cli.setup.channels import ask_channel_setup, next_steps, start_instructions
    from nanobot.config.loader import load_config

    try:
        with prompts.on_interrupt("Nothing was saved."):
            channel_setup = ask_channel_setup(platform, load_config, ask_all=force, phone=phone)
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


def test(
    name: NameArgument,
    to: Annotated[str | None, typer.Option("--to", metavar="ID", help="The chat; default: its owners.")] = None,
) -> None:
    """Send a test message through the running gateway and print the ids the platform gave it."""
    from nanobot.pairing.store import PairingStore

    places, name = get_data_paths(), name.lower()
    chats = [to] if to is not None else [*PairingStore(places).load().owners.get(name, ())]
    if not chats:
        raise NanobotError(f"{name} has no owner to write to. Give a chat with --to, or pair as its owner first.")
    text = "This is a test of nanobot. It works."
    request = {"do": "send", "channel": name, "text": text, "person": to is None}
    sent = {chat: require_gateway(request | {"to": chat})["ids"] for chat in chats}
    for chat, ids in sent.items():
        shown = ", ".join(to_one_line(str(sent_id)) for sent_id in ids)
        print_line(f"Sent to {name}:{to_one_line(chat)}{f' as {shown}' if shown else ''}.")
