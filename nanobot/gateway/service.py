"""Starts, runs and stops the gateway: channels, agent, jobs, heartbeat and its local servers."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanobot import __version__
from nanobot.agent.feed import Feed
from nanobot.agent.pipeline.turn import TurnOptions
from nanobot.agent.tools.message import MessageTool
from nanobot.api.requests import SCHEMA as API_SCHEMA
from nanobot.api.requests import ApiRequests, ApiServices, turn_options
from nanobot.bus.events import InboundMessage
from nanobot.bus.journal import SCHEMA as JOURNAL_SCHEMA
from nanobot.bus.journal import Journal
from nanobot.bus.queue import MessageBus
from nanobot.channels.status import ChannelState
from nanobot.config.loader import closed_channels
from nanobot.config.paths import DataPaths
from nanobot.config.schema import Config
from nanobot.errors import ConfigError, NanobotError
from nanobot.gateway.channels import (
    ApiChannel,
    GatewayChannels,
    TerminalChannel,
    WebChannel,
)
from nanobot.gateway.control.server import ControlServer
from nanobot.gateway.health import HealthReporter
from nanobot.gateway.heartbeat import heartbeat_task
from nanobot.gateway.jobs import jobs_task
from nanobot.gateway.live_config import POLL_S, LiveConfig
from nanobot.gateway.process import (
    ExitReason,
    LockHolder,
    ShutdownRequests,
    is_lost,
    single_instance,
    tell_service_manager,
)
from nanobot.gateway.supervisor import SupervisedTask, TaskSupervisor
from nanobot.heartbeat.service import SESSION as HEARTBEAT
from nanobot.net.http import is_loopback
from nanobot.net.http_server import HttpServer
from nanobot.providers.base import LLMProvider
from nanobot.runtime.archive import keep_packing
from nanobot.runtime.build import DATABASE_SCHEMA as RUNTIME_SCHEMA
from nanobot.runtime.build import Runtime, build_runtime
from nanobot.security.credentials import SCHEMA as CREDENTIALS_SCHEMA
from nanobot.security.credentials import CredentialKind, Credentials
from nanobot.utils.clock import Clock
from nanobot.utils.database import Database, open_database
from nanobot.webui.services import WebServices

if TYPE_CHECKING:
    from starlette.types import ASGIApp

log = logging.getLogger(__name__)

DATABASE_SCHEMA = JOURNAL_SCHEMA + RUNTIME_SCHEMA + CREDENTIALS_SCHEMA + API_SCHEMA
TURNS_S = 3.0
"""How long running turns may continue after a stop request; unfinished ones resume at the next start."""
SENDS_S = 1.0
"""How long their messages may take to be sent then, in addition to the unused part of `TURNS_S`."""
CANCEL_S = 0.5
"""How long the tasks may take to end after they are cancelled."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options beside the config."""

    port: int | None = None
    """Port of the HTTP server; None means `gateway.port` of the config."""
    api_port: int | None = None
    """Port of the API; None means `api.port` of the config, if the API is enabled there."""
    api_host: str | None = None
    """Its host; None means `api.host` of the config."""
    api_only: bool = False
    """Whether to serve the API only: no channels, no jobs, no heartbeat."""
    allow_empty: bool = False
    """Whether to run if no channel can start, or if there is neither a channel nor the page."""
    poll_s: float = POLL_S
    turns_s: float = TURNS_S


class Gateway:
    """A gateway: its parts, which `open` puts to work. Valid inside `open_gateway`."""

    def __init__(
        self,
        runtime: Runtime,
        feed: Feed,
        terminal: TerminalChannel,
        database: Database,
        options: Options,
        shutdown: ShutdownRequests,
    ) -> None:
        config, bus, clock, places = runtime.config, runtime.bus, runtime.clock, DataPaths(runtime.data_dir)
        self.runtime = runtime
        self._feed = feed
        self.shutdown = shutdown
        self.supervisor = TaskSupervisor(clock)
        self._options = options
        self._config_file = config.loaded_from.file or places.config
        self.channels = GatewayChannels(runtime, feed)
        self.reporter = HealthReporter(runtime, self.channels, self.supervisor)
        self._live = LiveConfig(
            self._config_file,
            config,
            self.channels,
            renew=self._renew,
            renew_heartbeat=self._renew_heartbeat,
            poll_s=options.poll_s,
        )
        self._credentials = Credentials(database, clock)
        web, api = WebChannel(bus, feed, runtime.sessions), ApiChannel(bus, feed, runtime.sessions)
        self._internal_channels = (terminal, web, api)
        self.web = WebServices(
            runtime, feed, web, self._credentials, self.new_link, self.reporter.report, self._live.channel_paused
        )
        self._api = ApiServices(runtime, feed, api, ApiRequests(database, clock))
        port = config.gateway.port if options.port is None else options.port
        self.http = HttpServer(config.gateway.host, port, self._make_app, "Set gateway.port, or start with --port.")
        self.api_http: HttpServer | None = None
        """The API's own port."""
        if config.api.enabled or options.api_only:
            host = options.api_host or config.api.host
            if not is_loopback(host):
                advice = "put a proxy with TLS in front of 127.0.0.1 instead"
                log.warning("the API is served on %s unencrypted: %s", host, advice)
            port = config.api.port if options.api_port is None else options.api_port
            self.api_http = HttpServer(host, port, self._make_api_app, "Set api.port, or start with --port.")
        self._control = ControlServer(runtime, feed, terminal, self.channels, self._answer_control)

    async def open(self) -> None:
        """Create the channels, bind the ports, and add the tasks. Raises ConfigError if nobody could write to it."""
        runtime, channels, options = self.runtime, self.channels, self._options
        if not options.api_only:
            for name in channels.enabled:
                await channels.open(name)
        has_page = runtime.config.gateway.web.enabled and not channels.broken
        if not (channels.names or has_page or options.allow_empty or options.api_only):
            if channels.broken:
                raise ConfigError("No channel can start; the log says why. Add --allow-empty to run without one.")
            raise ConfigError(
                f"No channel is enabled in {self._config_file} and the page is switched off, so nobody could write to "
                "this gateway. Set up a channel, for example with `nanobot channels login telegram`, switch the page "
                "on with `nanobot config set gateway.web.enabled true`, or start with --allow-empty for the terminal "
                "and jobs only."
            )
        for channel in self._internal_channels:
            await channels.open_internal(channel)
        self._register_message_tool()
        add, reporter, dreams, live = self.supervisor.add, self.reporter, runtime.memory.dreams, self._live
        add(SupervisedTask("agent", runtime.loop.run))
        add(SupervisedTask("channels", channels.manager.run))
        add(SupervisedTask("dead letters", lambda: channels.dead_letters.run(channels)))
        add(SupervisedTask("pairing", channels.report_pairing_codes))
        add(SupervisedTask("pulse", reporter.monitor_loop, silent_s=lambda: reporter.silent_s))
        if not options.api_only:
            add(jobs_task(runtime, channels.tell_owner))
            if (heartbeat := heartbeat_task(runtime, channels)) is not None:
                add(heartbeat)
            if dreams.enabled:
                add(SupervisedTask("dream", dreams.run, problem=lambda: dreams.problem))
        add(SupervisedTask("search", runtime.archive.keep_up))
        pending = runtime.memory.consolidation.pending_archived
        add(SupervisedTask("archive", lambda: keep_packing(runtime.toolbox.services, pending)))
        add(SupervisedTask("config", live.run, problem=lambda: live.problem))
        for name, server in (("http", self.http), ("api", self.api_http), ("control", self._control)):
            if server is not None:
                await server.bind()
                add(SupervisedTask(name, server.run, problem=lambda server=server: server.problem))  # type: ignore[misc]

    async def wait(self) -> ExitReason:
        """Wait for a stop or restart request. Raises ConfigError if every channel needs its owner to act first."""
        channels = [channel for channel in map(self.channels.manager.get, self.channels.enabled) if channel is not None]
        starting = (ChannelState.OFF, ChannelState.CONNECTING)
        while any(channel.status.state in starting for channel in channels):
            if self.shutdown.is_requested:
                break
            await asyncio.sleep(0.1)
        failed = [channel for channel in channels if channel.status.state is ChannelState.FAILED]
        if failed and failed == channels and not self.shutdown.is_requested:
            reasons = " ".join(f"{channel.name}: {channel.status.last_error}" for channel in failed)
            raise ConfigError(f"No channel can be used. {reasons}")
        return await self.shutdown.wait()

    async def close(self, running: "asyncio.Task[None]") -> None:
        """Let running turns finish and messages go out for a while, then cancel. The journal keeps the rest."""
        turns_s, loop = self._options.turns_s, asyncio.get_running_loop()
        log.info("stopping: running turns have %.0f s; unfinished ones resume at the next start", turns_s)
        turns_end = loop.time() + turns_s
        await self.runtime.loop.stop(turns_s)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(max(turns_end, loop.time()) + SENDS_S):
                await self.channels.manager.drain()
        self._feed.close()
        running.cancel()
        await asyncio.wait([running], timeout=CANCEL_S)
        log.info("stopped")

    async def new_link(self) -> str:
        """A one-time link to the page. Its secret is in the fragment, which browsers send to nobody."""
        web = self.runtime.config.gateway.web
        if not web.enabled:
            raise NanobotError("The page is switched off: nanobot config set gateway.web.enabled true")
        if self.http.port is None:
            raise NanobotError(f"The gateway serves no HTTP: {self.http.problem or 'it is starting'}")
        address = web.public_url.rstrip("/") or self.http.url
        secret = await self._credentials.add(CredentialKind.LINK, secrets.token_hex(8))
        return f"{address}/#k={secret}"

    async def _answer_control(self, request: str) -> dict[str, Any] | None:
        """Answer a request of the local socket about the gateway itself; None if there is no such request."""
        match request:
            case "report":
                return await self.reporter.report()
            case "web link":
                return {"url": await self.new_link()}
            case "api urls":
                servers = (self.http, self.api_http)
                return {"urls": [f"{server.url}/v1" for server in servers if server is not None and server.port]}
            case "stop gateway":
                self.shutdown.stop()
            case "restart gateway":
                self.shutdown.restart()
            case _:
                return None
        return {}

    def _register_message_tool(self) -> None:
        """Register the tool that sends messages to chats."""
        paths = self.runtime.toolbox.policies.paths
        self.runtime.tools.register(MessageTool(self.runtime.bus, self.channels.manager, paths))

    async def _renew(self) -> None:
        """Rebuild models and tools after a change of the config."""
        await self.runtime.renew()
        self._register_message_tool()

    async def _renew_heartbeat(self) -> bool:
        """Rebuild the heartbeat; return False while it is working."""
        if HEARTBEAT in self.runtime.status.running:
            return False
        await self.supervisor.remove("heartbeat")
        if (heartbeat := heartbeat_task(self.runtime, self.channels)) is not None:
            self.supervisor.add(heartbeat)
        return True

    def _make_app(self) -> "ASGIApp":
        from nanobot.gateway.http import make_app  # loads Starlette

        return make_app(self.runtime.config.gateway.host, self.web, self._api, self.channels.webhooks)

    def _make_api_app(self) -> "ASGIApp":
        from nanobot.gateway.http import make_api_app  # as above

        return make_api_app(self._options.api_host or self.runtime.config.api.host, self.web, self._api)


@asynccontextmanager
async def open_gateway(
    config: Config,
    *,
    data_dir: Path,
    workspace: Path | None = None,
    options: Options | None = None,
    shutdown: ShutdownRequests | None = None,
    provider: LLMProvider | None = None,
    environ: Mapping[str, str] | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Gateway]:
    """Open a gateway that is ready when the block begins, and shut it down within five seconds at its end.

    Raises InstanceLockedError if a gateway of this data folder runs already, ConfigError if no channel can start,
    StorageError.
    """
    options, shutdown, places = options or Options(), shutdown or ShutdownRequests(), DataPaths(data_dir)
    gateway: Gateway | None = None  # the runtime is built before it

    def options_of(message: InboundMessage) -> TurnOptions:
        take_lines = (lambda limit: terminal.take_lines(message.turn_id, limit)) if message.is_followed else None
        return replace(turn_options(message), waiting=take_lines)

    def streams(channel: str) -> bool:
        return gateway is not None and gateway.channels.manager.streams(channel)

    async with AsyncExitStack() as stack:
        holder = stack.enter_context(single_instance(places))
        database = await stack.enter_async_context(open_database(places.database, DATABASE_SCHEMA))
        bus, feed = MessageBus(Journal(database)), Feed()
        await stack.enter_async_context(bus.open())
        terminal = TerminalChannel(bus, feed)
        runtime = await stack.enter_async_context(
            build_runtime(
                config,
                data_dir=data_dir,
                workspace=workspace,
                provider=provider,
                environ=environ,
                bus=bus,
                database=database,
                feed=feed,
                options_of=options_of,
                streams=streams,
                restart=shutdown.restart,
                clock=clock,
            )
        )
        gateway = Gateway(runtime, feed, terminal, database, options, shutdown)
        await gateway.open()
        poll_s = 5 * options.poll_s
        gateway.supervisor.add(SupervisedTask("lock", lambda: _watch_lock(places, holder, shutdown, poll_s)))
        _log_start(gateway)
        running = asyncio.create_task(gateway.supervisor.run(), name="gateway")
        runtime.memory.consolidation.resume_archived()
        try:
            log.info("ready in %.2f s", runtime.clock.monotonic() - gateway.reporter.began_at)
            tell_service_manager("READY=1")
            yield gateway
        finally:
            tell_service_manager("STOPPING=1")
            await gateway.close(running)


async def _watch_lock(places: DataPaths, holder: LockHolder, shutdown: ShutdownRequests, poll_s: float) -> None:
    """Restart if the state folder is deleted: clients cannot find the socket then, and the lock is void."""
    while not is_lost(places, holder):  # noqa: ASYNC110 a deletion sends no event
        await asyncio.sleep(poll_s)
    log.error("%s was deleted, or another gateway uses it; restarting", places.state)
    shutdown.restart()


def _log_start(gateway: Gateway) -> None:
    runtime, channels = gateway.runtime, gateway.channels
    log.info("nanobot %s, data in %s, workspace %s", __version__, runtime.data_dir, runtime.workspace)
    log.info("channels: %s", ", ".join(channels.names) or "none")
    if runtime.config.gateway.web.enabled:
        log.info("page: `nanobot web` opens it")
    if gateway.api_http is not None:
        log.info("API: %s/v1; a key for each program: nanobot api key add NAME", gateway.api_http.url)
    for line in runtime.config.loaded_from.warnings:
        log.warning("%s", line)
    paired = {name for name in channels.names if runtime.pairing.people(name).approved}
    for line in closed_channels(runtime.config, paired | channels.broken.keys()):
        log.warning("%s", line)
