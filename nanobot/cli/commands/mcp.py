"""`nanobot mcp`: list the configured MCP servers and test one."""

import asyncio
import os
from collections.abc import Callable
from typing import Annotated

import typer

from nanobot.agent.tools.mcp.server import McpServer, ServerFailedError
from nanobot.agent.tools.mcp.source import McpServers
from nanobot.cli.common import (
    ConfigOption,
    JsonOption,
    Setup,
    WorkspaceOption,
    print_json,
    print_table,
    print_text,
    read_setup,
    to_one_line,
)
from nanobot.cli.doctor.connections import connect_once, known_servers
from nanobot.config.schema import McpServerConfig
from nanobot.errors import NanobotError
from nanobot.runtime.tool_sources import mcp_servers
from nanobot.security.secrets import Redactor, secret_values
from nanobot.utils.clock import SystemClock
from nanobot.utils.text import count_noun


def list_(config: ConfigOption = None, workspace: WorkspaceOption = None, json: JsonOption = False) -> None:
    """List the configured servers and the tools each offered last time. Starts no server."""
    setup = read_setup(config, workspace, secrets=False)
    if any(_uses_secret_reference(server) for server in setup.config.tools.mcp_servers.values()):
        setup = read_setup(config, workspace, warns=False)
    servers, redact = asyncio.run(known_servers(_servers(setup))), _secret_redactor(setup)
    if json:
        print_json([_facts(server, redact) for server in servers])
        return
    print_table(
        ("Server", "Transport", "Tools", "Where"),
        [
            (
                server.settings.name,
                server.settings.transport or "none: set command or url",
                "unknown yet" if server.listing is None else len(server.listing.tools),
                redact(server.settings.location),
            )
            for server in servers
        ],
        empty="No MCP server is configured. Add one under tools.mcpServers in the config.",
    )


def test(
    name: Annotated[str, typer.Argument(help="The server's name, from `nanobot mcp list`.")],
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Connect to a server, list its tools, and remember them. Exits with the reason if it fails."""
    setup = read_setup(config, workspace)
    redact = _secret_redactor(setup)
    try:
        server, took_s = asyncio.run(connect_once(name, _servers(setup)))
    except ServerFailedError as error:
        raise NanobotError(redact(str(error))) from None
    if json:
        print_json({**_facts(server, redact), "seconds": round(took_s, 3)})
        return
    listing = server.listing
    assert listing is not None  # noqa: S101 - a connected server has a listing
    extras = [word for word, there in (("resources", listing.resources), ("prompts", listing.prompts)) if there]
    print_text(
        f"{listing.server or name} answered in {took_s:.1f} s (protocol {listing.protocol}): "
        f"{', '.join((count_noun(len(listing.tools), 'tool'), *extras))}."
    )
    if listing.left_out:
        print_text(f"Left out {count_noun(listing.left_out, 'more tool', 'more tools')}: too many, or too large.")
    offered = server.offered_names()
    if unwanted := [tool.name for tool in listing.tools if tool.name not in offered]:
        print_text(f"Excluded by enabledTools: {', '.join(unwanted)}.")
    if unknown := server.unknown_tools():
        print_text(f"In enabledTools, but the server does not have them: {', '.join(unknown)}.")
    print_table(
        ("Tool", "Effect", "What it does"),
        [(tool.name, "read" if tool.reads else "acts", to_one_line(tool.description)[:200]) for tool in listing.tools],
        empty="It offers no tools.",
    )


def _uses_secret_reference(server: McpServerConfig) -> bool:
    """Whether its command or URL needs a secret resolved, so that its remembered tools can be found."""
    return any("${file:" in value or "${cmd:" in value for value in (server.command, *server.args, server.url))


def _secret_redactor(setup: Setup) -> Callable[[str], str]:
    """A function that redacts the config's secrets: arguments and error texts of a server may hold a token."""
    return Redactor(lambda: secret_values(setup.config.model_dump(), os.environ)).text


def _servers(setup: Setup) -> McpServers | None:
    return mcp_servers(setup.config, setup.data_dir, setup.workspace, SystemClock())


def _facts(server: McpServer, redact: Callable[[str], str]) -> dict[str, object]:
    settings, listing = server.settings, server.listing
    return {
        "name": settings.name,
        "transport": settings.transport,
        "location": redact(settings.location),
        "met": listing is not None,
        "server": listing.server if listing else None,
        "protocol": listing.protocol if listing else None,
        "tools": [tool.name for tool in listing.tools] if listing else [],
        "resources": bool(listing and listing.resources),
        "prompts": bool(listing and listing.prompts),
    }
