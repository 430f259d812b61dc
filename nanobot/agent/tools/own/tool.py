"""A user's own tool as the registry has it: run aside, with a limit of time; and one that could not be loaded."""

import asyncio
import inspect
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult
from nanobot.agent.tools.own.aside import Aside
from nanobot.messages.types import Provenance, ToolFailure, least_trusted

LIMIT_S = 120.0


class OwnTool(Tool):
    """Stands around the user's: its names and its schema, our walls."""

    def __init__(self, tool: Tool, aside: Aside, limit_s: float = LIMIT_S) -> None:
        self.name = tool.name
        self.description = tool.description
        self.parameters = tool.parameters
        self._tool = tool
        self._aside = aside
        self._limit_s = limit_s

    @property
    def wants_context(self) -> bool:
        """Whether the user's tool asks for the turn."""
        return self._tool.wants_context

    def validate_params(self, params: dict[str, Any]) -> list[str]:
        """What is wrong with these arguments, as the user's tool judges."""
        return self._tool.validate_params(params)

    async def execute(self, /, **arguments: Any) -> ToolResult | str:
        """Run it; it may return whatever it likes."""
        ctx = arguments.get("ctx")
        if isinstance(ctx, ToolContext):
            arguments["ctx"] = replace(ctx, emit=_from_aside(ctx.emit))
        try:
            returned: ToolResult | str = await self._aside.run(self._run(arguments), self._limit_s)
            return _sound(returned, self.provenance) if isinstance(returned, ToolResult) else returned
        except TimeoutError:
            return ToolResult.failed(f"{self.name} was stopped after {self._limit_s:g} s. Ask it for less.")

    async def _run(self, arguments: dict[str, Any]) -> Any:
        returned: Any = self._tool.execute(**arguments)
        while inspect.isawaitable(returned):
            returned = await returned
        return returned


def _sound(result: ToolResult, most: Provenance) -> ToolResult:
    """A result whose fields hold what they promise, trusted no more than its tool."""
    content, failure = cast("tuple[object, object]", (result.content, result.failure))
    if not isinstance(content, str) and not (isinstance(content, list) and content and all(map(_is_block, content))):
        content = json.dumps(content, ensure_ascii=False, default=str)
    trust = most if result.provenance is None else least_trusted([most, str(result.provenance)])
    return ToolResult(
        cast("str | list[dict[str, Any]]", content),
        error=bool(result.error),
        provenance=trust,
        display=result.display if isinstance(result.display, str) else None,
        failure=failure if isinstance(failure, ToolFailure) else ToolFailure.ENDED_BADLY,
    )


def _is_block(block: object) -> bool:
    """Whether this is text or a picture, as messages hold them."""
    match block:
        case {"type": "text", "text": str()} | {"type": "image_url", "image_url": {"url": str()}}:
            return True
        case _:
            return False


def _from_aside(emit: Callable[[str], None]) -> Callable[[str], None]:
    """What belongs to our loop, to be called from theirs."""
    here = asyncio.get_running_loop()

    def emit_here(text: str) -> None:
        with suppress(RuntimeError):  # too late: our loop is closed
            here.call_soon_threadsafe(emit, text)

    return emit_here


def own_tool(tool: Tool, aside: Aside, limit_s: float = LIMIT_S) -> OwnTool:
    """The tool within our walls. What it says of itself counts where that makes it no more trusted."""
    said = {word: getattr(tool, word) for word in ("effect", "alone", "polls", "derives")}
    provenance = least_trusted([Provenance.TOOL, Provenance(tool.provenance)])
    kind = type("OwnTool", (OwnTool,), {**said, "provenance": provenance})
    made: OwnTool = kind(tool, aside, limit_s)
    return made


class BrokenTool(Tool):
    """In the place of a tool whose file could not be loaded: so the agent learns why, and can mend the file."""

    effect = Effect.READ

    def __init__(self, name: str, file: str, reason: str) -> None:
        self.name = name
        self.parameters = {"type": "object", "properties": {}}
        self.description = f"Out of order: tools/{file} was not loaded. {reason[:600]} Mend the file, and it is back."
        self._said = f"tools/{file} was not loaded. {reason} Mend the file: it is loaded again before the next turn."

    async def execute(self, /, **_: Any) -> ToolResult:
        """Say why."""
        return ToolResult.failed(self._said)
