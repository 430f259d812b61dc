"""The saved state of a bot: the update offset, migrated groups, and values too long for a button."""

import asyncio
import hashlib
import logging
import time
from pathlib import Path

from pydantic import BaseModel, ConfigDict, PrivateAttr
from pydantic.alias_generators import to_camel

from nanobot.channels.cursors import load_state, save_state
from nanobot.utils.bounded_dict import put_bounded

log = logging.getLogger(__name__)

LONGEST_DATA = 64
"""Maximum size of a button's data in bytes (core.telegram.org/bots/api#inlinekeyboardbutton)."""
RENUMBERED_S = 6 * 86400.0
"""After a week without updates their numbers restart at random; an offset of that age would hide new ones."""
_MOST_VALUES = 500
_TOKEN = "#"  # noqa: S105 prefix of the key of a stored value


class TelegramState(BaseModel):
    """The state of one bot, in one file; without a path it is kept in memory only."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True)

    bot: int
    offset: int | None = None
    """The first unconfirmed update."""
    heard_at: float = 0.0
    """When the last update arrived, in seconds since 1970."""
    moved: dict[str, str] = {}
    """Groups that became supergroups: new id by old id."""
    values: dict[str, str] = {}
    """Values of buttons that exceed the limit of a button's data, by the data sent instead."""
    _path: Path | None = PrivateAttr(None)
    _lock: asyncio.Lock = PrivateAttr(default_factory=asyncio.Lock)

    @classmethod
    def load(cls, path: Path | None, bot_id: int) -> "TelegramState":
        """Load the state of this bot; an empty one if the file is another bot's or unreadable. Never raises."""
        state = load_state(path, lambda: cls(bot=bot_id))
        if state.bot != bot_id:
            state = cls(bot=bot_id)
        state._path = path
        return state

    async def save(self) -> None:
        """Save the state. Never raises: without it, updates only arrive twice, and the journal drops duplicates."""
        async with self._lock:
            await save_state(self._path, self)

    @property
    def next_offset(self) -> int | None:
        """What to poll from; None, which means all there is, if the offset is unknown or too old."""
        return None if time.time() - self.heard_at > RENUMBERED_S else self.offset

    async def save_offset(self, offset: int) -> None:
        """Save the offset: all updates before it are journaled."""
        self.offset, self.heard_at = offset, time.time()
        await self.save()

    async def record_move(self, old: str, new: str) -> None:
        """Record the new id of a migrated group."""
        if self.moved.get(old) != new:
            self.moved[old] = new
            log.info("telegram: the group %s is %s from now on", old, new)
            await self.save()

    def current_id(self, chat_id: str) -> str:
        """The current id of a chat."""
        return self.moved.get(chat_id, chat_id)

    def former_id(self, chat_id: str) -> str | None:
        """The id of a group before it migrated, which its session and the owner's lists use; None if it did not."""
        return next((old for old, new in self.moved.items() if new == chat_id), None)

    async def data_of(self, value: str) -> str:
        """The button data for this value; saved when this returns."""
        encoded = value.encode("utf-8", "surrogatepass")
        if len(encoded) <= LONGEST_DATA and not value.startswith(_TOKEN):
            return value
        token = _TOKEN + hashlib.sha256(encoded).hexdigest()[:32]
        if token not in self.values:
            put_bounded(self.values, token, value, _MOST_VALUES)
            await self.save()
        return token

    def value_of(self, data: str) -> str | None:
        """The value of a pressed button; None if it is no longer stored."""
        return self.values.get(data) if data.startswith(_TOKEN) else data
