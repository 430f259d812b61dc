"""A session in memory: the stored conversation of one session key.

Only the end of a long session is loaded. `messages` is the complete list, loaded on first access; `get_history` is what
a model may see and needs the end alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from operator import is_
from sys import maxsize
from threading import RLock
from typing import Any, cast

from nanobot.messages.types import ChatMessage
from nanobot.session.file import StoredFile, read_before
from nanobot.session.file_format import Row
from nanobot.utils.storage_error import storage_errors

AUDIENCE = "audience"
"""Metadata key of the session's `Audience`, once it is known."""


@dataclass(frozen=True, slots=True)
class Audience:
    """Who has written in a session or could read it, also before `/new`."""

    in_group: bool = False
    senders: frozenset[str] = frozenset()

    def with_rows(self, rows: Iterable[ChatMessage]) -> "Audience":
        """Return the audience with the people of these rows added."""
        in_group, senders = self.in_group, set(self.senders)
        for row in rows:
            in_group = in_group or bool(row.get("in_group"))
            if sender := row.get("sender_id"):
                senders.add(str(sender))
        return Audience(in_group, frozenset(senders))

    def to_json(self) -> dict[str, Any]:
        return {"in_group": self.in_group, "senders": sorted(self.senders)}

    @classmethod
    def from_json(cls, data: object) -> "Audience | None":
        """Parse the result of `to_json`; None for anything else."""
        if not isinstance(data, dict) or not isinstance(senders := data.get("senders"), list):
            return None
        return cls(bool(data.get("in_group")), frozenset(map(str, senders)))


class Session:
    """One conversation. `messages` may be appended to, assigned and sliced; `SessionManager.save` stores the result.

    A saved message is not changed in place, which would not be stored: put another one in its place.
    """

    def __init__(
        self,
        key: str,
        messages: list[ChatMessage] | None = None,
        created_at: datetime | None = None,
        updated_at: datetime | None = None,
        metadata: dict[str, Any] | None = None,
        last_consolidated: int = 0,
    ) -> None:
        self.key = key
        self.created_at = created_at or datetime.now()
        self.updated_at = updated_at or datetime.now()
        self.metadata: dict[str, Any] = {} if metadata is None else metadata
        self.last_consolidated = last_consolidated
        """Messages from the start that were moved into memory and are not shown to a model."""
        self.notices: list[str] = []
        """Problems with its file, to be shown to a person once."""
        self.stored: StoredFile | None = None
        self.is_cleared = False
        """Whether it was cleared since the last save."""
        self.is_exposed = False
        """Whether a caller has the list of messages, so that all of them must stay in memory."""
        self._rows: list[ChatMessage] = [] if messages is None else messages
        self._saved: list[ChatMessage] = []  # the first of these rows, as they are on the disk or in flight
        self._skipped = 0  # rows before these
        self.lock = RLock()
        """Held by whoever loads rows: several threads may."""

    def __repr__(self) -> str:
        return f"Session({self.key!r}, {self.message_count} messages)"

    @property
    def messages(self) -> list[ChatMessage]:
        """All messages. Loads older ones; may raise StorageError."""
        with self.lock:  # another thread may reload the file, which drops older rows that nobody has been given
            self._load_since(0)
            self.is_exposed = True
            return self._rows

    @messages.setter
    def messages(self, messages: list[ChatMessage]) -> None:
        with self.lock:
            self._load_since(0)
            self.is_exposed, self._rows = True, messages

    @property
    def message_count(self) -> int:
        """Number of messages, without loading them."""
        with self.lock:
            return self._skipped + len(self._rows)

    @property
    def rows_in_memory(self) -> int:
        """Number of messages that are loaded."""
        return len(self._rows)

    @property
    def last_message(self) -> ChatMessage | None:
        return self._rows[-1] if self._rows else None

    def add_message(self, role: str, content: Any, **extra: Any) -> None:
        """Append a message, with a timestamp if it has none. Durable after `save`."""
        self.add_rows([cast(ChatMessage, {"role": role, "content": content, **extra})])

    def add_rows(self, rows: Iterable[ChatMessage]) -> list[ChatMessage]:
        """Append rows with timestamps, and return them."""
        now = datetime.now()
        stamped = [
            row if "timestamp" in row else cast(ChatMessage, {**row, "timestamp": now.isoformat()}) for row in rows
        ]
        with self.lock:
            self._rows += stamped
            self.updated_at = now
            if (audience := self.audience) is not None:
                self._update_audience(audience.with_rows(stamped))
        return stamped

    def get_history(self, max_messages: int = 500) -> list[ChatMessage]:
        """Return what a model may see: the last `max_messages` past the cursor, starting at a user message.

        Commands are left out. If there is no user message among them, goes back to the one before.
        """
        limit = max(max_messages, 0)
        with self.lock:
            self._load_since(max(self.message_count - limit, self.last_consolidated))
            begin = max(self.last_consolidated - self._skipped, 0)
            rows = [row for row in self._rows[begin:] if not row.get("_command")]
        return _from_user(rows, max(len(rows) - limit, 0)) if limit else []

    def since(self, index: int) -> list[ChatMessage]:
        """Return the messages from number `index` on, starting at a user message and not before the cursor.

        Includes commands, so the first one is number `message_count - len(rows)`. Loads only as many older messages as
        needed. May raise StorageError.
        """
        begin = max(index, self.last_consolidated, 0)
        with self.lock:
            self._load_since(begin)
            first = max(self.last_consolidated - self._skipped, 0)
            return _from_user(self._rows[first:], max(begin - self._skipped - first, 0))

    def page(self, before: int | None, limit: int) -> tuple[int, list[ChatMessage]]:
        """Return the last `limit` messages before number `before` (None: the newest), and the first one's number.

        Loads only as many older messages as needed. May raise StorageError.
        """
        with self.lock:
            end = self.message_count if before is None else min(max(before, 0), self.message_count)
            start = max(end - limit, 0)
            self._load_since(start)
            return start, self._rows[start - self._skipped : end - self._skipped]

    def clear(self) -> None:
        """Start over. The stored messages move to the archive at the next `save`."""
        with self.lock:
            self._rows, self._saved, self._skipped = [], [], 0
            self.is_cleared, self.is_exposed = True, False
            self.last_consolidated = 0
            self.updated_at = datetime.now()

    @property
    def audience(self) -> Audience | None:
        """Who has written in it or could read it; None if not known yet."""
        return Audience.from_json(self.metadata.get(AUDIENCE))

    def set_audience(self, audience: Audience) -> Audience:
        """Store the audience found on the disk plus that of the loaded rows; later rows update it. Return it."""
        with self.lock:
            return self._update_audience(audience.with_rows(self._rows))

    def _update_audience(self, audience: Audience) -> Audience:
        if audience != self.audience:
            self.metadata = {**self.metadata, AUDIENCE: audience.to_json()}
        return audience

    # --- used by the manager

    def load(self, rows: list[ChatMessage], skipped: int) -> None:
        """Replace the saved rows by those of the file; unsaved messages stay behind them."""
        with self.lock:
            self._saved, loaded, self._skipped = rows, [*rows, *self.unsaved], skipped
            given, self._rows = self._rows, loaded
            if self.is_exposed:  # whoever has the list sees all messages at any time, so it is replaced in one step
                try:
                    self._load_since(0)
                finally:
                    given[:], self._rows = self._rows, given

    @property
    def unsaved(self) -> list[ChatMessage]:
        """Messages that are not on the disk yet."""
        return self._rows[len(self._saved) :]

    def was_changed(self) -> bool:
        """Whether saved messages were removed, moved or replaced."""
        with self.lock:
            return len(self._rows) < len(self._saved) or not all(map(is_, self._rows, self._saved))

    def mark_saved(self, rows: Sequence[ChatMessage]) -> None:
        """Treat the first unsaved rows as saved: they are on the disk, or being written."""
        with self.lock:
            self._saved += rows

    def mark_rewritten(self) -> None:
        """Treat all messages as saved."""
        with self.lock:
            self._saved, self.is_cleared = [*self._rows], False

    def drop_rows(self, rows: Sequence[ChatMessage]) -> None:
        dropped = set(map(id, rows))
        with self.lock:
            self._rows[:] = [row for row in self._rows if id(row) not in dropped]
            self._saved = [row for row in self._saved if id(row) not in dropped]

    def _load_since(self, begin: int) -> None:
        """Load older messages, back to message number `begin`."""
        with self.lock:
            if self.stored is None or begin >= self._skipped:
                return
            wanted = self._skipped - begin if begin else maxsize
            with storage_errors(f"The older messages of session {self.key} cannot be read"):
                loaded, self.stored.rows_at = read_before(self.stored.path, self.stored.rows_at, wanted)
            older = cast("list[ChatMessage]", loaded)
            skipped = max(self._skipped - len(older), 0) if self.stored.rows_at else 0
            if self.last_consolidated >= self._skipped:  # it is in the loaded rows, and their numbers may change
                self.last_consolidated += skipped + len(older) - self._skipped
            self._rows[:0], self._saved[:0], self._skipped = older, older, skipped


def record_of(session: Session) -> Row:
    return {
        "_type": "metadata",
        "key": session.key,
        "created_at": session.created_at.isoformat(),
        "updated_at": session.updated_at.isoformat(),
        "metadata": session.metadata,
        "last_consolidated": session.last_consolidated,
    }


def _from_user(rows: Sequence[ChatMessage], begin: int) -> list[ChatMessage]:
    """Return the rows from the first user message at or after `begin`, else from the last one before it."""
    positions = chain(range(begin, len(rows)), reversed(range(min(begin, len(rows)))))
    start = next((at for at in positions if rows[at].get("role") == "user"), len(rows))
    return list(rows[start:])
