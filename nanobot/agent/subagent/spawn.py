"""The `spawn` tool: gives a task to a subagent, in the background or while the turn waits for the report."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nanobot.agent.subagent.texts import tool_result
from nanobot.agent.tools.base import Access, Effect, Tool, ToolContext, ToolResult, boolean, string, takes
from nanobot.agent.work import WorkState
from nanobot.errors import NanobotError

if TYPE_CHECKING:
    from nanobot.agent.subagent.manager import SubagentManager


class SpawnTool(Tool):
    name = "spawn"
    description = (
        "Hand a task to a subagent that works in the background; several may work at once. Its report arrives as a "
        "message, or as the result of this call when wait is true."
    )
    parameters = takes(
        "task",
        task=string("The task with everything it must know: it sees nothing of this conversation"),
        label=string("Short name of the task, shown to the user"),
        wait=boolean("Wait for the report (default false)"),
    )
    effect = Effect.REPEATABLE  # the same task of the same turn is the same subagent

    def __init__(self, subagents: "SubagentManager") -> None:
        self._subagents = subagents

    async def required_access(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Access]:
        """Return nothing: the subagent's calls are judged one by one, and its words keep their provenance."""
        return ()

    async def execute(
        self, task: str, label: str | None = None, wait: bool = False, *, ctx: ToolContext | None = None
    ) -> ToolResult:
        """Start the subagent, or wait for its report. Cancelling is as in `SubagentManager.run_to_end`."""
        if not task.strip():
            return ToolResult.failed("There is no task. Say in `task` what is to be done, with everything needed.")
        try:
            if ctx is not None and (wait or self._subagents.must_wait(ctx)):
                ended = await self._subagents.run_to_end(await self._subagents.order(task, label, ctx), ctx.emit)
                failed = ended.state in (WorkState.FAILED, WorkState.STOPPED)
                return ToolResult(tool_result(ended), error=failed, provenance=ended.seen)
            return ToolResult(await self._subagents.spawn(task, label, ctx=ctx))
        except NanobotError as error:
            return ToolResult.failed(str(error))
