"""The one place that wires: config in, a working bot out. It may know everyone below; nobody below knows it.

Here the config is mapped to the small policies that the lower rooms take.
"""

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot import __version__
from nanobot.agent.answering import Answering, ApprovalWords
from nanobot.agent.context import ContextBuilder
from nanobot.agent.delivery import DeliveryPolicy
from nanobot.agent.idle import IdleWatch
from nanobot.agent.loop import AgentLoop, LoopPolicy
from nanobot.agent.pipeline.left_over import is_taken_on
from nanobot.agent.pipeline.work import Parts, Patience
from nanobot.agent.run.approval import Approval, ApprovalMode
from nanobot.agent.run.filing import Filing, Running
from nanobot.agent.run.hooks import ToolHook
from nanobot.agent.run.questions import Questions
from nanobot.agent.run.runner import Model, RunLimits
from nanobot.agent.slash_commands import Desk, SlashCommands
from nanobot.agent.tools.builtin import ToolPolicies, build_tools
from nanobot.agent.tools.cron import CronTool, Jobs
from nanobot.agent.tools.inbox import InboxPolicy, Mailbox
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.tools.shell import ExecPolicy
from nanobot.agent.tools.web.engines import ENVIRONMENT
from nanobot.agent.tools.web.policy import SearchPolicy, WebPolicy
from nanobot.agent.trace.folder import TraceFolder
from nanobot.agent.trace.writer import TraceWriter
from nanobot.agent.vitals import Vitals
from nanobot.bus.events import Address
from nanobot.bus.queue import MessageBus
from nanobot.config.paths import Places
from nanobot.config.provider_table import context_window
from nanobot.config.saver import BACKUPS
from nanobot.config.schema import Config
from nanobot.errors import StorageError
from nanobot.pairing.book import Role
from nanobot.pairing.senders import Sender
from nanobot.pairing.store import PairingStore
from nanobot.pairing.words import PairingWords
from nanobot.providers.base import LLMProvider
from nanobot.providers.chain import Chains, with_preset
from nanobot.providers.spending import Spending
from nanobot.security import vault
from nanobot.security.grants import Grants
from nanobot.security.network import NetworkPolicy
from nanobot.security.paths import PathPolicy
from nanobot.security.places import key_places
from nanobot.security.provenance import FileBook
from nanobot.security.secrets import Redactor, named_secrets, secrets_of
from nanobot.session.manager import SessionManager
from nanobot.utils.clock import Clock, SystemClock, zone_named
from nanobot.utils.garbage import seldom_collected
from nanobot.utils.resources import skills_dir
from nanobot.utils.workspace import open_workspace

if TYPE_CHECKING:
    from nanobot.agent.tools.mcp.source import McpServers
    from nanobot.agent.tools.own.source import OwnTools
    from nanobot.cron.service import CronService

DEFAULT_MOST_AT_ONCE = 64


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
    models: "ConfiguredModels"
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
    is_private = partial(_is_private, sessions, pairing)
    file_book = FileBook(places.file_book, places.media, workspace)
    policies = tool_policies(config, data_dir, workspace, is_private=is_private, environ=environ)
    tools = build_tools(replace(policies, words_of=file_book.of, mark_changed=file_book.mark_changed))

    @cache
    def cron() -> "CronService":
        return _cron_service(config, workspace, places, clock, sessions)

    may_speak = partial(_may_speak, config, pairing)
    tools.register(CronTool(lambda: _cron_desk(cron(), may_speak)))
    if config.tools.custom_tools:
        tools.add_source(own_tools(config, workspace))
    servers = mcp_servers(config, data_dir, workspace, clock)
    if servers is not None:
        tools.add_source(servers)
    context = ContextBuilder(
        workspace, clock=clock, name=defaults.bot_name, disabled_skills=frozenset(defaults.disabled_skills)
    )
    vitals = Vitals(clock)
    spending = Spending(config, places, clock)
    chains = chains or Chains(environ, places.state, metered=spending.metered)
    models = ConfiguredModels(config, chains, model, provider, spending.metered)
    questions, grants = Questions(clock), Grants(places.grants, clock)
    redactor = Redactor(lambda: secrets_of(config.model_dump(), environ))
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
    )
    commands = SlashCommands(desk)
    answering = Answering(questions, partial(_no_owner_here, pairing), _is_group)
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
        hooks=(*hooks, Running(file_book), approval, Filing(file_book)),
        answering=answering,
    )
    policy = LoopPolicy(_most_at_once(environ), defaults.steering == "join", _delivery(config, streams))
    idle: IdleWatch | None = None
    if defaults.idle_compact_after_minutes:
        from nanobot.agent.consolidation import Consolidator  # only who set the key waits for its import

        consolidator = Consolidator(
            context.memory, sessions, models, vitals, clock,
            background_model=defaults.background_model,
            has_owner=lambda key: bool(pairing.people(key.partition(":")[0]).owners),
        )  # fmt: skip
        idle = IdleWatch(
            lambda key: consolidator.compact(key, loop.lane(key)), defaults.idle_compact_after_minutes * 60, clock
        )
    loop = AgentLoop(bus, parts, policy, idle)
    async with AsyncExitStack() as lives:
        lives.enter_context(vault.holding(lambda: named_secrets(config.model_dump(), environ)))
        lives.enter_context(seldom_collected())
        lives.push_async_callback(tools.close)
        lives.push_async_callback(models.close)
        lives.push_async_callback(traces.close)
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
        )


class ConfiguredModels:
    """Models as the config, the environment and this machine offer them. Each is made once, when first asked for."""

    def __init__(
        self,
        config: Config,
        chains: Chains,
        model: str | None,
        provider: LLMProvider | None,
        metered: Callable[[LLMProvider, str], LLMProvider],
    ) -> None:
        """`metered` puts the meter around a provider of that name, one that is handed in too."""
        self._config = config
        self._chains = chains
        self._model = model
        self._provider_name = type(provider).__name__
        self._provider = metered(provider, self._provider_name) if provider is not None else None
        self._made: dict[str | None, Model] = {}

    async def get(self, wanted: str | None) -> Model:
        """The model of that name or preset; the configured one for None."""
        wanted = wanted or self._model
        made = self._made.get(wanted)
        if made is None:
            made = self._made[wanted] = await self._make(wanted)
        return made

    def names(self) -> list[str]:
        """The presets, and the word for the configured model."""
        return [*self._config.model_presets, "default"]

    async def close(self) -> None:
        """Let go of every provider's connections."""
        for provider in {id(model.provider): model.provider for model in self._made.values()}.values():
            await provider.close()

    async def _make(self, wanted: str | None) -> Model:
        config, name = self._config, wanted
        if wanted in config.model_presets:
            config, name = with_preset(config, wanted), None
        if self._provider is not None:
            provider = self._provider
            active = config.active_preset().model if config is not self._config else None
            asked = name or active or provider.get_default_model()
            return Model(provider, self._provider_name, asked, "handed in", _limits(config, asked))
        chosen = await self._chains.choose(config, name)
        return Model(chosen.provider, chosen.name, chosen.model, chosen.reason, _limits(config, chosen.model))


def _limits(config: Config, model: str) -> RunLimits:
    defaults, active, usual = config.agents.defaults, config.active_preset(), RunLimits()
    return RunLimits(
        max_steps=defaults.max_tool_iterations,
        max_tokens=active.max_tokens or usual.max_tokens,
        temperature=usual.temperature if active.temperature is None else active.temperature,
        window_tokens=active.context_window_tokens or context_window(model),
        max_result_chars=defaults.max_tool_result_chars,
    )


def _cron_service(
    config: Config, workspace: Path, places: Places, clock: Clock, sessions: SessionManager
) -> "CronService":
    from nanobot.cron.service import CronService  # 40 ms that a turn without a calendar need not wait
    from nanobot.cron.targets import KnownChannels

    service = CronService(
        workspace / "cron" / "jobs.json",
        clock=clock,
        timezone=config.agents.defaults.timezone,
        targets=KnownChannels(config.channels.switched_on()),
        was_begun=lambda job, due: is_taken_on(places.turns, sessions, job.run_session, due.run_id),
    )
    service.adopt(places.old_jobs)
    return service


def _cron_desk(service: "CronService", may_speak: Callable[[str, str, str], bool]) -> Jobs:
    from nanobot.cron.desk import CronDesk

    return CronDesk(service, may_speak)


def _may_speak(config: Config, pairing: PairingStore, channel: str, sender_id: str, chat_id: str) -> bool:
    """Whether this sender is let in on that channel. Raises ConfigError, StorageError where nobody can say."""
    from nanobot.channels.access import AccessPolicy, may_still_speak

    if channel not in config.channels.switched_on():  # the terminal: it is the owner's
        return True
    policy = AccessPolicy.of(channel, config.channels.section(channel))
    if may_still_speak(policy, pairing.people(channel), sender_id, chat_id):
        return True
    if pairing.problem:
        raise StorageError(pairing.problem)
    return False


def tool_policies(
    config: Config,
    data_dir: Path,
    workspace: Path,
    *,
    is_private: Callable[[Address], bool] = lambda chat: False,
    environ: Mapping[str, str] | None = None,
) -> ToolPolicies:
    """What the built-in tools may do, as the config says. `is_private`: where the owner's mails may be told of."""
    return ToolPolicies(
        _path_policy(config, data_dir, workspace),
        _exec_policy(config, data_dir),
        _inbox_policy(config, is_private),
        _web_policy(config, os.environ if environ is None else environ),
    )


def own_tools(config: Config, workspace: Path) -> "OwnTools":
    """The user's own tools, none of them loaded."""
    from nanobot.agent.tools.own.source import OwnTools  # who has none does not wait for it

    return OwnTools(workspace, _places(config.tools.allowed_paths))


def mcp_servers(config: Config, data_dir: Path, workspace: Path, clock: Clock) -> "McpServers | None":
    """The MCP servers of the config, none of them started; None where there are none."""
    if not config.tools.mcp_servers:
        return None
    from nanobot.agent.tools.mcp.remote import open_client  # who has no servers does not wait for it
    from nanobot.agent.tools.mcp.settings import ServerSettings, Wire
    from nanobot.agent.tools.mcp.source import McpServers

    settings = [
        ServerSettings(
            name,
            command=server.command,
            args=tuple(server.args),
            env=server.env or {},
            url=server.url,
            headers=server.headers or {},
            type=Wire(server.type) if server.type else None,
            tool_timeout_s=server.tool_timeout,
            enabled_tools=frozenset(server.enabled_tools),
        )
        for name, server in config.tools.mcp_servers.items()
    ]
    client = partial(open_client, policy=network_policy(config))
    return McpServers(settings, memory=Places(data_dir).mcp, workspace=workspace, clock=clock, client=client)


def network_policy(config: Config) -> NetworkPolicy:
    """Where requests of the agent may go, as the config says."""
    return NetworkPolicy(tuple(config.tools.ssrf_whitelist), proxy=config.tools.web.proxy or None)


def _web_policy(config: Config, environ: Mapping[str, str]) -> WebPolicy | None:
    web = config.tools.web
    if not web.enable:
        return None
    found = {name: environ[name] for name in ENVIRONMENT if environ.get(name)}
    search = SearchPolicy(web.search.provider, web.search.api_key, web.search.base_url, web.search.max_results, found)
    return WebPolicy(network_policy(config), web.fetch.max_chars, search, find_secret=vault.secret_in)


def _inbox_policy(config: Config, is_private: Callable[[Address], bool]) -> InboxPolicy | None:
    """None without a mailbox whose owner has given consent."""
    mail = config.channels.email
    if not (mail.enabled and mail.consent_granted and mail.imap_host):
        return None

    def open_mailbox() -> Mailbox:
        from nanobot.channels.registry import load_channel  # nothing of mail before somebody wants to read some

        load_channel("email")  # says what to install, where something is missing
        from nanobot.channels.email.reading import MailReader

        return MailReader(lambda: config.channels.email, zone_named(config.agents.defaults.timezone))

    return InboxPolicy(open_mailbox, is_private)


def _is_private(sessions: SessionManager, pairing: PairingStore, chat: Address) -> bool:
    """Whether nobody but an owner reads what is said there: at the terminal, and where nobody else has written."""
    from nanobot.channels.registry import find  # only who asks for mails waits for it

    if chat.channel == "cli":
        return True
    spec, people = find(chat.channel), pairing.people(chat.channel)
    if spec is not None and spec.is_group(chat.chat_id):
        return False
    if people.role_of(Sender.of(chat.chat_id)) is Role.OWNER:
        return True
    key = f"{chat.channel}:{chat.chat_id}"
    keys = [key, f"{key}:{chat.thread_id}"] if chat.thread_id else [key]
    rows = [row for one in map(sessions.read, keys) if one is not None for row in one.messages]
    return people.is_one_of_them(str(row["sender_id"]) for row in rows if row.get("sender_id"))


def _is_group(chat: Address) -> bool:
    """Whether the id of a chat tells that several people write there."""
    from nanobot.channels.registry import find  # only who answers waits for it

    spec = find(chat.channel)
    return spec is not None and spec.is_group(chat.chat_id)


def _no_owner_here(pairing: PairingStore, chat: Address, senders: Sequence[str]) -> str | None:
    """Why no owner can answer in a chat where these have written; None where one can."""
    from nanobot.channels.registry import find  # only who asks waits for it

    spec, people = find(chat.channel), pairing.people(chat.channel)
    if spec is not None and not spec.owners_are_known:
        return f"In {spec.title} nobody vouches for who writes, so no yes counts there; the terminal and a chat do."
    if not people.owners:
        return (
            f"Nobody is owner on {chat.channel} yet. The owner of this bot becomes that by writing /pairing here and "
            "running the command it answers with in the terminal."
        )
    if any(people.role_of(Sender.of(one)) is Role.OWNER for one in senders):
        return None
    if spec is not None and spec.is_group(chat.chat_id):
        return None
    return "No owner reads here: an owner has to ask for it in a chat of their own, or in the terminal."


def _path_policy(config: Config, data_dir: Path, workspace: Path) -> PathPolicy:
    places = Places(data_dir)
    file = config.loaded_from.file or places.config
    with_keys = [file, *(file.with_name(file.name + ending) for ending in BACKUPS)]
    return PathPolicy(
        workspace,
        restrict=config.tools.restrict_to_workspace,
        allowed=_places(config.tools.allowed_paths),
        protected=_places(config.tools.protected_paths),
        unreadable=(*with_keys, places.pairing, places.state, *key_places(Path.home())),
        sealed=tuple(with_keys),
        data_folder=data_dir,
        library=(skills_dir(),),
    )


def _places(names: Sequence[str]) -> tuple[Path, ...]:
    return tuple(Path(name).expanduser() for name in names)


def _exec_policy(config: Config, data_dir: Path) -> ExecPolicy | None:
    settings = config.tools.exec
    if not settings.enable:
        return None
    return ExecPolicy(
        timeout_s=settings.timeout,
        path_append=settings.path_append,
        allowed_env_keys=tuple(settings.allowed_env_keys),
        sandbox=settings.sandbox,
        network=settings.network,
        cache=Places(data_dir).sandbox,
        tmp=Places(data_dir).tmp,
        deny=tuple(settings.deny_patterns),
        allow=tuple(settings.allow_patterns),
    )


def _delivery(config: Config, streams: Callable[[str], bool]) -> Callable[[str], DeliveryPolicy]:
    """What people on a channel are sent: what its section says now, else what `channels` says for all."""

    def policy(name: str) -> DeliveryPolicy:
        channels = config.channels
        own = channels.section(name)
        return DeliveryPolicy(
            channels.send_progress if own.send_progress is None else own.send_progress,
            channels.send_tool_hints if own.send_tool_hints is None else own.send_tool_hints,
            channels.show_reasoning if own.show_reasoning is None else own.show_reasoning,
            streams(name),
        )

    return policy


def _most_at_once(environ: Mapping[str, str]) -> int:
    try:
        return int(environ.get("NANOBOT_MAX_CONCURRENT_REQUESTS", ""))
    except ValueError:
        return DEFAULT_MOST_AT_ONCE
