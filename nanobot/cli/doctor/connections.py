"""Checks that connect: MCP servers and the platforms of channels."""

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from nanobot.agent.tools.mcp.server import McpServer
from nanobot.agent.tools.mcp.source import McpServers
from nanobot.channels.registry import load_channel
from nanobot.cli.common import require_gateway, unknown_name_error
from nanobot.cli.doctor.checks import CheckContext, DoctorCheck, Finding, error, note, warning
from nanobot.cli.output import print_line
from nanobot.config.schema import Config
from nanobot.errors import NanobotError
from nanobot.runtime.policies import mcp_servers
from nanobot.utils.clock import SystemClock
from nanobot.utils.text import count_noun

_SLOW_S = 3.0
_STILL_WAITING = "Waiting up to a minute; `npx` and `uvx` download a server the first time. Ctrl+C cancels."
_SERVER_LIMIT_S = 65.0
"""The first `npx` downloads the server."""
_CHANNEL_LIMIT_S = 25.0


def connection_checks(config: Config) -> list[DoctorCheck]:
    """A check for each configured MCP server and each enabled channel."""
    servers = [
        DoctorCheck(f"mcp.{name}", f"The MCP server {name} answers", partial(_server_answers, name), _SERVER_LIMIT_S)
        for name in config.tools.mcp_servers
    ]
    channels = [
        DoctorCheck(f"channels.{name}", f"{name} accepts the login", partial(_can_log_in, name), _CHANNEL_LIMIT_S)
        for name in config.channels.enabled
    ]
    return [replace(check, uses_network=True) for check in (*servers, *channels)]


def _server_answers(name: str, context: CheckContext) -> Iterator[Finding]:
    """Use the running gateway's connection, since a server may not allow a second one; else connect once."""
    try:
        if context.gateway is not None:
            status = require_gateway({"do": "mcp server", "name": name})
            if not status["known"]:
                yield error("The running gateway does not have it.", "nanobot gateway restart")
                return
            tools, left_out, unknown = status["tools"], status["leftOut"], status["unknown"]
        else:
            servers = mcp_servers(context.config, context.data_dir, context.workspace, SystemClock())
            server, _ = asyncio.run(connect_once(name, servers))
            tools, left_out, unknown = len(server.offered_names()), server.left_out, server.unknown_tools()
    except NanobotError as exc:
        yield error(str(exc), f"Fix this, then try again: nanobot mcp test {name}")
        return
    if left_out:
        yield note(f"{count_noun(left_out, 'tool')} left out: too many")
    if unknown:
        yield warning(
            f"{name} has no {', '.join(unknown)}, but its enabledTools lists that.",
            f"nanobot mcp test {name} shows the names it has.",
        )
    yield note(f"answers, offers {count_noun(tools, 'tool')}")


async def known_servers(servers: McpServers | None) -> list[McpServer]:
    """The servers, each with the tools it offered last time."""
    if servers is None:
        return []
    await servers.load_listings()
    return servers.servers


async def connect_once(name: str, configured: McpServers | None) -> tuple[McpServer, float]:
    """Connect to a configured server and disconnect again; return it and the seconds it took.

    Raises ServerFailedError, and NanobotError for an unknown name.
    """
    logging.getLogger("nanobot.agent.tools.mcp").setLevel(logging.CRITICAL)  # the command reports the failure itself
    servers = {server.name: server for server in await known_servers(configured)}
    if name not in servers:
        raise unknown_name_error("MCP server", name, servers, "nanobot mcp list")
    server = servers[name]
    started = time.perf_counter()
    notice = asyncio.get_running_loop().call_later(_SLOW_S, lambda: print_line(_STILL_WAITING, err=True))
    try:
        await server.connect()
        return server, time.perf_counter() - started
    finally:
        notice.cancel()
        await server.close()


def _can_log_in(name: str, context: CheckContext) -> Iterator[Finding]:
    """Use the running gateway's status; else log in once."""
    if context.gateway is not None:
        status = context.gateway["channels"].get(name)
        if status is None:
            yield error("The running gateway does not have it.", "nanobot gateway restart")
        elif status["state"] == "up":
            yield note("connected")
        else:
            yield error(
                f"{status['state']}: {status['lastError'] or 'no connection'}", f"nanobot channels login {name}"
            )
        return
    from nanobot.channels.setup import log_in  # slow to import

    try:
        load_channel(name, context.config.plugins.disabled)
    except NanobotError as exc:  # it says what to do
        yield error(str(exc), "")
        return
    try:
        asyncio.run(log_in(name, context.config, context.paths, lambda _: None))
    except NanobotError as exc:
        yield error(str(exc), f"Enter its settings again: nanobot channels login {name} --force")
    else:
        yield note("login accepted")
