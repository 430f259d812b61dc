"""Who may talk to the bot and what was allowed: `nanobot pairing` (people), `nanobot api key` (programs) and
`nanobot approvals` (permissions that you granted permanently).
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, TypeVar

import typer

from nanobot.channels.access import AccessPolicy
from nanobot.channels.registry import find, plugin_names
from nanobot.cli.common import NO_API_KEY, JsonOption, ask_gateway, get_data_paths, read_setup, unknown_name_error
from nanobot.cli.output import Column, print_line, print_list, to_one_line, when
from nanobot.config.schema import API_KEY_NAME, PERSON
from nanobot.errors import NanobotError, UsageError
from nanobot.pairing.commands import WELCOME
from nanobot.pairing.senders import Sender
from nanobot.pairing.store import PairingState, PairingStore
from nanobot.security.credentials import SCHEMA, CredentialKind, Credentials, HttpRole
from nanobot.security.grants import NO_GRANTS, Grants, describe_forgotten
from nanobot.utils.clock import SystemClock
from nanobot.utils.database import open_database
from nanobot.utils.text import duration

T = TypeVar("T")

CodeArgument = Annotated[str, typer.Argument(metavar="CODE", help="The code the bot showed to that person.")]
OwnerOption = Annotated[
    bool, typer.Option("--owner", help="Make them an owner on that channel (owner commands, approvals).")
]


def list_people(json: JsonOption = False) -> None:
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


def add_key(
    name: Annotated[str, typer.Argument(help="A name for the program, such as laptop.")],
    role: Annotated[str, typer.Option("--role", metavar="ROLE", help="owner, or guest: own sessions.")] = "",
    person: Annotated[
        str, typer.Option("--as", metavar="CHANNEL:CHAT", help="A guest with the memory of this private chat.")
    ] = "",
) -> None:
    """Make a key and print it, once. Owners may do everything; guests talk like a person who is allowed to write."""
    role = role or ("guest" if person else "owner")
    if not re.fullmatch(API_KEY_NAME, name):
        raise UsageError("A name has 1 to 40 letters, digits, dots, hyphens and underscores.")
    if role not in list(HttpRole):
        raise UsageError(f"There is no role {role!r}. Use owner or guest.")
    channel = person.partition(":")[0]
    if person and not (re.fullmatch(PERSON, person) and (find(channel) is not None or channel in plugin_names())):
        raise UsageError(f"{person!r} is no chat. Give channel and chat id, such as --as telegram:123.")
    if person and role == "owner":
        raise UsageError("An owner's key acts as the owner. Leave --role or --as out.")
    secret = _use_keys(lambda credentials: credentials.add(CredentialKind.API_KEY, name, HttpRole(role), person))
    if secret is None:
        raise UsageError(f"There is already a key {name}. Choose another name, or: nanobot api key revoke {name}")
    typer.echo(secret)


def list_keys(json: JsonOption = False) -> None:
    """List the keys; the keys themselves are not stored."""

    def iso(at: float) -> str:
        return datetime.fromtimestamp(at).astimezone().isoformat(timespec="seconds")

    rows = [
        {
            "name": key.name,
            "role": str(key.role),
            "as": key.person,
            "created_at": iso(key.created_at),
            "used_at": iso(key.used_at),
        }
        for key in _use_keys(lambda credentials: credentials.list(CredentialKind.API_KEY))
    ]
    columns = {"Name": "name", "Role": "role", "As": "as", "Made": when("created_at"), "Last used": when("used_at")}
    print_list(rows, columns, as_json=json, empty=f"There is no key. {NO_API_KEY}")


def revoke_key(name: Annotated[str, typer.Argument(help="The key's name.")]) -> None:
    """Revoke a key. Programs that use it are refused at once."""
    if not _use_keys(lambda credentials: credentials.revoke(CredentialKind.API_KEY, name)):
        known = _use_keys(lambda credentials: credentials.list(CredentialKind.API_KEY))
        raise unknown_name_error("key", name, [key.name for key in known], "nanobot api key list")
    typer.echo(f"Revoked {name}.")


def _use_keys(work: Callable[[Credentials], Awaitable[T]]) -> T:
    """Do something with the stored keys, whether or not a gateway runs."""

    async def ask() -> T:
        async with open_database(get_data_paths().database, SCHEMA, is_owner=False) as database:
            return await work(Credentials(database, SystemClock()))

    return asyncio.run(ask())


def list_approvals(json: JsonOption = False) -> None:
    columns: dict[str, Column] = {
        "Rule": "rule",
        "Holds": lambda grant: "with untrusted content in play" if grant.outside else "with your own words",
        "Until": when("expires"),
    }
    print_list(_grants().all(), columns, as_json=json, empty=NO_GRANTS)


def forget_approval(
    rule: Annotated[str, typer.Argument(metavar="RULE", help="The rule, from `nanobot approvals list`.")],
) -> None:
    count = _grants().forget(rule)
    if not count:
        raise NanobotError(describe_forgotten(to_one_line(rule), 0).replace("`list`", "`nanobot approvals list`"))
    print_line(describe_forgotten(to_one_line(rule), count))


def _grants() -> Grants:
    return Grants(read_setup(secrets=False).paths.database, SystemClock())
