"""What was said before, and who may be told of it: the index over conversations and memory, and whose each is."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.agent.desk import Asked, CommandEntry
from nanobot.agent.scope import Scope
from nanobot.agent.tools.session_search import lines_of
from nanobot.config.paths import Places
from nanobot.config.schema import Config
from nanobot.errors import NanobotError
from nanobot.messages.types import Provenance
from nanobot.pairing.book import Role
from nanobot.pairing.senders import Sender
from nanobot.pairing.store import PairingStore
from nanobot.session.folder import SessionFolder
from nanobot.wiring.people import others_write

if TYPE_CHECKING:
    from nanobot.session.search.recall import Found, Recall
    from nanobot.session.search.sources import IndexedFile

_OWNERS_OWN = frozenset({"cli", "sdk", "api", "heartbeat", "unified"})
"""What session keys begin with where nobody but the owner writes."""
_JOB, _SUBAGENT = "cron", "subagent"
"""Of those that others may have asked for."""
_SHOWN = 10
_FIRST_S, _EVERY_S, _AGAIN_S = 60.0, 1800.0, 5.0
"""When the index is first brought up to date where nobody asked, how often then, and when where it was too much."""

log = logging.getLogger(__name__)


class ScopedArchive:
    """The conversations as a turn or a command may be told of them. Nothing is loaded before the first question."""

    def __init__(
        self,
        config: Config,
        pairing: PairingStore,
        places: Places,
        workspace: Path,
        *,
        opener: Callable[[str, int], int],
        words_of: Callable[[Path], Provenance | None],
    ) -> None:
        """`opener` opens memory files, and `words_of` tells whose words they hold."""
        self._config = config
        self._pairing = pairing
        self._places = places
        self._workspace = workspace
        self._opener = opener
        self._words_of = words_of

    def search(
        self, scope: Scope, text: str, *, limit: int = _SHOWN, since: float = 0.0, leave_out_turn: str = ""
    ) -> "Found":
        """What was said with these words and may be told in this scope; what tools brought, to the owner alone."""
        may_read = partial(self._may_read, scope)
        return self._recall.search(
            text, may_read, limit=limit, since=since, results=scope.is_owners, leave_out_turn=leave_out_turn
        )

    def around(self, scope: Scope, number: int) -> "Found":
        """What was said before and after something that was found."""
        return self._recall.around(number, partial(self._may_read, scope), results=scope.is_owners)

    async def keep_up(self, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        """Bring the index up to date now and then, so that whoever asks need not wait. Cancelling is safe."""
        pause = _FIRST_S
        while True:
            await sleep(pause)
            try:
                is_whole = await asyncio.to_thread(self._recall.refresh)
            except NanobotError as error:  # who asks is told so too
                log.warning("What was said cannot be made findable: %s", error)
                return
            pause = _EVERY_S if is_whole else _AGAIN_S

    def close(self) -> None:
        """Whoever still looks for something is to end soon."""
        if "_recall" in self.__dict__:
            self._recall.stop()

    @cached_property
    def _recall(self) -> "Recall":
        from nanobot.session.search.index import SearchIndex  # SQLite: only who looks for something waits for it
        from nanobot.session.search.recall import Recall, sources_of

        sessions = SessionFolder(self._workspace, self._places.old_sessions)
        sources = partial(sources_of, sessions, self._workspace / "memory")
        return Recall(SearchIndex(self._places.search, sources, self._opener), words_of_file=self._words_of)

    def _may_read(self, scope: Scope, file: "IndexedFile") -> bool:
        return may_tell(self._config, self._pairing, scope, file)


def may_tell(config: Config, pairing: PairingStore, scope: Scope, file: "IndexedFile") -> bool:
    """Whether what stands in a file may be told in this scope: a chat is told of itself and of what worked for it; the
    owner of everything but what somebody else said alone with the bot, or had done there.
    """
    if file.source.kind == "memory":
        whose, name = file.source.folder, file.source.path.name
        return whose == scope.folder or (not whose and name == "SHARED.md")
    channel, _, chat = file.key.partition(":")
    if channel == _SUBAGENT and file.scopes != {""}:
        [worked_for] = file.scopes if len(file.scopes) == 1 else [""]
        is_known = not file.outside or _is_group(*_parted(worked_for))
        return bool(worked_for) and (is_known if scope.is_owners else scope.chat == worked_for)
    if not scope.is_owners:
        return file.key == scope.chat or file.key.startswith(f"{scope.chat}:")
    if channel in _OWNERS_OWN or channel == _SUBAGENT:
        return True
    if channel == _JOB:
        return not file.outside
    people = pairing.people(channel)
    if (
        len({Sender.of(one).key for one in file.senders}) > 1
        or _is_group(channel, chat)
        or people.role_of(Sender.of(chat)) is Role.OWNER
    ):
        return True
    if channel in config.channels.switched_on() and not others_write(config, pairing, file.key):
        return True
    return bool(people.owners) and people.is_one_of_them(file.senders)


def search_command(archive: ScopedArchive) -> CommandEntry:
    """`/search TEXT`."""

    async def answer(asked: Asked) -> str:
        if not asked.argument:
            return "What shall I look for? For example: /search dentist"
        found = await asyncio.to_thread(archive.search, asked.scope, asked.argument)
        return _told(found, asked.argument)

    return CommandEntry(answer, "find what was said before, in all conversations", "TEXT")


def _told(found: "Found", text: str) -> str:
    lines: Sequence[str] = lines_of(found.hits)
    head: Iterable[str] = ["Nothing holds all of these words; this holds some of them:"] if found.is_loose else ()
    tail = () if found.is_whole else ("The index is still being made; try again in a minute.",)
    return "\n\n".join([*head, *lines, *tail]) or f"{text[:200]!r} was found nowhere."


def _parted(chat: str) -> tuple[str, str]:
    channel, _, name = chat.partition(":")
    return channel, name


def _is_group(channel: str, chat: str) -> bool:
    from nanobot.channels.registry import find  # only who looks for something waits for it

    spec = find(channel)
    return spec is not None and spec.is_group(chat)
