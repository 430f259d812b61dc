"""The turns of subagents: what prompt, tools and limits the loop uses in them."""

import asyncio
from collections.abc import Collection, Iterable
from functools import partial

from nanobot.agent.context import ContextBuilder
from nanobot.agent.pipeline.turn import TurnDeps, TurnProfile
from nanobot.agent.subagent.roles import ROLES, TaskRole
from nanobot.agent.subagent.tasks import Task, TaskOrder
from nanobot.agent.subagent.team import (
    MAX_READ_PER_TURN,
    TeamService,
    TellTool,
    goal_notes,
    is_team_message,
    make_notes,
)
from nanobot.agent.subagent.texts import SubagentPrompt
from nanobot.agent.tools.base import Tool, ToolResult, takes
from nanobot.agent.tools.builtin import ToolPolicies, build_tools
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.tools.shell import ExecTool
from nanobot.bus.events import InboundMessage
from nanobot.config.schema import AgentDefaults
from nanobot.messages.types import ChatMessage, Origin, is_outside

EXCLUDED_TOOLS = frozenset({"message", "spawn", "cron", "goal"})
"""Tools that subagents do not have: they talk to nobody and create no work that outlives them."""


class TaskProfiles:
    def __init__(
        self,
        deps: TurnDeps,
        defaults: AgentDefaults,
        context: ContextBuilder,
        policies: ToolPolicies,
        team: TeamService,
    ) -> None:
        """`deps` are those of the agent, whose dynamic tools workers share."""
        self._deps = deps
        self._defaults = defaults
        self._context = context
        self._policies = policies
        self._team = team
        self._tools: dict[tuple[TaskRole, bool, bool], ToolRegistry] = {}
        """By role, whether it may start subagents, and whether it is in a team."""

    def renew(self, policies: ToolPolicies) -> None:
        """Use these tools in the turns that start from now on."""
        self._policies = policies
        self._tools.clear()

    def max_steps(self, role: TaskRole) -> int:
        return min(ROLES[role].steps, self._defaults.max_tool_iterations)

    async def make(self, task: Task) -> TurnProfile:
        """Prepare a turn of this task. Raises StorageError."""
        order, in_team = task.order, self._team.has(task)
        steps, scope = self.max_steps(order.role), order.requester.scope
        if order.goal:
            await asyncio.to_thread(make_notes, self._policies.paths, scope, order.goal)
        if in_team:
            await self._team.begin_turn(task, await asyncio.to_thread(self._keys_read, task))
        profile = TurnProfile(
            prompt=SubagentPrompt(
                self._deps.workspace,
                steps,
                lambda scope: self._context.runtime_context(scope=scope),
                order.role,
                in_team,
            ),
            tools=self._tools_of(order, in_team=in_team),
            max_steps=steps,
            scope=scope,
            is_subagent=True,
            goal_session=order.root if order.requester.origin is Origin.GOAL else "",
            note=partial(self._team_note, task),
            untrusted_rows=partial(self._labels_of_others, task),
        )
        if in_team:
            profile.waiting = partial(self._team.take, task)
            profile.max_joining, profile.joins_at_start = MAX_READ_PER_TURN, True
        return profile

    def _keys_read(self, task: Task) -> set[str]:
        """Return the keys of the team messages in its session."""
        rows = self._deps.sessions.get_or_create(task.session_key).since(0)
        return {row["inbound"] for row in rows if "inbound" in row}

    def _team_note(self, task: Task, message: InboundMessage) -> str:
        """Return the notes folder and teammates for a subagent of a goal."""
        goal = task.order.goal
        if not goal or is_team_message(message.journal_key):
            return ""
        return self._team.note(task, goal_notes(self._policies.paths, task.order.requester.scope, goal))

    def _labels_of_others(self, task: Task) -> list[ChatMessage]:
        """Return the teammates' labels as untrusted rows: a model chose them after it may have read anything."""
        return [
            {
                "role": "tool",
                "name": "team",
                "content": other.order.label,
                "provenance": other.order.requester.provenance,
            }
            for other in self._team.others(task)
            if is_outside(other.order.requester.provenance)
        ]

    def _tools_of(self, order: TaskOrder, *, in_team: bool) -> ToolRegistry:
        may_spawn = order.depth < self._defaults.subagent_depth
        key, names = (order.role, may_spawn, in_team), ROLES[order.role].tools
        if key not in self._tools:
            extra_tools = [
                self._deps.tools.get("spawn") if may_spawn else None,
                TellTool(self._team) if in_team else None,
            ]
            self._tools[key] = (
                _worker_tools(self._policies, self._deps.tools, extra_tools)
                if names is None
                else _select_tools(self._policies, names)
            )
        return self._tools[key]


def _worker_tools(policies: ToolPolicies, main: ToolRegistry, extra_tools: Iterable[Tool | None]) -> ToolRegistry:
    """Return the tools of a worker: built-in ones, `extra_tools`, and the main agent's dynamic tools."""
    registry = build_tools(policies)
    if policies.exec is not None:
        no_jobs = _NoCron()
        registry.register(
            ExecTool(
                policies.paths,
                policies.exec,
                find_tool=lambda name: no_jobs if name == "cron" else registry.get(name),
                marks=policies.marks,
            )
        )
    for tool in filter(None, extra_tools):
        registry.register(tool)
    registry.add_source(_DynamicTools(main, frozenset(registry.names)))
    return registry


def _select_tools(policies: ToolPolicies, names: Collection[str]) -> ToolRegistry:
    """Return only the built-in tools with these names."""
    registry = build_tools(policies)
    for name in set(registry.names).difference(names):
        registry.unregister(name)
    return registry


class _DynamicTools:
    """The main agent's dynamic tools, kept up to date for a subagent."""

    def __init__(self, main: ToolRegistry, own: frozenset[str]) -> None:
        self._main = main
        self._own = own

    async def refresh(self, registry: ToolRegistry) -> None:
        await self._main.refresh()
        tools = {tool.name: tool for tool in self._main if tool.name not in EXCLUDED_TOOLS | self._own}
        for name in registry.names:
            if name not in tools and name not in self._own:
                registry.unregister(name)
        for name, tool in tools.items():
            if registry.get(name) is not tool:
                registry.register(tool)

    async def close(self) -> None:
        """The tools belong to the main agent."""


class _NoCron(Tool):
    """Replaces `cron` for commands that would create a job."""

    name = "cron"
    description = "Creates no jobs."
    parameters = takes()

    async def execute(self, **kwargs: object) -> ToolResult:
        """Refuse."""
        return ToolResult.failed("Subagents cannot create jobs. Say in your report what should be scheduled.")
