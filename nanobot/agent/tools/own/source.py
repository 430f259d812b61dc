"""The workspace's `tools/` as a source of tools: looked at before each turn, loaded when a file is new or changed."""

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nanobot.agent.tools.base import Tool
from nanobot.agent.tools.own.aside import Aside
from nanobot.agent.tools.own.loading import Loaded, load_tool
from nanobot.agent.tools.own.tool import BrokenTool, own_tool
from nanobot.agent.tools.registry import ToolRegistry

logger = logging.getLogger(__name__)

MOST_FILES = 100

_Stamp = tuple[int, int, int]
"""What changes when a file does: its time, its size, its number."""


@dataclass(frozen=True, slots=True)
class _File:
    stamp: _Stamp
    loaded: Loaded


class OwnTools:
    """The user's own tools."""

    def __init__(self, workspace: Path, allowed: Sequence[Path] = ()) -> None:
        """`allowed` are the folders besides the workspace that a tool is told it may touch."""
        self._folder = workspace / "tools"
        self._allowed_dirs = [workspace, *allowed]
        self._files: dict[str, _File] = {}
        self._tools: dict[str, Tool] = {}
        self._aside = Aside()
        self._refreshing = asyncio.Lock()

    async def refresh(self, registry: ToolRegistry) -> None:
        """Bring the registry up to date with the folder. Never raises."""
        async with self._refreshing:
            files = await asyncio.to_thread(self._look)
            if files != self._files:
                self._files = files
                self._offer(registry)

    async def close(self) -> None:
        """Let go of the thread they run in."""
        self._aside.close()

    def _look(self) -> dict[str, _File]:
        """Each file with its tool; one that has not changed keeps the tool it became."""
        found = {}
        for name, stamp in sorted(self._stamps().items())[:MOST_FILES]:
            known = self._files.get(name)
            if known is not None and known.stamp == stamp:
                found[name] = known
            else:
                found[name] = _File(stamp, load_tool(self._folder / name, self._allowed_dirs))
        return found

    def _stamps(self) -> dict[str, _Stamp]:
        try:
            with os.scandir(self._folder) as entries:
                return {
                    entry.name: (stat.st_mtime_ns, stat.st_size, stat.st_ino)
                    for entry in entries
                    if entry.name.endswith(".py") and not entry.name.startswith(("_", "."))
                    if entry.is_file() and (stat := entry.stat())
                }
        except OSError:
            return {}

    def _offer(self, registry: ToolRegistry) -> None:
        wanted: dict[str, Tool] = {}
        for file, one in self._files.items():
            tool = self._tool_of(file, one.loaded, registry, wanted)
            if tool is not None:
                wanted[tool.name] = tool
        for name in self._tools.keys() - wanted.keys():
            registry.unregister(name)
        for tool in wanted.values():
            registry.register(tool)
        self._tools = wanted

    def _tool_of(self, file: str, loaded: Loaded, registry: ToolRegistry, wanted: dict[str, Tool]) -> Tool | None:
        """The tool to register for a file: its own, or one that says what is wrong; None where no name is left."""
        taken = loaded.name in wanted or (registry.has(loaded.name) and loaded.name not in self._tools)
        if not taken and loaded.tool is not None:
            return own_tool(loaded.tool, self._aside)
        reason = self._taken(loaded.name, wanted) if taken else loaded.reason
        logger.warning("The tool in tools/%s was not loaded. %s", file, reason)
        name = loaded.name if not taken else f"own_{loaded.name}"[:64]
        return BrokenTool(name, file, reason) if name not in wanted and not self._is_others(name, registry) else None

    def _taken(self, name: str, wanted: Mapping[str, Tool]) -> str:
        first = next((file for file, one in self._files.items() if name in wanted and one.loaded.name == name), None)
        if first is not None:
            return f"tools/{first} has the name {name} already."
        return f"Another tool has the name {name}; a tool of your own cannot replace it."

    def _is_others(self, name: str, registry: ToolRegistry) -> bool:
        return registry.has(name) and name not in self._tools
