"""Saves a platform's read cursors, so that messages from while the bot was away can be fetched.

Cursors may be stale, never ahead: the journal drops messages that are fetched twice. So no function here raises;
a cursor that was not saved costs another request, not a message.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar

from nanobot.utils.aio import finish
from nanobot.utils.files import make_private_folder, write_atomic

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_AGE = timedelta(days=7)
"""Older messages are not fetched."""
SAVE_S = 5.0
"""Shortest time between two saves, except for urgent changes."""


class Cursors(Protocol):
    """The cursors of one platform."""

    changed: bool
    """Since the last `dump`."""

    def dump(self) -> str:
        """Return the file's text and reset `changed`."""
        ...


def load_cursors(path: Path, read: Callable[[Any], T], none: Callable[[], T]) -> T:
    """Return `read` of the saved JSON, or `none()` without a readable file.

    `read` may raise what reading JSON of another shape raises. Never raises. Blocking.
    """
    try:
        return read(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return none()
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        log.warning(
            "%s: %s cannot be read (%r); messages from while the bot was away are not fetched", path.stem, path, error
        )
        return none()


@asynccontextmanager
async def keep_saved(path: Path | None, cursors: Cursors, urgent: asyncio.Event | None = None) -> AsyncIterator[None]:
    """Save the cursors every `SAVE_S`, at once when `urgent` is set, and when the block ends. Never raises.

    Without a path nothing is saved.
    """
    if path is None:
        yield
        return
    saving = asyncio.create_task(_save_changes(path, cursors, urgent or asyncio.Event()), name=f"{path.stem} cursors")
    try:
        yield
    finally:
        saving.cancel()
        await finish(asyncio.wait([saving]))
        await finish(asyncio.to_thread(_save, path, cursors.dump()))


async def _save_changes(path: Path, cursors: Cursors, urgent: asyncio.Event) -> None:
    while True:
        urgent.clear()
        if cursors.changed:
            await finish(asyncio.to_thread(_save, path, cursors.dump()))
        with suppress(TimeoutError):
            async with asyncio.timeout(SAVE_S):
                await urgent.wait()


def _save(path: Path, text: str) -> None:
    try:
        make_private_folder(path.parent)
        write_atomic(path, text)
    except OSError as error:
        log.warning("%s: %s cannot be written (%s)", path.stem, path, error)
