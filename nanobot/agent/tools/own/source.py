"""The workspace's `tools/` as a source of tools: scanned before each turn, new and changed files are loaded."""

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from nanobot.agent.tools.base import Tool
from nanobot.agent.tools.own.loading import InvalidToolError, load_tool, name_from
from nanobot.agent.tools.own.tool import BrokenTool, OwnTool
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.utils.storage_error import error_text
from nanobot.utils.worker_thread import WorkerThread

logger = logging.getLogger(__name__)

MAX_FILES = 100
_LOAD_TIMEOUT_S = 10.0

_Stamp = tuple[int, int, int]
"""Changes with the file: modification time, size, inode."""


class OwnTools:
    """The user's own tools."""

    def __init__(self, workspace: Path, worker: WorkerThread, allowed: Sequence[Path] = ()) -> None:
        """They are loaded and run in `worker`; `allowed` are the folders besides the workspace that they may use."""
        self._folder = workspace / "tools"
        self._allowed_dirs = [workspace, *allowed]
        self._stamps: dict[str, _Stamp] = {}
        self._loaded: dict[str, Tool] = {}
        """The tool of each file."""
        self._tools: dict[str, Tool] = {}
        """Those registered, by name."""
        self._worker = worker
        self._refreshing = asyncio.Lock()

    async def refresh(self, registry: ToolRegistry) -> None:
        """Bring the registry up to date with the folder. Never raises."""
        async with self._refreshing:
            stamps = await asyncio.to_thread(self._scan)
            if stamps != self._stamps:
                unchanged = stamps.items() & self._stamps.items()
                kept = {file: self._loaded[file] for file, _ in unchanged}
                self._loaded = {file: kept.get(file) or await self._load(file) for file in stamps}
                self._stamps = stamps
                self._offer(registry)

    def withdraw(self, registry: ToolRegistry) -> None:
        """Remove all of them from the registry."""
        for name in self._tools:
            registry.unregister(name)

    async def close(self) -> None:
        """The worker is closed by its owner."""

    def _scan(self) -> dict[str, _Stamp]:
        try:
            with os.scandir(self._folder) as entries:
                stamps = {
                    entry.name: (stat.st_mtime_ns, stat.st_size, stat.st_ino)
                    for entry in entries
                    if entry.name.endswith(".py") and not entry.name.startswith(("_", "."))
                    if entry.is_file() and (stat := entry.stat())
                }
        except OSError:
            return {}
        return dict(sorted(stamps.items())[:MAX_FILES])

    async def _load(self, file: str) -> Tool:
        """Load the tool of a file, or one that reports why there is none."""
        path = self._folder / file

        async def load() -> Tool:
            return load_tool(path, self._allowed_dirs)

        try:
            return OwnTool(await self._worker.run(load, _LOAD_TIMEOUT_S), self._worker)
        except TimeoutError:
            reason = f"Loading it took more than {_LOAD_TIMEOUT_S:g} s."
        except InvalidToolError as error:
            reason = str(error)
        except Exception as error:  # isolate the user's code
            reason = f"{type(error).__name__}: {error_text(error)[:500]}."
        return self._broken(name_from(path), file, reason)

    def _broken(self, name: str, file: str, reason: str) -> Tool:
        logger.warning("The tool in tools/%s was not loaded. %s", file, reason)
        return BrokenTool(name, file, reason)

    def _offer(self, registry: ToolRegistry) -> None:
        tools: dict[str, Tool] = {}
        files: dict[str, str] = {}
        for file, tool in self._loaded.items():
            name = tool.name
            if name in tools or (registry.has(name) and name not in self._tools):
                reason = f"Another tool has the name {name}; a tool of your own cannot replace it."
                if name in tools:
                    reason = f"tools/{files[name]} has the name {name} already."
                name = f"own_{name}"[:64]
                if name in tools or (registry.has(name) and name not in self._tools):
                    continue
                tool = self._broken(name, file, reason)  # noqa: PLW2901 - in its place
            tools[name], files[name] = tool, file
        for name in self._tools.keys() - tools.keys():
            registry.unregister(name)
        for tool in tools.values():
            registry.register(tool)
        self._tools = tools
