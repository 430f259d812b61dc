"""MCP servers as child processes, and a registry that has their tools."""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from nanobot.agent.tools.base import ToolContext, ToolResult
from nanobot.agent.tools.mcp.server import McpTimeouts
from nanobot.agent.tools.mcp.source import McpServers
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.config.schema import McpServerConfig

MCP_SERVER = str(Path(__file__).parents[1] / "fakes" / "mcp_server.py")


Configured = tuple[str, McpServerConfig]


def configured(name: str, **config: Any) -> Configured:
    return name, McpServerConfig(**config)


def child(name: str, *flags: str, **more: Any) -> Configured:
    """The server of `tests/fakes/mcp_server.py`, with these arguments."""
    return configured(name, command=sys.executable, args=["-I", "-S", MCP_SERVER, *flags], **more)


class Bench:
    """Servers, and a registry that has their tools."""

    def __init__(self, servers: McpServers, ctx: ToolContext) -> None:
        self.servers = servers
        self.registry = ToolRegistry()
        self.registry.add_source(servers)
        self._ctx = ctx

    async def refresh(self) -> list[str]:
        """A turn begins; the names it is offered."""
        await self.registry.refresh()
        return self.registry.names

    async def call(self, name: str, /, **arguments: Any) -> ToolResult:
        return await self.registry.call(name, arguments, self._ctx)


LONG_TIMEOUTS = McpTimeouts(first_listing_s=45)
"""For a machine with much to do: importing the SDK takes a while there."""

OpenBench = Callable[..., Awaitable[Bench]]
