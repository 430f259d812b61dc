"""The gateway's channels: those of platforms, which the config enables, and its own: terminal, page and API.

One that cannot be created is logged and reported as failed. An owner hears of undeliverable messages, and of who asks
to talk to the bot.
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nanobot.agent.feed import Feed
from nanobot.bus.events import (
    FEED_CHANNELS,
    WEB_CHANNEL,
    Address,
    Button,
    DeliveryFailedError,
    InboundMessage,
    OutboundKind,
    OutboundMessage,
)
from nanobot.bus.queue import MessageBus
from nanobot.channels.access import AccessControl, AccessPolicy
from nanobot.channels.base import UNIFIED_SESSION, BaseChannel, ChannelServices
from nanobot.channels.errors import NotConnectedError, UndeliverableError
from nanobot.channels.manager import ChannelManager
from nanobot.channels.media import MediaStore
from nanobot.channels.registry import create_channel, find
from nanobot.channels.status import ChannelState, ChannelStatus
from nanobot.channels.supervisor import describe_error
from nanobot.channels.webhooks import Webhooks
from nanobot.config.paths import DataPaths
from nanobot.config.schema import Config
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.types import ChatMessage, Origin, Provenance
from nanobot.pairing.store import VALID_S, Pending
from nanobot.runtime.build import Runtime
from nanobot.session.manager import SessionManager
from nanobot.utils.clock import timestamp
from nanobot.utils.text import clip_line

log = logging.getLogger(__name__)

MAX_NOTICES = 4
"""Maximum number of pairing notices to an owner in an hour."""
_HOUR_S = 3600.0
_EXCERPT_CHARS = 300
_MAX_QUEUED = 1_000
"""Unreported dead letters; further ones are only in the log and the journal."""
REOPEN_S = 2.0
"""How long to wait for a terminal to open again: it closes for a moment between two requests."""
_BUSY_S = 2.0
"""How long a message waits for the turn of its chat, before it goes back to the queue for a moment."""
Show = Callable[[str], None]
_SHOWN = (OutboundKind.REPLY, OutboundKind.NOTICE)
_INTERNAL = {"cli", *FEED_CHANNELS}
"""Channels without a platform. They are always there, and no config names them."""


class TranscriptionService:
    """Transcribes recordings with the provider that the config names for a channel at that time."""

    def __init__(self, config: Config, channel: str) -> None:
        self._config = config
        self._channel = channel

    async def transcribe(self, path: Path) -> str:
        """Return the text of a recording. Raises NanobotError, which names a missing setting."""
        from nanobot.providers.transcription import choose_transcriber  # only a recording needs it

        own = self._config.channels.section(self._channel)
        transcriber = choose_transcriber(
            self._config, os.environ, provider=own.transcription_provider, language=own.transcription_language
        )
        return await transcriber.transcribe(path)


class GatewayChannels:
    """The channels, their access control and transcription, and the errors of those that cannot start."""

    def __init__(self, runtime: Runtime, feed: Feed) -> None:
        self.runtime = runtime
        self.config = runtime.config
        self.webhooks = Webhooks()
        """For channels that receive over HTTP; the gateway serves them."""
        self.broken: dict[str, str] = {}
        """Enabled channels that cannot be created, with what their owner has to do."""
        self._places = DataPaths(runtime.data_dir)
        self._feed = feed
        self._pairing_codes: asyncio.Queue[Pending] = asyncio.Queue()
        self._retries: dict[str, int] = {}
        self.dead_letters = DeadLetters()
        self.manager = ChannelManager([], runtime.bus, retries=self._retries, dead_letter=self.dead_letters.put)

    @property
    def enabled(self) -> list[str]:
        """The channels that the config enables."""
        return self.config.channels.enabled

    @property
    def names(self) -> list[str]:
        """The channels of platforms that were created."""
        return [name for name in self.manager.names if name not in _INTERNAL]

    def statuses(self) -> dict[str, ChannelStatus]:
        """The status of each platform's channel, by name."""
        return {name: status for name, status in self.manager.statuses().items() if name not in _INTERNAL}

    async def open_internal(self, channel: BaseChannel) -> None:
        """Add a channel without a platform."""
        await self.manager.change(channel.name, self._attach(channel, AccessPolicy(channel.name)))

    async def open(self, name: str) -> bool:
        """Create or recreate a channel. Return False after an error, which is logged and kept in `broken`."""
        self.broken.pop(name, None)
        try:
            channel = await create_channel(name, self.config, self.runtime.bus)
            self._attach(channel, AccessPolicy.of(name, self.config.channels.own_section(name)))
        except Exception as error:  # a plugin's `attach` may raise anything
            self.broken[name] = describe_error(error)
            # an error of ours says it in a line; the author of a plugin that raised something needs the traceback
            cause = error.__cause__
            is_of_plugin = cause is not None and not isinstance(cause, NanobotError | ImportError | SystemExit)
            has_traceback = is_of_plugin or not isinstance(error, NanobotError)
            log.error("%s: %s", name, self.broken[name], exc_info=has_traceback)  # noqa: TRY400 as above
            return False
        self.renew_retries()
        await self.manager.change(name, channel)
        return True

    async def close(self, name: str) -> None:
        """Stop and remove a channel."""
        self.broken.pop(name, None)
        await self.manager.change(name, None)

    def is_running(self, name: str) -> bool:
        """Whether this channel is connected."""
        channel = self.manager.get(name)
        return channel is not None and channel.is_running

    def renew_access(self, name: str) -> None:
        """Apply changed access settings. Raises ConfigError if they are invalid; the old ones stay then."""
        if (channel := self.manager.get(name)) is not None:
            channel.config = self.config.channels.own_section(name)
            channel.services.access.policy = AccessPolicy.of(name, channel.config)

    def renew_retries(self) -> None:
        """Apply changed retry settings."""
        common = self.config.channels.send_max_retries
        for name in self.enabled:
            own = self.config.channels.section(name).send_max_retries
            self._retries[name] = common if own is None else own

    def _attach(self, channel: BaseChannel, policy: AccessPolicy) -> BaseChannel:
        name, runtime = channel.name, self.runtime
        channel.attach(
            ChannelServices(
                AccessControl(policy, runtime.pairing, runtime.clock, self._on_pairing_code),
                MediaStore(self._places.media / name, clock=runtime.clock),
                runtime.clock,
                TranscriptionService(self.config, name),
                self._places.state / "channels" / name,
                self.config.agents.defaults.unified_session,
                runtime.loop.commands.menu(),
                runtime.loop.bypasses_lane,
                self.webhooks,
            )
        )
        return channel

    def _on_pairing_code(self, entry: Pending) -> None:
        self._pairing_codes.put_nowait(entry)
        self._feed.changed("inbox")

    async def report_pairing_codes(self) -> None:
        """Tell an owner of each new code, with buttons to decide, until cancelled. At most MAX_NOTICES an hour;
        `/pairing list` has the others.
        """
        sent_at: deque[float] = deque(maxlen=MAX_NOTICES)
        while True:
            entry, now = await self._pairing_codes.get(), self.runtime.clock.monotonic()
            if len(sent_at) == MAX_NOTICES and now - sent_at[0] < _HOUR_S:
                continue
            spec, code = find(entry.channel), entry.code
            text = (
                f"{entry.name or entry.sender_id} on {spec.title if spec else entry.channel} wants to talk to me.\n"
                f"Press a button, or write /pairing approve {code} (or deny) within {VALID_S // 60} minutes. "
                "/pairing list shows everybody who waits."
            )
            buttons = (Button("Let in", f"/pairing approve {code}"), Button("No", f"/pairing deny {code}"))
            try:
                if await self.tell_owner(text, [*dict.fromkeys([entry.channel, *self.manager.names])], buttons):
                    sent_at.append(now)
            except StorageError as error:
                log.warning("the request of %s to pair cannot be shown to an owner: %s", entry, error)

    async def tell_owner(self, text: str, channels: Sequence[str] = (), buttons: tuple[Button, ...] = ()) -> bool:
        """Queue a notice to an owner of these channels, by default of all. False if there is no chat for it.

        Raises StorageError.
        """
        if chat := await self.owners_chat(channels or self.names):
            notice = OutboundMessage(chat.channel, chat.chat_id, text, kind=OutboundKind.NOTICE, buttons=buttons)
            await self.runtime.bus.publish_outbound(notice)
        return chat is not None

    async def owners_chat(self, channels: Sequence[str]) -> Address | None:
        """The last chat of these channels that only an owner reads, else the private one that a platform opens for an
        owner. Raises StorageError.
        """
        owners = {name: ids for name, ids in self.runtime.pairing.load().owners.items() if name in channels and ids}
        if chat := await asyncio.to_thread(self.runtime.privacy.owners_last_chat, owners):
            return chat
        for name in channels:
            for owner in owners.get(name, ()):
                if (chat_id := await self.manager.chat_with(name, owner)) is not None:
                    return Address(name, chat_id)
        return None


class DeadLetters:
    """A queue of dead letters. The channel manager calls `put`; `run` is a supervised task."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[OutboundMessage, DeliveryFailedError]] = asyncio.Queue(_MAX_QUEUED)
        self._notices: deque[OutboundMessage] = deque(maxlen=20)
        self.count = 0

    async def put(self, message: OutboundMessage, error: DeliveryFailedError) -> None:
        """Queue a dead letter. Never blocks or raises."""
        if any(message is notice for notice in self._notices):  # do not report undeliverable reports
            return
        self.count += 1
        log.error("%s", error)
        if not self._queue.full():
            self._queue.put_nowait((message, error))

    async def run(self, channels: GatewayChannels) -> None:
        """Report dead letters to the agent, and to an owner on another channel that is connected, until cancelled."""
        while True:
            message, error = await self._queue.get()
            excerpt = clip_line(" ".join(message.content.split()), _EXCERPT_CHARS)
            try:
                await _tell_agent(channels.runtime, message, f"[{error} The user has not seen it. It began: {excerpt}]")
                others = [name for name in channels.names if name != message.channel and channels.is_running(name)]
                if chat := await channels.owners_chat(others):
                    text = f"{error}\nIt said: {excerpt}"
                    notice = OutboundMessage(chat.channel, chat.chat_id, text, kind=OutboundKind.NOTICE)
                    self._notices.append(notice)
                    await channels.runtime.bus.publish_outbound(notice)
            except StorageError as storage_error:
                log.warning("a dead letter cannot be reported: %s", storage_error)


async def _tell_agent(runtime: Runtime, message: OutboundMessage, text: str) -> None:
    """Add a system row to the session of the chat, for the model's next turn."""
    key = await asyncio.to_thread(_session_of, runtime, message)
    if key is not None:
        row: ChatMessage = {
            "role": "user",
            "content": text,
            "origin": Origin.SYSTEM,
            "provenance": Provenance.SYSTEM,
            "timestamp": timestamp(runtime.clock),
        }
        async with runtime.loop.lane(key), runtime.sessions.hold(key) as session:
            await runtime.sessions.append(session, row)


def _session_of(runtime: Runtime, message: OutboundMessage) -> str | None:
    """Return the session key of the message's chat, or None if there is no session. Blocking.

    The unified session takes precedence if the chat has written in it.
    """
    chat = f"{message.channel}:{message.chat_id}"
    own = [f"{chat}:{message.thread_id}", chat] if message.thread_id else [chat]
    if runtime.config.agents.defaults.unified_session and (all_chats := runtime.sessions.read(UNIFIED_SESSION)):
        if any(str(row.get("inbound", "")).startswith(f"{chat}:") for row in all_chats.messages):
            return UNIFIED_SESSION
        own.append(UNIFIED_SESSION)
    return next((key for key in own if runtime.sessions.find(key) is not None), None)


class InternalChannel(BaseChannel):
    """A channel whose people read the feed, which has the events of their turns."""

    stall_s = 0.0

    def __init__(self, bus: MessageBus, feed: Feed) -> None:
        super().__init__({}, bus)
        self._feed = feed

    async def start(self) -> None:
        self.status.set_state(ChannelState.UP)
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Nothing to do."""


class TerminalChannel(InternalChannel):
    """Shows messages in open terminal chats. What is typed there comes through the control socket."""

    name = "cli"

    def __init__(self, bus: MessageBus, feed: Feed) -> None:
        super().__init__(bus, feed)
        self.waiting_lines: dict[str, list[InboundMessage]] = {}
        """Lines typed while a turn runs, by its id: they join it."""
        self._open: list[tuple[str, Show, bool]] = []
        self._opened = asyncio.Event()

    @contextmanager
    def shown_by(self, chat_id: str, show: Show, *, for_all: bool = False) -> Iterator[None]:
        """Show messages to this chat with `show` until the block ends; with `for_all`, also those of closed chats.

        `show` must neither block nor raise.
        """
        terminal = (chat_id, show, for_all)
        self._open.append(terminal)
        self._opened.set()
        try:
            yield
        finally:
            self._open.remove(terminal)

    def take_lines(self, turn_id: str, limit: int) -> Sequence[InboundMessage]:
        """Remove and return lines that wait for a turn, which they join."""
        waiting = self.waiting_lines.get(turn_id, [])
        joining, waiting[:limit] = waiting[:limit], []
        if joining:
            self._feed.join_lines(turn_id, len(joining))
        return joining

    async def deliver(self, message: OutboundMessage) -> tuple[str, ...]:
        """Show replies and notices; the client of a turn gets its other events itself."""
        return await self.send(message) if message.kind in _SHOWN else ()

    async def send(self, message: OutboundMessage) -> tuple[str, ...]:
        """Show a message in every open terminal of the chat. Raises UndeliverableError if there is none."""
        try:
            async with asyncio.timeout(REOPEN_S):
                while not (shows := self._open_in(message.chat_id)):
                    self._opened.clear()
                    await self._opened.wait()
        except TimeoutError:
            raise UndeliverableError(f"no terminal has the chat {message.chat_id!r} open") from None
        for show in shows:
            show(message.content)
        return (f"terminal-{len(shows)}",)

    def _open_in(self, chat: str) -> list[Show]:
        """The terminals of a chat; of one that nobody has open, such as a single message's, all chats."""
        open_here = [show for chat_id, show, _ in self._open if chat_id == chat]
        return open_here or [show for _, show, for_all in self._open if for_all]


class WebChannel(InternalChannel):
    """Chats of the page. An answer is in the events of its turn; the rest, such as a job's report, is stored."""

    name = WEB_CHANNEL

    def __init__(self, bus: MessageBus, feed: Feed, sessions: SessionManager) -> None:
        super().__init__(bus, feed)
        self._sessions = sessions

    async def deliver(self, message: OutboundMessage) -> tuple[str, ...]:
        is_answer = message.answers is not None and message.answers.startswith(f"{self.name}:")
        if message.kind not in _SHOWN or (is_answer and not message.by_tool):
            return (f"feed-{self._feed.position}",)
        return await self.send(message)

    async def send(self, message: OutboundMessage) -> tuple[str, ...]:
        """Publish a message, and store it unless the turn that sends it does."""
        row: ChatMessage = {"role": "assistant", "content": message.content, "provenance": Provenance.SYSTEM}
        if message.media:
            row["media"] = list(message.media)
        if not message.by_tool:
            try:
                async with asyncio.timeout(_BUSY_S), self._sessions.hold(f"{self.name}:{message.chat_id}") as session:
                    await self._sessions.append(session, row)
            except TimeoutError as error:
                raise NotConnectedError("a turn runs in this chat; the message is stored after it") from error
        return (f"feed-{self._feed.post(message)}",)


class ApiChannel(WebChannel):
    """Sessions of the API."""

    name = FEED_CHANNELS[1]
