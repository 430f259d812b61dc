from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.tools.base import ToolContext, ToolResult
from nanobot.agent.tools.builtin import ToolPolicies, build_tools
from nanobot.bus.events import Address
from nanobot.security.files.paths import PathPolicy
from nanobot.utils.clock import FrozenClock
from tests.support.tools import Call


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def ctx(workspace: Path) -> ToolContext:
    clock = FrozenClock(datetime(2026, 1, 2, 3, 4))
    return ToolContext("cli:direct", Address("cli", "direct"), "turn-1", workspace, clock)


@pytest.fixture
def call(workspace: Path, ctx: ToolContext) -> Call:
    """Call a built-in tool by name."""
    registry = build_tools(ToolPolicies(PathPolicy(workspace)))

    async def call_it(name: str, **params: Any) -> ToolResult:
        return await registry.call(name, params, ctx)

    return call_it
