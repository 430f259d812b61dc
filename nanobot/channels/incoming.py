"""A message as a channel reads it from its platform, and the JSON that it reads it from."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from nanobot.channels.media import Attachment, StoredAttachment
from nanobot.pairing.senders import display_name

Fetch = Callable[[], Awaitable[Sequence[StoredAttachment]]]
"""Stores the files that arrived with a message; see `MediaStore.store`. Called once the sender is allowed; downloads
nothing.
"""


_LONGEST_QUOTE = 600
_LARGEST_NUMBER = 1 << 53


def quoted_lines(text: str, author: str = "a message") -> str:
    """The lines above a message that quotes this text; its start, if it is long."""
    short = text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}…"
    return "\n".join([f"[in reply to {author}]", *(f"> {line}" for line in short.strip().splitlines())])


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message, slash command or button press: who wrote it, where, and what."""

    sender_id: str
    chat_id: str
    text: str = ""
    message_id: str | None = None
    """A second message with the same id in the same chat is a duplicate."""
    thread_id: str | None = None
    is_private: bool = True
    """Whether only the sender and the bot read the chat."""
    is_mentioned: bool = False
    """Whether it addresses the bot: by a mention, a reply or a command."""
    parent_ids: tuple[str, ...] = ()
    """Chats that contain this one, such as a thread's group: listing one of them lists this chat."""
    alternate_ids: tuple[str, ...] = ()
    """Further ids of the sender that the platform verifies, such as a WhatsApp number beside its LID."""
    is_verified: bool = True
    """Whether the platform verifies the sender; false for a mail without aligned signatures."""
    sender_name: str = ""
    """The name that the sender chose; it decides nothing."""
    sender_handle: str = ""
    """The sender's unique name on the platform."""
    attachments: tuple[Attachment, ...] = ()
    """Files to download once the message is acknowledged."""
    fetch: Fetch | None = None
    media: tuple[str, ...] = ()
    """Paths of files that are on disk already."""
    quotes_others: bool = False
    """Whether the text contains forwarded or quoted words of somebody else. Lowers its provenance; so do files."""
    sent_at: datetime | None = None
    """None means now."""
    session_key: str | None = None
    """Instead of the chat's, or thread's, own session."""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def identified_attachments(self) -> list[Attachment]:
        """The attachments with ids, so that none is downloaded again: those of the message, unless they have others."""
        if self.message_id is None:
            return [*self.attachments]
        own = [f"{self.chat_id} {self.message_id} {number}" for number in range(len(self.attachments))]
        return [replace(file, id=file.id or one) for file, one in zip(self.attachments, own, strict=True)]

    @property
    def display_name(self) -> str:
        """How an owner reads who it is; empty if unknown."""
        return display_name(self.sender_name, self.sender_handle)


class Payload(dict[str, Any]):
    """A JSON object of a platform. A path names a value in inner objects.

    What is missing or has another type reads as empty: what is not as documented must not end a connection.
    """

    @classmethod
    def of(cls, value: object) -> "Payload":
        return value if isinstance(value, cls) else cls(value) if isinstance(value, Mapping) else cls()

    @classmethod
    def parse(cls, text: str | bytes) -> "Payload":
        """The object of a JSON text; an empty one for anything else."""
        try:
            return cls.of(json.loads(text))
        except (ValueError, RecursionError):
            return cls()

    def text(self, *path: str) -> str:
        value = self._at(path)
        return value if isinstance(value, str) else ""

    def line(self, *path: str) -> str:
        """A text without line breaks."""
        return " ".join(self.text(*path).split())

    def part(self, *path: str) -> "Payload":
        return Payload.of(self._at(path))

    def parts(self, *path: str) -> "list[Payload]":
        """The objects of a list."""
        value = self._at(path)
        return [Payload.of(part) for part in value if isinstance(part, Mapping)] if isinstance(value, list) else []

    def number(self, *path: str) -> float:
        """A positive number, also as a text; else 0."""
        value = self._at(path)
        if isinstance(value, str) and value.replace(".", "", 1).isdecimal() and len(value) < 20:
            value = float(value)
        return float(value) if isinstance(value, int | float) and 0 < value < _LARGEST_NUMBER else 0.0

    def time(self, *path: str, ticks_per_s: int = 1000) -> datetime | None:
        """A time that is given as a number since 1970, by default of milliseconds."""
        try:
            return datetime.fromtimestamp(self.number(*path) / ticks_per_s, UTC) if self.number(*path) else None
        except (ValueError, OverflowError, OSError):
            return None

    def iso_time(self, *path: str) -> datetime | None:
        """A time in ISO 8601; without a zone, of UTC."""
        try:
            time = datetime.fromisoformat(self.text(*path))
        except ValueError:
            return None
        return time if time.tzinfo is not None else time.replace(tzinfo=UTC)

    def _at(self, path: tuple[str, ...]) -> object:
        value: object = self
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value
