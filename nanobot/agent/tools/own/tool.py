"""A user's own tool as registered: run in the worker thread with a timeout; and one that could not be loaded."""

import asyncio
import inspect
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult
from nanobot.messages.types import Provenance, ToolFailure, least_trusted
from nanobot.utils.worker_thread import WorkerThread

TIMEOUT_S = 120.0


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

    @property
    def wants_context(self) -> bool:
        """Whether the user's tool declares `ctx`."""
        return self._tool.wants_context

    def validate_params(self, params: dict[str, Any]) -> list[str]:
        return self._tool.validate_params(params)

    async def execute(self, /, **arguments: Any) -> ToolResult | str:
        """Run the tool; it may return anything."""
        ctx = arguments.get("ctx")
        if isinstance(ctx, ToolContext):
            arguments["ctx"] = replace(ctx, emit=_thread_safe(ctx.emit))
        try:
            returned: ToolResult | str = await self._worker.run(partial(self._run, arguments), self._timeout_s)
            return _sanitize(returned, self.provenance) if isinstance(returned, ToolResult) else returned
        except TimeoutError:
            return ToolResult.failed(f"{self.name} was stopped after {self._timeout_s:g} s. Ask it for less.")

    async def _run(self, arguments: dict[str, Any]) -> Any:
        returned: Any = self._tool.execute(**arguments)
        while inspect.isawaitable(returned):
            returned = await returned
        return returned


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


def _thread_safe(emit: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that other threads may call; `emit` runs on this loop."""
    loop = asyncio.get_running_loop()

    def emit_here(text: str) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(emit, text)

    return emit_here


class BrokenTool(Tool):
    """Replaces a tool whose file could not be loaded, so that the agent learns why and can fix the file."""

    effect = Effect.READ

    def __init__(self, name: str, file: str, reason: str) -> None:
        self.name = name
        self.parameters = {"type": "object", "properties": {}}
        self.description = f"tools/{file} was not loaded. {reason[:600]} Fix the file to get this tool back."
        self._text = f"tools/{file} was not loaded. {reason} Fix the file: it is loaded again before the next turn."

    async def execute(self, /, **_: Any) -> ToolResult:
        return ToolResult.failed(self._text)
