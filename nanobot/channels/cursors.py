"""Saves what a channel has to remember of its platform, such as read cursors, as JSON in its state folder; catches up.

It may be stale, never ahead: the journal drops messages that are received twice. So no function here raises; what was
not saved costs another request, not a message.
"""

import asyncio
import logging
import weakref
from collections.abc import AsyncIterator, Callable
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


def load_state(path: Path | None, new: Callable[[], T]) -> T:
    """Return the saved dataclass or model, or `new()` without a readable file. Blocking."""
    state = new()
    try:
        return state if path is None else codec.from_json(type(state), path.read_bytes())
    except FileNotFoundError:
        return state
    except (OSError, ValueError) as error:
        log.warning("%s cannot be read (%s); starting a new one", path, type(error).__name__)
        return state


async def save_state(path: Path | None, state: object) -> None:
    """Save it now; nothing without a path."""
    if path is not None:
        await asyncio.to_thread(_write, path, _dump(state))


@asynccontextmanager
async def keep_saved(path: Path | None, state: object, urgent: asyncio.Event | None = None) -> AsyncIterator[None]:
    """Save it when it has changed: every `SAVE_S`, when `urgent` is set, and when the block ends.

    Without a path nothing is saved.
    """
    if path is None:
        yield
        return
    saving = asyncio.create_task(_save_changes(path, state, urgent or asyncio.Event()), name=f"{path.stem} state")
    try:
        yield
    finally:
        saving.cancel()
        await finish(asyncio.wait([saving]))
        await finish(save_state(path, state))


async def _save_changes(path: Path, state: object, urgent: asyncio.Event) -> None:
    saved = ""
    while True:
        urgent.clear()
        if (text := _dump(state)) != saved:
            saved = text  # what cannot be written is tried again after the next change
            await finish(asyncio.to_thread(_write, path, text))
        with suppress(TimeoutError):
            async with asyncio.timeout(SAVE_S):
                await urgent.wait()


def _dump(state: object) -> str:
    return strict_json(codec.adapter(type(state)).dump_python(state, by_alias=True))


def _write(path: Path, text: str) -> None:
    try:
        make_private_folder(path.parent)
        write_atomic(path, text)
    except OSError as error:
        log.warning("%s cannot be written (%s)", path, error)
