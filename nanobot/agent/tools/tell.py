"""The `tell` tool: a few words from one subagent of a goal to others of it.

Only they have it. It knows nothing of who they are or how they are reached: that stands behind a port.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult
from nanobot.agent.tools.reach import Reach
from nanobot.agent.tools.schema import string, takes
from nanobot.errors import NanobotError

MOST_CHARS = 1_000


class Mates(Protocol):
    """The other subagents of a goal."""

    async def tell(self, to: str, text: str, *, ctx: ToolContext) -> str:
        """Send them this; what the sender is told. The same words to the same one count once. Raises NanobotError where
        nobody gets it, which says what would be right.
        """
        ...


class TellTool(Tool):
    """A message to a teammate."""

    name = "tell"
    description = "Send a teammate a short message, which they read between their steps. Long texts go into the notes."
    parameters = takes(
        "to",
        "text",
        to=string("A teammate's name or id, or all"),
        text=string(f"At most {MOST_CHARS:,} characters"),
    )
    effect = Effect.REPEATABLE  # the same words to the same one are sent once

    def __init__(self, mates: Mates) -> None:
        self._mates = mates

    async def reaches(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Reach]:
        """Nothing by itself: what a teammate does then is judged call by call; the words keep where they came from."""
        return ()

    async def execute(self, to: str, text: str, *, ctx: ToolContext) -> ToolResult:
        """Send it. Cancelling may come too late to keep it from being read."""
        if not text.strip():
            return ToolResult.failed("There is nothing to tell. Say it in `text`.")
        if len(text) > MOST_CHARS:
            return ToolResult.failed(
                f"That is {len(text):,} characters long, and {MOST_CHARS:,} are the most. Write it into a file in the "
                "notes folder, and tell them its name."
            )
        try:
            return ToolResult(await self._mates.tell(to, text, ctx=ctx))
        except NanobotError as error:
            return ToolResult.failed(str(error))
