"""Saves what a channel has to remember of its platform, such as read cursors, as JSON in its state folder.

It may be stale, never ahead: the journal drops messages that are received twice. So no function here raises; what was
not saved costs another request, not a message.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from nanobot.utils.aio import finish
from nanobot.utils.files import make_private_folder, write_atomic

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_AGE = timedelta(days=7)
"""Older messages are not fetched."""
SAVE_S = 5.0
"""Shortest time between two saves, except for urgent changes."""


def load_state(path: Path | None, new: Callable[[], T]) -> T:
    """Return the saved dataclass, or `new()` without a readable file. Blocking."""
    state = new()
    try:
        return state if path is None else TypeAdapter(type(state)).validate_json(path.read_bytes())
    except FileNotFoundError:
        return state
    except (OSError, ValueError) as error:
        log.warning("%s cannot be read (%r); messages from while the bot was away are not fetched", path, error)
        return state


@asynccontextmanager
async def keep_saved(path: Path | None, state: object, urgent: asyncio.Event | None = None) -> AsyncIterator[None]:
    """Save the dataclass when it has changed: every `SAVE_S`, when `urgent` is set, and when the block ends.

    Without a path nothing is saved.
    """
    if path is None:
        yield
        return
    saver = _Saver(path, state)
    saving = asyncio.create_task(saver.run(urgent or asyncio.Event()), name=f"{path.stem} state")
    try:
        yield
    finally:
        saving.cancel()
        await finish(asyncio.wait([saving]))
        await finish(saver.save())


class _Saver:
    def __init__(self, path: Path, state: object) -> None:
        self._path = path
        self._state = state
        self._codec = TypeAdapter(type(state))
        self._saved = b""

    async def run(self, urgent: asyncio.Event) -> None:
        while True:
            urgent.clear()
            await finish(self.save())
            with suppress(TimeoutError):
                async with asyncio.timeout(SAVE_S):
                    await urgent.wait()

    async def save(self) -> None:
        text = self._codec.dump_json(self._state, indent=2)
        if text != self._saved:
            await asyncio.to_thread(self._write, text)

    def _write(self, text: bytes) -> None:
        try:
            make_private_folder(self._path.parent)
            write_atomic(self._path, text.decode())
        except OSError as error:
            log.warning("%s cannot be written (%s)", self._path, error)
        else:
            self._saved = text
