"""`nanobot channels`: how each channel is by evidence, setting one up, a message to try it."""

import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanobot.channels.errors import ChannelSetupError
from nanobot.channels.registry import CHANNELS, load_channel, plugin_names
from nanobot.cli.common import ConfigOption, JsonOption, Setup, one_line, read_setup, show_json, show_rows
from nanobot.cli.terminal import is_screen
from nanobot.cli.through_gateway import NO_GATEWAY, ask_gateway, demand_gateway, places_of
from nanobot.config.paths import Places
from nanobot.config.spelling import camel
from nanobot.errors import NanobotError
from nanobot.utils.text import nearest

if TYPE_CHECKING:
    from nanobot.cli.platforms import Platform

OURS = tuple(spec.name for spec in CHANNELS)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help=f"The channel: {', '.join(OURS)}.")]


def status(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Each channel that is switched on: its state, and what came and went when."""
    places = places_of(config)
    report = ask_gateway(places, {"do": "report"})
    channels = report["channels"] if report is not None else _not_running(config)
    if json:
        show_json({"running": report is not None, "channels": channels})
        return
    headings = ("Channel", "State", "Last received", "Last sent", "Last error")
    rows = [
        (name, told["state"], told.get("lastReceived") or "-", told.get("lastSent") or "-", told.get("lastError") or "")
        for name, told in channels.items()
    ]
    empty = f"No channel is switched on. Set one up with `nanobot channels login NAME`: {', '.join(OURS)}."
    if is_screen(sys.stdout):  # an error says what to do in its last words, which a column would cut off
        show_rows(headings[:-1], [row[:-1] for row in rows], empty=empty)
        for name, *_, error in rows:
            if error:
                typer.echo(f"\n{one_line(name)}: {one_line(error.removeprefix(f'{name}: '))}")
    else:
        show_rows(headings, rows, empty=empty)
    if report is None and channels:
        typer.echo(NO_GATEWAY.format(data=places.data), err=True)


def _not_running(config: "ConfigOption") -> dict[str, dict[str, Any]]:
    """What can be said of channels that nobody runs: whether each could be loaded."""
    found: dict[str, dict[str, Any]] = {}
    loaded = read_setup(config, None, secrets=False).config
    for name in loaded.channels.enabled:
        try:
            load_channel(name, loaded.plugins.disabled)
            found[name] = {"state": "off", "lastError": ""}
        except NanobotError as error:
            found[name] = {"state": "failed", "lastError": str(error)}
    return found


def login(
    name: NameArgument,
    force: Annotated[bool, typer.Option("--force", help="Ask anew what is set up already.")] = False,
    config: ConfigOption = None,
) -> None:
    """Set a channel up by questions, or try what is set up."""
    from nanobot.cli.channel_setup import is_set_up, log_in  # the engine of channels with it
    from nanobot.cli.platforms import find_platform

    setup = read_setup(config, None)
    name, places = name.lower(), Places(setup.data_dir)
    platform = find_platform(name)
    if platform is not None and (force or not is_set_up(platform, setup.config)):
        _set_up(platform, setup, config, force=force)
        return
    _demand_known(name, [*plugin_names(), *setup.config.channels.enabled])
    load_channel(name, setup.config.plugins.disabled)  # a package that is missing is told once, and not by the log too
    try:
        asyncio.run(log_in(name, setup.config, places, force=force))
    except ChannelSetupError as error:
        hint = f" `nanobot channels login {name} --force` asks for it anew." if platform is not None else ""
        raise ChannelSetupError(f"{error}{hint}") from error
    typer.echo(f"{name} needs nothing more of you.")


def _demand_known(name: str, others: Iterable[str]) -> None:
    """Raises NanobotError for a channel that nobody knows."""
    known = [*OURS, *others]
    if name not in known:
        near = ", ".join(nearest(name, known))
        raise NanobotError(
            f"nanobot has no such channel as {one_line(name)!r}. {f'Did you mean {near}? ' if near else ''}"
            f"It has {', '.join(dict.fromkeys(known))}."
        )


def _set_up(platform: "Platform", setup: Setup, config: Path | None, *, force: bool) -> None:
    from nanobot.cli.channel_setup import how_it_starts, problem_with_sdk, set_up
    from nanobot.config.loader import load_config, save_config

    places, flag = Places(setup.data_dir), f" -c {config}" if config else ""
    try:
        wish = set_up(platform, load_config, places, anew=force)
    except EOFError:
        keys = ", ".join(f"channels.{platform.name}.{camel(one.name)}" for one in platform.fields)
        raise NanobotError(
            f"{platform.title} is not set up, and nobody answers. Run this in a terminal, or set {keys} in "
            f"{setup.config_path}."
        ) from None
    if wish is None:
        raise NanobotError("Nothing was changed.")
    save_config(wish.apply_to(load_config()), setup.config_path)
    wish.admit_owner(places)
    typer.echo(f"Config saved: {setup.config_path}")
    if problem_with_sdk(platform.name):
        typer.echo(f"Once its package is there, start the gateway (again): nanobot gateway{flag}")
    else:
        typer.echo(how_it_starts(places, flag))
    typer.echo(wish.next_steps(places, flag))


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
