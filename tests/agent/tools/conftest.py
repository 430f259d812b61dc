from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.tools.base import ToolContext, ToolResult
from nanobot.agent.tools.builtin import ToolPolicies, build_tools
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.tools.web.policy import WebPolicy
from nanobot.bus.events import Address
from nanobot.net.egress import NetworkPolicy
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
def home(workspace: Path) -> Path:
    """The folder of the owner, with keys in `.ssh`, nanobot's own state in `data`, and what they protect in `law`."""
    return workspace.parent / "home"


@pytest.fixture
def unreadable(home: Path) -> tuple[Path, ...]:
    """Places with keys."""
    return (home / ".ssh",)


@pytest.fixture
def registry(workspace: Path, home: Path, unreadable: tuple[Path, ...]) -> ToolRegistry:
    """The built-in tools; the web is what the test serves on loopback."""
    paths = PathPolicy(workspace, unreadable=unreadable, protected=(home / "law",), data_folder=home / "data")
    web = WebPolicy(NetworkPolicy(whitelist=("127.0.0.0/8",)))
    return build_tools(ToolPolicies(paths, web=web))


@pytest.fixture
def call(registry: ToolRegistry, ctx: ToolContext) -> Call:
    """Call a built-in tool by name."""

    async def call_it(name: str, **params: Any) -> ToolResult:
        return await registry.call(name, params, ctx)

    return call_it
