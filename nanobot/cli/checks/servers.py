"""MCP servers: each of the config starts or is reached, and says what it offers."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from nanobot.cli.checks.findings import Check, Finding, Patient, error, note, warning
from nanobot.cli.through_gateway import demand_gateway
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
    """By the connection of the gateway that runs, beside which the server may bear no other; else by one of our own,
    which is ended again.
    """
    try:
        found = _asked(name, patient) if patient.gateway is not None else _met(name, patient)
    except NanobotError as refused:
        yield error(cleaned(str(refused)), f"nanobot mcp test {name} tries it again, once this is put right.")
        return
    if found is None:
        yield error("The gateway that runs does not have it.", "nanobot gateway restart")
        return
    if found.left_out:
        yield note(f"{counted(found.left_out, 'tool')} of it are left out: too many, or too large")
    if found.unknown:
        yield warning(
            f"{name} has no {', '.join(found.unknown)}, which its enabledTools names.",
            f"nanobot mcp test {name} shows the names it has.",
        )
    yield note(f"answers, offers {counted(found.tools, 'tool')}")


@dataclass(frozen=True, slots=True)
class _Offer:
    """What a server that answered has for the agent."""

    tools: int
    left_out: int
    unknown: Sequence[str]
    """Names in `enabledTools` that it has nothing for."""


def _asked(name: str, patient: Patient) -> _Offer | None:
    """As the gateway tells it; None where that does not have the server. Raises NanobotError."""
    told = demand_gateway(patient.places, {"do": "meet server", "name": name})
    return _Offer(told["tools"], told["leftOut"], told["unknown"]) if told["known"] else None


def _met(name: str, patient: Patient) -> _Offer:
    """As the server tells it us. Raises NanobotError."""
    from nanobot.cli.mcp import met  # only who has servers waits for it

    servers = mcp_servers(patient.config, patient.places.data, patient.workspace, SystemClock())
    server, _ = asyncio.run(met(name, servers))
    return _Offer(len(server.offered()), server.left_out, server.unknown_tools())
