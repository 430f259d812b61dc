"""What a bot has to remember: up to where updates are confirmed, groups that moved, values too long for a button."""

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
"""Bytes that a button carries (core.telegram.org/bots/api#inlinekeyboardbutton)."""
_MOST_VALUES = 500
_TOKEN = "#"  # noqa: S105 it begins the name of a value that is kept here


@dataclass(slots=True)
class TelegramState:
    """The memory of one bot, in one file; without a path it lasts as long as the process."""

    path: Path | None = None
    bot_id: int = 0
    offset: int | None = None
    """The first update that is not confirmed."""
    heard_at: float = 0.0
    """When the last update came, in seconds since 1970."""
    moved: dict[str, str] = field(default_factory=dict)
    """Groups that became supergroups: the old id, and the new one."""
    values: dict[str, str] = field(default_factory=dict)
    """What buttons mean whose value is longer than a button carries."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)
    _refused: bool = False

    @classmethod
    def load(cls, path: Path | None, bot_id: int) -> "TelegramState":
        """What is remembered of this bot; nothing where it is another's, or cannot be read. Never raises."""
        if path is None:
            return cls(None, bot_id)
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            if told["bot"] != bot_id:
                return cls(path, bot_id)
            return cls(
                path,
                bot_id,
                int(told["offset"]) if told.get("offset") is not None else None,
                float(told.get("heardAt", 0)),
                _texts(told.get("moved", {})),
                _texts(told.get("values", {})),
            )
        except FileNotFoundError:
            return cls(path, bot_id)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            # What Telegram holds back comes again, and what came already the journal knows.
            log.warning("%s cannot be read (%s); starting a new one", path.name, error)
            return cls(path, bot_id)

    async def save(self) -> None:
        """See it to the disk. Never raises: the journal knows what came; this saves asking for it twice."""
        if self.path is None:
            return
        path = self.path
        async with self._lock:
            told = {
                "bot": self.bot_id,
                "offset": self.offset,
                "heardAt": self.heard_at,
                "moved": self.moved,
                "values": self.values,
            }
            try:
                await asyncio.to_thread(_write, path, strict_json(told))
                self._refused = False
            except OSError as error:
                if not self._refused:
                    log.error("%s cannot be written: %s. Check the disk.", path.name, error)  # noqa: TRY400
                self._refused = True

    async def confirmed(self, offset: int | None) -> None:
        """All updates before this one are safe."""
        if offset is not None and offset != self.offset:
            self.offset, self.heard_at = offset, time.time()
            await self.save()

    async def has_moved(self, old: str, new: str) -> None:
        """A group has another id from now on."""
        if self.moved.get(old) != new:
            self.moved[old] = new
            log.info("telegram: the group %s is %s from now on", old, new)
            await self.save()

    def now_at(self, chat_id: str) -> str:
        """Where messages for this chat go today."""
        return self.moved.get(chat_id, chat_id)

    def was_at(self, chat_id: str) -> str | None:
        """The id under which this chat's session, and the owner's lists, may know it."""
        return next((old for old, new in self.moved.items() if new == chat_id), None)

    async def data_of(self, value: str) -> str:
        """What a button carries for this value; on the disk when this returns."""
        if len(value.encode("utf-8", "surrogatepass")) <= LONGEST_DATA and not value.startswith(_TOKEN):
            return value
        token = _TOKEN + hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        if token not in self.values:
            put_bounded(self.values, token, value, _MOST_VALUES)
            await self.save()
        return token

    def value_of(self, data: str) -> str | None:
        """What a pressed button means; None where that is forgotten."""
        return self.values.get(data) if data.startswith(_TOKEN) else data


def _write(path: Path, text: str) -> None:
    make_private_folder(path.parent)
    write_atomic(path, text)


def _texts(told: Mapping[str, object]) -> dict[str, str]:
    return {str(key): str(value) for key, value in told.items()}
