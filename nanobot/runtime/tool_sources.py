"""Tools from MCP servers, and custom tools from the workspace."""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.config.paths import DataPaths
from nanobot.config.schema import Config
from nanobot.runtime.policies import network_policy
from nanobot.runtime.sandbox import named_places
from nanobot.utils.clock import Clock
from nanobot.utils.worker_thread import WorkerThread

if TYPE_CHECKING:
    from nanobot.agent.tools.mcp.settings import ServerSettings
    from nanobot.agent.tools.mcp.source import McpServers
    from nanobot.agent.tools.mcp.transport import OpenClient
    from nanobot.agent.tools.own import OwnTools


def own_tools(config: Config, workspace: Path, worker: WorkerThread) -> "OwnTools":
    """Return the custom tools of the workspace, not loaded yet."""
    from nanobot.agent.tools.own import OwnTools  # imported only if used

    return OwnTools(workspace, worker, named_places(config.tools.allowed_paths))


def mcp_servers(config: Config, data_dir: Path, workspace: Path, clock: Clock) -> "McpServers | None":
    """Return the configured MCP servers, not started yet; None if there are none."""
    if not config.tools.mcp_servers:
        return None
    from nanobot.agent.tools.mcp.source import McpServers  # imported only if used

    return McpServers(
        server_settings(config),
        state_dir=DataPaths(data_dir).mcp,
        workspace=workspace,
        clock=clock,
        open_client=client_of(config),
    )


def client_of(config: Config) -> "OpenClient":
    """Return the function that opens connections to servers reached by URL."""
    from nanobot.agent.tools.mcp.transport import open_client  # as above

    return partial(open_client, policy=network_policy(config))


def server_settings(config: Config) -> "list[ServerSettings]":
    from nanobot.agent.tools.mcp.settings import ServerSettings, Transport  # as above

    return [
        ServerSettings(
            name,
            command=server.command,
            args=tuple(server.args),
            env=server.env or {},
            cwd=os.path.expanduser(server.cwd),  # noqa: PTH111 - a user who does not exist is reported when it starts
            url=server.url,
            headers=server.headers or {},
            type=Transport(server.type) if server.type else None,
            tool_timeout_s=server.tool_timeout,
            enabled_tools=frozenset(server.enabled_tools),
        )
        for name, server in config.tools.mcp_servers.items()
    ]
