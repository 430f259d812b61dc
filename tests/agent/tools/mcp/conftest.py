from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nanobot.agent.tools.base import ToolContext
from nanobot.agent.tools.mcp.server import McpTimeouts
from nanobot.agent.tools.mcp.source import McpServers
from nanobot.utils.clock import SystemClock
from tests.support.mcp import LONG_TIMEOUTS, Bench, Configured, OpenBench


@pytest.fixture
async def bench(workspace: Path, tmp_path: Path, ctx: ToolContext) -> AsyncIterator[OpenBench]:
    """Open a bench of these servers; their first turn has begun."""
    opened: list[Bench] = []

    async def open_it(*configs: Configured, timeouts: McpTimeouts | None = None) -> Bench:
        servers = McpServers(
            dict(configs),
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
