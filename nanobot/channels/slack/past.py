"""What was heard in Slack, on the disk: so that what was said while nobody listened is asked for, and heard.

Slack sends an event again at once, after one minute and after five, then no more. A timestamp is a time and the name of
a message, so one of each chat, and of each thread the bot is in, says up to where it was heard. Marks may be late but
never early: what is asked for twice is dropped by the journal.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

from nanobot.channels.slack.incoming import Said
from nanobot.utils.aio import finish
from nanobot.utils.files import make_private_folder, write_atomic

log = logging.getLogger(__name__)

K = TypeVar("K")

LONGEST = timedelta(days=7)
"""What is older than this is not asked for."""
MOST_CHATS, MOST_THREADS = 60, 60
"""That are remembered, and asked about: each is a call, of which Slack takes fifty a minute."""
_SAVE_S = 5.0


@dataclass(slots=True)
class Past:
    """The marks of one bot: the last message heard in a chat, and in a thread (under its chat and its timestamp)."""

    bot: str = ""
    chats: dict[str, str] = field(default_factory=dict)
    threads: dict[tuple[str, str], str] = field(default_factory=dict)
    changed: bool = True
    """Since it was last saved."""

    def note(self, said: Said, *, accepted: bool) -> None:
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
        oldest = (now - LONGEST).timestamp()
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
    def load(cls, path: Path, bot: str) -> "Past":
        """What was saved of this bot; an empty past where nothing was, or where it cannot be read. Never raises."""
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            if told["bot"] != bot:
                return cls(bot)
            threads = {(str(chat), str(thread)): str(last) for chat, thread, last in told["threads"]}
            return cls(bot, {str(chat): str(last) for chat, last in told["chats"].items()}, threads)
        except FileNotFoundError:
            return cls(bot)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning(
                "slack: %s cannot be read (%r); what was said while the bot was away stays unheard", path, error
            )
            return cls(bot)


@asynccontextmanager
async def remembered(folder: Path | None, bot: str) -> AsyncIterator[Past]:
    """The past of a connection that begins, kept on the disk while it lasts. Without a folder it ends with it.

    Never raises: late marks cost a question more, no message.
    """
    if folder is None:
        yield Past(bot)
        return
    path = folder / "slack.json"
    past = await asyncio.to_thread(Past.load, path, bot)
    keeping = asyncio.create_task(_keep(path, past), name="slack marks")
    try:
        yield past
    finally:
        keeping.cancel()
        await finish(asyncio.wait([keeping]))
        await finish(asyncio.to_thread(_save, path, past.dump()))


async def _keep(path: Path, past: Past) -> None:
    while True:
        await asyncio.sleep(_SAVE_S)
        if past.changed:
            await finish(asyncio.to_thread(_save, path, past.dump()))


def _save(path: Path, text: str) -> None:
    try:
        make_private_folder(path.parent)
        write_atomic(path, text)
    except OSError as error:
        log.warning("slack: %s cannot be written (%s)", path, error)


def _put(marks: dict[K, str], key: K, ts: str, most: int) -> None:
    """The latest, as the last one; the oldest go."""
    before = marks.pop(key, ts)
    marks[key] = max(before, ts, key=_number)
    while len(marks) > most:
        del marks[next(iter(marks))]


def _number(ts: str) -> float:
    try:
        return float(ts)
    except ValueError:
        return 0.0
