"""The `spawn` tool, which gives a task to a subagent, and `/tasks`, which shows and stops what subagents work on."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nanobot.agent.command import CommandCall, CommandEntry, is_from_owner
from nanobot.agent.status import AgentStatus
from nanobot.agent.subagent.tasks import Task, format_line, format_tool_result
from nanobot.agent.tools.base import Access, Effect, Tool, ToolContext, ToolResult, boolean, string, takes
from nanobot.agent.work import WorkState
from nanobot.errors import NanobotError
from nanobot.utils.clock import Clock

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
                return ToolResult(format_tool_result(ended), error=failed, provenance=ended.seen)
            return ToolResult(await self._subagents.spawn(task, label, ctx=ctx))
        except NanobotError as error:
            return ToolResult.failed(str(error))


def tasks_command(subagents: "SubagentManager", status: AgentStatus, clock: Clock) -> CommandEntry:
    async def run(call: CommandCall) -> str:
        action, _, name = call.argument.lower().partition(" ")
        tasks = await subagents.all_tasks()
        if action == "stop" and name.strip():
            return await stop(call, name.strip(), tasks)
        if action not in ("", "list"):
            return "Use /tasks, or /tasks stop ID."
        sees_all, key = is_from_owner(call.message) and call.scope.is_owners, call.session.key
        lines = [line_of(task, key) for task in tasks if sees_all or task.order.belongs_to(key)]
        return "\n".join(lines) or "No subagent is running."

    def line_of(task: Task, session_key: str) -> str:
        now, session = clock.now().timestamp(), "" if task.order.belongs_to(session_key) else task.order.parent
        if task.state.is_over:
            return format_line(task, now, session=session)
        cost, doing = status.cost_of(task.session_key), subagents.last_action_of(task.id)
        return format_line(task, now, cost_usd=cost or task.cost_usd, doing=doing, session=session)

    async def stop(call: CommandCall, name: str, tasks: list[Task]) -> str:
        task = next((task for task in tasks if task.id == name), None)
        if task is None or not task.order.requester.is_controlled_by(call.message):
            return f"There is no task {name!r} that you can stop. /tasks lists them."
        if await subagents.stop_task(name, call.session.key):
            return f"Stopped: {task.order.label}"
        if task.state.is_over:
            return f"It has already ended ({task.state}). Nothing was stopped."
        return "Another nanobot process works on it. Nothing was stopped."

    return CommandEntry(run, "what subagents work on", "[stop ID]")
