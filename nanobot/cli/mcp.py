"""`nanobot mcp`: the MCP servers of the config, and whether one can be reached."""

import asyncio
import logging
import os
import time
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
    one_line,
    read_setup,
    say_text,
    show_json,
    show_rows,
    unknown_name,
)
from nanobot.config.schema import McpServerConfig
from nanobot.errors import NanobotError
from nanobot.security.secrets import Redactor, secrets_of
from nanobot.utils.clock import SystemClock
from nanobot.utils.text import counted
from nanobot.wiring.sources import mcp_servers

_SLOW_S = 3.0
_STILL_WAITING = "Waiting for it, a minute at most; `npx` and `uvx` download a server the first time. Ctrl+C ends this."


def list_(config: ConfigOption = None, workspace: WorkspaceOption = None, json: JsonOption = False) -> None:
    """The servers of the config, and what each offered when it was last reached. None is started."""
    setup = read_setup(config, workspace, secrets=False)
    if any(_is_known_by_a_secret(server) for server in setup.config.tools.mcp_servers.values()):
        setup = read_setup(config, workspace, warns=False)
    servers, shown = asyncio.run(_recalled(_servers(setup))), _without_secrets(setup)
    if json:
        show_json([_facts(server, shown) for server in servers])
        return
    show_rows(
        ("Server", "Wire", "Tools", "Where"),
        [
            (
                server.settings.name,
                server.settings.wire or "none: set command or url",
                "not met yet" if server.listing is None else len(server.listing.tools),
                shown(server.settings.place),
            )
            for server in servers
        ],
        empty="No MCP server is set up. The config's tools.mcpServers names them.",
    )


def test(
    name: Annotated[str, typer.Argument(help="The server's name, as `nanobot mcp list` shows it.")],
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Start or reach a server, and see what it offers; that is remembered. Fails with the reason."""
    setup = read_setup(config, workspace)
    shown = _without_secrets(setup)
    try:
        server, took_s = asyncio.run(met(name, _servers(setup)))
    except ServerFailedError as error:
        raise NanobotError(shown(str(error))) from None
    if json:
        show_json({**_facts(server, shown), "seconds": round(took_s, 3)})
        return
    listing = server.listing
    assert listing is not None  # noqa: S101 - who was met has told what it offers
    more = [word for word, there in (("resources", listing.resources), ("prompts", listing.prompts)) if there]
    say_text(
        f"{listing.server or name} answered in {took_s:.1f} s (protocol {listing.protocol}): "
        f"{', '.join((counted(len(listing.tools), 'tool'), *more))}."
    )
    if listing.left_out:
        say_text(f"{counted(listing.left_out, 'tool')} more are left out: too many, or too large.")
    offered = server.offered()
    if unwanted := [tool.name for tool in listing.tools if tool.name not in offered]:
        say_text(f"Not offered, by enabledTools: {', '.join(unwanted)}.")
    if unknown := server.unknown_tools():
        say_text(f"enabledTools names what it does not have: {', '.join(unknown)}.")
    show_rows(
        ("Tool", "Effect", "What it does"),
        [(tool.name, "read" if tool.reads else "acts", one_line(tool.description)[:200]) for tool in listing.tools],
        empty="It offers no tools.",
    )


def _is_known_by_a_secret(server: McpServerConfig) -> bool:
    """Whether what was remembered of it is found only with a secret that stands elsewhere."""
    return any("${file:" in said or "${cmd:" in said for said in (server.command, *server.args, server.url))


def _without_secrets(setup: Setup) -> Callable[[str], str]:
    """Arguments may hold a token, and a server's last words too."""
    return Redactor(lambda: secrets_of(setup.config.model_dump(), os.environ)).text


def _servers(setup: Setup) -> McpServers | None:
    return mcp_servers(setup.config, setup.data_dir, setup.workspace, SystemClock())


async def _recalled(servers: McpServers | None) -> list[McpServer]:
    if servers is None:
        return []
    await servers.recall()
    return servers.servers


async def met(name: str, of: McpServers | None) -> tuple[McpServer, float]:
    """One of these servers, after it was started or reached once, and how long that took. It is ended again.

    Raises ServerFailedError, and NanobotError where there is none of that name.
    """
    logging.getLogger("nanobot.agent.tools.mcp").setLevel(logging.CRITICAL)  # what fails is said once, by the command
    servers = {server.settings.name: server for server in await _recalled(of)}
    if name not in servers:
        raise unknown_name("MCP server", name, servers, "nanobot mcp list")
    server = servers[name]
    begun = time.perf_counter()
    word = asyncio.get_running_loop().call_later(_SLOW_S, typer.echo, _STILL_WAITING, None, True, True)
    try:
        await server.connect()
        return server, time.perf_counter() - begun
    finally:
        word.cancel()
        await server.close()


def _facts(server: McpServer, shown: Callable[[str], str]) -> dict[str, object]:
    settings, listing = server.settings, server.listing
    return {
        "name": settings.name,
        "wire": settings.wire,
        "place": shown(settings.place),
        "met": listing is not None,
        "server": listing.server if listing else None,
        "protocol": listing.protocol if listing else None,
        "tools": [tool.name for tool in listing.tools] if listing else [],
        "resources": bool(listing and listing.resources),
        "prompts": bool(listing and listing.prompts),
    }
