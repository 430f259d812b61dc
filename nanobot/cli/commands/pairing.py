"""`nanobot pairing`: who may talk to the bot, pending codes, and the owners of channels."""

from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any

import typer

from nanobot.channels.access import AccessPolicy
from nanobot.cli.common import (
    ConfigOption,
    JsonOption,
    Setup,
    ask_gateway,
    print_json,
    print_table,
    read_setup,
    to_one_line,
)
from nanobot.cli.layout import print_line
from nanobot.config.schema import Config
from nanobot.errors import NanobotError
from nanobot.pairing.commands import WELCOME
from nanobot.pairing.senders import Sender
from nanobot.pairing.store import PairingState, PairingStore, Pending
from nanobot.utils.text import duration

CodeArgument = Annotated[str, typer.Argument(metavar="CODE", help="The code the bot showed to that person.")]
OwnerOption = Annotated[
    bool, typer.Option("--owner", help="Make them an owner on that channel (owner commands, approvals).")
]


def list_(config: ConfigOption = None, json: JsonOption = False) -> None:
    """List who has paired, and who is waiting with a code."""
    store = _store(read_setup(config, None, secrets=False))
    rows = list(_rows(store.load()))
    if json:
        print_json(rows)
        return
    print_table(
        ("Channel", "Who", "State", "Code", "Waits", "Name"),
        [
            (
                row["channel"],
                row["sender_id"],
                row["state"],
                row["code"],
                row["code"] and duration(store.now() - row["created_at"]),
                row["name"],
            )
            for row in rows
        ],
        empty="Nobody has paired yet. Write to the bot; it answers with a code for `pairing approve CODE`.",
    )


def approve(code: CodeArgument, owner: OwnerOption = False, config: ConfigOption = None) -> None:
    """Approve the person who was shown this code."""
    setup = read_setup(config, None, secrets=False)
    store = _store(setup)
    pending = store.approve(code, owner=owner)
    _welcome(setup, pending)
    print_line(f"{to_one_line(str(pending))} may talk to the bot now{', as owner' if owner else ''}.")
    if not store.people(pending.channel).owners:
        print_line(
            f"{to_one_line(pending.channel)} has no owner yet, so owner commands work only in the terminal. "
            "If this was you, write /pairing there and approve the new code with --owner.",
            err=True,
        )


def deny(code: CodeArgument, config: ConfigOption = None) -> None:
    """Reject a pairing code."""
    pending = _store(read_setup(config, None, secrets=False)).deny(code)
    print_line(f"{to_one_line(str(pending))} is denied; the code is no longer valid.")


def revoke(
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel, such as telegram.")],
    sender_id: Annotated[str, typer.Argument(metavar="ID", help="Their id, from `nanobot pairing list`.")],
    config: ConfigOption = None,
) -> None:
    """Remove a paired person."""
    setup = read_setup(config, None, secrets=False)
    role = _store(setup).revoke(channel.lower(), sender_id)
    print_line(f"{to_one_line(sender_id)} on {channel.lower()} is removed (was: {role}).")
    if _is_listed(setup.config, channel.lower(), sender_id):
        print_line(f"They are still allowed by channels.{channel.lower()}.allowFrom in the config.", err=True)


def _store(setup: Setup) -> PairingStore:
    return PairingStore(setup.paths)


def _rows(state: PairingState) -> list[dict[str, Any]]:
    paired = [
        {
            "channel": channel,
            "sender_id": sender_id,
            "name": state.name_of(channel, sender_id),
            "state": "owner" if sender_id in state.owners.get(channel, ()) else "approved",
            "code": None,
            "created_at": None,
            "expires_at": None,
        }
        for channel in sorted(state.people())
        for sender_id in state.everyone(channel)
    ]
    return [*paired, *({**asdict(pending), "state": "waiting"} for pending in state.pending.values())]


def _welcome(setup: Setup, pending: Pending) -> None:
    """Tell them through the gateway, if it runs. They are paired whether or not they hear of it."""
    if pending.chat_id:
        with suppress(NanobotError):
            ask_gateway(setup.paths, {"do": "send", "channel": pending.channel, "to": pending.chat_id, "text": WELCOME})


def _is_listed(config: Config, channel: str, sender_id: str) -> bool:
    section = getattr(config.channels, channel, None)
    return section is not None and AccessPolicy.of(channel, section).allow_from.admits(Sender.of(sender_id.strip()))
