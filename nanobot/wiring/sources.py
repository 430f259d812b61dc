"""The tools that come and go: those of MCP servers, and those that the user wrote into the workspace."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.config.paths import Places
from nanobot.config.schema import Config
from nanobot.utils.clock import Clock
from nanobot.wiring.policies import network_policy
from nanobot.wiring.walls import named_places

if TYPE_CHECKING:
    from nanobot.agent.tools.mcp.source import McpServers
    from nanobot.agent.tools.own.source import OwnTools


def own_tools(config: Config, workspace: Path) -> "OwnTools":
    """The user's own tools, none of them loaded."""
    from nanobot.agent.tools.own.source import OwnTools  # who has none does not wait for it

    return OwnTools(workspace, named_places(config.tools.allowed_paths))


def mcp_servers(config: Config, data_dir: Path, workspace: Path, clock: Clock) -> "McpServers | None":
    """The MCP servers of the config, none of them started; None where there are none."""
    if not config.tools.mcp_servers:
        return None
    from nanobot.agent.tools.mcp.remote import open_client  # who has no servers does not wait for it
    from nanobot.agent.tools.mcp.settings import ServerSettings, Wire
    from nanobot.agent.tools.mcp.source import McpServers

    settings = [
        ServerSettings(
            name,
            command=server.command,
            args=tuple(server.args),
            env=server.env or {},
            url=server.url,
            headers=server.headers or {},
            type=Wire(server.type) if server.type else None,
            tool_timeout_s=server.tool_timeout,
            enabled_tools=frozenset(server.enabled_tools),
        )
        for name, server in config.tools.mcp_servers.items()
    ]
    client = partial(open_client, policy=network_policy(config))
    return McpServers(settings, memory=Places(data_dir).mcp, workspace=workspace, clock=clock, client=client)
