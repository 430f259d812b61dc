"""What is kept of a mailbox: the read position, the threads of mails, and recent replies."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from nanobot.utils.bounded_dict import put_bounded

_MOST_MAILS = 2000
"""Mails kept; of an older thread only its headers tell what it is."""
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class MailRecord:
    """A received or sent mail."""

    message_id: str
    chat_id: str
    thread_id: str | None
    """None if we started the conversation: answers then belong to the chat itself."""
    subject: str
    ancestors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SentReply:
    """An answer of the last hour."""

    chat_id: str
    thread_id: str | None
    at: float


@dataclass(slots=True)
class MailState:
    """The state of one mailbox. The case of a chat_id makes no difference."""

    bot: str
    """User, host and folder."""
    salt: str = field(default_factory=lambda: secrets.token_hex(16))
    """A secret: part of the hash in our message ids."""
    validity: int = 0
    """The position is meaningless once the server reports another one."""
    last_uid: int = 0
    checked_at: float = 0.0
    """When new mails were last looked for, by the wall clock; 0 if never."""
    mails: dict[str, MailRecord] = field(default_factory=dict)
    replies: dict[str, SentReply] = field(default_factory=dict)
    """By message id, so that another attempt counts once."""

    def record(self, mail: MailRecord) -> None:
        """Record a received or sent mail."""
        put_bounded(self.mails, f"{mail.message_id} {mail.chat_id.lower()}", mail, _MOST_MAILS)

    def find(self, chat_id: str, message_ids: Sequence[str]) -> MailRecord | None:
        """The last of these mails that was received from or sent to this person."""
        keys = (f"{message_id} {chat_id.lower()}" for message_id in reversed(message_ids))
        return next((self.mails[key] for key in keys if key in self.mails), None)

    def last_in_thread(self, chat_id: str, thread_id: str | None) -> MailRecord | None:
        """The latest mail of a thread."""
        chat = (chat_id.lower(), thread_id)
        mails = reversed(self.mails.values())
        return next((mail for mail in mails if (mail.chat_id.lower(), mail.thread_id) == chat), None)

    def count_replies(self, chat_id: str, thread_id: str | None, now: float, *, excluding: str) -> int:
        """The number of replies in a thread within the last hour, except this message."""
        self.replies = {key: reply for key, reply in self.replies.items() if reply.at > now - HOUR_S}
        chat = (chat_id.lower(), thread_id)
        return sum(
            (reply.chat_id.lower(), reply.thread_id) == chat for key, reply in self.replies.items() if key != excluding
        )
