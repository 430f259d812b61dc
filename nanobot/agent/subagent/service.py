"""Subagents of a runtime, for the tool, the loop, commands and user interfaces.

The manager is created with the first task, so that turns without subagents do not load it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING

from nanobot.agent.approval.taint_policies import TaskTaint
from nanobot.agent.commands.context import CommandCall, CommandEntry
from nanobot.agent.commands.table import is_from_owner
from nanobot.agent.pipeline.turn import TurnDeps
from nanobot.agent.subagent.environment import SubagentEnvironment
from nanobot.bus.events import InboundMessage
from nanobot.utils.database import Database
from nanobot.utils.lease import ProcessLease

if TYPE_CHECKING:
    from nanobot.agent.loop import AgentLoop
    from nanobot.agent.subagent.manager import SubagentManager
    from nanobot.agent.subagent.tasks import Task
    from nanobot.agent.subagent.turns import TaskTurns
    from nanobot.agent.tools.builtin import ToolPolicies


class SubagentService:
    """The subagents of one runtime. The manager is created on first use."""

    def __init__(
        self, database: Database, lease: ProcessLease, environment: SubagentEnvironment, task_taint: TaskTaint
    ) -> None:
        """The database has the tables of tasks and team messages."""
        self._database = database
        self._lease = lease
        self._environment = environment
        self._task_taint = task_taint
        self._loop: AgentLoop | None = None
        self._deps: TurnDeps | None = None
        self._goal_of: Callable[[str], Awaitable[str]] | None = None
        self._turns: TaskTurns | None = None

    def join(self, loop: "AgentLoop", deps: TurnDeps, goal_of: Callable[[str], Awaitable[str]]) -> None:
        """Set the loop that reports go to, its turn dependencies, and the lookup of a session's goal id; once, before
        the first turn.
        """
        self._loop, self._deps, self._goal_of = loop, deps, goal_of

    @cached_property
    def manager(self) -> "SubagentManager":
        """Created with everything it needs on first use."""
        from nanobot.agent.subagent.mailbox import TeamMailbox  # imported on first use
        from nanobot.agent.subagent.manager import SubagentManager, SubagentPolicy
        from nanobot.agent.subagent.reports import TaskReports
        from nanobot.agent.subagent.tasks import TaskStore
        from nanobot.agent.subagent.team import TeamService
        from nanobot.agent.subagent.turns import TaskTurns

        loop, deps, environment, goal_of = self._loop, self._deps, self._environment, self._goal_of
        assert loop is not None and deps is not None and goal_of is not None  # noqa: S101 joined before the first turn
        defaults = environment.defaults
        policy = SubagentPolicy(
            defaults.max_concurrent_subagents,
            defaults.subagent_timeout_s,
            defaults.subagent_depth,
            keep_days=defaults.subagent_keep_days,
        )
        team = TeamService(TeamMailbox(self._database), goal_of, deps.clock)
        turns, reports = TaskTurns(environment, deps, self._task_taint, team), TaskReports(environment.bus, deps, loop)
        self._turns = turns
        store = TaskStore(self._database, self._lease)
        return SubagentManager(store, turns, reports, team, deps.clock, policy, lambda: loop.is_stopping)

    def renew(self, policies: "ToolPolicies") -> None:
        """Apply a changed config: subagents that start from now on use these tools."""
        self._environment.policies = policies
        if self._turns is not None:
            self._turns.renew()

    @property
    def is_created(self) -> bool:
        """Whether this process has used subagents."""
        return "manager" in self.__dict__

    # --- for the loop

    async def recover(self, session_key: str | None = None) -> None:
        """Resume the unfinished tasks of previous processes, of one session or all. Never raises."""
        if self.is_created or self._database.path.exists():
            await self.manager.recover(session_key)

    async def stop_for(self, message: InboundMessage) -> list[str]:
        """Stop the subagents of the message's session that the sender may stop. Return their labels."""
        if not self.is_created:
            return []
        return [task.label for task in await self.manager.stop_for(message.session_key, partial(_may_stop, message))]

    async def forget_session(self, session_key: str) -> tuple[list[str], list[str]]:
        """Stop the session's subagents without reports. Return their labels, and the keys of reports that may still
        arrive. Raises StorageError.
        """
        stopped, keys = await self.manager.forget_session(session_key)
        return [task.label for task in stopped], keys

    # --- for user interfaces

    async def wait_reported(self, session_key: str) -> None:
        """Wait until nothing runs for this session and the turns that report it have ended."""
        if not self.is_created:
            return
        loop, bus = self._loop, self._environment.bus
        assert loop is not None  # noqa: S101 else nothing was made
        await self.manager.wait_reported(session_key)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._environment.defaults.subagent_timeout_s):
                await bus.wait_settled(session_key)
                async with loop.lane(session_key):
                    pass

    def labels_of(self, session_key: str | None = None) -> list[str]:
        """Return the labels of what runs or is about to report, for this session or any."""
        return [task.label for task in self.manager.tasks_of(session_key)] if self.is_created else []

    @property
    def command(self) -> CommandEntry:
        return CommandEntry(self._run_command, "what subagents work on", "[stop ID]")

    async def _run_command(self, call: CommandCall) -> str:
        action, _, name = call.argument.partition(" ")
        if action.lower() == "stop" and name.strip():
            return await self._stop(call, name.strip().lower())
        if action and action.lower() != "list":
            return "Use /tasks, or /tasks stop ID."
        return await self._list_tasks(call)

    async def _list_tasks(self, call: CommandCall) -> str:
        from nanobot.agent.subagent import texts

        manager, deps = self.manager, self._deps
        assert deps is not None  # noqa: S101 as above
        sees_all = is_from_owner(call.message) and call.scope.is_owners
        session_key = call.session.key
        tasks = [task for task in await manager.all_tasks() if sees_all or session_key in (task.parent, task.root)]
        now = deps.clock.now().timestamp()
        lines = [
            texts.format_line(
                task,
                now,
                cost_usd=None if task.state.is_over else deps.status.cost_of(task.session_key) or task.cost_usd,
                doing="" if task.state.is_over else manager.last_action_of(task.id),
                session="" if session_key in (task.parent, task.root) else task.parent,
            )
            for task in tasks
        ]
        return "\n".join(lines) or "No subagent is running."

    async def _stop(self, call: CommandCall, name: str) -> str:
        session_key = call.session.key
        tasks = [task for task in await self.manager.all_tasks() if task.id == name]
        if not tasks or not _may_stop(call.message, tasks[0]):
            return f"There is no task {name!r} that you can stop. /tasks lists them."
        if await self.manager.stop_task(name, session_key):
            return f"Stopped: {tasks[0].label}"
        ended = (
            f"It has already ended ({tasks[0].state})."
            if tasks[0].state.is_over
            else "Another nanobot process works on it."
        )
        return f"{ended} Nothing was stopped."

    # --- shutdown

    async def close(self) -> None:
        """Interrupt what runs. It continues at the next start."""
        if self.is_created:
            await self.manager.close()

    async def release(self) -> None:
        """Release the tasks, after the last turn."""
        if self.is_created:
            await self.manager.release()


def _may_stop(message: InboundMessage, task: "Task") -> bool:
    """Whether the sender may stop the task: who asked for it and owners may."""
    return is_from_owner(message) or (message.channel, message.sender_id) == (task.address.channel, task.sender_id)
