"""The one place that puts a bot together: config in, a working bot out. It knows everyone below, and nobody below it.

What the config says in the words of each lower room is in `wiring`.
"""

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot import __version__
from nanobot.agent.answering import Answering, ApprovalWords
from nanobot.agent.context import ContextBuilder
from nanobot.agent.desk import Desk
from nanobot.agent.hook_wall import HookWall, Walled
from nanobot.agent.hooks import Hook
from nanobot.agent.idle import IdleWatch
from nanobot.agent.loop import AgentLoop
from nanobot.agent.pipeline.roll_over import RollOver
from nanobot.agent.pipeline.work import Parts, Patience
from nanobot.agent.run.approval import Approval, ApprovalMode
from nanobot.agent.run.filing import Filing, Running
from nanobot.agent.run.handing_on import HandingOn
from nanobot.agent.run.hooks import ToolHook
from nanobot.agent.run.questions import Questions
from nanobot.agent.run.skill_use import SkillUse
from nanobot.agent.slash_commands import SlashCommands
from nanobot.agent.tools.base import ToolContext
from nanobot.agent.tools.goal import GoalTool
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.tools.session_search import SessionSearchTool
from nanobot.agent.tools.spawn import SpawnTool
from nanobot.agent.trace.folder import TraceFolder
from nanobot.agent.trace.writer import TraceWriter
from nanobot.agent.vitals import Vitals
from nanobot.bus.queue import MessageBus
from nanobot.config.schema import Config
from nanobot.pairing.store import PairingStore
from nanobot.pairing.words import PairingWords
from nanobot.providers.base import LLMProvider
from nanobot.providers.chain import Chains
from nanobot.providers.spending import Spending
from nanobot.security import vault
from nanobot.security.grants import Grants
from nanobot.security.provenance import FileBook
from nanobot.security.secrets import Redactor
from nanobot.session.manager import SessionManager
from nanobot.utils.clock import Clock, SystemClock, zone_named
from nanobot.utils.garbage import seldom_collected
from nanobot.utils.workspace import open_workspace
from nanobot.wiring import people
from nanobot.wiring.background import Background
from nanobot.wiring.goals import Goals
from nanobot.wiring.home import Home
from nanobot.wiring.loop import loop_policy
from nanobot.wiring.memory import Upkeep
from nanobot.wiring.models import ConfiguredModels
from nanobot.wiring.policies import patience_of
from nanobot.wiring.recall import ScopedArchive, search_command
from nanobot.wiring.skills import skills_command, skills_of
from nanobot.wiring.subagents import Subagents
from nanobot.wiring.surroundings import Answerers, Surroundings
from nanobot.wiring.toolbox import Toolbox, toolbox

if TYPE_CHECKING:
    from nanobot.agent.tools.mcp.source import McpServers
    from nanobot.cron.service import CronService
    from nanobot.wiring.plugins import Plugins


@dataclass(frozen=True, slots=True)
class Runtime:
    """The wired parts of one bot, alive inside `build_runtime`."""

    config: Config
    data_dir: Path
    workspace: Path
    loop: AgentLoop
    bus: MessageBus
    sessions: SessionManager
    tools: ToolRegistry
    context: ContextBuilder
    models: ConfiguredModels
    clock: Clock
    cron: Callable[[], "CronService"]
    """The jobs, opened when they are first asked for. Who lives for days starts them, with an `on_job`."""
    pairing: PairingStore
    vitals: Vitals
    file_book: FileBook
    """Which files hold somebody else's words."""
    questions: Questions
    """What turns ask their owner, for who speaks for one."""
    may_speak: Callable[[str, str, str], bool]
    """Whether on a channel this sender may speak in this chat. Raises NanobotError where nobody can say."""
    servers: "McpServers | None"
    """The MCP servers of the config, where it has any."""
    archive: ScopedArchive
    """What was said before, to be found."""
    subagents: Subagents
    goals: Goals
    background: Background
    """What goes on beside the turns."""
    upkeep: Upkeep
    """What keeps memory in order, in the background."""
    troubles: Callable[[], list[str]]
    """What is wrong with plugins and hooks, a line each."""


@asynccontextmanager
async def build_runtime(
    config: Config,
    *,
    data_dir: Path,
    workspace: Path | None = None,
    model: str | None = None,
    provider: LLMProvider | None = None,
    environ: Mapping[str, str] | None = None,
    patience: Patience | None = None,
    chains: Chains | None = None,
    bus: MessageBus | None = None,
    streams: Callable[[str], bool] = lambda channel: False,
    restart: Callable[[], None] | None = None,
    clock: Clock | None = None,
    hooks: Sequence[ToolHook] = (),
    own_hooks: Sequence[Hook] = (),
) -> AsyncIterator[Runtime]:
    """Open a bot; at the end of the block its turns are stopped and its connections closed.

    `bus` is the road to its channels, and `streams` says of a channel's name whether it shows an answer as it grows.
    `model` goes before the config's; `provider` stands in for whatever would be chosen, and is asked as it is; `chains`
    say how the others are held: retries, fallbacks, breakers. `restart` is what `/restart` does; `hooks` are asked
    about each tool call; `own_hooks` watch whole turns from behind the wall, after those of plugins. No model is asked
    and no network is touched before the first turn. Raises NanobotError where the workspace cannot be made.
    """
    workspace = (workspace or config.workspace_path).expanduser().absolute()
    open_workspace(workspace)
    clock = clock or SystemClock(zone_named(config.agents.defaults.timezone))
    home = Home.of(config, data_dir, workspace, os.environ if environ is None else environ, clock)
    box = toolbox(home)
    mind = _mind(home, box, model, provider, chains)
    bus = bus or MessageBus()

    def on_behalf(context: ToolContext) -> ToolContext:
        return beside.goals.on_behalf(context)  # they come next, and want who is asked

    asking = _Asking(home, mind, hooks, on_behalf)
    beside = _beside(home, box, mind, asking, bus)
    packages = await _packages(home, box.tools, own_hooks)
    desk = _desk(home, box, mind, asking, beside, packages, restart)
    parts = _parts(home, box, mind, asking, beside, packages, desk, patience)

    def lane(session_key: str) -> AbstractAsyncContextManager[object]:
        return loop.lane(session_key)  # the loop comes next, and wants the watch

    idle = mind.upkeep.idle_watch(lane)
    loop = AgentLoop(bus, parts, loop_policy(config, home.environ, streams), idle)
    beside.join(loop, parts)
    async with _alive(home, mind, beside, packages, parts, loop, idle):
        yield Runtime(
            config=config,
            data_dir=data_dir,
            workspace=workspace,
            loop=loop,
            bus=bus,
            sessions=home.sessions,
            tools=box.tools,
            context=mind.context,
            models=mind.models,
            clock=clock,
            cron=box.cron,
            pairing=home.pairing,
            vitals=mind.vitals,
            file_book=home.file_book,
            questions=asking.questions,
            may_speak=box.may_speak,
            servers=box.servers,
            archive=mind.archive,
            subagents=beside.subagents,
            goals=beside.goals,
            background=Background(beside.goals, beside.subagents),
            upkeep=mind.upkeep,
            troubles=packages.troubles,
        )


@dataclass(frozen=True, slots=True)
class _Mind:
    """What a bot thinks with: words, memory, models, and what they cost."""

    context: ContextBuilder
    archive: ScopedArchive
    models: ConfiguredModels
    spending: Spending
    vitals: Vitals
    upkeep: Upkeep


def _mind(home: Home, box: Toolbox, model: str | None, provider: LLMProvider | None, chains: Chains | None) -> _Mind:
    config, places, defaults = home.config, home.places, home.config.agents.defaults
    context = ContextBuilder(
        home.workspace,
        clock=home.clock,
        name=defaults.bot_name,
        paths=box.policies.paths,
        memory_budget_bytes=defaults.memory_budget_bytes,
        skills=skills_of(config, places, home.workspace, box.policies.paths),
    )
    archive = ScopedArchive(
        config, home.pairing, places, home.workspace, opener=context.files.descriptor, words_of=home.file_book.of
    )
    box.tools.register(SessionSearchTool(archive))
    spending = Spending(config, places, home.clock)
    chains = chains or Chains(home.environ, places.state, metered=spending.metered)
    models = ConfiguredModels(config, chains, model, provider, spending.metered)
    vitals = Vitals(home.clock)
    upkeep = Upkeep(config, places, context.memory, home.sessions, models, home.pairing, vitals, home.clock)
    return _Mind(context, archive, models, spending, vitals, upkeep)


class _Asking:
    """What stands around tool calls, and who is asked about them."""

    def __init__(
        self, home: Home, mind: _Mind, hooks: Sequence[ToolHook], on_behalf: Callable[[ToolContext], ToolContext]
    ) -> None:
        """`hooks` come before ours; `on_behalf`: the turn that another one stands for, as to who may answer."""
        self.questions = Questions(home.clock)
        self.grants = Grants(home.places.grants, home.clock)
        no_owner = partial(people.no_owner_here, home.pairing)
        self.answering = Answering(self.questions, no_owner, people.is_group, on_behalf)
        self._home = home
        self._mind = mind
        self._hooks = hooks

    def hooks_with(self, answering: Answering | Answerers) -> tuple[ToolHook, ...]:
        """The hooks around tool calls whose questions these answer, in their order."""
        home, mind = self._home, self._mind
        mode = ApprovalMode(home.config.tools.approval)
        approval = Approval(mode, self.grants, self.questions, answering, home.redactor.text)
        skill_use = SkillUse(mind.context.skills)
        return *self._hooks, Running(home.file_book), mind.upkeep, approval, Filing(home.file_book), skill_use


@dataclass(frozen=True, slots=True)
class _Beside:
    """What works beside the turns that people ask for."""

    handing_on: HandingOn
    subagents: Subagents
    goals: Goals

    def join(self, loop: AgentLoop, parts: Parts) -> None:
        """The loop that they go through."""
        self.subagents.join(loop, parts, self.goals.id_of)
        self.goals.join(loop, parts)


def _beside(home: Home, box: Toolbox, mind: _Mind, asking: _Asking, bus: MessageBus) -> _Beside:
    handing_on, defaults = HandingOn(), home.config.agents.defaults
    around = Surroundings(
        defaults, bus, mind.context, box.policies, asking.hooks_with, asking.answering, mind.upkeep.look
    )
    subagents = Subagents(home.places.tasks, around, handing_on)
    goals = Goals(home.places.goals, around, subagents)
    box.tools.register(SpawnTool(subagents.spawner))
    box.tools.register(GoalTool(goals.keeper, box.tools.get))
    return _Beside(handing_on, subagents, goals)


@dataclass(frozen=True, slots=True)
class _Packages:
    """What installed packages and programs bring, and the wall before their hooks."""

    plugins: "Plugins | None"
    wall: HookWall

    def troubles(self) -> list[str]:
        """What is wrong with them, a line each."""
        return [*map(str, self.plugins.troubles() if self.plugins else ()), *self.wall.troubles()]


async def _packages(home: Home, tools: ToolRegistry, own_hooks: Sequence[Hook]) -> _Packages:
    plugins = await _plugins(home, tools)
    wall = HookWall(_walled(home, plugins), home.config.plugins.hook_timeout_s)
    return _Packages(plugins, wall.and_these(own_hooks))


def _desk(
    home: Home,
    box: Toolbox,
    mind: _Mind,
    asking: _Asking,
    beside: _Beside,
    packages: _Packages,
    restart: Callable[[], None] | None,
) -> Desk:
    return Desk(
        home.sessions,
        mind.models,
        mind.context,
        box.tools,
        mind.vitals,
        __version__,
        mind.spending,
        pairing=PairingWords(home.pairing),
        approvals=ApprovalWords(asking.grants, asking.questions),
        servers=partial(_reported, box.servers, home.redactor) if box.servers is not None else None,
        restart=restart,
        scope_of=home.scope_of,
        stop_children=beside.subagents.stop_of,
        forget_children=beside.subagents.forget_of,
        goals=beside.goals,
        memory=mind.upkeep,
        more={
            **mind.upkeep.commands(),
            **skills_command(mind.context.skills),
            "search": search_command(mind.archive),
            "tasks": beside.subagents.command,
            "goal": beside.goals.command,
        },
        troubles=packages.troubles,
    )


def _parts(
    home: Home,
    box: Toolbox,
    mind: _Mind,
    asking: _Asking,
    beside: _Beside,
    packages: _Packages,
    desk: Desk,
    patience: Patience | None,
) -> Parts:
    defaults, tidying = home.config.agents.defaults, mind.upkeep.tidying
    return Parts(
        sessions=home.sessions,
        models=mind.models,
        prompt=mind.context,
        tools=box.tools,
        commands=SlashCommands(desk),
        vitals=mind.vitals,
        clock=home.clock,
        workspace=home.workspace,
        turns_folder=home.places.turns,
        traces=TraceWriter(TraceFolder(home.places.traces, home.redactor), home.clock, home.workspace),
        patience=patience or patience_of(home.config),
        roll_over=RollOver(defaults.session_max_mb << 20, defaults.session_max_days, archived=tidying.archived),
        hooks=(beside.handing_on, *asking.hooks_with(asking.answering)),
        hook_wall=packages.wall,
        answering=asking.answering,
        scope_of=home.scope_of,
        saved=mind.upkeep.saved,
        news_of=tidying.news_of,
        failures_of=tidying.failures_of,
        children=beside.subagents,
        goals=beside.goals,
    )


async def _plugins(home: Home, tools: ToolRegistry) -> "Plugins | None":
    """What installed packages bring, their tools offered; None where the config switches none on."""
    settings = home.config.plugins
    if not settings.enabled:
        return None
    from nanobot.wiring.plugins import plugins_of  # who has none does not wait for it, and nobody looks for packages

    with vault.holding(home.secrets):  # what goes wrong may name them
        plugins = await plugins_of(settings, home.places.plugin_book)
    plugins.offer(tools)
    plugins.begin()
    return plugins


def _walled(home: Home, plugins: "Plugins | None") -> list[Walled]:
    """The hooks of packages, then those that are programs."""
    found = plugins.hooks if plugins is not None else []
    if home.config.plugins.commands:
        from nanobot.wiring.plugins import command_hooks  # as above

        found += command_hooks(home.config.plugins, home.data_dir, home.environ)
    return found


def _reported(servers: "McpServers", redactor: Redactor) -> str:
    return redactor.text(servers.report())


@asynccontextmanager
async def _alive(
    home: Home,
    mind: _Mind,
    beside: _Beside,
    packages: _Packages,
    parts: Parts,
    loop: AgentLoop,
    idle: IdleWatch | None,
) -> AsyncIterator[None]:
    """While the bot lives its secrets are known; at the end the watch goes, then the loop, then what it works with."""
    async with AsyncExitStack() as lives:
        lives.enter_context(vault.holding(home.secrets))
        lives.enter_context(seldom_collected())
        lives.callback(mind.archive.close)
        if packages.plugins is not None:
            lives.push_async_callback(packages.plugins.close)
        lives.push_async_callback(parts.tools.close)
        lives.push_async_callback(mind.models.close)
        lives.push_async_callback(parts.traces.close)
        lives.push_async_callback(mind.upkeep.close)
        lives.push_async_callback(beside.subagents.let_go)
        lives.push_async_callback(beside.goals.let_go)
        lives.push_async_callback(loop.stop)
        lives.push_async_callback(beside.subagents.close)
        lives.callback(beside.goals.close)
        if idle is not None:
            lives.push_async_callback(idle.close)
        yield
