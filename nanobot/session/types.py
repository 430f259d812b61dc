"""A session in memory: the stored conversation of one session key.

Only the end of a long session is loaded. `messages` is the complete list, loaded on first access; `get_history` is what
a model may see and needs the end alone.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import wraps
from itertools import chain
from operator import is_
from pathlib import Path
from sys import maxsize
from threading import RLock
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from nanobot.messages.types import ChatMessage
from nanobot.session.reader import Cursor, FileFingerprint, read_before
from nanobot.utils.storage_error import storage_errors

AUDIENCE = "audience"
"""Metadata key of the session's `Audience`, once it is known."""


P = ParamSpec("P")
R = TypeVar("R")


def _serialised(method: "Callable[Concatenate[Session, P], R]") -> "Callable[Concatenate[Session, P], R]":
    """Serialise threads: two that load the older messages at once would insert them twice."""

    @wraps(method)
    def locked(session: "Session", /, *args: P.args, **kwargs: P.kwargs) -> R:
        with session._lock:  # noqa: SLF001 decorates methods of Session
            return method(session, *args, **kwargs)

    return locked


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
        """Return it as stored in the metadata."""
        return {"in_group": self.in_group, "senders": sorted(self.senders)}

    @classmethod
    def from_json(cls, data: object) -> "Audience | None":
        """Parse the result of `to_json`; None for anything else."""
        if not isinstance(data, dict) or not isinstance(senders := data.get("senders"), list):
            return None
        return cls(bool(data.get("in_group")), frozenset(map(str, senders)))


@dataclass(slots=True)
class StoredFile:
    """What the manager knows of a session's file."""

    path: Path
    fingerprint: FileFingerprint | None = None
    """The file as last seen; None if there is none yet, or if another process wrote to it since."""
    record: bytes = b""
    """The part of the last metadata record whose change requires a new record."""
    record_at: int = 0
    cursor: Cursor = field(default_factory=Cursor)
    rows_at: int = 0
    """Offset of the first row that is loaded."""
    writing: int = 0
    """Appends in flight."""


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
        self._lock = RLock()

    def __repr__(self) -> str:
        return f"Session({self.key!r}, {self._skipped + len(self._rows)} messages)"

    @property
    def messages(self) -> list[ChatMessage]:
        """All messages. Loads older ones; may raise StorageError."""
        self._expose()
        return self._rows

    @messages.setter
    def messages(self, messages: list[ChatMessage]) -> None:
        self._expose()
        self._rows = messages

    @property
    @_serialised
    def message_count(self) -> int:
        """Number of messages, without loading them."""
        return self._skipped + len(self._rows)

    @property
    def rows_in_memory(self) -> int:
        """Number of messages that are loaded."""
        return len(self._rows)

    def add_message(self, role: str, content: Any, **extra: Any) -> None:
        """Append a message, with a timestamp if it has none. Durable after `save`."""
        self.add_rows([cast(ChatMessage, {"role": role, "content": content, **extra})])

    @_serialised
    def get_history(self, max_messages: int = 500) -> list[ChatMessage]:
        """Return what a model may see: the last `max_messages` past the cursor, starting at a user message.

        Commands are left out. If there is no user message among them, goes back to the one before.
        """
        limit = max(max_messages, 0)
        self._load_since(max(self.message_count - limit, self.last_consolidated))
        begin = max(self.last_consolidated - self._skipped, 0)
        rows = [row for row in self._rows[begin:] if not row.get("_command")]
        first = max(len(rows) - limit, 0)
        positions = chain(range(first, len(rows)), reversed(range(first))) if limit else ()
        start = next((at for at in positions if rows[at].get("role") == "user"), len(rows))
        return rows[start:]

    @_serialised
    def since(self, index: int) -> list[ChatMessage]:
        """Return the messages from number `index` on, starting at a user message and not before the cursor.

        Includes commands, so the first one is number `message_count - len(rows)`. Loads only as many older messages as
        needed. May raise StorageError.
        """
        begin = max(index, self.last_consolidated, 0)
        self._load_since(begin)
        rows = self._rows
        begin = max(begin - self._skipped, 0)
        consolidated = max(self.last_consolidated - self._skipped, 0)
        positions = chain(range(begin, len(rows)), reversed(range(consolidated, min(begin, len(rows)))))
        start = next((at for at in positions if rows[at].get("role") == "user"), len(rows))
        return rows[start:]

    @_serialised
    def page(self, before: int | None, limit: int) -> tuple[int, list[ChatMessage]]:
        """Return the last `limit` messages before number `before` (None: the newest), and the first one's number.

        Loads only as many older messages as needed. May raise StorageError.
        """
        end = self.message_count if before is None else min(max(before, 0), self.message_count)
        start = max(end - limit, 0)
        self._load_since(start)
        return start, self._rows[start - self._skipped : end - self._skipped]

    @property
    def last_message(self) -> ChatMessage | None:
        return self._rows[-1] if self._rows else None

    @_serialised
    def clear(self) -> None:
        """Start over. The stored messages move to the archive at the next `save`."""
        self._rows, self._saved, self._skipped = [], [], 0
        self.is_cleared, self.is_exposed = True, False
        self.last_consolidated = 0
        self.updated_at = datetime.now()

    # --- used by the manager

    @_serialised
    def add_rows(self, rows: Iterable[ChatMessage]) -> list[ChatMessage]:
        """Append rows with timestamps, and return them."""
        now = datetime.now()
        stamped = [
            row if "timestamp" in row else cast(ChatMessage, {**row, "timestamp": now.isoformat()}) for row in rows
        ]
        self._rows += stamped
        self.updated_at = now
        if (audience := self.audience) is not None:
            self._update_audience(audience.with_rows(stamped))
        return stamped

    @property
    def audience(self) -> Audience | None:
        """Who has written in it or could read it; None if not known yet."""
        return Audience.from_json(self.metadata.get(AUDIENCE))

    @_serialised
    def set_audience(self, audience: Audience) -> Audience:
        """Store the audience found on the disk plus that of the loaded rows; later rows update it. Return it."""
        return self._update_audience(audience.with_rows(self._rows))

    def _update_audience(self, audience: Audience) -> Audience:
        if audience != self.audience:
            self.metadata = {**self.metadata, AUDIENCE: audience.to_json()}
        return audience

    @_serialised
    def load(self, rows: list[ChatMessage], skipped: int) -> None:
        """Replace the saved rows by those of the file; unsaved messages stay behind them."""
        rows = [*rows, *self.unsaved]
        self._saved, self._skipped = rows[: len(rows) - len(self.unsaved)], skipped
        if self.is_exposed:
            self._rows[:] = rows
            self._load_since(0)
        else:
            self._rows = rows

    @property
    def unsaved(self) -> list[ChatMessage]:
        """Messages that are not on the disk yet."""
        return self._rows[len(self._saved) :]

    @_serialised
    def was_changed(self) -> bool:
        """Whether saved messages were removed, moved or replaced."""
        return len(self._rows) < len(self._saved) or not all(map(is_, self._rows, self._saved))

    @_serialised
    def saved_rows(self) -> list[ChatMessage]:
        """Return the messages that are on the disk or in flight, as they were saved."""
        self._load_since(0)
        return list(self._saved)

    @_serialised
    def mark_writing(self, rows: list[ChatMessage]) -> None:
        """Treat these unsaved rows as saved while they are written."""
        self._saved += rows

    @_serialised
    def unmark_writing(self, rows: list[ChatMessage]) -> None:
        """Treat the last written rows as unsaved again, after a failed write."""
        del self._saved[len(self._saved) - len(rows) :]

    @_serialised
    def drop_rows(self, rows: list[ChatMessage]) -> None:
        """Remove rows that could not be written."""
        dropped = set(map(id, rows))
        self._rows[:] = [row for row in self._rows if id(row) not in dropped]
        self._saved = [row for row in self._saved if id(row) not in dropped]

    @_serialised
    def mark_rewritten(self) -> None:
        """Treat all messages as saved."""
        self._saved = [*self._rows]
        self.is_cleared = False

    @_serialised
    def _expose(self) -> None:
        self._load_since(0)
        self.is_exposed = True

    @_serialised
    def _load_since(self, begin: int) -> None:
        """Load older messages, back to message number `begin`."""
        if self.stored is None or begin >= self._skipped:
            return
        with storage_errors(f"The older messages of session {self.key} cannot be read"):
            loaded, at = read_before(self.stored.path, self.stored.rows_at, self._skipped - begin if begin else maxsize)
        older = cast("list[ChatMessage]", loaded)
        skipped = max(self._skipped - len(older), 0) if at else 0
        if self.last_consolidated >= self._skipped:  # the cursor is in the loaded rows, and their numbers may change
            self.last_consolidated += skipped + len(older) - self._skipped
        self._rows[:0], self._saved[:0] = older, older
        self._skipped, self.stored.rows_at = skipped, at
