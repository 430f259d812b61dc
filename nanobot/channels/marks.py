"""Up to where a channel has heard its platform, on the disk: so that what was said while nobody listened is asked for.

Marks may be late, never early: what is asked for twice is dropped by the journal. So nothing here raises: marks that
are late cost a question more, no message.
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

LONGEST = timedelta(days=7)
"""What is older than this is not asked for."""
SAVE_S = 5.0
"""How often marks are saved at most, but for what presses."""


class Marks(Protocol):
    """What one platform's marks are, in its own way."""

    changed: bool
    """Since it was last dumped."""

    def dump(self) -> str:
        """As it lies on the disk. What is said here is saved."""
        ...


def load(path: Path, read: Callable[[Any], T], none: Callable[[], T]) -> T:
    """What was saved, as `read` makes it of the JSON; `none` where nothing was, or where it cannot be read.

    `read` may raise what reading JSON of another shape raises. Never raises. Blocks on the disk.
    """
    try:
        return read(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return none()
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        log.warning(
            "%s: %s cannot be read (%r); what was said while the bot was away stays unheard", path.stem, path, error
        )
        return none()


@asynccontextmanager
async def saved(path: Path | None, marks: Marks, pressing: asyncio.Event | None = None) -> AsyncIterator[None]:
    """Keep them on the disk until the block ends, and then as they are. Without a path they end with it.

    `pressing` is set by what should not wait. Never raises.
    """
    if path is None:
        yield
        return
    keeping = asyncio.create_task(_keep(path, marks, pressing or asyncio.Event()), name=f"{path.stem} marks")
    try:
        yield
    finally:
        keeping.cancel()
        await finish(asyncio.wait([keeping]))
        await finish(asyncio.to_thread(_save, path, marks.dump()))


async def _keep(path: Path, marks: Marks, pressing: asyncio.Event) -> None:
    while True:
        pressing.clear()
        if marks.changed:
            await finish(asyncio.to_thread(_save, path, marks.dump()))
        with suppress(TimeoutError):
            async with asyncio.timeout(SAVE_S):
                await pressing.wait()


def _save(path: Path, text: str) -> None:
    try:
        make_private_folder(path.parent)
        write_atomic(path, text)
    except OSError as error:
        log.warning("%s: %s cannot be written (%s)", path.stem, path, error)
