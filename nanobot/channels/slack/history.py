"""The saved read cursors, so that messages from while the bot was disconnected can be fetched.

Slack redelivers an event at once, after one minute and after five, then no more. A timestamp is also a message id, so
one of each chat, and of each thread the bot is in, is its cursor.
"""

from dataclasses import dataclass, field
from datetime import datetime

from nanobot.channels.cursors import MAX_AGE
from nanobot.channels.payload import Payload
from nanobot.channels.slack.incoming import SlackIncoming
from nanobot.utils.bounded_dict import put_bounded

MOST_CHATS, MOST_THREADS = 60, 60
"""Most cursors kept. Each needs a request, of which Slack accepts fifty a minute."""


@dataclass(slots=True)
class SlackHistory:
    """The cursors of one bot: the timestamp of the last message read."""

    bot: str = ""
    chats: dict[str, str] = field(default_factory=dict)
    threads: dict[str, str] = field(default_factory=dict)
    """By "chat:thread"."""

    def note(self, message: SlackIncoming, *, accepted: bool) -> None:
        """Record that a message was read. A thread gets a cursor with its first accepted message."""
        if message.sent_at is None:
            return
        if message.thread_id in (None, message.message_id):
            _advance(self.chats, message.chat_id, message.message_id, MOST_CHATS)
        if message.thread_id is not None:
            thread = f"{message.chat_id}:{message.thread_id}"
            if accepted or thread in self.threads:
                _advance(self.threads, thread, message.message_id, MOST_THREADS)

    def cursors(self, now: datetime) -> dict[str, dict[str | None, str]]:
        """What to fetch, by chat: the message to start after, by thread or None for the chat itself."""
        oldest = (now - MAX_AGE).timestamp()
        cursors: dict[str, dict[str | None, str]] = {}
        for key, last in (*self.chats.items(), *self.threads.items()):
            if _number(last) > oldest:
                chat, _, thread = key.partition(":")
                cursors.setdefault(chat, {})[thread or None] = last
        return cursors

    def forget(self, chat: str, thread: str | None) -> None:
        """Drop the cursor of a chat or thread that no longer exists."""
        if thread is None:
            self.chats.pop(chat, None)
        else:
            self.threads.pop(f"{chat}:{thread}", None)


def _advance(cursors: dict[str, str], key: str, ts: str, most: int) -> None:
    """Set a cursor to the later timestamp; drops the oldest entries."""
    put_bounded(cursors, key, max(cursors.get(key, ts), ts, key=_number), most)


def _number(ts: str) -> float:
    return Payload(ts=ts).number("ts")
