"""`nanobot pairing`: who may speak, who waits with a code, and who is owner of a channel."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer

from nanobot.channels.access import AccessPolicy
from nanobot.cli.common import ConfigOption, JsonOption, Setup, one_line, read_setup, show_json, show_rows
from nanobot.config.paths import Places
from nanobot.config.schema import Config
from nanobot.pairing.book import Book, Pending
from nanobot.pairing.senders import Sender
from nanobot.pairing.store import PairingStore

CodeArgument = Annotated[str, typer.Argument(metavar="CODE", help="The code the stranger was shown.")]
OwnerOption = Annotated[
    bool, typer.Option("--owner", help="Make them owner of that channel: owner-only commands, approvals.")
]


def list_(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Who has paired, and who waits with a code."""
    rows = list(_rows(_store(read_setup(config, None, secrets=False)).book()))
    if json:
        show_json(rows)
        return
    show_rows(
        ("Channel", "Who", "State", "Code", "Until"),
        [(row["channel"], row["sender_id"], row["state"], row["code"] or "-", _clock_time(row)) for row in rows],
        empty="Nobody has paired. Write to the bot from a chat app: it answers with a code for `pairing approve CODE`.",
    )


def approve(
    code: CodeArgument, owner: OwnerOption = False, config: ConfigOption = None, json: JsonOption = False
) -> None:
    """Let in who has this code."""
    store = _store(read_setup(config, None, secrets=False))
    found = store.approve(code, owner=owner)
    if json:
        show_json({"channel": found.channel, "sender_id": found.sender_id, "state": "owner" if owner else "approved"})
        return
    typer.echo(f"{_named(found)} may speak now{', as owner' if owner else ''}.")
    if not store.people(found.channel).owners:
        typer.echo(
            f"Nobody is owner on {one_line(found.channel)} yet, so owner-only commands work in the terminal alone. "
            "If this was you, write /pairing there and approve the code you get with --owner.",
            err=True,
        )


def deny(code: CodeArgument, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Do not let in who has this code."""
    found = _store(read_setup(config, None, secrets=False)).deny(code)
    if json:
        show_json({"channel": found.channel, "sender_id": found.sender_id, "state": "denied"})
    else:
        typer.echo(f"{_named(found)} is not let in; the code is good for nothing now.")


def revoke(
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel, such as telegram.")],
    sender_id: Annotated[str, typer.Argument(metavar="ID", help="Who, as `nanobot pairing list` shows them.")],
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Forget somebody who paired."""
    setup = read_setup(config, None, secrets=False)
    role = _store(setup).revoke(channel.lower(), sender_id)
    if json:
        show_json({"channel": channel.lower(), "sender_id": sender_id, "state": "revoked", "was": role})
    else:
        typer.echo(f"{one_line(sender_id)} on {channel.lower()} is forgotten (was: {role}).")
    if _is_listed(setup.config, channel.lower(), sender_id):
        typer.echo(f"They may still speak: channels.{channel.lower()}.allowFrom in the config lets them in.", err=True)


def _store(setup: Setup) -> PairingStore:
    return PairingStore(Places(setup.data_dir))


def _rows(book: Book) -> list[dict[str, Any]]:
    paired = [
        {
            "channel": channel,
            "sender_id": sender_id,
            "state": "owner" if sender_id in book.owners.get(channel, ()) else "approved",
            "code": None,
            "expires_at": None,
        }
        for channel in sorted(book.people())
        for sender_id in book.everyone(channel)
    ]
    return [*paired, *({**asdict(one), "state": "waiting"} for one in book.pending)]


def _clock_time(row: dict[str, Any]) -> str:
    return f"{datetime.fromtimestamp(row['expires_at']):%H:%M:%S}" if row["expires_at"] else "-"


def _named(one: Pending) -> str:
    return f"{one_line(one.sender_id)} on {one_line(one.channel)}"


def _is_listed(config: Config, channel: str, sender_id: str) -> bool:
    section = getattr(config.channels, channel, None)
    return section is not None and AccessPolicy.of(channel, section).allow_from.admits(Sender.of(sender_id.strip()))
