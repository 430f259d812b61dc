"""The base class of channels. A channel moves messages between its platform and the bus.

To write one, derive from `BaseChannel` and implement `start`, `stop` and `send`. `ChatChannel` adds splitting,
streaming and edits.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from nanobot.bus.events import Address, InboundMessage, MenuEntry, OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.channels.access import AccessControl, AccessPolicy, Allowed, PairingOffered, decide
from nanobot.channels.cursors import StateFile
from nanobot.channels.errors import ChannelSetupError
from nanobot.channels.inbox import Inbox, until_saved
from nanobot.channels.incoming import Incoming
from nanobot.channels.media import (
    EMPTY_MESSAGE,
    Attachment,
    MediaError,
    MediaKind,
    MediaStore,
    Transcriber,
    detect_file_kind,
)
from nanobot.channels.status import ChannelState, ChannelStatus
from nanobot.channels.webhooks import Webhooks
from nanobot.messages.types import Provenance, least_trusted
from nanobot.pairing.store import PairedUsers
from nanobot.security.secrets import redact_known
from nanobot.utils.clock import Clock, SystemClock
from nanobot.utils.qr_code import qr_code

log = logging.getLogger(__name__)


class _BotState(Protocol):
    """Saved state that belongs to one bot."""

    bot: str


S = TypeVar("S", bound=_BotState)

MAY_REPEAT_NOTE = "\n\n(nanobot was interrupted here; you may have received this before.)"
UNCONFIRMED_NOTE = "\n\n(The platform did not confirm this message; you may have received it before.)"
"""The notes below a message that may arrive twice: after a crash while sending, and after an attempt without an answer.

Discord drops duplicates for some minutes, and clients of the WebSocket channel drop them by id. Other platforms do
not: Telegram has no idempotency key (core.telegram.org/bots/api#sendmessage), nor has Slack
(docs.slack.dev/reference/methods/chat.postMessage), and a mail server may deliver two mails with one Message-ID (RFC
5322, 3.6.4, calls them one mail; dropping the second is up to the recipient, RFC 7352).
"""


def repeat_note(message: OutboundMessage) -> str:
    """Return the note for a message that may already have been delivered, or an empty string."""
    if not message.may_repeat:
        return ""
    return UNCONFIRMED_NOTE if message.unconfirmed else MAY_REPEAT_NOTE


UNREADABLE = "I could not read your last message. Please rephrase it; the gateway's log says why."
UNIFIED_SESSION = "unified:default"
"""The session of all private chats of an owner, where the config unifies them."""


@dataclass(frozen=True, slots=True)
class LoginStep:
    """One thing to show. A QR code or a code replaces the one before it."""

    text: str
    qr: str = ""
    """The content of a QR code."""
    code: str = ""
    """To be typed elsewhere."""
    link: str = ""
    """To be opened."""


ShowStep = Callable[[LoginStep], None]
AskPerson = Callable[[str], Awaitable[str]]
"""Asks for one line of text."""


@dataclass(frozen=True, slots=True)
class SignedIn:
    """What the platform gave to whoever signed in there."""

    values: Mapping[str, object] = field(repr=False)
    """Settings by attribute name of the channel's section."""
    owner: str = ""
    """Who signed in; empty if unknown."""


def print_step(step: LoginStep) -> None:
    """Print it; codes and links on lines of their own, so that a terminal makes them clickable."""
    parts = (step.text, step.code and f"  {step.code}", step.qr and qr_code(step.qr), step.link)
    print("\n".join(filter(None, parts)))  # noqa: T201 a person waits


@dataclass(frozen=True, slots=True)
class ChannelServices:
    """Dependencies of a channel besides the bus; passed to `attach` before `start`."""

    access: AccessControl
    media: MediaStore
    clock: Clock = field(default_factory=SystemClock)
    transcribe: Transcriber | None = None
    state: Path | None = None
    """A folder for the channel's own state: an offset, a sync token."""
    unified: bool = False
    """Whether all private chats of an owner are one session."""
    commands: tuple[MenuEntry, ...] = ()
    """The slash commands, for platforms with a command menu."""
    bypasses_lane: Callable[[InboundMessage], bool] = lambda message: False
    """Whether the agent handles a message at once, even while its session is busy."""
    webhooks: Webhooks = field(default_factory=Webhooks)
    """Where a platform's requests arrive, for channels that receive over HTTP."""


class BaseChannel(ABC):
    """A way people reach the bot."""

    name: ClassVar[str] = ""
    """As in the config and in session keys."""
    stall_s: ClassVar[float] = 90.0
    """Reconnect after the platform was silent for this long, in seconds; 0 where silence is normal."""
    reports_up: ClassVar[bool] = True
    """Whether `start` calls `mark_up`. Otherwise the channel counts as connected while `start` runs."""
    max_provenance: ClassVar[Provenance] = Provenance.OWNER
    """Highest trust of any message of this channel, whoever sent it."""
    delta_interval_s: ClassVar[float] = 1.0
    """Shortest time between two updates of a streamed answer; deltas in between are merged."""

    def __init__(self, config: Any, bus: MessageBus) -> None:
        """`config` is the channel's section; a plain dict for a channel that the schema does not know."""
        self.config = config
        self.bus = bus
        self.status = ChannelStatus()
        self.inbox: Inbox | None = None
        """Accepted messages on their way to the agent; set by `attach`."""
        self.refusal: asyncio.Future[ChannelSetupError] | None = None
        """Ends a connection once it is set. The supervisor makes one for each."""
        self._services: ChannelServices | None = None
        self.state_file = StateFile(None)
        """The channel's own state; set by `attach`."""

    def attach(self, services: ChannelServices) -> None:
        """Set the dependencies. Called before `start`."""
        self._services = services
        self.status = ChannelStatus(services.clock)
        self.state_file = StateFile(self.state_path)
        self.inbox = Inbox(
            self.name,
            self.bus,
            self.status,
            services.media,
            self.download,
            services.transcribe,
            services.bypasses_lane,
        )

    @property
    def services(self) -> ChannelServices:
        """The dependencies. Raises RuntimeError before `attach`."""
        if self._services is None:
            raise RuntimeError(f"the channel {self.name} was started without its services")
        return self._services

    @property
    def state_path(self) -> Path | None:
        """The file of the channel's own state; None if none is kept."""
        folder = self._services.state if self._services is not None else None
        return folder / f"{self.name}.json" if folder is not None else None

    async def load_state(self, new: S) -> S:
        saved = await self.state_file.load(new)
        return saved if saved.bot == new.bot else new

    @abstractmethod
    async def start(self) -> None:
        """Connect, call `mark_up`, and serve until the connection ends or this is cancelled.

        May return or raise when the connection ends: the supervisor calls it again, with exponential backoff. Raises
        ChannelSetupError if the owner has to change something first. Releases everything when cancelled.
        """

    async def stop(self) -> None:  # noqa: B027 most have nothing to sign off from
        """Sign off, if the platform needs that. Called after `start` was cancelled. Never raises."""

    @abstractmethod
    async def send(self, message: OutboundMessage) -> "tuple[str, ...] | None":
        """Send a message. Return its platform ids, one per part. Raises SendError; safe to cancel."""

    @property
    def supports_streaming(self) -> bool:
        """Whether the channel shows an answer while the model writes it."""
        is_overridden = type(self).send_delta is not BaseChannel.send_delta
        config = self.config
        value = config.get("streaming") if isinstance(config, Mapping) else getattr(config, "streaming", None)
        return is_overridden and (value is None or bool(value))

    # The next six are optional: a channel with nothing to show leaves them empty.

    def turn_started(self, to: Address, key: str) -> None:  # noqa: B027
        """Show that the bot works on a message of this chat. `key` identifies the message. Never raises."""

    def turn_ended(self, to: Address, key: str) -> None:  # noqa: B027
        """The message of `key` is settled, with or without a turn of its own. Never raises."""

    def turn_answered(self, to: Address, message_id: str) -> None:  # noqa: B027
        """A message of this chat was answered. Called behind `turn_ended`. Never raises."""

    async def send_delta(self, chat_id: str, delta: str, metadata: Mapping[str, Any] | None = None) -> None:  # noqa: B027
        """Show more text of a streamed answer. `_stream_end` in the metadata marks the end of a part."""

    async def send_reasoning_delta(self, chat_id: str, delta: str, metadata: Mapping[str, Any] | None = None) -> None:  # noqa: B027
        """Show more of the model's reasoning; only if the owner enabled it."""

    async def send_reasoning_end(self, chat_id: str, metadata: Mapping[str, Any] | None = None) -> None:  # noqa: B027
        """The current piece of reasoning is complete."""

    async def reachable(self, chat_id: str) -> None:
        """Wait until sending to this chat can succeed; the wait uses up no retry. Safe to cancel."""
        await self.status.connected.wait()

    async def find(self, name: str) -> str | None:
        """Return the id of the chat with this name or id, or None. What names exist depends on the platform."""
        return name

    async def chat_with(self, sender_id: str) -> str | None:
        """Return the id of the private chat with this sender, opening it if needed; None if there is none.

        On most platforms it equals the sender's id. Raises SendError.
        """
        return sender_id

    def download(self, attachment: Attachment) -> AsyncIterator[bytes]:
        """Yield the bytes of an attachment that `receive` was given, in chunks. May raise anything."""
        raise MediaError(f"{self.name} does not say how to download {attachment.source!r}")

    async def run_login(self, show: ShowStep, *, force: bool = False) -> bool:
        """Test the credentials, or link an account, and show each step. Return whether nothing is left to do.

        `force` links an account anew. Raises NanobotError, OSError; safe to cancel.
        """
        if type(self).login is not BaseChannel.login:
            return await self.login(force)
        if text := await self.check_login():
            show(LoginStep(text))
        return True

    async def check_login(self) -> str:
        """Test the credentials. Return what the owner has to know. Raises NanobotError, OSError; safe to cancel."""
        return ""

    async def login(self, force: bool = False) -> bool:
        """`run_login` in a terminal. Channels written for the original override this one."""
        return await self.run_login(print_step, force=force)

    def is_allowed(self, sender_id: str) -> bool:
        """Whether this sender may write to the bot in a private chat."""
        if self._services is not None:
            return self._services.access.is_allowed(sender_id)
        incoming = Incoming(sender_id, sender_id)
        return isinstance(decide(AccessPolicy.of(self.name, self.config), PairedUsers(), incoming), Allowed)

    def delta_pause_s(self, chat_id: str) -> float:
        """Shortest time between two updates of a streamed answer in this chat, in seconds."""
        return self.delta_interval_s

    @property
    def is_running(self) -> bool:
        return self.status.state is ChannelState.UP

    def mark_up(self) -> None:
        """Report that the channel is connected, also after each reconnect."""
        if self.status.set_state(ChannelState.UP):
            log.info("%s: connected", self.name)

    def refuse(self, error: ChannelSetupError) -> None:
        """End the connection, as if `start` had raised this: the owner has to change something first."""
        if self.refusal is not None and not self.refusal.done():
            self.refusal.set_result(error)

    async def deliver(self, message: OutboundMessage) -> tuple[str, ...]:
        """Send or show a message of any kind. Return its platform ids. Raises SendError, ChannelSetupError.

        This default serves third-party channels: it puts the kind into the metadata, as `_progress` and the like.
        """
        metadata = {**message.metadata, **_FLAGS.get(message.kind, {})}
        match message.kind:
            case OutboundKind.STREAM_DELTA | OutboundKind.STREAM_END:
                text = message.content if message.kind is OutboundKind.STREAM_DELTA else ""
                await self.send_delta(message.chat_id, text, {**metadata, "_turn_id": message.turn_id})
                return ()
            case OutboundKind.REASONING:
                await self.send_reasoning_delta(message.chat_id, message.content, metadata)
                await self.send_reasoning_end(message.chat_id, metadata)
                return ()
            case OutboundKind.RECEIPT:
                return ()
            case _:
                text = message.content + repeat_note(message)
                return tuple(await self.send(replace(message, content=text, metadata=metadata)) or ())

    async def receive(self, incoming: Incoming) -> bool:
        """Process an incoming message. Return True once it is journaled, False if it is ignored or a duplicate.

        In both cases the platform may be acknowledged. Raises StorageError if it could not be journaled; do not
        acknowledge then.
        """
        self.status.touch()
        decision = await self.services.access.decide(incoming)
        if isinstance(decision, PairingOffered):
            await self.bus.publish_outbound(
                OutboundMessage(
                    self.name, incoming.chat_id, decision.text, kind=OutboundKind.NOTICE, thread_id=incoming.thread_id
                )
            )
        if not isinstance(decision, Allowed):
            return False
        stored = await incoming.fetch() if incoming.fetch is not None else ()
        attachments = [*map(Attachment.from_stored, stored), *incoming.identified_attachments]
        content = redact_known(incoming.text)
        if not incoming.media:
            content = content.strip() or ("" if attachments else EMPTY_MESSAGE)
        quotes_others = incoming.quotes_others
        if incoming.media and not quotes_others:
            paths = [Path(path) for path in incoming.media]
            kinds = await asyncio.to_thread(lambda: [detect_file_kind(path, MediaKind.FILE) for path in paths])
            quotes_others = any(kind.may_quote_others for kind in kinds)
        others = [Provenance.PERSON] if quotes_others else []
        now = self.services.clock.now()
        message = InboundMessage(
            self.name,
            incoming.sender_id,
            incoming.chat_id,
            content,
            incoming.sent_at.astimezone(now.tzinfo) if incoming.sent_at is not None else now,
            [*incoming.media],
            dict(incoming.metadata),
            incoming.session_key or self._session_of(incoming, decision.provenance),
            incoming.message_id,
            incoming.thread_id,
            provenance=least_trusted([decision.provenance, self.max_provenance, *others]),
            in_group=not incoming.is_private,
            is_mentioned=incoming.is_mentioned,
        )
        assert self.inbox is not None  # noqa: S101 `services` has raised before `attach`
        accepted = await self.inbox.put(message, attachments)
        if accepted:
            self.status.record_received()
        return accepted

    async def receive_until_journaled(self, incoming: Incoming) -> bool:
        """`receive`, repeated while the disk refuses: for platforms that deliver a message once."""
        return await until_saved(
            lambda: self.receive(incoming), f"{self.name}: a message waits until it can be journaled"
        )

    async def _handle_message(
        self,
        sender_id: str,
        chat_id: str,
        content: str,
        media: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        session_key: str | None = None,
    ) -> None:
        """`receive` as channels written for the original call it."""
        sender_id, chat_id = str(sender_id), str(chat_id)
        await self.receive(
            Incoming(
                sender_id, chat_id, content, media=tuple(media or ()), metadata=metadata or {}, session_key=session_key
            )
        )

    async def report_unreadable(self, sender_id: str, to: Address, *, is_private: bool) -> None:
        """Tell the sender, in a private chat only, that their message could not be read. The log has the reason."""
        if is_private and self.is_allowed(sender_id):
            await self.bus.publish_outbound(
                OutboundMessage(to.channel, to.chat_id, UNREADABLE, kind=OutboundKind.NOTICE, thread_id=to.thread_id)
            )

    def _session_of(self, incoming: Incoming, provenance: Provenance) -> str | None:
        if self.services.unified and incoming.is_private and provenance is Provenance.OWNER:
            return UNIFIED_SESSION
        return f"{self.name}:{incoming.chat_id}:{incoming.thread_id}" if incoming.thread_id else None


_FLAGS: dict[OutboundKind, dict[str, bool]] = {
    OutboundKind.PROGRESS: {"_progress": True},
    OutboundKind.TOOL_HINT: {"_progress": True, "_tool_hint": True},
    OutboundKind.STREAM_DELTA: {"_stream_delta": True},
    OutboundKind.STREAM_END: {"_stream_end": True},
}
"""Metadata keys by which third-party channels tell kinds apart."""
