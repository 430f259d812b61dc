"""The saved read cursors, so that messages from while the bot was disconnected can be fetched.

A new session gets no old events from Discord. Ids are timestamps, so one id marks up to where all chats were read; only
chats read further than that have cursors of their own.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from nanobot.channels.cursors import MAX_AGE, keep_saved, load_state
from nanobot.utils.bounded_dict import put_bounded

_EPOCH_MS = 1_420_070_400_000
"""https://discord.com/developers/docs/reference#snowflakes"""
_MARGIN = timedelta(minutes=1)
"""How far events of different chats may be out of order."""
MOST_PRIVATE = 200
"""Private chats remembered: a bot cannot list those it has."""


def id_at(moment: datetime) -> int:
    """The lowest id of a moment."""
    return max(0, int(moment.timestamp() * 1000) - _EPOCH_MS) << 22


def _before(message_id: int, by: timedelta) -> int:
    return max(0, message_id - (int(by.total_seconds() * 1000) << 22))


@dataclass(slots=True)
class DiscordHistory:
    """The cursors, and what else is kept across connections."""

    __pydantic_config__ = ConfigDict(alias_generator=to_camel, arbitrary_types_allowed=True)
    all_until: int = 0
    """Everything before this id was read, in all chats."""
    seen: dict[int, int] = field(default_factory=dict)
    """The last message read in a chat, if it is later than that."""
    private: dict[int, int] = field(default_factory=dict)
    """The last message read in each private chat; 0 before the first."""
    menu: str = ""
    """Fingerprint of the slash commands that Discord has."""
    salt: str = field(default_factory=lambda: secrets.token_hex(8))
    urgent: Annotated[asyncio.Event, Field(exclude=True)] = field(
        default_factory=asyncio.Event, repr=False, compare=False
    )
    """Set by changes to save at once: a new private chat."""

    def begin(self, now: datetime) -> None:
        """Start a connection: read from now on if it is the first, else from at most MAX_AGE ago."""
        self.all_until = max(self.all_until or id_at(now), id_at(now - MAX_AGE))

    def after(self, chat: int) -> int:
        """The message of this chat after which nothing was read."""
        return max(self.seen.get(chat, 0), self.all_until)

    def note(self, chat: int, message_id: int, *, is_private: bool) -> None:
        """Record that a message and all before it in its chat were read."""
        self.all_until = min(self.all_until, message_id)  # `begin` set a future id if the host's clock is ahead
        self.seen[chat] = max(message_id, self.seen.get(chat, 0))
        if is_private:
            self._remember(chat, self.seen[chat])

    def add_private(self, chat: int) -> bool:
        """Record a private chat. Return True if nothing was ever read there."""
        if chat not in self.private:
            self._remember(chat, 0)
            self.urgent.set()
        return self.private[chat] == 0

    def _remember(self, chat: int, last: int) -> None:
        put_bounded(self.private, chat, last, MOST_PRIVATE)

    def settle(self) -> None:
        """With no work left, replace all cursors by one, except for chats of the last minute."""
        self.all_until = max([self.all_until, *(_before(last, _MARGIN) for last in self.seen.values())])
        self.seen = {chat: last for chat, last in self.seen.items() if last > self.all_until}


@asynccontextmanager
async def open_history(folder: Path | None, now: datetime) -> AsyncIterator[DiscordHistory]:
    """The history of a new connection, saved while the block runs; in memory only without a folder. Never raises."""
    path = folder / "discord.json" if folder is not None else None
    history = await asyncio.to_thread(load_state, path, DiscordHistory)
    history.begin(now)
    async with keep_saved(path, history, history.urgent):
        yield history
