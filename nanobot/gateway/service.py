"""The gateway: channels, agent and all that lives for days, held together until somebody tells it to stop.

Reading order: `serve` (until a signal or a word) -> `open_gateway` (what is opened, in which order) -> `Gateway` (what
is there while it runs, and how it leaves).
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from nanobot import __version__
from nanobot.agent.tools.message import MessageTool
from nanobot.bus.journal import open_journal
from nanobot.bus.queue import MessageBus
from nanobot.channels.evidence import ChannelState
from nanobot.config.loader import closed_channels
from nanobot.config.paths import Places
from nanobot.config.schema import Config
from nanobot.errors import ConfigError
from nanobot.gateway.control import ControlServer
from nanobot.gateway.dead_letters import DeadLetters
from nanobot.gateway.health import HealthServer
from nanobot.gateway.heart import heartbeat_member
from nanobot.gateway.jobs import jobs_member
from nanobot.gateway.live import LOOK_S, LiveConfig
from nanobot.gateway.lock import Holder, is_lost, only_one
from nanobot.gateway.members import Member, Members
from nanobot.gateway.owners import tell_owner
from nanobot.gateway.pulse import Pulse, tell_service_manager
from nanobot.gateway.report import SILENT_S, Watch
from nanobot.gateway.roster import Roster
from nanobot.gateway.terminal import TerminalChannel
from nanobot.gateway.wishes import Leave, Wishes
from nanobot.providers.base import LLMProvider
from nanobot.runtime import Runtime, build_runtime
from nanobot.security import vault
from nanobot.security.secrets import Redactor, secrets_of
from nanobot.utils.clock import Clock
from nanobot.wiring.walls import path_policy

log = logging.getLogger(__name__)

TURNS_S = 3.0
"""How long turns that run may go on when the gateway is told to stop; the rest goes on at the next start."""
SENDS_S = 1.0
"""How long what they said may take to its platforms then, beside the time that the turns left over."""
GOODBYE_S = 0.5
"""How long the members have to let go."""


@dataclass(frozen=True, slots=True)
class Options:
    """How it is to run, beside the config."""

    port: int | None = None
    """Where health is served; None as the config says."""
    allow_empty: bool = False
    """Whether it also runs when nobody can reach it by a channel."""
    look_s: float = LOOK_S
    turns_s: float = TURNS_S


@dataclass(slots=True)
class Gateway:
    """What is there while it runs."""

    runtime: Runtime
    roster: Roster
    members: Members
    watch: Watch
    health: HealthServer
    control: ControlServer
    wishes: Wishes

    async def wait(self) -> Leave:
        """Until somebody wants it to end. Raises ConfigError where no channel can be used before its owner acts."""
        leaving = asyncio.ensure_future(self.wishes.wait())
        looking = asyncio.ensure_future(self._all_refused())
        try:
            await asyncio.wait((leaving, looking), return_when=asyncio.FIRST_COMPLETED)
            if looking.done() and not leaving.done() and (refused := looking.result()):
                raise ConfigError(f"No channel can be used. {refused}")
            return await leaving
        finally:
            leaving.cancel()
            looking.cancel()

    async def _all_refused(self) -> str:
        """Returns where every channel there is was refused at its first try: what each of them needs."""
        channels = [channel for channel in map(self.roster.manager.get, self.roster.enabled) if channel is not None]
        starting = (ChannelState.OFF, ChannelState.CONNECTING)
        while any(channel.evidence.state in starting for channel in channels):  # noqa: ASYNC110 only at the start
            await asyncio.sleep(0.1)
        if not channels or any(channel.evidence.state is not ChannelState.FAILED for channel in channels):
            await asyncio.Event().wait()
        return " ".join(f"{channel.name}: {channel.evidence.last_error}" for channel in channels)


Service = Callable[[Runtime, Roster], Member]
"""Makes a further member out of what is there: the clockwork of jobs, the heartbeat."""


async def serve(
    config: Config,
    *,
    data_dir: Path,
    workspace: Path,
    options: Options | None = None,
    services: Sequence[Service] = (),
    wishes: Wishes | None = None,
) -> Leave:
    """Run until somebody wants it to end; why it does. Raises InstanceLockedError, ConfigError, StorageError."""
    async with open_gateway(
        config, data_dir=data_dir, workspace=workspace, options=options, services=services, wishes=wishes
    ) as gateway:
        return await gateway.wait()


@asynccontextmanager
async def open_gateway(
    config: Config,
    *,
    data_dir: Path,
    workspace: Path | None = None,
    options: Options | None = None,
    services: Sequence[Service] = (),
    wishes: Wishes | None = None,
    provider: LLMProvider | None = None,
    environ: Mapping[str, str] | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Gateway]:
    """A gateway, ready when the block begins; at its end it leaves in good order, within five seconds.

    `services` are what else lives in it. Raises InstanceLockedError where this data folder has one already, ConfigError
    where nobody could reach it, StorageError where the disk refuses.
    """
    options, wishes, places = options or Options(), wishes or Wishes(), Places(data_dir)
    environ = os.environ if environ is None else environ
    streaming: list[Roster] = []  # the runtime is asked of channels that are made after it
    async with AsyncExitStack() as lives:
        holder = lives.enter_context(only_one(places))
        bus = MessageBus(await lives.enter_async_context(open_journal(places.journal)))
        await lives.enter_async_context(bus.open())
        runtime = await lives.enter_async_context(
            build_runtime(
                config,
                data_dir=data_dir,
                workspace=workspace,
                provider=provider,
                environ=environ,
                bus=bus,
                streams=lambda name: any(roster.streams(name) for roster in streaming),
                restart=wishes.restart,
                clock=clock,
            )
        )
        gateway = await _assemble(runtime, places, options, wishes, environ, services)
        gateway.members.add(Member("lock", lambda: _until_it_is_lost(places, holder, wishes, options.look_s)))
        streaming.append(gateway.roster)
        lives.push_async_callback(gateway.roster.close_recordings)
        _announce(gateway)
        await gateway.health.bind()
        await gateway.control.bind()
        living = asyncio.create_task(gateway.members.run(), name="gateway")
        runtime.upkeep.tidying.go_on()
        try:
            log.info("ready in %.2f s", runtime.clock.monotonic() - gateway.watch.began)
            tell_service_manager("READY=1")
            yield gateway
        finally:
            tell_service_manager("STOPPING=1")
            await _leave(gateway, living, options.turns_s)


async def _assemble(
    runtime: Runtime,
    places: Places,
    options: Options,
    wishes: Wishes,
    environ: Mapping[str, str],
    services: Sequence[Service],
) -> Gateway:
    """Everything made and nothing begun. Raises ConfigError where nobody could reach it."""
    config, bus, clock = runtime.config, runtime.bus, runtime.clock
    letters = DeadLetters(bus)
    roster = Roster(config, bus, places, clock, runtime.pairing, letters.put, runtime.loop.commands.menu())
    await roster.open_all()
    if not roster.names and not options.allow_empty:
        raise ConfigError(_nobody_can_reach_it(roster, config.loaded_from.file or places.config))
    members = Members(clock)
    terminal = TerminalChannel(bus)
    await roster.open_terminal(terminal)
    paths = path_policy(config, runtime.data_dir, runtime.workspace)
    runtime.tools.register(MessageTool(bus, roster.manager, paths))
    pulse = Pulse(clock, roster.evidence)
    redactor = Redactor(lambda: secrets_of(config.model_dump(), environ))
    assert bus.journal is not None  # noqa: S101 open_gateway made the bus with one
    watch = Watch(
        places,
        clock,
        bus.journal,
        roster,
        members,
        pulse,
        running=lambda: len(runtime.vitals.running),
        last_error=lambda: runtime.vitals.last_error,
        model_error=lambda: runtime.vitals.model_error,
        dead_letters=lambda: letters.count,
        redact=lambda text: redactor.text(vault.masked(text)),
        plugins=runtime.troubles,
        began=clock.monotonic(),
    )
    port = config.gateway.port if options.port is None else options.port
    health = HealthServer(config.gateway.host, port, watch.report)
    control = ControlServer(places, runtime, watch, wishes, terminal)
    dreams = runtime.upkeep.dreams
    live = LiveConfig(config.loaded_from.file or places.config, config, roster, look_s=options.look_s)
    for member in (
        Member("agent", runtime.loop.run),
        Member("channels", roster.manager.run),
        Member("dead letters", lambda: letters.run(runtime, roster.manager)),
        Member("pulse", pulse.run, silent_s=lambda: pulse.silent_s, stale_s=SILENT_S),
        jobs_member(runtime, lambda text: tell_owner(runtime, roster.manager, roster.names, text)),
        *([heart] if (heart := heartbeat_member(runtime, roster)) is not None else []),
        Member("search", runtime.archive.keep_up),
        *([Member("dream", dreams.run, problem=lambda: dreams.problem)] if dreams.enabled else []),
        Member("config", live.run, problem=lambda: live.problem),
        Member("health", health.run, problem=lambda: health.problem),
        Member("control", control.run, problem=lambda: control.problem),
        *(make(runtime, roster) for make in services),
    ):
        members.add(member)
    return Gateway(runtime, roster, members, watch, health, control, wishes)


async def _until_it_is_lost(places: Places, holder: Holder, wishes: Wishes, look_s: float) -> None:
    """Begin anew where the state folder was taken away: nobody finds the socket, and nothing keeps a second one out."""
    while not is_lost(places, holder):  # noqa: ASYNC110 no file tells that it is deleted
        await asyncio.sleep(look_s)
    log.error("%s was taken away, or another gateway has it; this one begins anew", places.state)
    wishes.restart()


def _nobody_can_reach_it(roster: Roster, file: Path) -> str:
    if roster.broken:
        return "No channel can start. " + " ".join(f"{name}: {problem}" for name, problem in roster.broken.items())
    return (
        f"No channel is switched on in {file}, so nobody could write to this gateway. Set one up, for example with "
        "`nanobot channels login telegram`, or start with --allow-empty for the terminal and jobs alone."
    )


def _announce(gateway: Gateway) -> None:
    """What an owner wants to know of a start, in a few lines."""
    runtime, roster = gateway.runtime, gateway.roster
    log.info("nanobot %s, data in %s, workspace %s", __version__, runtime.data_dir, runtime.workspace)
    log.info("channels: %s", ", ".join(roster.names) or "none")
    for line in runtime.config.loaded_from.warnings:
        log.warning("%s", line)
    for line in closed_channels(runtime.config, runtime.pairing.paired_channels()):
        log.warning("%s", line)


async def _leave(gateway: Gateway, living: "asyncio.Task[None]", turns_s: float) -> None:
    """In good order: nothing new is begun, what runs may end, what was said goes out. The journal has the rest."""
    log.info("stopping: what runs has %.0f s; the rest goes on at the next start", turns_s)
    spare = asyncio.get_running_loop().time() + turns_s
    await gateway.runtime.loop.stop(turns_s)
    with suppress(TimeoutError):
        async with asyncio.timeout_at(max(spare, asyncio.get_running_loop().time()) + SENDS_S):
            await gateway.roster.manager.drain()
    living.cancel()
    await asyncio.wait([living], timeout=GOODBYE_S)
    log.info("stopped")
