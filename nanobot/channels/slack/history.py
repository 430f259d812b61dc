"""What was heard in Slack, on the disk: so that what was said while nobody listened is asked for, and heard.

Slack sends an event again at once, after one minute and after five, then no more. A timestamp is a time and the name of
a message, so one of each chat, and of each thread the bot is in, says up to where it was heard.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from nanobot.channels import cursors as marks
from nanobot.channels.cursors import MAX_AGE
from nanobot.channels.slack.incoming import IncomingMessage
from nanobot.utils.bounded_dict import put_bounded

K = TypeVar("K")

MOST_CHATS, MOST_THREADS = 60, 60
"""That are remembered, and asked about: each is a call, of which Slack takes fifty a minute."""


@dataclass(slots=True)
class SlackHistory:
    """The marks of one bot: the last message heard in a chat, and in a thread (under its chat and its timestamp)."""

    bot: str = ""
    chats: dict[str, str] = field(default_factory=dict)
    threads: dict[tuple[str, str], str] = field(default_factory=dict)
    changed: bool = True
    """Since it was last saved."""

    def note(self, said: IncomingMessage, *, accepted: bool) -> None:
        """This was heard. A thread is remembered from the first message in it that the bot was meant to hear."""
        if said.when is None:
            return
        if said.thread_id in (None, said.message_id):
            _put(self.chats, said.chat_id, said.message_id, MOST_CHATS)
        if said.thread_id is not None:
            key = (said.chat_id, said.thread_id)
            if accepted or key in self.threads:
                _put(self.threads, key, said.message_id, MOST_THREADS)
        self.changed = True

    def open_ends(self, now: datetime) -> dict[str, dict[str | None, str]]:
        """By chat, what to ask for: the thread, or None for the chat itself, and after which message."""
        oldest = (now - MAX_AGE).timestamp()
        ends: dict[str, dict[str | None, str]] = {}
        for chat, last in self.chats.items():
            if _number(last) > oldest:
                ends.setdefault(chat, {})[None] = last
        for (chat, thread), last in self.threads.items():
            if _number(last) > oldest:
                ends.setdefault(chat, {})[thread] = last
        return ends

    def forget(self, chat: str, thread: str | None) -> None:
        """It is there no more."""
        if thread is None:
            self.chats.pop(chat, None)
        else:
            self.threads.pop((chat, thread), None)
        self.changed = True

    def dump(self) -> str:
        """As it lies on the disk. What is said here is saved."""
        self.changed = False
        threads = [[chat, thread, last] for (chat, thread), last in self.threads.items()]
        return json.dumps({"bot": self.bot, "chats": self.chats, "threads": threads}, indent=2) + "\n"

    @classmethod
    def load(cls, path: Path, bot: str) -> "SlackHistory":
        """What was saved of this bot; an empty past where nothing was, or where it cannot be read. Never raises."""

        def read(told: Any) -> SlackHistory:
            if told["bot"] != bot:
                return cls(bot)
            threads = {(str(chat), str(thread)): str(last) for chat, thread, last in told["threads"]}
            return cls(bot, {str(chat): str(last) for chat, last in told["chats"].items()}, threads)

        return marks.load_cursors(path, read, lambda: cls(bot))


@asynccontextmanager
async def remembered(folder: Path | None, bot: str) -> AsyncIterator[SlackHistory]:
    """The past of a connection that begins, kept on the disk while it lasts. Without a folder it ends with it.

    Never raises.
    """
    path = folder / "slack.json" if folder is not None else None
    past = await asyncio.to_thread(SlackHistory.load, path, bot) if path is not None else SlackHistory(bot)
    async with marks.keep_saved(path, past):
        yield past


def _put(table: dict[K, str], key: K, ts: str, most: int) -> None:
    """The latest, as the last one; the oldest go."""
    put_bounded(table, key, max(table.get(key, ts), ts, key=_number), most)


def _number(ts: str) -> float:
    try:
        return float(ts)
    except ValueError:
        return 0.0
