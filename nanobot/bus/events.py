"""What crosses the bus: inbound and outbound messages, and receipts.

`metadata` is for the platform only; anything that two of our modules share has a field.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from nanobot.errors import NanobotError
from nanobot.messages.types import Origin, Provenance
from nanobot.utils import codec

WEB_CHANNEL = "web"
FEED_CHANNELS = (WEB_CHANNEL, "api")
"""Channels whose people read the feed of turns. Nothing is sent to them."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a reply goes. Fixed when the message arrives."""

    channel: str
    chat_id: str
    thread_id: str | None = None


@dataclass(slots=True)
class InboundMessage:
    """A message on its way to the agent."""

    channel: str
    sender_id: str
    chat_id: str
    content: str
    timestamp: datetime = field(default_factory=datetime.now)
    media: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    session_key_override: str | None = None
    message_id: str | None = None
    thread_id: str | None = None
    origin: Origin = Origin.USER
    provenance: Provenance = Provenance.PERSON
    """Who wrote it: OWNER only if the channel knows its owner (the terminal always does)."""
    quiet: bool = False
    """Whether nothing of its turn is sent, as for a silent job."""
    journal_key: str | None = None
    """Its key in the journal, set when it is accepted; None without a journal."""
    in_group: bool = False
    """Whether other people read the chat, according to the platform."""
    is_mentioned: bool = False
    """Whether it addresses the bot: by name, reply, command or button."""
    fallback_text: str = ""
    """The reply if no model can write one: a report must reach its person anyway."""
    scope: str = ""
    """For a subagent's report and a guest's request: the chat whose memory it may use. Empty: the owner's."""
    attachments: list[dict[str, Any]] = field(default_factory=list)
    """Attachments not downloaded yet, as the channel describes them."""
    folder: str = ""
    """The current folder of the person's terminal, an absolute path. Empty on other channels."""
    attended: bool = False
    """Whether its sender follows the turn in the feed, and answers approval questions there as the owner."""
    turn_id: str = ""
    """The id of its turn if its sender has chosen one, to follow the turn in the feed. Never used twice."""
    request: dict[str, Any] = field(default_factory=dict)
    """What a program asks of this turn, as the API stores it."""

    @classmethod
    def from_owner(
        cls, channel: str, chat_id: str, content: str, *, session_key: str, origin: Origin, **fields: Any
    ) -> "InboundMessage":
        """A message of the owner from a terminal or a program, where nobody else can write."""
        provenance = Provenance.OWNER
        address = Address(channel, chat_id)
        return cls.at(address, None, content, session_key=session_key, origin=origin, provenance=provenance, **fields)

    @classmethod
    def at(
        cls, address: Address, sender_id: str | None, content: str, *, session_key: str, **fields: Any
    ) -> "InboundMessage":
        """A message in this chat, for a session that may belong to another one. Without a sender it is the owner's."""
        message = cls(address.channel, sender_id or "owner", address.chat_id, content, **fields)
        message.session_key_override, message.thread_id = session_key, address.thread_id
        message.media = list(message.media)
        return message

    @property
    def is_followed(self) -> bool:
        """Whether its sender reads the turn in the feed: nothing of it is sent."""
        return bool(self.turn_id)

    @property
    def own_words(self) -> str:
        """The text without the quoted message that channels put above it."""
        first, *rest = self.content.split("\n")
        if not (rest and first.startswith("[in reply to ")):
            return self.content
        return "\n".join(line for line in rest if not line.startswith("> "))

    def to_json(self) -> dict[str, Any]:
        """The message as JSON data, without empty optional fields."""
        payload = {item.name: getattr(self, item.name) for item in fields(self)}
        payload["timestamp"] = self.timestamp.isoformat()
        return {name: value for name, value in payload.items() if value or name in ("sender_id", "chat_id", "content")}

    @classmethod
    def from_json(cls, payload: Mapping[str, Any]) -> "InboundMessage":
        """Parse the output of `to_json`. Raises ValueError."""
        message: InboundMessage = codec.adapter(cls).validate_python(payload)
        return message

    @property
    def session_key(self) -> str:
        """The session this message belongs to."""
        return self.session_key_override or f"{self.address.channel}:{self.address.chat_id}"

    @property
    def address(self) -> Address:
        """Where the reply goes. On channel "system", used by plugins, the chat id is "channel:chat"."""
        channel, colon, chat_id = self.chat_id.partition(":")
        if self.channel == "system" and colon:
            return Address(channel, chat_id, self.thread_id)
        return Address(self.channel, self.chat_id, self.thread_id)


class OutboundKind(StrEnum):
    """The kind of an outbound message; a channel may show, fold or drop it."""

    REPLY = "reply"
    PROGRESS = "progress"
    TOOL_HINT = "tool_hint"
    REASONING = "reasoning"
    STREAM_DELTA = "stream_delta"
    STREAM_END = "stream_end"
    NOTICE = "notice"
    RECEIPT = "receipt"

    @property
    def is_durable(self) -> bool:
        """Whether it is journaled and survives a crash; other kinds only show progress."""
        return self in (OutboundKind.REPLY, OutboundKind.NOTICE)


@dataclass(frozen=True, slots=True)
class StreamUpdate:
    """What a platform shows of a streamed answer."""

    ids: tuple[str, ...] = ()
    """Ids of its messages on the platform."""
    pending: str = ""
    """The nonce of a message being posted, which the platform may have; empty if none."""
    since: float = 0.0
    """Time of the first attempt at that, by `time.time`."""
    doubtful: bool = False
    """Whether the platform may show one more message whose id is unknown."""


class DeliveryFailedError(NanobotError):
    """The platform rejected a message for good. The text tells the owner why."""


@dataclass(frozen=True, slots=True)
class Button:
    """A button below a message. Pressing it sends `value` as a message of the person who pressed it."""

    label: str
    value: str

    @property
    def choice(self) -> str:
        """What a press says where the platform cannot carry the value: no command, nor the answer to a question."""
        return f"I choose: {self.label}"

    @staticmethod
    def is_for_owners(value: str) -> bool:
        """Whether it answers a question to the owner: a press by somebody else must not remove it."""
        return value.startswith(("/approve ", "/deny ", "/pairing "))


@dataclass(frozen=True, slots=True)
class MenuEntry:
    """A slash command in a platform's menu. `words` describes its arguments."""

    name: str
    text: str
    words: str = ""


_OPTIONAL = ("reply_to", "media", "metadata", "turn_id", "thread_id", "answers")
"""Fields of an outbound message that are stored if they are set."""


class Receipt:
    """The outcome of sending a message: await `wait()` for the platform's message ids.

    `wait` raises the error passed to `fail`. Only the first outcome counts. Cancelling `wait` does not cancel sending.
    """

    def __init__(self) -> None:
        self._done = asyncio.Event()
        self._ids: tuple[str, ...] = ()
        self._error: Exception | None = None
        self.repeated = False
        """Whether it was a duplicate and not sent again."""

    @property
    def settled(self) -> bool:
        """Whether the outcome is known."""
        return self._done.is_set()

    def settle(self, platform_ids: tuple[str, ...] = (), *, repeated: bool = False) -> None:
        """Record success with the platform's message ids, several if the message was split."""
        if not self.settled:
            self._ids, self.repeated = platform_ids, repeated
            self._done.set()

    def fail(self, error: Exception) -> None:
        """Record that it will not be sent."""
        if not self.settled:
            self._error = error
            self._done.set()

    async def wait(self) -> tuple[str, ...]:
        """Wait for the platform's message ids."""
        await self._done.wait()
        if self._error is not None:
            raise self._error
        return self._ids


@dataclass(slots=True)
class OutboundMessage:
    """A message on its way to a person."""

    __pydantic_config__: ClassVar = {"arbitrary_types_allowed": True}  # for the receipt, which is not stored

    channel: str
    chat_id: str
    content: str
    reply_to: str | None = None
    media: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    kind: OutboundKind = OutboundKind.REPLY
    turn_id: str | None = None
    thread_id: str | None = None
    receipt: Receipt | None = field(default=None, repr=False, compare=False)
    """Set by the bus when the message is published."""
    buttons: tuple[Button, ...] = ()
    answers: str | None = None
    """The journal key of the message whose turn produced it."""
    by_tool: bool = False
    """Whether the `message` tool sent it: a reply of the same turn with the same text and files is a duplicate."""
    journal_id: int | None = None
    """Its id in the journal; None without a journal, or if it is not durable."""
    sent_ids: tuple[str, ...] = ()
    """The platform's ids of the parts that were sent before a crash."""
    parts: list[Any] | None = field(default=None, repr=False, compare=False)
    """How its channel split it, so that a retry skips the parts that were sent."""
    may_repeat: bool = False
    """Whether the platform may have it already: a crash or a connection error interrupted sending."""
    unconfirmed: bool = False
    """Whether that was a request without a response, not a crash."""
    held_at: float = 0.0
    """When it was journaled, by `time.time`; 0 if unknown. The platform cannot have it from before."""

    def to_json(self) -> dict[str, Any]:
        """The message as JSON data, without journal fields and empty optional fields."""
        names = ("channel", "chat_id", "content", "kind", *_OPTIONAL)
        payload = {name: value for name in names if (value := getattr(self, name)) or name not in _OPTIONAL}
        return {**payload, "buttons": [asdict(button) for button in self.buttons]}

    @classmethod
    def from_json(cls, payload: Mapping[str, Any]) -> "OutboundMessage":
        """Parse the output of `to_json`. Raises ValueError."""
        message: OutboundMessage = codec.adapter(cls).validate_python(payload)
        return message
