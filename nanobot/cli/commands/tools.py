"""`nanobot tools` and `nanobot mcp`: what the agent can call, and the servers that add to it."""

import asyncio
import json as jsonlib
import logging
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanobot.agent.tools.base import Tool
from nanobot.agent.tools.mcp.server import McpServer, ServerFailedError
from nanobot.agent.tools.mcp.source import McpServers
from nanobot.cli.common import JsonOption, Setup, read_setup, unknown_name_error
from nanobot.cli.output import Column, is_terminal, print_json, print_line, print_list, print_text, to_one_line
from nanobot.config.keypath import put
from nanobot.config.loader import check_text, load_config, set_key, unset_key
from nanobot.config.paths import absolute
from nanobot.config.saver import to_document
from nanobot.errors import NanobotError, UsageError
from nanobot.runtime.policies import mcp_servers
from nanobot.security.secrets import redact_named
from nanobot.utils.clock import SystemClock
from nanobot.utils.text import count_noun

if TYPE_CHECKING:
    from nanobot.runtime.plugins import Plugins

_SLOW_S = 3.0
_STILL_WAITING = "Waiting up to a minute; `npx` and `uvx` download a server the first time. Ctrl+C cancels."
_NAME = re.compile(r"[A-Za-z0-9_-]+")


def list_tools(json: JsonOption = False) -> None:
    """List the tools the agent can call. MCP tools are those offered last time; no server is started."""
    from nanobot.agent.tools.builtin import build_tools  # slow to import
    from nanobot.agent.tools.images import ImageTool
    from nanobot.providers.images import choose_image_model
    from nanobot.runtime.policies import own_tools, tool_policies
    from nanobot.runtime.toolbox import SERVICE_TOOLS
    from nanobot.utils.aio import WorkerThread

    setup = _read_server_setup()
    worker = WorkerThread()
    tools = build_tools(tool_policies(setup.config, setup.data_dir, setup.workspace))
    if setup.config.tools.custom_tools:
        asyncio.run(own_tools(setup.config, setup.workspace, worker).refresh(tools))
    servers = asyncio.run(_load_servers(setup))
    if servers is not None:
        offered = servers.tools()
        for tool in [*offered, *servers.in_requests(offered)]:
            tools.register(tool)
    if setup.config.plugins.enabled:
        from nanobot.runtime.plugins import load_packages  # slow to import

        load_packages(setup.config.plugins, worker).offer(tools)
    # These need the services of a running bot, but their classes have name and description too.
    shown: list[Tool | type[Tool]] = [*tools, *SERVICE_TOOLS]
    if choose_image_model(setup.config, os.environ) is not None:
        shown.append(ImageTool)
    shown.sort(key=lambda tool: tool.name)
    columns: dict[str, Column] = {
        "Tool": "name",
        "Effect": "effect",
        "What it does": lambda tool: tool.description.strip().split("\n")[0].split(". ")[0],
    }
    print_list(
        shown,
        columns,
        as_json=json,
        empty="No tool is enabled.",
        to_json=lambda tool: {key: getattr(tool, key) for key in ("name", "description", "effect", "parameters")},
    )
    if is_terminal(sys.stdout) and not json:
        print_line("Effect: read changes nothing, repeatable may run twice, once may not.", err=True)


def load_plugins(setup: Setup) -> "Plugins":
    """Load the enabled plugins as the bot does."""
    from nanobot.agent.tools.builtin import build_tools  # slow to import
    from nanobot.runtime.plugins import load_packages
    from nanobot.runtime.policies import tool_policies
    from nanobot.utils.aio import WorkerThread

    plugins = load_packages(setup.config.plugins, WorkerThread())
    plugins.offer(build_tools(tool_policies(setup.config, setup.data_dir, setup.workspace)))
    return plugins


def list_servers(json: JsonOption = False) -> None:
    """List the configured servers and the tools each offered last time. Starts no server."""
    setup = _read_server_setup()
    servers = asyncio.run(_load_servers(setup))
    print_list(
        [_facts(server) for server in servers.servers] if servers is not None else [],
        {
            "Server": "name",
            "Transport": lambda row: row["transport"] or "none: set command or url",
            "Tools": lambda row: len(row["tools"]) if row["met"] else "unknown yet",
            "Where": "location",
        },
        as_json=json,
        empty="No MCP server is configured. Add one: `nanobot mcp add NAME -- COMMAND`",
    )


def test_server(
    name: Annotated[str, typer.Argument(help="The server's name, from `nanobot mcp list`.")], json: JsonOption = False
) -> None:
    """Connect to a server, list its tools, and remember them. Exits with the reason if it fails."""
    setup = read_setup()
    try:
        server, took_s = asyncio.run(connect_once(name, setup))
    except ServerFailedError as error:
        raise NanobotError(redact_named(str(error))) from None
    if json:
        print_json({**_facts(server), "seconds": round(took_s, 3)})
    else:
        _show_listing(server, took_s)


def add_server(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name for the server: letters, digits, _ and -.")],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND [ARGS]...", help="The program to start, after `--`.")
    ] = None,
    url: Annotated[str, typer.Option("--url", metavar="URL", help="The address of a remote server.")] = "",
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="KEY=VALUE", help="A variable for the program; repeatable.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="'NAME: VALUE'", help="A header for the URL; repeatable.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the server of this name.")] = False,
) -> None:
    """Connect to a server, list its tools, and add it to the config. A server that fails is not added.

    Values may be references, such as '${TOKEN}' for an environment variable.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{to_one_line(name)!r} cannot be a server's name. Use letters, digits, _ and -.")
    if bool(command) == bool(url):
        raise UsageError(
            "Give either a command after `--` or a --url. For example: nanobot mcp add time -- uvx mcp-server-time"
        )
    if (env and url) or (header and command):
        raise UsageError("--env is for a command and --header for a --url.")
    program, *args = command or [""]
    if len(Path(program).parts) > 1:  # a path here; the server starts in a folder of its own
        program = str(absolute(Path(program)))
    entry: dict[str, Any] = {"url": url, "command": program, "args": args}
    if env:
        entry["env"] = _pairs("--env", "KEY=VALUE", env)
    if header:
        entry["headers"] = _pairs("--header", "'NAME: VALUE'", header)
    entry = {key: value for key, value in entry.items() if value}
    setup = read_setup(secrets=False)
    if name in setup.config.tools.mcp_servers and not replace:
        raise NanobotError(f"There is an MCP server {name!r} already. Replace it with --replace.")
    key = ("tools", "mcpServers", name)
    document = to_document(load_config(setup.config_path, secrets=False))
    put(document, key, entry)
    candidate = Setup.of(check_text(jsonlib.dumps(document), setup.config_path, secrets=True))
    try:
        server, took_s = asyncio.run(connect_once(name, candidate))
    except ServerFailedError as error:
        raise NanobotError(f"{redact_named(str(error))}\nNothing was saved.") from None
    set_key(setup.config_path, key, [entry])
    _show_listing(server, took_s)
    print_line(f"Added {name} to {setup.config_path}. The agent can use its tools from the next message on.")


def remove_server(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The server's name, from `nanobot mcp list`.")],
) -> None:
    setup = read_setup(secrets=False)
    servers = setup.config.tools.mcp_servers
    if name not in servers:
        raise unknown_name_error("MCP server", name, servers, "nanobot mcp list")
    unset_key(setup.config_path, ("tools", "mcpServers", name))
    print_line(f"Removed {name} from {setup.config_path}.")


def _pairs(option: str, form: str, values: Sequence[str]) -> dict[str, str]:
    """Split `KEY=VALUE` and `NAME: VALUE`. Raises UsageError."""
    pairs = {}
    for value in values:
        match = re.fullmatch(r"([\w-]+)(?:=|:\s*)(.*)", value.strip(), re.DOTALL)
        if match is None:
            raise UsageError(f"{option} {to_one_line(value)!r} cannot be read. Write it like {option} {form}.")
        pairs[match[1]] = match[2]
    return pairs


def _show_listing(server: McpServer, took_s: float) -> None:
    """Print what a connected server offers."""
    listing, name = server.listing, server.name
    assert listing is not None  # noqa: S101 - a connected server has a listing
    extras = [word for word, there in (("resources", listing.resources), ("prompts", listing.prompts)) if there]
    print_text(
        f"{listing.server or name} answered in {took_s:.1f} s (protocol {listing.protocol}): "
        f"{', '.join((count_noun(len(listing.tools), 'tool'), *extras))}."
    )
    if listing.left_out:
        print_text(f"Left out {count_noun(listing.left_out, 'more tool', 'more tools')}: too many.")
    offered = server.offered_names()
    if unwanted := [tool.name for tool in listing.tools if tool.name not in offered]:
        print_text(f"Excluded by enabledTools: {', '.join(unwanted)}.")
    if unknown := server.unknown_tools():
        print_text(f"In enabledTools, but the server does not have them: {', '.join(unknown)}.")
    columns: dict[str, Column] = {
        "Tool": "name",
        "Effect": lambda tool: "read" if tool.reads else "acts",
        "What it does": lambda tool: to_one_line(tool.description)[:200],
    }
    print_list(listing.tools, columns, empty="It offers no tools.")


def _read_server_setup() -> Setup:
    """The setup to find remembered tools with: they are stored by command and URL, whose secrets are resolved."""
    setup = read_setup(secrets=False)
    servers = setup.config.tools.mcp_servers.values()
    parts = [part for server in servers for part in (server.command, *server.args, server.url)]
    needs_secret = any("${file:" in part or "${cmd:" in part for part in parts)
    return read_setup(warns=False) if needs_secret else setup


async def _load_servers(setup: Setup) -> McpServers | None:
    """The configured servers, each with the tools it offered last time; None without any."""
    servers = mcp_servers(setup.config, setup.data_dir, setup.workspace, SystemClock())
    if servers is not None:
        await servers.load_listings()
    return servers


def _facts(server: McpServer) -> dict[str, object]:
    listing = server.listing
    return {
        "name": server.name,
        "transport": server.config.transport,
        "location": redact_named(server.config.location),
        "met": listing is not None,
        "server": listing.server if listing else None,
        "protocol": listing.protocol if listing else None,
        "tools": [tool.name for tool in listing.tools] if listing else [],
        "resources": bool(listing and listing.resources),
        "prompts": bool(listing and listing.prompts),
    }


async def connect_once(name: str, setup: Setup) -> tuple[McpServer, float]:
    """Connect to a configured server and disconnect again; return it and the seconds it took.

    Raises ServerFailedError, and NanobotError for an unknown name.
    """
    logging.getLogger("nanobot.agent.tools.mcp").setLevel(logging.CRITICAL)  # the command reports the failure itself
    configured = await _load_servers(setup)
    server = configured.find(name) if configured is not None else None
    if server is None:
        raise unknown_name_error("MCP server", name, setup.config.tools.mcp_servers, "nanobot mcp list")
    started = time.perf_counter()
    notice = asyncio.get_running_loop().call_later(_SLOW_S, lambda: print_line(_STILL_WAITING, err=True))
    try:
        await server.connect()
        return server, time.perf_counter() - started
    finally:
        notice.cancel()
        await server.close()
