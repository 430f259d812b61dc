"""A message as a channel reads it from its platform."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from nanobot.channels.media import Attachment, StoredAttachment
from nanobot.pairing.senders import display_name

Fetch = Callable[[], Awaitable[Sequence[StoredAttachment]]]
"""Stores the files that arrived with a message; see `MediaStore.store`. Called once the sender is allowed; downloads
nothing.
"""


_LONGEST_QUOTE = 600


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
