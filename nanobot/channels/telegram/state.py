"""The saved state of a bot: the update offset, migrated groups, and values too long for a button."""

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nanobot.utils.bounded_dict import put_bounded
from nanobot.utils.files import make_private_folder, write_atomic
from nanobot.utils.text import strict_json

log = logging.getLogger(__name__)

LONGEST_DATA = 64
"""Maximum size of a button's data in bytes (core.telegram.org/bots/api#inlinekeyboardbutton)."""
_MOST_VALUES = 500
_TOKEN = "#"  # noqa: S105 prefix of the key of a stored value


@dataclass(slots=True)
class TelegramState:
    """The state of one bot, in one file; without a path it is kept in memory only."""

    path: Path | None = None
    bot_id: int = 0
    offset: int | None = None
    """The first unconfirmed update."""
    heard_at: float = 0.0
    """When the last update arrived, in seconds since 1970."""
    moved: dict[str, str] = field(default_factory=dict)
    """Groups that became supergroups: new id by old id."""
    values: dict[str, str] = field(default_factory=dict)
    """Values of buttons that exceed the limit of a button's data, by the data sent instead."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)
    _has_failed: bool = False

    @classmethod
    def load(cls, path: Path | None, bot_id: int) -> "TelegramState":
        """Load the state of this bot; an empty one if the file is another bot's or unreadable. Never raises."""
        if path is None:
            return cls(None, bot_id)
        try:
            payload = json.loads(path.read_text(encoding="utf-8"))
            if payload["bot"] != bot_id:
                return cls(path, bot_id)
            return cls(
                path,
                bot_id,
                int(payload["offset"]) if payload.get("offset") is not None else None,
                float(payload.get("heardAt", 0)),
                _texts(payload.get("moved", {})),
                _texts(payload.get("values", {})),
            )
        except FileNotFoundError:
            return cls(path, bot_id)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            # Unconfirmed updates arrive again, and the journal drops those that it has.
            log.warning("%s cannot be read (%s); starting a new one", path.name, error)
            return cls(path, bot_id)

    async def save(self) -> None:
        """Save the state. Never raises: without it, updates only arrive twice, and the journal drops duplicates."""
        if self.path is None:
            return
        path = self.path
        async with self._lock:
            payload = {
                "bot": self.bot_id,
                "offset": self.offset,
                "heardAt": self.heard_at,
                "moved": self.moved,
                "values": self.values,
            }
            try:
                await asyncio.to_thread(_write, path, strict_json(payload))
                self._has_failed = False
            except OSError as error:
                if not self._has_failed:
                    log.error("%s cannot be written: %s. Check the disk.", path.name, error)  # noqa: TRY400
                self._has_failed = True

    async def save_offset(self, offset: int | None) -> None:
        """Save the offset: all updates before it are journaled."""
        if offset is not None and offset != self.offset:
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
        if len(value.encode("utf-8", "surrogatepass")) <= LONGEST_DATA and not value.startswith(_TOKEN):
            return value
        token = _TOKEN + hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        if token not in self.values:
            put_bounded(self.values, token, value, _MOST_VALUES)
            await self.save()
        return token

    def value_of(self, data: str) -> str | None:
        """The value of a pressed button; None if it is no longer stored."""
        return self.values.get(data) if data.startswith(_TOKEN) else data


def _write(path: Path, text: str) -> None:
    make_private_folder(path.parent)
    write_atomic(path, text)


def _texts(payload: Mapping[str, object]) -> dict[str, str]:
    return {str(key): str(value) for key, value in payload.items()}
