"""The `spawn` tool: work that a subagent does by itself, in the background or while the turn waits for it.

It knows nothing of how subagents run: what it asks for goes through a port.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol

from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult
from nanobot.agent.tools.reach import Reach
from nanobot.agent.tools.schema import boolean, string, takes
from nanobot.errors import NanobotError

WITHHELD = frozenset({"message", "spawn", "cron", "goal"})
"""Tools that subagents have not: they speak to nobody, and make no work that outlives them."""
RESULT = "Subagent {id}:"
"""How the result begins of one that was waited for."""


class Spawner(Protocol):
    """Where subagents come from. A refusal is a NanobotError that says what would be right."""

    async def spawn(self, task: str, label: str | None = None, *, ctx: ToolContext | None = None) -> str:
        """Have it done in the background; what the agent is told at once."""
        ...

    async def run(self, task: str, label: str | None = None, *, ctx: ToolContext) -> ToolResult:
        """Have it done now; what came of it. Cancelling ends the subagent, unless nanobot itself ends: then it goes
        on at the next start.
        """
        ...

    def must_wait(self, ctx: ToolContext) -> bool:
        """Whether nobody could be told later, so that this turn has to wait."""
        ...


class SpawnTool(Tool):
    """Work given to a subagent."""

    name = "spawn"
    description = (
        "Hand a task to a subagent. It works in the background, several side by side; its result comes as a message, "
        "with wait as this call's."
    )
    parameters = takes(
        "task",
        task=string("All it must know: it sees none of this talk"),
        label=string(),
        wait=boolean(),
    )
    effect = Effect.REPEATABLE  # the same task of the same turn is the same subagent

    def __init__(self, open_spawner: Callable[[], Spawner]) -> None:
        """`open_spawner` is asked when the tool is used first: most turns need no subagent."""
        self._open_spawner = open_spawner

    @cached_property
    def _spawner(self) -> Spawner:
        return self._open_spawner()

    async def reaches(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Reach]:
        """Nothing by itself: what the subagent does is judged call by call, and its words keep where they came from."""
        return ()

    async def execute(
        self, task: str, label: str | None = None, wait: bool = False, *, ctx: ToolContext | None = None
    ) -> ToolResult:
        """Start it, or see it through. Cancelling is as safe as in `Spawner.run`."""
        if not task.strip():
            return ToolResult.failed("There is no task. Say in `task` what is to be done, with all that is needed.")
        try:
            if ctx is not None and (wait or self._spawner.must_wait(ctx)):
                return await self._spawner.run(task, label, ctx=ctx)
            return ToolResult(await self._spawner.spawn(task, label, ctx=ctx))
        except NanobotError as error:
            return ToolResult.failed(str(error))
