"""Tools from MCP servers, and custom tools from the workspace."""

from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.config.paths import DataPaths
from nanobot.config.schema import Config
from nanobot.runtime.policies import network_policy
from nanobot.runtime.sandbox import named_places
from nanobot.utils.clock import Clock
from nanobot.utils.worker_thread import WorkerThread

if TYPE_CHECKING:
    from nanobot.agent.tools.mcp.source import McpServers
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
        config.tools.mcp_servers,
        state_dir=DataPaths(data_dir).mcp,
        workspace=workspace,
        clock=clock,
        network=network_policy(config),
    )
