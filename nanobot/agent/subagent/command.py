"""`/tasks`: what subagents work on."""

from nanobot.agent.command import CommandCall, CommandEntry, is_from_owner
from nanobot.agent.status import AgentStatus
from nanobot.agent.subagent import texts
from nanobot.agent.subagent.manager import SubagentManager
from nanobot.utils.clock import Clock


def tasks_command(subagents: SubagentManager, status: AgentStatus, clock: Clock) -> CommandEntry:
    async def run(call: CommandCall) -> str:
        action, _, name = call.argument.partition(" ")
        if action.lower() == "stop" and name.strip():
            return await stop(call, name.strip().lower())
        if action and action.lower() != "list":
            return "Use /tasks, or /tasks stop ID."
        return await list_tasks(call)

    async def list_tasks(call: CommandCall) -> str:
        sees_all, key = is_from_owner(call.message) and call.scope.is_owners, call.session.key
        now = clock.now().timestamp()
        lines = [
            texts.format_line(
                task,
                now,
                cost_usd=None if task.state.is_over else status.cost_of(task.session_key) or task.cost_usd,
                doing="" if task.state.is_over else subagents.last_action_of(task.id),
                session="" if task.order.belongs_to(key) else task.order.parent,
            )
            for task in await subagents.all_tasks()
            if sees_all or task.order.belongs_to(key)
        ]
        return "\n".join(lines) or "No subagent is running."

    async def stop(call: CommandCall, name: str) -> str:
        task = next((task for task in await subagents.all_tasks() if task.id == name), None)
        if task is None or not task.order.requester.is_controlled_by(call.message):
            return f"There is no task {name!r} that you can stop. /tasks lists them."
        if await subagents.stop_task(name, call.session.key):
            return f"Stopped: {task.order.label}"
        is_over = task.state.is_over
        ended = f"It has already ended ({task.state})." if is_over else "Another nanobot process works on it."
        return f"{ended} Nothing was stopped."

    return CommandEntry(run, "what subagents work on", "[stop ID]")
