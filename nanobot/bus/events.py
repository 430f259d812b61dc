"""What crosses the bus: a message in, a message out, and the receipt of a sending.

`metadata` belongs to the platform alone; a word that two of our files share has a field here.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any

from nanobot.errors import NanobotError
from nanobot.messages.types import Origin, Provenance


@dataclass(frozen=True, slots=True)
class Address:
    """Where a reply goes. Fixed when the message arrives; nobody edits it later."""

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
    """Whose words these are: OWNER only where the channel knows its owner (the terminal always does)."""
    quiet: bool = False
    """Whether nothing of its turn is sent to anybody: a job that only works."""
    journal_key: str | None = None
    """What the journal knows it by, from the moment it is accepted; None where no journal is kept."""
    in_group: bool = False
    """Whether others read along, as the platform says."""
    is_mentioned: bool = False
    """Whether it is plainly meant for the bot: named, replied to, called by a command or a button."""
    plainly: str = ""
    """What its person is told where no model can put it in words: a report must reach them all the same."""
    scope: str = ""
    """Of a report, the chat for which it was worked: it is told there. Empty: the owner."""

    @classmethod
    def from_owner(
        cls, channel: str, chat_id: str, content: str, *, session_key: str, origin: Origin, media: Sequence[str] = ()
    ) -> "InboundMessage":
        """What the owner says where there is nobody else: at the terminal, in a program of their own."""
        return cls(
            channel,
            "owner",
            chat_id,
            content,
            media=list(media),
            session_key_override=session_key,
            origin=origin,
            provenance=Provenance.OWNER,
        )

    def to_json(self) -> dict[str, Any]:
        """The message as JSON keeps it; what is as usual is left out."""
        told = {one.name: getattr(self, one.name) for one in fields(self)}
        told["timestamp"] = self.timestamp.isoformat()
        return {name: value for name, value in told.items() if value or name not in _LEFT_OUT}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "InboundMessage":
        """The message back. Raises ValueError, TypeError or KeyError where it is none."""
        return cls(
            str(told["channel"]),
            str(told["sender_id"]),
            str(told["chat_id"]),
            str(told["content"]),
            datetime.fromisoformat(told["timestamp"]),
            list(told.get("media", ())),
            dict(told.get("metadata", {})),
            told.get("session_key_override"),
            told.get("message_id"),
            told.get("thread_id"),
            Origin(told.get("origin", Origin.USER)),
            Provenance(told.get("provenance", Provenance.PERSON)),
            bool(told.get("quiet", False)),
            told.get("journal_key"),
            bool(told.get("in_group", False)),
            bool(told.get("is_mentioned", False)),
            str(told.get("plainly", "")),
            str(told.get("scope", "")),
        )

    @property
    def session_key(self) -> str:
        """The session this message belongs to."""
        return self.session_key_override or f"{self.address.channel}:{self.address.chat_id}"

    @property
    def address(self) -> Address:
        """Where the answer goes. One on channel "system", which plugins know, names it as "channel:chat"."""
        channel, colon, chat_id = self.chat_id.partition(":")
        if self.channel == "system" and colon:
            return Address(channel, chat_id, self.thread_id)
        return Address(self.channel, self.chat_id, self.thread_id)


class OutboundKind(StrEnum):
    """What a message to a person is, so that a channel may show it, fold it or leave it out."""

    REPLY = "reply"
    PROGRESS = "progress"
    TOOL_HINT = "tool_hint"
    REASONING = "reasoning"
    STREAM_DELTA = "stream_delta"
    STREAM_END = "stream_end"
    NOTICE = "notice"
    RECEIPT = "receipt"

    @property
    def lasts(self) -> bool:
        """Whether it must reach the person also through a crash; the rest shows how the work goes, while it goes."""
        return self in (OutboundKind.REPLY, OutboundKind.NOTICE)


@dataclass(frozen=True, slots=True)
class Growth:
    """What a platform shows of an answer that grows."""

    ids: tuple[str, ...] = ()
    """Of its messages there."""
    pending: str = ""
    """The nonce of one more that is being posted: the platform may have it. Empty where there is none."""
    since: float = 0.0
    """When that was tried first, by `time.time`."""
    doubtful: bool = False
    """Whether there may be one more whose id nobody knows, and which the person may read twice."""

    def to_json(self) -> dict[str, Any]:
        """As plain data, without what is as usual."""
        found = {"ids": [*self.ids], "pending": self.pending, "since": self.since, "doubtful": self.doubtful}
        return {name: value for name, value in found.items() if value}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Growth":
        """What `to_json` gave."""
        return cls(
            tuple(found.get("ids", ())), found.get("pending", ""), found.get("since", 0.0), found.get("doubtful", False)
        )


class DeliveryFailedError(NanobotError):
    """The platform did not take a message, and will not. Says why, in words for the owner."""


@dataclass(frozen=True, slots=True)
class Button:
    """Something to press below a message. Pressing it is a message of the person who did, with `value` as its text."""

    label: str
    value: str

    @staticmethod
    def is_for_owners(value: str) -> bool:
        """Whether pressing it answers a question to the owner: somebody else's press must not take it away."""
        return value.startswith(("/approve ", "/deny "))


@dataclass(frozen=True, slots=True)
class MenuEntry:
    """A slash command, as the menu of a platform offers it. `words` says what may follow it, if anything."""

    name: str
    text: str
    words: str = ""


class Receipt:
    """The outcome of one sending: await `wait()` for the platform's ids of what was sent.

    `wait` raises what `fail` was given. Settling twice is harmless: the first outcome stands. Cancelling a wait does
    not cancel the sending.
    """

    def __init__(self) -> None:
        self._done = asyncio.Event()
        self._ids: tuple[str, ...] = ()
        self._error: Exception | None = None
        self.repeated = False
        """Whether the platform had it already, so that it was not sent again."""

    @property
    def settled(self) -> bool:
        """Whether the outcome is known."""
        return self._done.is_set()

    def settle(self, platform_ids: tuple[str, ...] = (), *, repeated: bool = False) -> None:
        """The platform has it, under these ids (splitting makes several)."""
        if not self.settled:
            self._ids, self.repeated = platform_ids, repeated
            self._done.set()

    def fail(self, error: Exception) -> None:
        """The platform does not have it, and will not."""
        if not self.settled:
            self._error = error
            self._done.set()

    async def wait(self) -> tuple[str, ...]:
        """The platform's ids, once it has the message."""
        await self._done.wait()
        if self._error is not None:
            raise self._error
        return self._ids


@dataclass(slots=True)
class OutboundMessage:
    """A message on its way to a person."""

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
    """The journal key of the message whose turn this comes of."""
    journal_id: int | None = None
    """What the journal knows it by; None where none is kept, or for what does not last."""
    sent_ids: tuple[str, ...] = ()
    """The platform's ids of its first pieces, where a crash came between them and the rest."""
    may_repeat: bool = False
    """Whether the platform may have it already, for all we know: a crash or a broken line came upon its sending."""
    held_at: float = 0.0
    """When the journal took it, by `time.time`: no platform can have it longer. 0 where that is not known."""

    def to_json(self) -> dict[str, Any]:
        """The message as JSON keeps it, without what the journal knows of it; what is as usual is left out."""
        told: dict[str, Any] = {"channel": self.channel, "chat_id": self.chat_id, "content": self.content}
        told |= {name: value for name in _OPTIONAL if (value := getattr(self, name))}
        told["kind"] = self.kind
        if self.buttons:
            told["buttons"] = [[button.label, button.value] for button in self.buttons]
        return told

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "OutboundMessage":
        """The message back. Raises ValueError, TypeError or KeyError where it is none."""
        return cls(
            str(told["channel"]),
            str(told["chat_id"]),
            str(told["content"]),
            kind=OutboundKind(told["kind"]),
            buttons=tuple(Button(str(label), str(value)) for label, value in told.get("buttons", ())),
            **{name: told[name] for name in _OPTIONAL if name in told},
        )


_LEFT_OUT = {
    "media", "metadata", "session_key_override", "message_id", "thread_id", "quiet", "journal_key", "in_group",
    "is_mentioned", "plainly", "scope",
}  # fmt: skip
_OPTIONAL = ("reply_to", "media", "metadata", "turn_id", "thread_id", "answers")
"""What a message in, and one out, does not say where it is empty."""
