"""What a channel is: it takes messages from its platform to the bus, and from the bus to its platform.

A platform of ours stands on `posting`, which knows how to split, stream and edit. Whoever writes a channel from scratch
derives from `BaseChannel`: `start`, `stop` and `send` are enough.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from nanobot.bus.events import Address, InboundMessage, MenuEntry, OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.channels.access import Access, AccessPolicy, Allowed, Knock, Pair, decide
from nanobot.channels.evidence import ChannelState, Evidence
from nanobot.channels.media import Kept, MediaStore, Transcriber, as_content
from nanobot.messages.types import Provenance, least_trusted
from nanobot.pairing.book import People
from nanobot.security.vault import masked
from nanobot.utils.clock import Clock, SystemClock

log = logging.getLogger(__name__)

Fetch = Callable[[], Awaitable[Sequence[Kept]]]
"""Fetches what is attached, once its sender is let in; see `MediaStore.keep`."""
MAY_REPEAT = "\n\n(nanobot was interrupted here; you may have received this before.)"
"""What stands below a message that a crash came upon while the platform was taking it, where it may be seen twice.

Discord drops a second one for some minutes, and clients of the WebSocket channel drop one by its id. Nobody else
promises that: Telegram has no id for it (core.telegram.org/bots/api#sendmessage), nor has Slack
(docs.slack.dev/reference/methods/chat.postMessage), and a mail server may deliver two mails with one Message-ID (RFC
5322, 3.6.4, says that it is one mail; to drop the second is the reader's choice, RFC 7352).
"""
UNIFIED_SESSION = "unified:default"
"""The one session of an owner who wants the same conversation wherever they write."""


@dataclass(frozen=True, slots=True)
class Services:
    """What a channel works with beside the bus. The manager hands it over before `start`."""

    access: Access
    media: MediaStore
    """Keeps what comes attached."""
    clock: Clock = field(default_factory=SystemClock)
    transcribe: Transcriber | None = None
    state: Path | None = None
    """A folder for what the channel itself has to remember: an offset, a sync token."""
    unified: bool = False
    """Whether all private chats of an owner are one session."""
    commands: tuple[MenuEntry, ...] = ()
    """The slash commands, for platforms with a menu of them."""


class BaseChannel(ABC):
    """One way people reach the bot."""

    name: ClassVar[str] = ""
    """As in the config and in session keys."""
    stall_s: ClassVar[float] = 90.0
    """How long a platform may give no sign of life before the connection is made anew; 0 where silence is usual."""
    says_when_up: ClassVar[bool] = True
    """Whether it calls `up` itself. One that does not is believed to be connected while `start` runs."""
    at_most: ClassVar[Provenance] = Provenance.OWNER
    """How far words are trusted that come this way, whoever sends them."""
    delta_interval_s: ClassVar[float] = 1.0
    """How often a growing answer may be shown anew; what comes between is shown together."""

    def __init__(self, config: Any, bus: MessageBus) -> None:
        """`config` is the channel's section; a plain dict for a channel that the schema does not know."""
        self.config = config
        self.bus = bus
        self.evidence = Evidence()
        self._services: Services | None = None

    def attach(self, services: Services) -> None:
        """Take what it works with, before `start`."""
        self._services = services
        self.evidence = Evidence(services.clock)

    @property
    def services(self) -> Services:
        """What it works with. Raises RuntimeError before `attach`."""
        if self._services is None:
            raise RuntimeError(f"the channel {self.name} was started without its services")
        return self._services

    @abstractmethod
    async def start(self) -> None:
        """Connect, say `up`, and serve until the connection ends or this is cancelled.

        Returns or raises when it ended: it is called again, after a while that grows with each failure. Raises
        ChannelSetupError where trying again is of no use. Cancelling lets go of everything.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Say goodbye, if the platform wants one. `start` is cancelled by then. Never raises."""

    @abstractmethod
    async def send(self, message: OutboundMessage) -> "tuple[str, ...] | None":
        """Hand a message to the platform; its ids there, one for each piece. Raises SendError; safe to cancel."""

    @property
    def supports_streaming(self) -> bool:
        """Whether it shows an answer as it grows."""
        own = type(self).send_delta is not BaseChannel.send_delta
        return own and bool(_setting(self.config, "streaming", usual=True))

    # The four that follow do nothing where a channel has nothing to show: that is no stub, it is the answer.

    def accepted(self, to: Address) -> None:  # noqa: B027
        """A message from there is on the disk, and its turn comes: show that the bot is at work. Never raises."""

    async def send_delta(self, chat_id: str, delta: str, metadata: Mapping[str, Any] | None = None) -> None:  # noqa: B027
        """More of an answer that grows. `_stream_end` in the metadata says that this part of it is whole."""

    async def send_reasoning_delta(self, chat_id: str, delta: str, metadata: Mapping[str, Any] | None = None) -> None:  # noqa: B027
        """More of what the model thinks; only where the owner wants to see it."""

    async def send_reasoning_end(self, chat_id: str, metadata: Mapping[str, Any] | None = None) -> None:  # noqa: B027
        """That thought is at its end."""

    async def reachable(self, chat_id: str) -> None:
        """Return as soon as it is worth trying to send there: by then it has cost nothing. Safe to cancel."""
        await self.evidence.connected.wait()

    async def find(self, name: str) -> str | None:
        """The id of the chat that a person would call so. An id is what it is; names are the platform's own matter."""
        return name

    async def chat_with(self, sender_id: str) -> str | None:
        """The private chat with this person, opened where the platform wants that; None where there is none.

        On most platforms it goes by the id of the person. Raises SendError.
        """
        return sender_id

    async def login(self, force: bool = False) -> bool:
        """Whatever a person has to do once at a keyboard. True where nothing is left to do."""
        return True

    def is_allowed(self, sender_id: str) -> bool:
        """Whether this sender may speak in a private chat."""
        if self._services is not None:
            return self._services.access.knows(sender_id)
        knock = Knock(sender_id, sender_id, is_private=True)
        return isinstance(decide(AccessPolicy.of(self.name, self.config), People(), knock), Allowed)

    def delta_pause_s(self, chat_id: str) -> float:
        """How often a growing answer may be shown anew in this chat."""
        return self.delta_interval_s

    @property
    def is_running(self) -> bool:
        """Whether it is connected."""
        return self.evidence.state is ChannelState.UP

    def up(self) -> None:
        """To be called when it is connected, and again when it is back."""
        if self.evidence.turn(ChannelState.UP):
            log.info("%s: connected", self.name)

    async def deliver(self, message: OutboundMessage) -> tuple[str, ...]:
        """Show a message of any kind in the way of this platform; its ids there. Raises SendError.

        This default is for somebody's own channel: it finds the kind in the metadata, under the names it knows.
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
                text = message.content + (MAY_REPEAT if message.may_repeat else "")
                return tuple(await self.send(replace(message, content=text, metadata=metadata)) or ())

    async def receive(
        self,
        sender_id: str,
        chat_id: str,
        content: str,
        media: Sequence[str] = (),
        message_id: str | None = None,
        *,
        thread_id: str | None = None,
        is_private: bool = True,
        is_mentioned: bool = False,
        is_proven: bool = True,
        within: Sequence[str] = (),
        also_known_as: Sequence[str] = (),
        fetch: Fetch | None = None,
        metadata: Mapping[str, Any] | None = None,
        session_key: str | None = None,
        timestamp: datetime | None = None,
        quotes_others: bool = False,
    ) -> bool:
        """A message has come. True where it is accepted: then it is on the disk, and the platform may be told so.

        False where it is not wanted (its sender is not known, it was here before): the platform may be told, too.
        Raises StorageError where the disk refuses: then it may not. `fetch` gets what is attached, and is only called
        for somebody who may speak. A message with the same `message_id` in the same chat is the same message.
        `quotes_others`: words of somebody else are in it, forwarded or quoted; an owner's own they are not.
        """
        self.evidence.sign()
        knock = Knock(
            sender_id, chat_id, is_private, is_mentioned, tuple(within), tuple(also_known_as), is_proven=is_proven
        )
        decision = await self.services.access.decide(knock)
        if isinstance(decision, Pair):
            await self.bus.publish_outbound(
                OutboundMessage(self.name, chat_id, decision.text, kind=OutboundKind.NOTICE, thread_id=thread_id)
            )
        if not isinstance(decision, Allowed):
            return False
        kept = await fetch() if fetch is not None else ()
        content = masked(content)
        attached = [*media, *(str(one.path) for one in kept if one.path is not None)]
        others = [Provenance.PERSON] if quotes_others else []
        message = InboundMessage(
            self.name,
            sender_id,
            chat_id,
            await as_content(content, kept, self.services.transcribe) if kept or not media else content,
            timestamp or self.services.clock.now(),
            attached,
            dict(metadata or {}),
            session_key or self._session_of(chat_id, thread_id, decision.provenance, is_private=is_private),
            message_id,
            thread_id,
            provenance=least_trusted([decision.provenance, self.at_most, *others]),
            in_group=not is_private,
            is_mentioned=is_mentioned,
        )
        accepted = await self.bus.publish_inbound(message)
        if accepted:
            self.evidence.came()
            self.accepted(Address(self.name, chat_id, thread_id))
        return accepted

    def _session_of(
        self, chat_id: str, thread_id: str | None, provenance: Provenance, *, is_private: bool
    ) -> str | None:
        if self.services.unified and is_private and provenance is Provenance.OWNER:
            return UNIFIED_SESSION
        return f"{self.name}:{chat_id}:{thread_id}" if thread_id else None


_FLAGS: dict[OutboundKind, dict[str, bool]] = {
    OutboundKind.PROGRESS: {"_progress": True},
    OutboundKind.TOOL_HINT: {"_progress": True, "_tool_hint": True},
    OutboundKind.STREAM_DELTA: {"_stream_delta": True},
    OutboundKind.STREAM_END: {"_stream_end": True},
}
"""The words by which channels that others wrote tell kinds apart."""


def _setting(config: Any, name: str, *, usual: object) -> object:
    found = config.get(name, usual) if isinstance(config, Mapping) else getattr(config, name, usual)
    return usual if found is None else found
