"""Saves what a channel has to remember of its platform, such as read cursors, as JSON in its state folder; catches up.

It may be stale, never ahead: the journal drops messages that are received twice. So no function here raises; what was
not saved costs another request, not a message.
"""

import asyncio
import logging
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from nanobot.channels.errors import SendError, UndeliverableError
from nanobot.errors import StorageError
from nanobot.utils import codec
from nanobot.utils.aio import finish
from nanobot.utils.files import make_private_folder, write_atomic
from nanobot.utils.text import strict_json

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_AGE = timedelta(days=7)
"""Older messages are not fetched."""
SAVE_S = 5.0
"""Shortest time between two saves, except for urgent changes."""
_RETRY_S = 0.1
"""Pause after the disk refused a save."""
_AT_ONCE = 4
"""Chats whose missed messages are fetched concurrently."""


class CatchUp:
    """Keeps the messages of a chat in order while those that were missed are fetched."""

    def __init__(self, channel: str) -> None:
        self._channel = channel
        self._locks: weakref.WeakValueDictionary[object, asyncio.Lock] = weakref.WeakValueDictionary()
        self.slots = asyncio.Semaphore(_AT_ONCE)
        """Hold one while fetching."""

    def lock_of(self, chat: object) -> asyncio.Lock:
        """Hold it while a message of this chat is processed."""
        return self._locks.setdefault(chat, asyncio.Lock())

    @asynccontextmanager
    async def missed(self, chat: object) -> AsyncIterator[None]:
        """Fetch and process the missed messages of a chat in this block. An error is logged: new ones must not wait."""
        async with self.lock_of(chat), self.slots:
            try:
                yield
            except UndeliverableError as error:  # such as a permission that was never granted
                log.debug("%s: missed messages in %s are not fetched: %s", self._channel, chat, error)
            except SendError as error:
                text = "%s: missed messages in %s cannot be fetched (%s); send them again"
                log.warning(text, self._channel, chat, error)
            except StorageError as error:
                log.warning("%s: missed messages in %s could not be journaled: %s", self._channel, chat, error)


class StateFile:
    """A dataclass or model as a JSON file. Without a path nothing is saved."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._saving = asyncio.Lock()
        self._saved = ""
        self._is_failing = False
        self.urgent = asyncio.Event()
        """Set to have `keep_saved` save at once."""

    async def load(self, new: T) -> T:
        """Return the saved state, of the type of `new`; `new` itself without a readable file."""
        if self._path is None:
            return new
        try:
            return codec.from_json(type(new), await asyncio.to_thread(self._path.read_bytes))
        except FileNotFoundError:
            return new
        except (OSError, ValueError) as error:
            log.warning("%s cannot be read (%s); starting a new one", self._path, type(error).__name__)
            return new

    async def save(self, state: object) -> bool:
        """Save it now, the newest last. Return whether it is on disk; it never raises."""
        async with self._saving:
            text = strict_json(codec.adapter(type(state)).dump_python(state, by_alias=True))
            if self._path is None or text == self._saved:
                return True
            try:
                await finish(asyncio.to_thread(_write, self._path, text))
            except OSError as error:
                if not self._is_failing:
                    log.warning("%s cannot be written (%s)", self._path, error)
                self._is_failing = True
                return False
            self._saved, self._is_failing = text, False
            return True

    @asynccontextmanager
    async def keep_saved(self, state: object) -> AsyncIterator[None]:
        """Save it when it has changed: every `SAVE_S`, when it is `urgent`, and when the block ends."""
        saving = asyncio.create_task(self._save_changes(state), name=f"save {self._path}")
        try:
            yield
        finally:
            saving.cancel()
            await finish(asyncio.wait([saving]))
            await finish(self.save(state))

    async def _save_changes(self, state: object) -> None:
        while True:
            self.urgent.clear()
            if not await self.save(state):
                await asyncio.sleep(_RETRY_S)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(SAVE_S):
                    await self.urgent.wait()


def _write(path: Path, text: str) -> None:
    make_private_folder(path.parent)
    write_atomic(path, text)
