"""The composition root: builds a working bot from a config."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot import __version__
from nanobot.agent.approval.pending import PendingApprovals
from nanobot.agent.approval.policy import ApprovalMode, ApprovalPolicy
from nanobot.agent.approval.router import ApprovalCommands, ApprovalRouter
from nanobot.agent.approval.taint_policies import ExecTaint, FileTaint, TaskTaint
from nanobot.agent.commands.context import CommandContext
from nanobot.agent.commands.table import SlashCommands
from nanobot.agent.context import ContextBuilder
from nanobot.agent.feed import Feed
from nanobot.agent.goals import goal
from nanobot.agent.goals.command import GoalCommand
from nanobot.agent.goals.service import GoalService
from nanobot.agent.hooks.api import Hook
from nanobot.agent.hooks.runner import GuardedHook, HookRunner
from nanobot.agent.loop import AgentLoop
from nanobot.agent.memory import due
from nanobot.agent.memory.idle import IdleWatch
from nanobot.agent.memory.service import MemoryService
from nanobot.agent.models import SessionModels
from nanobot.agent.pipeline.roll_over import RollOver
from nanobot.agent.pipeline.turn import TurnDeps, TurnOptions, TurnTimeouts
from nanobot.agent.scope import Scope
from nanobot.agent.skills.usage import SCHEMA as SKILL_SCHEMA
from nanobot.agent.skills.usage import SkillUsage, SkillUsageRecorder
from nanobot.agent.status import AgentStatus
from nanobot.agent.subagent import mailbox, tasks
from nanobot.agent.subagent.command import tasks_command
from nanobot.agent.subagent.manager import SubagentManager
from nanobot.agent.tools.base import ToolContext
from nanobot.agent.tools.goal import GoalTool
from nanobot.agent.tools.hooks import ToolPolicy
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.tools.session_search import SessionSearchTool
from nanobot.agent.tools.spawn import SpawnTool
from nanobot.agent.trace.recorder import TraceRecorder
from nanobot.agent.trace.store import TraceStore
from nanobot.agent.undo import FileUndo
from nanobot.bus.events import InboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.config.schema import Config
from nanobot.pairing.commands import PairingCommands
from nanobot.pairing.store import PairingStore
from nanobot.providers.base import LLMProvider
from nanobot.providers.resilience.chain import ProviderChains
from nanobot.providers.resilience.spending import Spending
from nanobot.runtime import audience
from nanobot.runtime.background import BackgroundWork
from nanobot.runtime.policies import loop_policy, turn_timeouts
from nanobot.runtime.recall import ScopedArchive, search_command
from nanobot.runtime.services import Services
from nanobot.runtime.skills import skills_command, skills_loader
from nanobot.runtime.toolbox import Toolbox, create_toolbox, cron_command, reminder_answer
from nanobot.security import redaction
from nanobot.security.grants import Grants
from nanobot.security.provenance import ProvenanceStore
from nanobot.security.secrets import Redactor
from nanobot.session.manager import Session, SessionManager
from nanobot.usage import ledger
from nanobot.utils.clock import Clock, SystemClock, find_zone
from nanobot.utils.database import Database
from nanobot.utils.garbage import infrequent_collection
from nanobot.utils.lease import ProcessLease
from nanobot.utils.workspace import open_workspace

if TYPE_CHECKING:
    from nanobot.agent.tools.mcp.source import McpServers
    from nanobot.cron.service import CronService
    from nanobot.runtime.plugins import Plugins


DATABASE_SCHEMA = ledger.SCHEMA + tasks.SCHEMA + mailbox.SCHEMA + goal.SCHEMA + due.SCHEMA + SKILL_SCHEMA
"""The tables that a bot needs."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The parts of one running bot, valid inside `build_runtime`."""

    config: Config
    data_dir: Path
    workspace: Path
    loop: AgentLoop
    bus: MessageBus
    sessions: SessionManager
    tools: ToolRegistry
    context: ContextBuilder
    models: SessionModels
    spending: Spending
    """Usage, and the limits."""
    undo: FileUndo
    """The files that the last turn of each session changed."""
    clock: Clock
    cron: Callable[[], "CronService"]
    """Returns the cron service, created on first use. A process that stays alive starts it with an `on_job`."""
    pairing: PairingStore
    status: AgentStatus
    file_provenance: ProvenanceStore
    """Which files hold untrusted content."""
    questions: PendingApprovals
    """Open questions to the owner, for the user interfaces."""
    may_speak: Callable[[str, str, str], bool]
    """Whether this sender may write in this chat of a channel. Raises NanobotError if that cannot be decided."""
    toolbox: Toolbox
    archive: ScopedArchive
    """Search over past conversations and memory."""
    traces: TraceRecorder
    subagents: SubagentManager
    goals: GoalService
    background: BackgroundWork
    """Status of goals and subagents."""
    memory: MemoryService
    """Consolidation and Dream."""
    troubles: Callable[[], list[str]]
    """Returns the problems of plugins and hooks, one line each."""
    renew: Callable[[], Awaitable[None]]
    """Apply changed models, tools, limits and MCP servers of the config. Running turns keep the models, tools and
    approval policy they started with.
    """

    @property
    def servers(self) -> "McpServers | None":
        """The configured MCP servers, if any."""
        return self.toolbox.servers


@asynccontextmanager
async def build_runtime(
    config: Config,
    *,
    data_dir: Path,
    workspace: Path | None = None,
    model: str | None = None,
    provider: LLMProvider | None = None,
    environ: Mapping[str, str] | None = None,
    timeouts: TurnTimeouts | None = None,
    chains: ProviderChains | None = None,
    bus: MessageBus | None = None,
    database: Database | None = None,
    feed: Feed | None = None,
    options_of: Callable[[InboundMessage], TurnOptions] = lambda message: TurnOptions(),
    streams: Callable[[str], bool] = lambda channel: False,
    restart: Callable[[], None] | None = None,
    clock: Clock | None = None,
    hooks: Sequence[ToolPolicy] = (),
    own_hooks: Sequence[Hook] = (),
) -> AsyncIterator[Runtime]:
    """Build a bot. On exit, its turns are stopped and its connections closed.

    `bus` connects it to its channels; `database` is the gateway's, with the tables of DATABASE_SCHEMA; `feed` gets the
    events of all turns; `options_of` reads what a program asks of a turn; `streams` tells whether the channel of that
    name shows an answer while it is generated. `model` overrides the config's. `provider` is used instead of any
    configured one, without retries or fallback; `chains` builds the configured ones with retry, fallback and circuit
    breaker. `restart` is called by `/restart`. `hooks` judge each tool call; `own_hooks` watch whole turns, after the
    hooks of plugins. No model is called and no network is used before the first turn. Raises NanobotError if the
    workspace cannot be created.
    """
    workspace = (workspace or config.workspace_path).expanduser().absolute()
    open_workspace(workspace)
    clock = clock or SystemClock(find_zone(config.agents.defaults.timezone))
    services = Services.of(config, data_dir, workspace, os.environ if environ is None else environ, clock)
    toolbox = create_toolbox(services)
    own_database = Database(services.places.database, DATABASE_SCHEMA) if database is None else None
    database = database or own_database
    assert database is not None  # noqa: S101 one of them is
    lease = ProcessLease(services.places.leases)
    core = _create_core(services, toolbox, model, provider, chains, database)
    bus = bus or MessageBus()

    def on_behalf(context: ToolContext) -> ToolContext:
        return background.goals.on_behalf(background.subagents.on_behalf(context))  # created below

    approvals = _ApprovalParts(services, core, hooks, on_behalf)
    background = _create_background(services, toolbox, core, approvals, bus, database, lease)
    plugins = await _load_hooks(services, toolbox.tools, own_hooks)
    command_context = _command_context(services, toolbox, core, approvals, background, plugins, bus, restart)
    deps = _turn_deps(
        services, toolbox, core, approvals, background, plugins, command_context, timeouts, feed, options_of
    )

    async def renew() -> None:
        core.models.renew()
        core.spending.renew(config)
        core.memory.renew()
        await toolbox.renew()
        approvals.renew()
        background.subagents.renew(toolbox.policies)
        deps.timeouts.extend(turn_timeouts(config))

    idle = core.memory.idle_watch()
    loop = AgentLoop(bus, deps, loop_policy(config, services.environ, streams), idle)
    background.join(loop, deps)
    async with _running(services, core, background, deps, loop, idle, own_database, lease):
        yield Runtime(
            config=config,
            data_dir=data_dir,
            workspace=workspace,
            loop=loop,
            bus=bus,
            sessions=services.sessions,
            tools=toolbox.tools,
            context=core.context,
            models=core.models,
            spending=core.spending,
            undo=core.undo,
            clock=clock,
            cron=toolbox.cron,
            pairing=services.pairing,
            status=core.status,
            file_provenance=services.file_provenance,
            questions=approvals.questions,
            may_speak=toolbox.may_speak,
            toolbox=toolbox,
            archive=core.archive,
            traces=deps.traces,
            subagents=background.subagents,
            goals=background.goals,
            background=BackgroundWork(bus, background.goals, background.subagents),
            memory=core.memory,
            troubles=plugins.troubles,
            renew=renew,
        )


@dataclass(frozen=True, slots=True)
class _CoreParts:
    """Context, models and memory of a bot."""

    context: ContextBuilder
    archive: ScopedArchive
    models: SessionModels
    spending: Spending
    status: AgentStatus
    memory: MemoryService
    undo: FileUndo


def _create_core(
    services: Services,
    toolbox: Toolbox,
    model: str | None,
    provider: LLMProvider | None,
    chains: ProviderChains | None,
    database: Database,
) -> _CoreParts:
    config, places, defaults = services.config, services.places, services.config.agents.defaults
    context = ContextBuilder(
        services.workspace,
        clock=services.clock,
        name=defaults.bot_name,
        paths=toolbox.policies.paths,
        memory_budget_bytes=defaults.memory_budget_bytes,
        skills=skills_loader(config, places, services.workspace, toolbox.policies.paths),
        database=places.database,
    )
    archive = ScopedArchive(
        config,
        services.pairing,
        places,
        services.workspace,
        opener=context.files.descriptor,
        provenance_of=services.file_provenance.of,
    )
    toolbox.tools.register(SessionSearchTool(archive))
    spending = Spending(config, places, services.clock, database)
    chains = chains or ProviderChains(services.environ, places.state, add_meter=spending.add_meter)
    models = SessionModels(config, chains, model, provider, spending.add_meter)
    status = AgentStatus(services.clock)
    memory = MemoryService(
        config,
        places,
        context.memory,
        services.sessions,
        models,
        status,
        services.clock,
        others_write=partial(audience.has_other_writers, config, services.pairing),
        scope_of=partial(audience.scope_of_row, config, services.pairing),
    )
    undo = FileUndo(services.places.undo, lambda: toolbox.policies.paths)
    return _CoreParts(context, archive, models, spending, status, memory, undo)


class _ApprovalParts:
    """The hooks around tool calls and who answers their questions."""

    def __init__(
        self,
        services: Services,
        core: _CoreParts,
        hooks: Sequence[ToolPolicy],
        on_behalf: Callable[[ToolContext], ToolContext],
    ) -> None:
        """`hooks` run before the built-in ones; `on_behalf` returns the turn whose person may answer for
        another turn.
        """
        self.questions = PendingApprovals(services.clock)
        self.grants = Grants(services.places.grants, services.clock)
        no_owner = partial(audience.has_no_owner, services.pairing)
        self.approval_router = ApprovalRouter(self.questions, no_owner, audience.is_group, on_behalf)
        self._services = services
        self._core = core
        self._hooks = hooks
        self._policies: list[ToolPolicy] = []

    def tool_policies(self, task_taint: ToolPolicy) -> list[ToolPolicy]:
        """Return the hooks around tool calls, in order. `renew` changes the list."""
        files, core = self._services.file_provenance, self._core
        self._policies += [
            task_taint,
            *self._hooks,
            ExecTaint(files),
            core.memory,
            self._approval(),
            FileTaint(files),
            SkillUsageRecorder(core.context.skills, SkillUsage(self._services.places.database)),
            core.undo,
        ]
        return self._policies

    def renew(self) -> None:
        """Apply the configured approval mode. Running turns keep the hooks they started with."""
        self._policies[:] = [self._approval() if isinstance(hook, ApprovalPolicy) else hook for hook in self._policies]

    def _approval(self) -> ApprovalPolicy:
        mode = ApprovalMode(self._services.config.tools.approval)
        return ApprovalPolicy(mode, self.grants, self.questions, self.approval_router, self._services.redactor.text)


def _on_session_released(memory: MemoryService, session: Session, scope: Scope) -> None:
    """Look at what a turn did to the memory; sessions of subagents are not consolidated."""
    if "subagent" in session.metadata:
        memory.on_session_released(session, scope)
    else:
        memory.on_session_saved(session, scope)


@dataclass(frozen=True, slots=True)
class _BackgroundParts:
    """Subagents and goals."""

    task_taint: TaskTaint
    subagents: SubagentManager
    goals: GoalService

    def join(self, loop: AgentLoop, deps: TurnDeps) -> None:
        """Connect them to the loop that runs their turns."""
        self.subagents.join(loop, deps, self.goals.id_of)
        self.goals.join(loop, deps)


def _create_background(
    services: Services,
    toolbox: Toolbox,
    core: _CoreParts,
    approvals: _ApprovalParts,
    bus: MessageBus,
    database: Database,
    lease: ProcessLease,
) -> _BackgroundParts:
    task_taint, defaults = TaskTaint(), services.config.agents.defaults
    subagents = SubagentManager(database, lease, defaults, bus, core.context, toolbox.policies, task_taint)
    goals = GoalService(goal.GoalStore(database, lease), defaults, bus, lambda: toolbox.policies.paths, subagents)
    toolbox.tools.register(SpawnTool(subagents))
    toolbox.tools.register(GoalTool(goals, toolbox.tools.get))
    return _BackgroundParts(task_taint, subagents, goals)


@dataclass(frozen=True, slots=True)
class _PluginParts:
    """Plugins, and the hooks of plugins, of configured programs and of the caller."""

    plugins: "Plugins | None"
    hook_runner: HookRunner

    def troubles(self) -> list[str]:
        """Return the problems of plugins and hooks, one line each."""
        return [*map(str, self.plugins.troubles() if self.plugins else ()), *self.hook_runner.problems()]


async def _load_hooks(services: Services, tools: ToolRegistry, own_hooks: Sequence[Hook]) -> _PluginParts:
    plugins = await _plugins(services, tools)
    hook_runner = HookRunner(_guarded_hooks(services, plugins), services.config.plugins.hook_timeout_s)
    return _PluginParts(plugins, hook_runner.with_hooks(own_hooks))


def _command_context(
    services: Services,
    toolbox: Toolbox,
    core: _CoreParts,
    approvals: _ApprovalParts,
    background: _BackgroundParts,
    plugins: _PluginParts,
    bus: MessageBus,
    restart: Callable[[], None] | None,
) -> CommandContext:
    return CommandContext(
        services.sessions,
        core.models,
        core.context,
        toolbox.tools,
        core.status,
        __version__,
        core.spending,
        pairing=PairingCommands(services.pairing, bus),
        approvals=ApprovalCommands(approvals.grants, approvals.questions),
        mcp_status=partial(_mcp_status, toolbox, services.redactor),
        restart=restart,
        scope_of=services.scope_of,
        stop_subagents=background.subagents.stop_for,
        forget_subagents=background.subagents.forget_session,
        goals=background.goals,
        memory=core.memory,
        extra_commands={
            **core.memory.commands(),
            "skills": skills_command(core.context.skills),
            "cron": cron_command(toolbox),
            "undo": core.undo.command,
            "search": search_command(core.archive),
            "tasks": tasks_command(background.subagents, core.status, services.clock),
            "goal": GoalCommand(background.goals, core.models).entry,
        },
        problems=plugins.troubles,
    )


def _turn_deps(
    services: Services,
    toolbox: Toolbox,
    core: _CoreParts,
    approvals: _ApprovalParts,
    background: _BackgroundParts,
    plugins: _PluginParts,
    command_context: CommandContext,
    timeouts: TurnTimeouts | None,
    feed: Feed | None,
    options_of: Callable[[InboundMessage], TurnOptions],
) -> TurnDeps:
    defaults, consolidation = services.config.agents.defaults, core.memory.consolidation
    return TurnDeps(
        sessions=services.sessions,
        models=core.models,
        prompt=core.context,
        tools=toolbox.tools,
        commands=SlashCommands(command_context),
        status=core.status,
        clock=services.clock,
        workspace=services.workspace,
        turns_folder=services.places.turns,
        traces=TraceRecorder(TraceStore(services.places.traces, services.redactor), services.clock, services.workspace),
        timeouts=timeouts or turn_timeouts(services.config),
        roll_over=RollOver(
            defaults.session_max_mb << 20, defaults.session_max_days, on_archived=consolidation.on_session_archived
        ),
        tool_policies=approvals.tool_policies(background.task_taint),
        hook_runner=plugins.hook_runner,
        approval_router=approvals.approval_router,
        scope_of=services.scope_of,
        on_session_released=partial(_on_session_released, core.memory),
        compact=core.memory.compact,
        review=defaults.review,
        take_notices=consolidation.take_notices,
        failure_count=consolidation.failure_count,
        subagents=background.subagents,
        goals=background.goals,
        reminder_answer=partial(reminder_answer, toolbox),
        feed=feed,
        options_of=options_of,
    )


async def _plugins(services: Services, tools: ToolRegistry) -> "Plugins | None":
    """Load the enabled plugins and register their tools; None if none is enabled."""
    settings = services.config.plugins
    if not settings.enabled:
        return None
    from nanobot.runtime.plugins import load_packages  # imported only if enabled

    with redaction.secrets_scope(services.secrets):  # errors may quote them
        plugins = await asyncio.to_thread(load_packages, settings, services.worker)
    plugins.offer(tools)
    plugins.log_troubles()
    return plugins


def _guarded_hooks(services: Services, plugins: "Plugins | None") -> list[GuardedHook]:
    """Return the hooks of plugins, then the configured programs."""
    hooks = plugins.hooks if plugins is not None else []
    if services.config.plugins.commands:
        from nanobot.runtime.plugins import command_hooks  # as above

        hooks += command_hooks(services.config.plugins, services.data_dir, services.environ)
    return hooks


def _mcp_status(toolbox: Toolbox, redactor: Redactor) -> str:
    return redactor.text(toolbox.servers.report()) if toolbox.servers is not None else ""


@asynccontextmanager
async def _running(
    services: Services,
    core: _CoreParts,
    background: _BackgroundParts,
    deps: TurnDeps,
    loop: AgentLoop,
    idle: IdleWatch | None,
    database: Database | None,
    lease: ProcessLease,
) -> AsyncIterator[None]:
    """Keep the bot's secrets registered; on exit, close the idle watch first, then the loop, then what it uses.

    `database` is closed last, if it is the bot's own.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(redaction.secrets_scope(services.secrets))
        stack.enter_context(infrequent_collection())
        stack.callback(lease.release)
        if database is not None:
            stack.push_async_callback(database.close)
        stack.callback(core.archive.close)
        stack.callback(services.worker.close)
        stack.push_async_callback(deps.tools.close)
        stack.push_async_exit(core.spending)
        stack.push_async_callback(core.models.close)
        stack.push_async_callback(deps.traces.close)
        stack.push_async_callback(core.memory.close)
        stack.push_async_callback(background.subagents.release)
        stack.push_async_callback(background.goals.wait_closed)
        stack.push_async_callback(loop.stop)
        stack.callback(background.subagents.close)
        stack.callback(background.goals.close)
        if idle is not None:
            stack.push_async_callback(idle.close)
        yield
