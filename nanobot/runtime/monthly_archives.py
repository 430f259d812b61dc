"""Monthly archives: archived sessions and daily notes older than `sessions.keepDays` become one file for each month.

Sessions move into `sessions/archive/2026-10.zip`, notes into `memory/2026-10.md`. Search finds both.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from datetime import date, timedelta
from pathlib import Path

from nanobot.errors import NanobotError
from nanobot.runtime.services import Services
from nanobot.security.provenance import ProvenanceStore
from nanobot.utils.open_no_follow import read_own, replace_own, unlink_own
from nanobot.utils.storage_error import storage_errors
from nanobot.utils.text import count_noun

log = logging.getLogger(__name__)

_INTERVAL_S = 86_400.0


async def keep_packing(services: Services, pending: Callable[[], Collection[str]]) -> None:
    """Pack what is old enough, now and once a day. `pending` returns the stems of sessions that are not consolidated
    yet: these stay.
    """
    while True:
        if days := services.config.sessions.keep_days:
            try:
                await asyncio.to_thread(pack_old_files, services, days, pending)
            except NanobotError as error:  # tried again tomorrow
                log.warning("Old sessions and notes could not be packed: %s", error)
        await asyncio.sleep(_INTERVAL_S)


def pack_old_files(services: Services, days: int, pending: Callable[[], Collection[str]]) -> None:
    """Move what is older than this into the archives of their months. Blocks; raises StorageError."""
    before = services.clock.now() - timedelta(days=days)
    memory = services.workspace / "memory"
    count = services.sessions.pack_archive(before.replace(tzinfo=None), keep=pending())
    for folder in (memory, *memory.glob("chats/*")):
        count += _pack_notes(folder, before.date(), services.file_provenance)
    if count:
        log.info("moved into the archives of their months: %s", count_noun(count, "old file"))


def _pack_notes(folder: Path, before: date, files: ProvenanceStore) -> int:
    """Move the notes of days before this one into a file for each month, trusted as little as the least of them.
    Return how many.
    """
    days = [path for path in sorted(folder.glob("????-??-??.md")) if path.stem < before.isoformat()]
    for path in days:
        month = path.with_name(f"{path.stem[:7]}.md")
        if (provenance := files.of(path)) is not None:
            files.mark(month, provenance)
        with storage_errors(f"{path} could not be moved to {month.name}"):
            heading, note = f"# {path.stem}".encode(), read_own(path).strip()
            block = note if note.startswith(heading) else heading + b"\n\n" + note
            notes = read_own(month) if month.exists() else b""
            if block not in notes:  # it is, if a crash came before the note was deleted
                replace_own(month, notes + (b"\n" if notes else b"") + block + b"\n")
            unlink_own(path)
    return len(days)
