"""Past conversations and notes: searching them within a scope, packing them, deleting them.

Archived sessions and daily notes older than `sessions.keepDays` become one file for each month:
`sessions/archive/2026-10.zip` and `memory/2026-10.md`. Search finds both.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from datetime import date, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.agent.command import CommandCall, CommandEntry
from nanobot.agent.scope import Scope
from nanobot.agent.tools.session_search import format_hits
from nanobot.bus.events import Address
from nanobot.config.paths import DataPaths
from nanobot.config.schema import Config
from nanobot.errors import NanobotError
from nanobot.messages.types import OWNER_CHANNELS, Provenance
from nanobot.pairing.senders import Sender
from nanobot.pairing.store import PairingStore, Role
from nanobot.runtime.audience import has_other_writers, is_group
from nanobot.runtime.services import Services
from nanobot.security.provenance import ProvenanceStore
from nanobot.session.file_format import is_temporary
from nanobot.session.folder import SessionFolder
from nanobot.utils.open_no_follow import read_own, replace_own, unlink_own
from nanobot.utils.storage_error import storage_errors
from nanobot.utils.text import count_noun

if TYPE_CHECKING:
    from nanobot.agent.trace.store import TraceStore
    from nanobot.session.manager import SessionManager
    from nanobot.session.search.index import RecallResult, SearchIndex
    from nanobot.session.search.update import IndexedFile

log = logging.getLogger(__name__)

_CRON, _API, _SUBAGENT = "cron", "api", "subagent"
"""Prefixes of session keys whose work others may have requested."""
_MAX_HITS = 10
_FIRST_UPDATE_S, _UPDATE_INTERVAL_S, _RETRY_S = 60.0, 1800.0, 5.0
"""Delay before the first background update of the index, between updates, and after an incomplete one."""
_INTERVAL_S = 86_400.0


class ScopedArchive:
    """The archive of conversations as seen from a scope. Nothing is loaded before the first search."""

    def __init__(
        self,
        config: Config,
        pairing: PairingStore,
        places: DataPaths,
        workspace: Path,
        *,
        opener: Callable[[str, int], int],
        provenance_of: Callable[[Path], Provenance | None],
    ) -> None:
        """`opener` opens memory files; `provenance_of` returns whose content they hold."""
        self._may_reveal = partial(may_reveal, config, pairing)
        self._places = places
        self._workspace = workspace
        self._opener = opener
        self._provenance_of = provenance_of

    def search(
        self, scope: Scope, text: str, *, limit: int = _MAX_HITS, since: float = 0.0, leave_out_turn: str = ""
    ) -> "RecallResult":
        """Return matching messages that this scope may see. Tool results are searched for the owner only."""
        may_read = partial(self._may_reveal, scope)
        return self.index.search(
            text, may_read, limit=limit, since=since, results=scope.is_owners, leave_out_turn=leave_out_turn
        )

    def around(self, scope: Scope, number: int) -> "RecallResult":
        """Return the messages before and after a search hit."""
        return self.index.around(number, partial(self._may_reveal, scope), results=scope.is_owners)

    async def keep_up(self) -> None:
        """Update the index periodically, so that searches need not wait. Cancelling is safe."""
        delay = _FIRST_UPDATE_S
        while True:
            await asyncio.sleep(delay)
            try:
                is_whole = await asyncio.to_thread(self.index.refresh)
            except NanobotError as error:  # searches report it too
                log.warning("The search index cannot be updated: %s", error)
                return
            delay = _UPDATE_INTERVAL_S if is_whole else _RETRY_S

    def close(self) -> None:
        """Stop running searches soon."""
        if "index" in self.__dict__:
            self.index.stop()

    @cached_property
    def index(self) -> "SearchIndex":
        """The full-text index behind it."""
        from nanobot.session.search.index import SearchIndex  # SQLite: imported on first use
        from nanobot.session.search.update import sources_of

        sessions = SessionFolder(self._workspace, self._places.legacy_sessions)
        sources = partial(sources_of, sessions, self._workspace / "memory")
        return SearchIndex(self._places.search, sources, self._opener, provenance_of=self._provenance_of)


def may_reveal(config: Config, pairing: PairingStore, scope: Scope, file: "IndexedFile") -> bool:
    """Whether this scope may see the content of a file.

    A chat sees itself and the work it requested. The owner sees everything except private conversations of other people
    and the work they requested.
    """
    if file.source.is_memory:
        owner, name = file.source.folder, file.source.path.name
        return owner == scope.folder or (not owner and name == "SHARED.md")
    if is_temporary(file.key):
        return False
    channel, _, chat = file.key.partition(":")
    if channel == _SUBAGENT and file.scopes != {""}:
        [requester] = file.scopes if len(file.scopes) == 1 else [""]
        is_known = not file.outside or _is_group(requester)
        return bool(requester) and (is_known if scope.is_owners else scope.chat == requester)
    if not scope.is_owners:
        return file.key == scope.chat or file.key.startswith(f"{scope.chat}:")
    if channel in (_CRON, _API):
        return not file.outside
    if channel in OWNER_CHANNELS or channel == _SUBAGENT:
        return True
    people = pairing.people(channel)
    if (
        len({Sender.of(sender).key for sender in file.senders}) > 1
        or _is_group(file.key)
        or people.role_of(Sender.of(chat)) is Role.OWNER
    ):
        return True
    if channel in config.channels.enabled_by_name() and not has_other_writers(config, pairing, file.key):
        return True
    return bool(people.owners) and people.is_same_person(file.senders)


def search_command(archive: ScopedArchive) -> CommandEntry:
    """`/search TEXT`."""

    async def answer(call: CommandCall) -> str:
        if not call.argument:
            return "Nothing to search for. For example: /search dentist"
        result = await asyncio.to_thread(archive.search, call.scope, call.argument)
        lines = ["No message has all of these words; these have some:"] if result.is_loose else []
        lines += format_hits(result.hits)
        lines += [] if result.is_whole else ["The index is still being built; try again in a minute."]
        return "\n\n".join(lines) or f"No match for {call.argument[:200]!r}."

    return CommandEntry(answer, "search conversations and memory", "TEXT")


def _is_group(chat_key: str) -> bool:
    channel, _, chat_id = chat_key.partition(":")
    return is_group(Address(channel, chat_id))


def delete_session(sessions: "SessionManager", traces: "TraceStore", index: "SearchIndex", name: str) -> None:
    """Delete a session, live or archived, for good. Blocks. Raises NanobotError if there is none, StorageError."""
    session = sessions.read(name)
    if session is None or not sessions.delete(name):
        raise NanobotError(f"There is no session {name!r}.")
    traces.forget(session.key, {str(row["turn_id"]) for row in session.messages if row.get("turn_id")})
    index.forget_deleted()


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
