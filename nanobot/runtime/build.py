"""The composition root: builds a working bot from a config."""

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.agent.approval.pending import ApprovalCommands, ApprovalRouter, PendingApprovals
from nanobot.agent.approval.policy import ApprovalMode, CallPolicy
from nanobot.agent.background import BackgroundWork
from nanobot.agent.commands.table import SlashCommands
from nanobot.agent.context import ContextBuilder
from nanobot.agent.feed import Feed
from nanobot.agent.goals.service import GoalService
from nanobot.agent.goals.tool import GoalTool, goal_command
from nanobot.agent.hooks import Hook
from nanobot.agent.hooks.runner import GuardedHook, HookRunner
from nanobot.agent.loop import AgentLoop
from nanobot.agent.memory.files import SCHEMA as MEMORY_SCHEMA
from nanobot.agent.memory.service import MemoryService
from nanobot.agent.models import SessionModels
from nanobot.agent.pipeline.roll_over import RollOver
from nanobot.agent.pipeline.turn import TurnDeps, TurnOptions, TurnTimeouts
from nanobot.agent.skills.loader import SCHEMA as SKILL_SCHEMA
from nanobot.agent.skills.loader import SkillUsage, SkillUsageRecorder
from nanobot.agent.status import AgentStatus
from nanobot.agent.subagent import team
from nanobot.agent.subagent.manager import SubagentManager
from nanobot.agent.subagent.spawn import SpawnTool, tasks_command
from nanobot.agent.tools.hooks import ToolPolicy
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.tools.session_search import SessionSearchTool
from nanobot.agent.trace.store import TraceRecorder, TraceStore
from nanobot.agent.undo import FileUndo
from nanobot.agent.work import SCHEMA as WORK_SCHEMA
from nanobot.bus.events import InboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.config.schema import Config
from nanobot.pairing.commands import PairingCommands
from nanobot.pairing.store import PairingStore
from nanobot.providers.base import LLMProvider
from nanobot.providers.factory import ProviderChains
from nanobot.providers.metering import Spending
from nanobot.runtime.archive import ScopedArchive, search_command
from nanobot.runtime.audience import ChatPrivacy, has_other_writers, is_group
from nanobot.runtime.policies import loop_policy, turn_timeouts
from nanobot.runtime.services import Services
from nanobot.runtime.skills import skills_command, skills_loader
from nanobot.runtime.toolbox import Toolbox, cron_command, offer_image_tool, reminder_answer
from nanobot.security.grants import Grants
from nanobot.security.provenance import ProvenanceStore
from nanobot.security.secrets import redact_named, secrets_scope
from nanobot.session.manager import SessionManager
from nanobot.usage import ledger
from nanobot.utils.clock import Clock, SystemClock, find_zone
from nanobot.utils.database import Database
from nanobot.utils.garbage import freeze_imports
from nanobot.utils.installation import open_workspace
from nanobot.utils.locks import ProcessLease

if TYPE_CHECKING:
    from nanobot.agent.tools.mcp.source import McpServers
    from nanobot.cron.service import CronService

log = logging.getLogger(__name__)


DATABASE_SCHEMA = ledger.SCHEMA + WORK_SCHEMA + team.SCHEMA + MEMORY_SCHEMA + SKILL_SCHEMA
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
    privacy: ChatPrivacy
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
    services = Services(config, data_dir, workspace, os.environ if environ is None else environ, clock)
    defaults, places, pairing, sessions = config.agents.defaults, services.places, services.pairing, services.sessions
    files, privacy, status, bus = services.file_provenance, services.privacy, AgentStatus(clock), bus or MessageBus()

    async with AsyncExitStack() as stack:  # closes what was opened last first: the loop before what it uses
        stack.enter_context(secrets_scope(services.secrets))
        lease = ProcessLease(places.leases)
        stack.callback(lease.release)
        if database is None:
            database = Database(places.database, DATABASE_SCHEMA)
            stack.push_async_callback(database.close)

        # tools, context, models and memory
        toolbox = Toolbox(services)
        tools = toolbox.tools
        stack.callback(services.worker.close)
        stack.push_async_callback(tools.close)
        context = ContextBuilder(
            workspace,
            clock=clock,
            name=defaults.bot_name,
            paths=toolbox.policies.paths,
            memory_budget_bytes=defaults.memory_budget_bytes,
            skills=skills_loader(config, places, workspace, toolbox.policies.paths),
            database=places.database,
        )
        archive = ScopedArchive(
            config, pairing, places, workspace, opener=context.files.descriptor, provenance_of=files.of
        )
        stack.callback(archive.close)
        spending = Spending(config, places, clock, database)
        stack.push_async_exit(spending)
        offer_image_tool(toolbox, spending)
        chains = chains or ProviderChains(services.environ, places.state, add_meter=spending.add_meter)
        models = SessionModels(config, chains, model, provider, spending.add_meter)
        stack.push_async_callback(models.close)
        traces = TraceRecorder(TraceStore(places.traces), clock, workspace)
        stack.push_async_callback(traces.close)
        memory = MemoryService(
            config,
            places,
            context.memory,
            sessions,
            models,
            status,
            clock,
            partial(has_other_writers, config, pairing),
            privacy.scope_of_row,
        )
        stack.push_async_callback(memory.close)
        undo = FileUndo(places.undo, lambda: toolbox.policies.paths)

        # background work
        subagents = SubagentManager(database, lease, defaults, bus, context, lambda: toolbox.policies.paths)
        stack.push_async_callback(subagents.release)
        goals = GoalService(database, lease, defaults, bus, lambda: toolbox.policies.paths, subagents)
        stack.push_async_callback(goals.wait_closed)
        background = BackgroundWork(bus, goals, subagents)
        for tool in (SessionSearchTool(archive), SpawnTool(subagents), GoalTool(goals, tools.get)):
            tools.register(tool)

        # what judges and watches tool calls
        questions, grants = PendingApprovals(clock), Grants(places.database, clock)
        router = ApprovalRouter(
            questions,
            privacy.has_no_owner,
            is_group,
            lambda context: goals.on_behalf(subagents.on_behalf(context)),
        )

        def call_policy() -> CallPolicy:
            return CallPolicy(ApprovalMode(config.tools.approval), grants, router, files)

        skill_usage = SkillUsageRecorder(context.skills, SkillUsage(places.database))
        tool_policies: list[ToolPolicy] = [*hooks, memory, call_policy(), skill_usage, undo]
        guarded: list[GuardedHook] = []
        plugin_problems: Callable[[], Sequence[str]] = tuple
        if config.plugins.enabled or config.plugins.commands:
            from nanobot.runtime.plugins import load_plugins  # imported only if used

            guarded, plugin_problems = await load_plugins(services, tools)
        hook_runner = HookRunner(guarded, config.plugins.hook_timeout_s).with_hooks(own_hooks)

        commands = SlashCommands(
            sessions,
            models,
            context,
            tools,
            status,
            spending,
            PairingCommands(pairing, bus),
            ApprovalCommands(grants, questions),
            memory,
            background,
            scope_of=privacy.scope_of,
            mcp_status=lambda: redact_named(toolbox.servers.report()) if toolbox.servers is not None else "",
            problems=lambda: [*plugin_problems(), *hook_runner.problems()],
            restart=restart,
            more={
                **memory.commands(),
                "skills": skills_command(context.skills),
                "cron": cron_command(toolbox),
                "undo": undo.command,
                "search": search_command(archive),
                "tasks": tasks_command(subagents, status, clock),
                "goal": goal_command(goals, models),
            },
        )
        deps = TurnDeps(
            sessions=sessions,
            models=models,
            prompt=context,
            tools=tools,
            commands=commands,
            status=status,
            clock=clock,
            workspace=workspace,
            turns_folder=places.turns,
            traces=traces,
            timeouts=timeouts or turn_timeouts(config),
            roll_over=RollOver(
                defaults.session_max_mb << 20, defaults.session_max_days, on_archived=memory.on_session_archived
            ),
            tool_policies=tool_policies,
            hook_runner=hook_runner,
            approval_router=router,
            scope_of=privacy.scope_of,
            memory=memory,
            review=defaults.review,
            subagent_profile=subagents.profile_of,
            goals=goals,
            reminder_answer=partial(reminder_answer, toolbox),
            feed=feed,
            options_of=options_of,
        )
        loop = AgentLoop(bus, deps, loop_policy(config, services.environ, streams))
        subagents.join(loop, deps, goals.id_of)
        goals.join(loop, deps)
        stack.push_async_callback(loop.stop)
        stack.callback(subagents.close)
        stack.callback(goals.close)

        async def renew() -> None:
            models.renew()
            spending.renew(config)
            await toolbox.renew()
            offer_image_tool(toolbox, spending)
            tool_policies[:] = [call_policy() if isinstance(policy, CallPolicy) else policy for policy in tool_policies]
            deps.timeouts.extend(turn_timeouts(config))

        freeze_imports()
        yield Runtime(
            config=config,
            data_dir=data_dir,
            workspace=workspace,
            loop=loop,
            bus=bus,
            sessions=sessions,
            tools=tools,
            context=context,
            models=models,
            spending=spending,
            undo=undo,
            clock=clock,
            cron=lambda: toolbox.cron,
            pairing=pairing,
            status=status,
            file_provenance=files,
            questions=questions,
            privacy=privacy,
            toolbox=toolbox,
            archive=archive,
            traces=traces,
            subagents=subagents,
            goals=goals,
            background=background,
            memory=memory,
            renew=renew,
        )
