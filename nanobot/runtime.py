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
from nanobot.agent.loop import AgentLoop
from nanobot.agent.pipeline.work import Parts, Patience
from nanobot.agent.run.approval import Approval, ApprovalMode
from nanobot.agent.run.filing import Filing, Running
from nanobot.agent.run.hooks import ToolHook
from nanobot.agent.run.questions import Questions
from nanobot.agent.slash_commands import Desk, SlashCommands
from nanobot.agent.tools.builtin import build_tools
from nanobot.agent.tools.cron import CronTool
from nanobot.agent.tools.registry import ToolRegistry
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
from nanobot.wiring.jobs import cron_desk, cron_service
from nanobot.wiring.loop import loop_policy
from nanobot.wiring.memory import Upkeep
from nanobot.wiring.models import ConfiguredModels
from nanobot.wiring.policies import tool_policies
from nanobot.wiring.sources import mcp_servers, own_tools

if TYPE_CHECKING:
    from nanobot.cron.service import CronService


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
    upkeep: Upkeep
    """What keeps memory in order, in the background."""


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
) -> AsyncIterator[Runtime]:
    """Open a bot; at the end of the block its turns are stopped and its connections closed.

    `bus` is the road to its channels, and `streams` says of a channel's name whether it shows an answer as it grows.
    `model` goes before the config's; `provider` stands in for whatever would be chosen, and is asked as it is; `chains`
    say how the others are held: retries, fallbacks, breakers. `restart` is what `/restart` does; `hooks` are asked
    about each tool call. No model is asked and no network is touched before the first turn. Raises NanobotError where
    the workspace cannot be made.
    """
    environ = os.environ if environ is None else environ
    workspace = (workspace or config.workspace_path).expanduser().absolute()
    open_workspace(workspace)
    defaults = config.agents.defaults
    clock = clock or SystemClock(zone_named(defaults.timezone))
    bus = bus or MessageBus()
    places = Places(data_dir)
    sessions = SessionManager(workspace, old_folder=places.old_sessions)
    pairing = PairingStore(places, clock)
    is_private = partial(people.is_owners_own, config, pairing, sessions)
    scope_of = partial(people.scope_of, config, pairing, sessions)
    file_book = FileBook(places.file_book, places.media, workspace)
    policies = tool_policies(config, data_dir, workspace, is_private=is_private, environ=environ)
    tools = build_tools(replace(policies, words_of=file_book.of, mark_changed=file_book.mark_changed))

    @cache
    def cron() -> "CronService":
        return cron_service(config, workspace, places, clock, sessions)

    may_speak = partial(people.may_speak, config, pairing)
    tools.register(CronTool(lambda: cron_desk(cron(), may_speak)))
    if config.tools.custom_tools:
        tools.add_source(own_tools(config, workspace))
    servers = mcp_servers(config, data_dir, workspace, clock)
    if servers is not None:
        tools.add_source(servers)
    context = ContextBuilder(
        workspace,
        clock=clock,
        name=defaults.bot_name,
        disabled_skills=frozenset(defaults.disabled_skills),
        paths=policies.paths,
        memory_budget_bytes=defaults.memory_budget_bytes,
    )
    vitals = Vitals(clock)
    spending = Spending(config, places, clock)
    chains = chains or Chains(environ, places.state, metered=spending.metered)
    models = ConfiguredModels(config, chains, model, provider, spending.metered)
    questions, grants = Questions(clock), Grants(places.grants, clock)
    redactor = Redactor(lambda: secrets_of(config.model_dump(), environ))
    upkeep = Upkeep(config, places, context.memory, sessions, models, pairing, vitals, clock)
    desk = Desk(
        sessions,
        models,
        context,
        tools,
        vitals,
        __version__,
        spending,
        pairing=PairingWords(pairing),
        approvals=ApprovalWords(grants, questions),
        servers=(lambda: redactor.text(servers.report())) if servers is not None else None,
        restart=restart,
        scope_of=scope_of,
        memory=upkeep,
        more=upkeep.commands(),
    )
    commands = SlashCommands(desk)
    answering = Answering(questions, partial(people.no_owner_here, pairing), people.is_group)
    approval = Approval(ApprovalMode(config.tools.approval), grants, questions, answering, redactor.text)
    traces = TraceWriter(TraceFolder(places.traces, redactor), clock, workspace)
    parts = Parts(
        sessions=sessions,
        models=models,
        prompt=context,
        tools=tools,
        commands=commands,
        vitals=vitals,
        clock=clock,
        workspace=workspace,
        turns_folder=places.turns,
        traces=traces,
        patience=patience or Patience(),
        hooks=(*hooks, Running(file_book), upkeep, approval, Filing(file_book)),
        answering=answering,
        scope_of=scope_of,
        saved=upkeep.saved,
        news_of=upkeep.tidying.news_of,
    )
    policy = loop_policy(config, environ, streams)

    def lane(session_key: str) -> AbstractAsyncContextManager[object]:
        return loop.lane(session_key)  # the loop comes next, and wants the watch

    idle = upkeep.idle_watch(lane)
    loop = AgentLoop(bus, parts, policy, idle)
    async with AsyncExitStack() as lives:
        lives.enter_context(vault.holding(lambda: named_secrets(config.model_dump(), environ)))
        lives.enter_context(seldom_collected())
        lives.push_async_callback(tools.close)
        lives.push_async_callback(models.close)
        lives.push_async_callback(traces.close)
        lives.push_async_callback(upkeep.close)
        lives.push_async_callback(loop.stop)
        if idle is not None:
            lives.push_async_callback(idle.close)
        yield Runtime(
            config,
            data_dir,
            workspace,
            loop,
            bus,
            sessions,
            tools,
            context,
            models,
            clock,
            cron,
            pairing,
            vitals,
            file_book,
            questions,
            may_speak,
            upkeep,
        )
