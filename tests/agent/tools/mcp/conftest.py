import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.tools.base import ToolContext, ToolResult
from nanobot.agent.tools.mcp.server import McpTimeouts
from nanobot.agent.tools.mcp.settings import ServerSettings
from nanobot.agent.tools.mcp.source import McpServers
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.utils.clock import SystemClock

CHILD = str(Path(__file__).with_name("server_child.py"))


def child(name: str, *manners: str, **more: Any) -> ServerSettings:
    """The server of `server_child`, with these manners."""
    return ServerSettings(name, command=sys.executable, args=("-I", "-S", CHILD, *manners), **more)


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

    async def call_with(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        return await self.registry.call(name, arguments, self._ctx)


LONG_TIMEOUTS = McpTimeouts(first_listing_s=20)
"""For a machine with much to do: importing the SDK takes a while there."""

OpenBench = Callable[..., Awaitable[Bench]]


@pytest.fixture
async def bench(workspace: Path, tmp_path: Path, ctx: ToolContext) -> AsyncIterator[OpenBench]:
    """Open a bench of these servers; their first turn has begun."""
    opened: list[Bench] = []

    async def open_it(*settings: ServerSettings, timeouts: McpTimeouts | None = None) -> Bench:
        servers = McpServers(
            settings,
            state_dir=tmp_path / "mcp",
            workspace=workspace,
            clock=SystemClock(),
            timeouts=timeouts or LONG_TIMEOUTS,
        )
        opened.append(Bench(servers, ctx))
        await opened[-1].refresh()
        return opened[-1]

    yield open_it
    for one in opened:
        await one.registry.close()
