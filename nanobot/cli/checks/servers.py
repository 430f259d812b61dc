"""MCP servers: each of the config starts or is reached, and says what it offers."""

import asyncio
from collections.abc import Iterable, Iterator
from functools import partial

from nanobot.cli.checks.findings import Check, Finding, Patient, error, note, warning
from nanobot.errors import NanobotError
from nanobot.security.vault import cleaned
from nanobot.utils.clock import SystemClock
from nanobot.utils.text import counted
from nanobot.wiring.sources import mcp_servers

_LIMIT_S = 65.0
"""A first `npx` has to download it."""


def server_checks(names: Iterable[str]) -> list[Check]:
    """A check for each of these servers."""
    return [
        Check(f"mcp.{name}", f"The MCP server {name} answers", partial(_answers, name), _LIMIT_S, asks_outside=True)
        for name in names
    ]


def _answers(name: str, patient: Patient) -> Iterator[Finding]:
    """By a connection of our own, which is ended again."""
    from nanobot.cli.mcp import met  # only who has servers waits for it

    advice = f"nanobot mcp test {name} tries it again, once this is put right."
    servers = mcp_servers(patient.config, patient.places.data, patient.workspace, SystemClock())
    try:
        server, _ = asyncio.run(met(name, servers))
    except NanobotError as refused:
        yield error(cleaned(str(refused)), advice)
        return
    listing = server.listing
    if listing is not None and listing.left_out:
        yield note(f"{counted(listing.left_out, 'tool')} of it are left out: too many, or too large")
    if unknown := server.unknown_tools():
        yield warning(
            f"{name} has no {', '.join(unknown)}, which its enabledTools names.",
            f"nanobot mcp test {name} shows the names it has.",
        )
    yield note(f"answers, offers {counted(len(server.offered()), 'tool')}")
