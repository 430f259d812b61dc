"""The saved read cursors, so that messages from while the bot was disconnected can be fetched.

Slack redelivers an event at once, after one minute and after five, then no more. A timestamp is also a message id, so
one of each chat, and of each thread the bot is in, is its cursor.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from nanobot.channels.cursors import MAX_AGE, keep_saved, load_cursors
from nanobot.channels.slack.incoming import SlackIncoming
from nanobot.utils.bounded_dict import put_bounded

K = TypeVar("K")

MOST_CHATS, MOST_THREADS = 60, 60
"""Most cursors kept. Each needs a request, of which Slack accepts fifty a minute."""


@dataclass(slots=True)
class SlackHistory:
    """The cursors of one bot: the last message read in each chat and thread (by chat and thread timestamp)."""

    bot: str = ""
    chats: dict[str, str] = field(default_factory=dict)
    threads: dict[tuple[str, str], str] = field(default_factory=dict)
    changed: bool = True
    """Since it was last saved."""

    def note(self, message: SlackIncoming, *, accepted: bool) -> None:
        """Record that a message was read. A thread gets a cursor with its first accepted message."""
        if message.sent_at is None:
            return
        if message.thread_id in (None, message.message_id):
            _put(self.chats, message.chat_id, message.message_id, MOST_CHATS)
        if message.thread_id is not None:
            key = (message.chat_id, message.thread_id)
            if accepted or key in self.threads:
                _put(self.threads, key, message.message_id, MOST_THREADS)
        self.changed = True

    def cursors(self, now: datetime) -> dict[str, dict[str | None, str]]:
        """What to fetch, by chat: the message to start after, by thread or None for the chat itself."""
        oldest = (now - MAX_AGE).timestamp()
        cursors: dict[str, dict[str | None, str]] = {}
        for chat, last in self.chats.items():
            if _number(last) > oldest:
                cursors.setdefault(chat, {})[None] = last
        for (chat, thread), last in self.threads.items():
            if _number(last) > oldest:
                cursors.setdefault(chat, {})[thread] = last
        return cursors

    def forget(self, chat: str, thread: str | None) -> None:
        """Drop the cursor of a chat or thread that no longer exists."""
        if thread is None:
            self.chats.pop(chat, None)
        else:
            self.threads.pop((chat, thread), None)
        self.changed = True

    def dump(self) -> str:
        """The file's text; resets `changed`."""
        self.changed = False
        threads = [[chat, thread, last] for (chat, thread), last in self.threads.items()]
        return json.dumps({"bot": self.bot, "chats": self.chats, "threads": threads}, indent=2) + "\n"

    @classmethod
    def load(cls, path: Path, bot: str) -> "SlackHistory":
        """Load the history of this bot; an empty one without a readable file. Never raises."""

        def read(payload: Any) -> SlackHistory:
            if payload["bot"] != bot:
                return cls(bot)
            threads = {(str(chat), str(thread)): str(last) for chat, thread, last in payload["threads"]}
            return cls(bot, {str(chat): str(last) for chat, last in payload["chats"].items()}, threads)

        return load_cursors(path, read, lambda: cls(bot))


@asynccontextmanager
async def open_history(folder: Path | None, bot: str) -> AsyncIterator[SlackHistory]:
    """The history of a new connection, saved while the block runs; in memory only without a folder. Never raises."""
    path = folder / "slack.json" if folder is not None else None
    history = await asyncio.to_thread(SlackHistory.load, path, bot) if path is not None else SlackHistory(bot)
    async with keep_saved(path, history):
        yield history


def _put(table: dict[K, str], key: K, ts: str, max_entries: int) -> None:
    """Set a cursor to the later timestamp; drops the oldest entries."""
    put_bounded(table, key, max(table.get(key, ts), ts, key=_number), max_entries)


def _number(ts: str) -> float:
    try:
        return float(ts)
    except ValueError:
        return 0.0
