"""The workspace's `tools/` as a source of tools: scanned before each turn, new and changed files are loaded."""

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nanobot.agent.tools.base import Tool
from nanobot.agent.tools.own.loading import LoadedTool, load_tool
from nanobot.agent.tools.own.tool import BrokenTool, wrap_tool
from nanobot.agent.tools.own.worker_loop import WorkerLoop
from nanobot.agent.tools.registry import ToolRegistry

logger = logging.getLogger(__name__)

MAX_FILES = 100

_Stamp = tuple[int, int, int]
"""Changes with the file: modification time, size, inode."""


@dataclass(frozen=True, slots=True)
class _File:
    stamp: _Stamp
    loaded: LoadedTool


class OwnTools:
    """The user's own tools."""

    def __init__(self, workspace: Path, allowed: Sequence[Path] = ()) -> None:
        """`allowed` are the folders besides the workspace that are passed to tools as allowed."""
        self._folder = workspace / "tools"
        self._allowed_dirs = [workspace, *allowed]
        self._files: dict[str, _File] = {}
        self._tools: dict[str, Tool] = {}
        self._worker = WorkerLoop()
        self._refreshing = asyncio.Lock()

    async def refresh(self, registry: ToolRegistry) -> None:
        """Bring the registry up to date with the folder. Never raises."""
        async with self._refreshing:
            files = await asyncio.to_thread(self._scan)
            if files != self._files:
                self._files = files
                self._offer(registry)

    def withdraw(self, registry: ToolRegistry) -> None:
        """Remove all of them from the registry."""
        for name in self._tools:
            registry.unregister(name)

    async def close(self) -> None:
        """Stop the thread they run in."""
        self._worker.close()

    def _scan(self) -> dict[str, _File]:
        """Return each file with its tool; an unchanged file keeps its tool."""
        files = {}
        for name, stamp in sorted(self._stamps().items())[:MAX_FILES]:
            known = self._files.get(name)
            if known is not None and known.stamp == stamp:
                files[name] = known
            else:
                files[name] = _File(stamp, load_tool(self._folder / name, self._allowed_dirs))
        return files

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
        tools: dict[str, Tool] = {}
        for file, entry in self._files.items():
            tool = self._tool_of(file, entry.loaded, registry, tools)
            if tool is not None:
                tools[tool.name] = tool
        for name in self._tools.keys() - tools.keys():
            registry.unregister(name)
        for tool in tools.values():
            registry.register(tool)
        self._tools = tools

    def _tool_of(self, file: str, loaded: LoadedTool, registry: ToolRegistry, wanted: dict[str, Tool]) -> Tool | None:
        """Return the tool to register for a file: its own, or one that reports the problem; None if no name is free."""
        taken = loaded.name in wanted or (registry.has(loaded.name) and loaded.name not in self._tools)
        if not taken and loaded.tool is not None:
            return wrap_tool(loaded.tool, self._worker)
        reason = self._explain_conflict(loaded.name, wanted) if taken else loaded.reason
        logger.warning("The tool in tools/%s was not loaded. %s", file, reason)
        name = loaded.name if not taken else f"own_{loaded.name}"[:64]
        return BrokenTool(name, file, reason) if name not in wanted and not self._is_others(name, registry) else None

    def _explain_conflict(self, name: str, wanted: Mapping[str, Tool]) -> str:
        first = next(
            (file for file, entry in self._files.items() if name in wanted and entry.loaded.name == name), None
        )
        if first is not None:
            return f"tools/{first} has the name {name} already."
        return f"Another tool has the name {name}; a tool of your own cannot replace it."

    def _is_others(self, name: str, registry: ToolRegistry) -> bool:
        return registry.has(name) and name not in self._tools
