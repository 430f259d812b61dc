"""`nanobot pairing`: who may talk to the bot, pending codes, and the owners of channels."""

from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any

import typer

from nanobot.channels.access import AccessPolicy
from nanobot.cli.common import JsonOption, ask_gateway, read_setup
from nanobot.cli.output import print_line, print_list, to_one_line
from nanobot.errors import NanobotError
from nanobot.pairing.commands import WELCOME
from nanobot.pairing.senders import Sender
from nanobot.pairing.store import PairingState, PairingStore
from nanobot.utils.text import duration

CodeArgument = Annotated[str, typer.Argument(metavar="CODE", help="The code the bot showed to that person.")]
OwnerOption = Annotated[
    bool, typer.Option("--owner", help="Make them an owner on that channel (owner commands, approvals).")
]


def list_(json: JsonOption = False) -> None:
    store = PairingStore(read_setup(secrets=False).paths)
    print_list(
        _rows(store.load()),
        {
            "Channel": "channel",
            "Who": "sender_id",
            "State": "state",
            "Code": "code",
            "Waits": lambda row: row["code"] and duration(store.now() - row["created_at"]),
            "Name": "name",
        },
        as_json=json,
        empty="Nobody has paired yet. Write to the bot; it answers with a code for `pairing approve CODE`.",
    )


def approve(code: CodeArgument, owner: OwnerOption = False) -> None:
    setup = read_setup(secrets=False)
    store = PairingStore(setup.paths)
    pending = store.approve(code, owner=owner)
    if pending.chat_id:
        welcome = {"do": "send", "channel": pending.channel, "to": pending.chat_id, "text": WELCOME}
        with suppress(NanobotError):  # they are paired whether or not they hear of it
            ask_gateway(welcome)
    print_line(f"{to_one_line(str(pending))} may talk to the bot now{', as owner' if owner else ''}.")
    if not store.people(pending.channel).owners:
        print_line(
            f"{to_one_line(pending.channel)} has no owner yet, so owner commands work only in the terminal. "
            "If this was you, write /pairing there and approve the new code with --owner.",
            err=True,
        )


def deny(code: CodeArgument) -> None:
    pending = PairingStore(read_setup(secrets=False).paths).deny(code)
    print_line(f"{to_one_line(str(pending))} is denied; the code is no longer valid.")


def revoke(
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel, such as telegram.")],
    sender_id: Annotated[str, typer.Argument(metavar="ID", help="Their id, from `nanobot pairing list`.")],
) -> None:
    setup, channel = read_setup(secrets=False), channel.lower()
    role = PairingStore(setup.paths).revoke(channel, sender_id)
    print_line(f"{to_one_line(sender_id)} on {channel} is removed (was: {role}).")
    section = getattr(setup.config.channels, channel, None)
    if section is not None and AccessPolicy.of(channel, section).allow_from.admits(Sender.of(sender_id.strip())):
        print_line(f"They are still allowed by channels.{channel}.allowFrom in the config.", err=True)


def _rows(state: PairingState) -> list[dict[str, Any]]:
    paired = [
        {
            "channel": sender.channel,
            "sender_id": sender.sender_id,
            "name": sender.name,
            "state": "owner" if sender.is_owner else "approved",
            "code": None,
            "created_at": None,
            "expires_at": None,
        }
        for sender in state.paired()
    ]
    return [*paired, *({**asdict(pending), "state": "waiting"} for pending in state.pending.values())]
