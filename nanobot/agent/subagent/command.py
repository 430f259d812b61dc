"""`/tasks`: what subagents work on."""

from nanobot.agent.command import CommandCall, CommandEntry, is_from_owner
from nanobot.agent.status import AgentStatus
from nanobot.agent.subagent.manager import SubagentManager
from nanobot.agent.subagent.tasks import Task
from nanobot.agent.subagent.texts import format_line
from nanobot.utils.clock import Clock


def tasks_command(subagents: SubagentManager, status: AgentStatus, clock: Clock) -> CommandEntry:
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
