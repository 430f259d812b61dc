"""Search over conversations and memory, limited to what the asking scope may see."""

import asyncio
import logging
from collections.abc import Callable
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
from nanobot.session.file_format import is_temporary
from nanobot.session.folder import SessionFolder

if TYPE_CHECKING:
    from nanobot.session.search.index import RecallResult, SearchIndex
    from nanobot.session.search.update import IndexedFile

_CRON, _API, _SUBAGENT = "cron", "api", "subagent"
"""Prefixes of session keys whose work others may have requested."""
_MAX_HITS = 10
_FIRST_UPDATE_S, _UPDATE_INTERVAL_S, _RETRY_S = 60.0, 1800.0, 5.0
"""Delay before the first background update of the index, between updates, and after an incomplete one."""

log = logging.getLogger(__name__)


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
