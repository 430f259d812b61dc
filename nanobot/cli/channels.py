"""`nanobot channels`: how each channel is by evidence, what one wants of a person once, a message to try it."""

import asyncio
from typing import Annotated, Any

import typer

from nanobot.cli.common import ConfigOption, JsonOption, one_line, read_setup, show_json, show_rows
from nanobot.cli.through_gateway import NO_GATEWAY, ask_gateway, demand_gateway, places_of
from nanobot.config.paths import Places
from nanobot.errors import NanobotError

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The channel, such as telegram.")]


def status(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Each channel that is switched on: its state, and what came and went when."""
    places = places_of(config)
    report = ask_gateway(places, {"do": "report"})
    channels = report["channels"] if report is not None else _not_running(config)
    if json:
        show_json({"running": report is not None, "channels": channels})
        return
    rows = [
        (name, told["state"], told.get("lastReceived") or "-", told.get("lastSent") or "-", told.get("lastError") or "")
        for name, told in channels.items()
    ]
    empty = "No channel is switched on. Set one up in the config, for example channels.telegram; see the guides."
    show_rows(("Channel", "State", "Last received", "Last sent", "Last error"), rows, empty=empty)
    if report is None:
        typer.echo(NO_GATEWAY.format(data=places.data), err=True)


def _not_running(config: "ConfigOption") -> dict[str, dict[str, Any]]:
    """What can be said of channels that nobody runs: whether each could be loaded."""
    from nanobot.channels.registry import load_channel  # its SDK with it
    from nanobot.gateway.roster import enabled_channels

    found: dict[str, dict[str, Any]] = {}
    for name in enabled_channels(read_setup(config, None).config.channels):
        try:
            load_channel(name)
            found[name] = {"state": "off", "lastError": ""}
        except NanobotError as error:
            found[name] = {"state": "failed", "lastError": str(error)}
    return found


def login(
    name: NameArgument,
    force: Annotated[bool, typer.Option("--force", help="Also where there is a login already.")] = False,
    config: ConfigOption = None,
) -> None:
    """Do what this channel wants of a person once: scan a code, open a link."""
    from nanobot.bus.queue import MessageBus
    from nanobot.gateway.roster import Roster
    from nanobot.pairing.store import PairingStore
    from nanobot.utils.clock import SystemClock

    setup = read_setup(config, None)
    places, clock = Places(setup.data_dir), SystemClock()

    async def log_in() -> bool:
        roster = Roster(setup.config, MessageBus(), places, clock, PairingStore(places, clock))
        if not await roster.open(name.lower()):
            raise NanobotError(roster.broken[name.lower()])
        channel = roster.manager.get(name.lower())
        return channel is not None and await channel.login(force)

    if not asyncio.run(log_in()):
        raise NanobotError(f"{name.lower()} is not logged in yet. Try again with --force, or see its guide.")
    typer.echo(f"{name.lower()} needs nothing more of you.")


def test(
    name: NameArgument,
    to: Annotated[str | None, typer.Option("--to", metavar="ID", help="The chat; its owners if none.")] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Send a message by this channel, and say what its platform answered."""
    from nanobot.pairing.store import PairingStore

    places, name = places_of(config), name.lower()
    chats = [to] if to is not None else [*PairingStore(places).book().owners.get(name, ())]
    if not chats:
        raise NanobotError(f"{name} has no owner to write to. Name a chat with --to, or pair as its owner first.")
    text = "This is a test of nanobot. It works."
    asked = {"do": "send", "channel": name, "text": text, "person": to is None}
    sent = {chat: demand_gateway(places, asked | {"to": chat})["ids"] for chat in chats}
    if json:
        show_json({"channel": name, "sent": sent})
        return
    for chat, ids in sent.items():
        typer.echo(f"{name}:{one_line(chat)} has it, as {', '.join(one_line(str(one)) for one in ids) or 'sent'}.")
