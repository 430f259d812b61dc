"""What was seen of Discord, on the disk: so that what was said while nobody listened is asked for, and heard.

Discord repeats to a new session nothing of what an old one missed. But ids there are times, so that one of them says up
to where everything was heard; only chats that were being heard when the bot stopped have a mark of their own.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from nanobot.channels import cursors as marks
from nanobot.channels.cursors import MAX_AGE
from nanobot.utils.bounded_dict import put_bounded

_EPOCH_MS = 1_420_070_400_000
"""https://discord.com/developers/docs/reference#snowflakes"""
_MARGIN = timedelta(minutes=1)
"""How far events of different chats may come out of order."""
MOST_PRIVATE = 200
"""Private chats that are remembered; a bot cannot ask which it has."""


def id_at(moment: datetime) -> int:
    """The lowest id of that moment."""
    return max(0, int(moment.timestamp() * 1000) - _EPOCH_MS) << 22


def _before(message_id: int, by: timedelta) -> int:
    return max(0, message_id - (int(by.total_seconds() * 1000) << 22))


@dataclass(slots=True)
class DiscordHistory:
    """The marks, and the few other things that outlive a connection."""

    all_until: int = 0
    """Everything before this id was heard, wherever it was said."""
    seen: dict[int, int] = field(default_factory=dict)
    """The last message heard in a chat, where that is later."""
    private: dict[int, int] = field(default_factory=dict)
    """The last message heard in each private chat, 0 where none was yet."""
    menu: str = ""
    """What Discord was told of our slash commands."""
    salt: str = field(default_factory=lambda: secrets.token_hex(8))
    changed: bool = True
    """Since it was last saved."""
    pressing: asyncio.Event = field(default_factory=asyncio.Event, repr=False, compare=False)
    """Set by what should not wait: a private chat that nobody else can name."""

    def begin(self, now: datetime) -> None:
        """A connection begins. The very first one has no past; nor has any a longer one than we ask for."""
        self.all_until = max(self.all_until or id_at(now), id_at(now - MAX_AGE))
        self.changed = True

    def after(self, chat: int) -> int:
        """What came later than this was not heard in this chat."""
        return max(self.seen.get(chat, 0), self.all_until)

    def note(self, chat: int, message_id: int, *, is_private: bool) -> None:
        """This message was heard, and all before it in its chat."""
        self.all_until = min(self.all_until, message_id)  # a host's clock that is ahead began with a mark to come
        self.seen[chat] = max(message_id, self.seen.get(chat, 0))
        if is_private:
            self._remember(chat, self.seen[chat])
        self.changed = True

    def meet(self, chat: int) -> bool:
        """Somebody writes in this private chat. Whether nothing was ever heard there."""
        if chat not in self.private:
            self._remember(chat, 0)
            self.changed = True
            self.pressing.set()
        return self.private[chat] == 0

    def _remember(self, chat: int, last: int) -> None:
        put_bounded(self.private, chat, last, MOST_PRIVATE)

    def settle(self) -> None:
        """Nothing is under way anywhere: one mark does for all chats but those of the last minute."""
        self.all_until = max([self.all_until, *(_before(one, _MARGIN) for one in self.seen.values())])
        self.seen = {chat: last for chat, last in self.seen.items() if last > self.all_until}

    def dump(self) -> str:
        """As it lies on the disk. What is said here is saved."""
        self.changed = False
        told = {
            "allUntil": str(self.all_until),
            "seen": {str(chat): str(last) for chat, last in self.seen.items()},
            "private": {str(chat): str(last) for chat, last in self.private.items()},
            "menu": self.menu,
            "salt": self.salt,
        }
        return json.dumps(told, indent=2) + "\n"

    @classmethod
    def load(cls, path: Path) -> "DiscordHistory":
        """What was saved; an empty past where nothing was, or where it cannot be read. Never raises."""

        def read(told: Any) -> DiscordHistory:
            seen, private = ({int(chat): int(last) for chat, last in told[of].items()} for of in ("seen", "private"))
            return cls(int(told["allUntil"]), seen, private, str(told["menu"]), str(told["salt"]))

        return marks.load_cursors(path, read, cls)


@asynccontextmanager
async def remembered(folder: Path | None, now: datetime) -> AsyncIterator[DiscordHistory]:
    """The past of a connection that begins, kept on the disk while it lasts. Without a folder it ends with it.

    Never raises.
    """
    path = folder / "discord.json" if folder is not None else None
    past = await asyncio.to_thread(DiscordHistory.load, path) if path is not None else DiscordHistory()
    past.begin(now)
    async with marks.keep_saved(path, past, past.pressing):
        yield past
