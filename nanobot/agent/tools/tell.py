"""The `tell` tool: a short message from one subagent of a goal to its teammates. Nobody else has it."""

from collections.abc import Sequence
from typing import Any, Protocol

from nanobot.agent.tools.access import Access
from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult, string, takes
from nanobot.errors import NanobotError

MAX_CHARS = 1_000


class Teammates(Protocol):
    """The other subagents of a goal."""

    async def tell(self, to: str, text: str, *, ctx: ToolContext) -> str:
        """Send them the text; return the text for the sender. The same text to the same teammate is sent once. Raises
        NanobotError, which says what would be right, if nobody gets it.
        """
        ...


class TellTool(Tool):
    name = "tell"
    description = (
        "Send a short message to a teammate, read between their steps. Put long texts into the notes folder instead."
    )
    parameters = takes(
        "to",
        "text",
        to=string("Name or id of a teammate, or all"),
        text=string(f"The message, at most {MAX_CHARS:,} characters"),
    )
    effect = Effect.REPEATABLE  # the same text to the same teammate is sent once

    def __init__(self, teammates: Teammates) -> None:
        self._teammates = teammates

    async def required_access(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Access]:
        """Return nothing: a teammate's calls are judged one by one, and the text keeps its provenance."""
        return ()

    async def execute(self, to: str, text: str, *, ctx: ToolContext) -> ToolResult:
        """Send the text. Cancelling may come too late to keep it from being read."""
        if not text.strip():
            return ToolResult.failed("There is nothing to tell. Say it in `text`.")
        if len(text) > MAX_CHARS:
            return ToolResult.failed(
                f"That is {len(text):,} characters long; the maximum is {MAX_CHARS:,}. Write it into a file in the "
                "notes folder, and tell them its name."
            )
        try:
            return ToolResult(await self._teammates.tell(to, text, ctx=ctx))
        except NanobotError as error:
            return ToolResult.failed(str(error))
