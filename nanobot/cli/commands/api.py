"""`nanobot serve`, and `nanobot api key`: the HTTP API and the keys of programs."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, TypeVar

import typer

from nanobot.channels.registry import find, plugin_names
from nanobot.cli.commands.gateway import run_process
from nanobot.cli.common import JsonOption, ask_gateway, get_data_paths, read_setup, unknown_name_error
from nanobot.cli.output import print_list, when
from nanobot.config.schema import API_KEY_NAME, PERSON
from nanobot.errors import UsageError
from nanobot.security.credentials import SCHEMA, CredentialKind, Credentials, HttpRole
from nanobot.utils.clock import SystemClock
from nanobot.utils.database import open_database

T = TypeVar("T")
_HAS_NO_KEY = "Make a key for each program: nanobot api key add NAME"


def serve(
    host: Annotated[str | None, typer.Option("-H", "--host", help="Listen on this address.")] = None,
    port: Annotated[int | None, typer.Option("-p", "--port", min=0, max=65535, help="Port of the API.")] = None,
    timeout: Annotated[
        float | None, typer.Option("-t", "--timeout", min=1, metavar="SECONDS", help="For requests that do not stream.")
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Log more.")] = False,
) -> None:
    """Run the HTTP API without chat apps and jobs. A running gateway has it already: then print its address."""
    running = ask_gateway({"do": "api urls"})
    if running is not None:
        typer.echo("The running gateway serves the API:")
        typer.echo("\n".join(map(str, running["urls"])))
        typer.echo(_HAS_NO_KEY, err=True)
        return
    setup = read_setup(warns=False)
    if timeout is not None:
        setup.config.api.timeout = timeout
    run_process(setup, verbose=verbose, api_only=True, api_host=host, api_port=port)


def add(
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
    secret = _ask(lambda credentials: credentials.add(CredentialKind.API_KEY, name, HttpRole(role), person))
    if secret is None:
        raise UsageError(f"There is already a key {name}. Choose another name, or: nanobot api key revoke {name}")
    typer.echo(secret)


def list_(json: JsonOption = False) -> None:
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
        for key in _ask(lambda credentials: credentials.list(CredentialKind.API_KEY))
    ]
    columns = {"Name": "name", "Role": "role", "As": "as", "Made": when("created_at"), "Last used": when("used_at")}
    print_list(rows, columns, as_json=json, empty=f"There is no key. {_HAS_NO_KEY}")


def revoke(name: Annotated[str, typer.Argument(help="The key's name.")]) -> None:
    """Revoke a key. Programs that use it are refused at once."""
    if not _ask(lambda credentials: credentials.revoke(CredentialKind.API_KEY, name)):
        known = _ask(lambda credentials: credentials.list(CredentialKind.API_KEY))
        raise unknown_name_error("key", name, [key.name for key in known], "nanobot api key list")
    typer.echo(f"Revoked {name}.")


def _ask(work: Callable[[Credentials], Awaitable[T]]) -> T:
    """Do something with the stored keys, whether or not a gateway runs."""

    async def ask() -> T:
        async with open_database(get_data_paths().database, SCHEMA, is_owner=False) as database:
            return await work(Credentials(database, SystemClock()))

    return asyncio.run(ask())
