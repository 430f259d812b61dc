"""The one place that puts a bot together: config in, a working bot out. It knows everyone below, and nobody below it.

What the config says in the words of each lower room is in `wiring`.
"""

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot import __version__
from nanobot.agent.answering import Answering, ApprovalWords
from nanobot.agent.context import ContextBuilder
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
from nanobot.agent.slash_commands import Desk, SlashCommands
from nanobot.agent.tools.builtin import ToolPolicies, build_tools
from nanobot.agent.tools.cron import CronTool
from nanobot.agent.tools.goal import GoalTool
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.tools.session_search import SessionSearchTool
from nanobot.agent.tools.spawn import SpawnTool
from nanobot.agent.trace.folder import TraceFolder
from nanobot.agent.trace.writer import TraceWriter
from nanobot.agent.vitals import Vitals
from nanobot.bus.queue import MessageBus
from nanobot.config.paths import Places
from nanobot.config.schema import Config
from nanobot.pairing.store import PairingStore
from nanobot.pairing.words import PairingWords
from nanobot.providers.base import LLMProvider
from nanobot.providers.chain import Chains
from nanobot.providers.spending import Spending
from nanobot.security import vault
from nanobot.security.grants import Grants
from nanobot.security.provenance import FileBook
from nanobot.security.secrets import Redactor, named_secrets, secrets_of
from nanobot.session.manager import SessionManager
from nanobot.utils.clock import Clock, SystemClock, zone_named
from nanobot.utils.garbage import seldom_collected
from nanobot.utils.workspace import open_workspace
from nanobot.wiring import people
from nanobot.wiring.background import Background
from nanobot.wiring.goals import Goals
from nanobot.wiring.jobs import cron_desk, cron_service
from nanobot.wiring.loop import loop_policy
from nanobot.wiring.memory import Upkeep
from nanobot.wiring.models import ConfiguredModels
from nanobot.wiring.policies import tool_policies
from nanobot.wiring.recall import ScopedArchive, search_command
from nanobot.wiring.review import read_back_of
from nanobot.wiring.skills import skills_command, skills_of
from nanobot.wiring.sources import mcp_servers, own_tools
from nanobot.wiring.subagents import Subagents
from nanobot.wiring.surroundings import Answerers, Surroundings

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
    home = _Home.of(config, data_dir, workspace, os.environ if environ is None else environ, clock)
    box = _toolbox(home)
    context = ContextBuilder(
        workspace,
        clock=clock,
        name=config.agents.defaults.bot_name,
        paths=box.policies.paths,
        memory_budget_bytes=config.agents.defaults.memory_budget_bytes,
        skills=skills_of(config, home.places, workspace, box.policies.paths),
    )
    archive = ScopedArchive(
        config, home.pairing, home.places, workspace, opener=context.files.descriptor, words_of=home.file_book.of
    )
    box.tools.register(SessionSearchTool(archive))
    spending = Spending(config, home.places, clock)
    chains = chains or Chains(home.environ, home.places.state, metered=spending.metered)
    models = ConfiguredModels(config, chains, model, provider, spending.metered)
    vitals, questions, grants = Vitals(clock), Questions(clock), Grants(home.places.grants, clock)
    answering = Answering(
        questions,
        partial(people.no_owner_here, home.pairing),
        people.is_group,
        on_behalf=lambda context: goals.on_behalf(context),  # noqa: PLW0108 they come later
    )
    scope_of = partial(people.scope_of, config, home.pairing, home.sessions)
    upkeep = Upkeep(config, home.places, context.memory, home.sessions, models, home.pairing, vitals, clock)
    bus = bus or MessageBus()

    def hooks_with(answerers: Answering | Answerers) -> tuple[ToolHook, ...]:
        return (*hooks, *_hooks(home, questions, grants, answerers, upkeep), SkillUse(context.skills))

    handing_on = HandingOn()
    around = Surroundings(config.agents.defaults, bus, context, box.policies, hooks_with, answering, upkeep.look)
    subagents = Subagents(home.places.tasks, around, handing_on)
    box.tools.register(SpawnTool(subagents.spawner))
    goals = Goals(home.places.goals, around, subagents)
    box.tools.register(GoalTool(goals.keeper, box.tools.get))
    plugins = await _plugins(home, box.tools)
    hook_wall = HookWall(_walled(home, plugins), config.plugins.hook_timeout_s).and_these(own_hooks)

    def troubles() -> list[str]:
        return [*map(str, plugins.troubles() if plugins else ()), *hook_wall.troubles()]

    desk = Desk(
        home.sessions,
        models,
        context,
        box.tools,
        vitals,
        __version__,
        spending,
        pairing=PairingWords(home.pairing),
        approvals=ApprovalWords(grants, questions),
        servers=partial(_reported, box.servers, home.redactor) if box.servers is not None else None,
        restart=restart,
        scope_of=scope_of,
        stop_children=subagents.stop_of,
        forget_children=subagents.forget_of,
        goals=goals,
        memory=upkeep,
        more={
            **upkeep.commands(),
            **skills_command(context.skills),
            "search": search_command(archive),
            "tasks": subagents.command,
            "goal": goals.command,
        },
        troubles=troubles,
    )
    parts = Parts(
        sessions=home.sessions,
        models=models,
        prompt=context,
        tools=box.tools,
        commands=SlashCommands(desk),
        vitals=vitals,
        clock=clock,
        workspace=workspace,
        turns_folder=home.places.turns,
        traces=TraceWriter(TraceFolder(home.places.traces, home.redactor), clock, workspace),
        patience=patience or Patience(),
        roll_over=RollOver(
            config.agents.defaults.session_max_mb << 20,
            config.agents.defaults.session_max_days,
            archived=upkeep.tidying.archived,
        ),
        hooks=(handing_on, *hooks_with(answering)),
        hook_wall=hook_wall,
        answering=answering,
        scope_of=scope_of,
        saved=upkeep.saved,
        news_of=upkeep.tidying.news_of,
        children=subagents,
        goals=goals,
    )

    def lane(session_key: str) -> AbstractAsyncContextManager[object]:
        return loop.lane(session_key)  # the loop comes next, and wants the watch

    idle = upkeep.idle_watch(lane)
    loop = AgentLoop(bus, parts, loop_policy(config, home.environ, streams), idle)
    subagents.join(loop, parts, goals.goal_of)
    goals.join(loop, parts)
    async with _alive(home, parts, models, loop, idle, archive, subagents, goals, upkeep, plugins):
        yield Runtime(
            config,
            data_dir,
            workspace,
            loop,
            bus,
            home.sessions,
            box.tools,
            context,
            models,
            clock,
            box.cron,
            home.pairing,
            vitals,
            home.file_book,
            questions,
            box.may_speak,
            box.servers,
            archive,
            subagents,
            goals,
            Background(goals, subagents),
            upkeep,
            troubles,
        )


@dataclass(frozen=True, slots=True)
class _Home:
    """What all parts of a bot stand on: its config, its places, and what is kept there."""

    config: Config
    data_dir: Path
    workspace: Path
    environ: Mapping[str, str]
    clock: Clock
    places: Places
    sessions: SessionManager
    pairing: PairingStore
    file_book: FileBook
    redactor: Redactor

    @classmethod
    def of(cls, config: Config, data_dir: Path, workspace: Path, environ: Mapping[str, str], clock: Clock) -> "_Home":
        """Nothing of it is read yet."""
        places = Places(data_dir)
        return cls(
            config,
            data_dir,
            workspace,
            environ,
            clock,
            places,
            SessionManager(workspace, old_folder=places.old_sessions),
            PairingStore(places, clock),
            FileBook(places.file_book, places.media, workspace),
            Redactor(lambda: secrets_of(config.model_dump(), environ)),
        )

    def secrets(self) -> dict[str, str]:
        """What nobody may be told, with the name it goes by."""
        return named_secrets(self.config.model_dump(), self.environ)


@dataclass(frozen=True, slots=True)
class _Toolbox:
    """The tools of a bot, and what of them others ask for."""

    tools: ToolRegistry
    policies: ToolPolicies
    cron: Callable[[], "CronService"]
    may_speak: Callable[[str, str, str], bool]
    servers: "McpServers | None"


def _toolbox(home: _Home) -> _Toolbox:
    """The built-in tools, the calendar, the user's own tools and those of MCP servers; nothing is started."""
    config, book = home.config, home.file_book
    is_private = partial(people.is_owners_own, config, home.pairing, home.sessions)
    policies = tool_policies(config, home.data_dir, home.workspace, is_private=is_private, environ=home.environ)
    policies = replace(policies, words_of=book.of, mark_changed=book.mark_changed, watch_reading=book.reading)
    policies = replace(policies, watch=read_back_of(config, home.workspace, policies.paths))
    tools = build_tools(policies)

    @cache
    def cron() -> "CronService":
        return cron_service(config, home.workspace, home.places, home.clock, home.sessions)

    may_speak = partial(people.may_speak, config, home.pairing)
    tools.register(CronTool(lambda: cron_desk(cron(), may_speak)))
    if config.tools.custom_tools:
        tools.add_source(own_tools(config, home.workspace))
    servers = mcp_servers(config, home.data_dir, home.workspace, home.clock)
    if servers is not None:
        tools.add_source(servers)
    return _Toolbox(tools, policies, cron, may_speak, servers)


async def _plugins(home: _Home, tools: ToolRegistry) -> "Plugins | None":
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


def _walled(home: _Home, plugins: "Plugins | None") -> list[Walled]:
    """The hooks of packages, then those that are programs."""
    found = plugins.hooks if plugins is not None else []
    if home.config.plugins.commands:
        from nanobot.wiring.plugins import command_hooks  # as above

        found += command_hooks(home.config.plugins, home.data_dir, home.environ)
    return found


def _reported(servers: "McpServers", redactor: Redactor) -> str:
    return redactor.text(servers.report())


def _hooks(
    home: _Home, questions: Questions, grants: Grants, answering: Answering | Answerers, upkeep: Upkeep
) -> tuple[ToolHook, ...]:
    """Who is asked about each tool call, in this order."""
    mode = ApprovalMode(home.config.tools.approval)
    approval = Approval(mode, grants, questions, answering, home.redactor.text)
    return Running(home.file_book), upkeep, approval, Filing(home.file_book)


@asynccontextmanager
async def _alive(
    home: _Home,
    parts: Parts,
    models: ConfiguredModels,
    loop: AgentLoop,
    idle: IdleWatch | None,
    archive: ScopedArchive,
    subagents: Subagents,
    goals: Goals,
    upkeep: Upkeep,
    plugins: "Plugins | None",
) -> AsyncIterator[None]:
    """While the bot lives its secrets are known; at the end the watch goes, then the loop, then what it works with."""
    async with AsyncExitStack() as lives:
        lives.enter_context(vault.holding(home.secrets))
        lives.enter_context(seldom_collected())
        lives.callback(archive.close)
        if plugins is not None:
            lives.push_async_callback(plugins.close)
        lives.push_async_callback(parts.tools.close)
        lives.push_async_callback(models.close)
        lives.push_async_callback(parts.traces.close)
        lives.push_async_callback(upkeep.close)
        lives.push_async_callback(subagents.let_go)
        lives.push_async_callback(goals.let_go)
        lives.push_async_callback(loop.stop)
        lives.push_async_callback(subagents.close)
        lives.callback(goals.close)
        if idle is not None:
            lives.push_async_callback(idle.close)
        yield
