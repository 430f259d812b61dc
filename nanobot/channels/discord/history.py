"""The saved read cursors, so that messages from while the bot was disconnected can be fetched.

A new session gets no old events from Discord. Ids are timestamps, and servers say the last message of each channel, so
only channels with a later one than their cursor are fetched.
"""

import secrets
from dataclasses import dataclass, field
from datetime import datetime

from nanobot.channels.cursors import MAX_AGE
from nanobot.utils.bounded_dict import put_bounded

_EPOCH_MS = 1_420_070_400_000
"""https://discord.com/developers/docs/reference#snowflakes"""
MOST_CHATS, MOST_PRIVATE = 700, 200
"""Most cursors kept."""


def id_at(moment: datetime) -> int:
    """The lowest id of a moment."""
    return max(0, int(moment.timestamp() * 1000) - _EPOCH_MS) << 22


@dataclass(slots=True)
class DiscordHistory:
    """The cursors, and what else is kept across connections."""

    since: int = 0
    """Nothing before this id is read."""
    read: dict[int, int] = field(default_factory=dict)
    """The last message read in each chat."""
    private: dict[int, None] = field(default_factory=dict)
    """The private chats: a bot cannot list those it has."""
    menu: str = ""
    """Fingerprint of the slash commands that Discord has."""
    salt: str = field(default_factory=lambda: secrets.token_hex(8))

    def begin(self, now: datetime) -> None:
        """Start a connection: read from now on if it is the first, else from at most MAX_AGE ago."""
        self.since = max(self.since or id_at(now), id_at(now - MAX_AGE))

    def after(self, chat: int) -> int:
        """The message of this chat after which nothing was read."""
        return max(self.read.get(chat, 0), self.since)

    def note(self, chat: int, message_id: int) -> None:
        """Record that a message and all before it in its chat were read."""
        self.since = min(self.since, message_id)  # `begin` set a future id if the host's clock is ahead
        put_bounded(self.read, chat, max(message_id, self.read.get(chat, 0)), MOST_CHATS)

    def add_private(self, chat: int) -> bool:
        """Record that a private chat is in use. Return whether it is new."""
        is_new = chat not in self.private
        put_bounded(self.private, chat, None, MOST_PRIVATE)
        return is_new
