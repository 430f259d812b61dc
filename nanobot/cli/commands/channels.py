"""`nanobot channels`: connection status and test messages; `login` is in `setup.channels`."""

from typing import Annotated, Any

import typer

from nanobot.channels.errors import MissingSettingsError
from nanobot.channels.registry import CHANNELS, check_channel
from nanobot.cli.common import (
    NO_GATEWAY,
    JsonOption,
    ask_gateway,
    get_data_paths,
    read_setup,
    require_gateway,
)
from nanobot.cli.output import Column, print_json, print_line, print_list, to_one_line, when
from nanobot.config.keypath import camel
from nanobot.config.schema import Config
from nanobot.errors import NanobotError

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
