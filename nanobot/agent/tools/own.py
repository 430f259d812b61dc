"""The user's own tools: Python files in the workspace's `tools/`, if the owner allows it. The folder is scanned before
each turn; new and changed files are loaded. They run in this process with all its rights.
"""

import asyncio
import hashlib
import inspect
import json
import logging
import os
import re
import sys
import types
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.messages.types import Provenance, ToolFailure, least_trusted
from nanobot.utils.aio import WorkerThread
from nanobot.utils.storage_error import error_text

logger = logging.getLogger(__name__)

MAX_FILES = 100
MAX_FILE_BYTES = 512 * 1024
TIMEOUT_S = 120.0
_LOAD_TIMEOUT_S = 10.0
_VALID_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")

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

        async def load() -> Tool:
            return load_tool(self._folder / file, self._allowed_dirs)

        try:
            return OwnTool(await self._worker.run(load, _LOAD_TIMEOUT_S), self._worker)
        except TimeoutError:
            reason = f"Loading it took more than {_LOAD_TIMEOUT_S:g} s."
        except InvalidToolError as error:
            reason = str(error)
        except Exception as error:  # isolate the user's code
            reason = f"{type(error).__name__}: {error_text(error)[:500]}."
        return BrokenTool(re.sub(r"[^A-Za-z0-9_-]+", "_", Path(file).stem)[:64] or "tool", file, reason)

    def _offer(self, registry: ToolRegistry) -> None:
        """Register the loaded tools. In the place of one whose name is taken comes one that says so."""
        tools: dict[str, Tool] = {}
        files: dict[str, str] = {}

        def is_free(name: str) -> bool:
            return name not in tools and (name in self._tools or not registry.has(name))

        for file, tool in self._loaded.items():
            if not is_free(tool.name):
                reason = f"Another tool has the name {tool.name}; a tool of your own cannot replace it."
                if tool.name in tools:
                    reason = f"tools/{files[tool.name]} has the name {tool.name} already."
                tool = BrokenTool(f"own_{tool.name}"[:64], file, reason)  # noqa: PLW2901 - in its place
            if is_free(tool.name):
                tools[tool.name], files[tool.name] = tool, file
        for name in self._tools.keys() - tools.keys():
            registry.unregister(name)
        for tool in tools.values():
            registry.register(tool)
        self._tools = tools


# -- loading a file ----------------------------------------------------------------------------------------------------


class InvalidToolError(Exception):
    """The file has no valid tool. The text says why, in whole sentences."""


def load_tool(path: Path, allowed_dirs: Sequence[Path]) -> Tool:
    """Run the file and create its tool. Raises InvalidToolError, and whatever the file raises."""
    if path.stat().st_size > MAX_FILE_BYTES:
        raise InvalidToolError(f"It is larger than {MAX_FILE_BYTES // 1024} kB.")
    source = path.read_bytes().decode("utf-8-sig")
    digest = hashlib.sha256(source.encode()).hexdigest()[:12]
    module = types.ModuleType(f"nanobot_own_tools.{path.stem}_{digest}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and annotations look up the module of a class there
    try:
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - the purpose here
    except BaseException:
        del sys.modules[module.__name__]
        raise
    members = [member for member in vars(module).values() if inspect.isclass(member)]
    kind = next((kind for kind in members if issubclass(kind, Tool) and kind.__module__ == module.__name__), None)
    if kind is None:
        raise InvalidToolError("It has no class that is a nanobot.agent.tools.base.Tool.")
    parameters = inspect.signature(kind.__init__).parameters
    kwargs: dict[str, Any] = {"allowed_dirs": list(allowed_dirs)} if "allowed_dirs" in parameters else {}
    tool: Tool = kind(**kwargs)
    check_tool(tool)
    return tool


def check_tool(tool: Tool) -> None:
    """Check the tool's attributes. Raises InvalidToolError."""
    name, text, schema = (getattr(tool, word, None) for word in ("name", "description", "parameters"))
    if not isinstance(name, str) or not _VALID_NAME.match(name):
        raise InvalidToolError("Its `name` has to be a text of letters, digits, _ and -, 64 at most.")
    if not isinstance(text, str) or not text.strip():
        raise InvalidToolError("Its `description` has to be a text: the model chooses by it.")
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise InvalidToolError('Its `parameters` have to be a JSON schema with "type": "object".')
    if not isinstance(tool.effect, Effect):
        raise InvalidToolError("Its `effect` has to be one of nanobot.agent.tools.base.Effect.")


# -- running it --------------------------------------------------------------------------------------------------------


class OwnTool(Tool):
    """Wraps the user's tool: its name and schema, our timeout and error isolation. Its attributes count as far as they
    do not make it more trusted.
    """

    def __init__(self, tool: Tool, worker: WorkerThread, timeout_s: float = TIMEOUT_S) -> None:
        self.name = tool.name
        self.description = tool.description
        self.parameters = tool.parameters
        self.effect, self.alone, self.polls, self.derives = tool.effect, tool.alone, tool.polls, tool.derives
        self.provenance = least_trusted([Provenance.TOOL, Provenance(tool.provenance)])
        self._tool = tool
        self._worker = worker
        self._timeout_s = timeout_s

    @cached_property
    def wants_context(self) -> bool:
        """Whether the user's tool declares `ctx`."""
        return self._tool.wants_context

    def validate_params(self, params: dict[str, Any]) -> list[str]:
        return self._tool.validate_params(params)

    async def execute(self, /, **arguments: Any) -> ToolResult | str:
        """Run the tool; it may return anything."""
        ctx = arguments.get("ctx")
        if isinstance(ctx, ToolContext):
            loop, report = asyncio.get_running_loop(), ctx.emit

            def emit(text: str) -> None:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(report, text)

            arguments["ctx"] = replace(ctx, emit=emit)

        async def run() -> Any:
            returned: Any = self._tool.execute(**arguments)
            while inspect.isawaitable(returned):
                returned = await returned
            return returned

        try:
            returned: ToolResult | str = await self._worker.run(run, self._timeout_s)
            return _sanitize(returned, self.provenance) if isinstance(returned, ToolResult) else returned
        except TimeoutError:
            return ToolResult.failed(f"{self.name} was stopped after {self._timeout_s:g} s. Ask it for less.")


def _sanitize(result: ToolResult, max_trust: Provenance) -> ToolResult:
    """Return a result with valid fields, trusted no more than its tool."""
    content, failure = cast("tuple[object, object]", (result.content, result.failure))
    if not isinstance(content, str) and not (isinstance(content, list) and content and all(map(_is_block, content))):
        content = json.dumps(content, ensure_ascii=False, default=str)
    trust = max_trust if result.provenance is None else least_trusted([max_trust, str(result.provenance)])
    return ToolResult(
        cast("str | list[dict[str, Any]]", content),
        error=bool(result.error),
        provenance=trust,
        display=result.display if isinstance(result.display, str) else None,
        failure=failure if isinstance(failure, ToolFailure) else ToolFailure.ENDED_BADLY,
    )


def _is_block(block: object) -> bool:
    """Return whether this is a text or image block."""
    match block:
        case {"type": "text", "text": str()} | {"type": "image_url", "image_url": {"url": str()}}:
            return True
        case _:
            return False


class BrokenTool(Tool):
    """Replaces a tool whose file could not be loaded, so that the agent learns why and can fix the file."""

    effect = Effect.READ

    def __init__(self, name: str, file: str, reason: str) -> None:
        logger.warning("The tool in tools/%s was not loaded. %s", file, reason)
        self.name = name
        self.parameters = {"type": "object", "properties": {}}
        self.description = f"tools/{file} was not loaded. {reason[:600]} Fix the file to get this tool back."
        self._text = f"tools/{file} was not loaded. {reason} Fix the file: it is loaded again before the next turn."

    async def execute(self, /, **_: Any) -> ToolResult:
        return ToolResult.failed(self._text)
