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
from threading import RLock
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from nanobot.messages.types import ChatMessage
from nanobot.session.reader import Anchor, FileFingerprint, open_end, read_older
from nanobot.utils.storage_error import storage_error

AUDIENCE = "audience"
"""Metadata key of the session's `Audience`, once it is known."""
_MAX_LOADED_ROWS = 1200
"""Loaded rows at which a session releases its older half; a model is shown 500 at most."""


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
    anchor: Anchor = field(default_factory=Anchor)
    lines: int | None = 0
    """Number of message lines, None if unknown."""
    tail_at: int = 0
    """Offset of the first row that was loaded on opening."""
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
        self._rows: list[ChatMessage] = [] if messages is None else messages
        self._skipped = 0
        self._released = 0  # skipped rows behind `stored.tail_at`
        self._saved_count = 0  # rows from the start of _rows that are on the disk or in flight
        self._exposed: list[ChatMessage] | None = None  # the saved rows, once a caller has the list
        self._is_cleared = False
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
        if self._skipped > self.last_consolidated and not self._has_enough(limit):
            self._load_older()
        begin = max(self.last_consolidated - self._skipped, 0)
        rows = [row for row in self._rows[begin:] if not row.get("_command")]
        first = max(len(rows) - limit, 0)
        users = [at for at, row in enumerate(rows) if row.get("role") == "user"]
        start = next((at for at in users if at >= first), users[-1] if users and limit else len(rows))
        return rows[start:]

    @_serialised
    def since(self, index: int) -> list[ChatMessage]:
        """Return the messages from number `index` on, starting at a user message and not before the cursor.

        Includes commands, so the first one is number `message_count - len(rows)`. Loads only as many older messages as
        needed. May raise StorageError.
        """
        begin = max(index, self.last_consolidated, 0)
        if begin < self._skipped:
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
        if start < self._skipped:
            self._load_since(start)
        return start, self._rows[start - self._skipped : end - self._skipped]

    @property
    def last_message(self) -> ChatMessage | None:
        return self._rows[-1] if self._rows else None

    @_serialised
    def clear(self) -> None:
        """Start over. The stored messages move to the archive at the next `save`."""
        self._rows, self._skipped, self._released = [], 0, 0
        self._saved_count, self._exposed = 0, None
        self._is_cleared = True
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
        unsaved = self._rows[self._saved_count :]
        is_exposed = self._exposed is not None
        if is_exposed:
            self._rows[:] = [*rows, *unsaved]
        else:
            self._rows = [*rows, *unsaved]
        self._skipped, self._released = skipped, 0
        self._saved_count, self._exposed = len(rows), None
        if is_exposed:
            self._expose()

    @property
    def is_cleared(self) -> bool:
        """Whether it was cleared since the last save."""
        return self._is_cleared

    @property
    def unsaved(self) -> list[ChatMessage]:
        """Messages that are not on the disk yet."""
        return self._rows[self._saved_count :]

    @_serialised
    def was_changed(self) -> bool:
        """Whether saved messages were removed, moved or replaced."""
        saved = self._exposed
        return saved is not None and (len(self._rows) < len(saved) or not all(map(is_, self._rows, saved)))

    @_serialised
    def saved_rows(self) -> list[ChatMessage]:
        """Return the messages that are on the disk or in flight, as they were saved."""
        self._expose()
        return list(self._exposed or ())

    @_serialised
    def mark_writing(self, rows: list[ChatMessage]) -> None:
        """Treat these unsaved rows as saved while they are written."""
        self._saved_count += len(rows)
        if self._exposed is not None:
            self._exposed += rows

    @_serialised
    def drop_rows(self, rows: list[ChatMessage]) -> None:
        """Remove rows that could not be written."""
        for row in rows:
            at = next((at for at in range(len(self._rows) - 1, -1, -1) if self._rows[at] is row), None)
            if at is not None:
                del self._rows[at]
                if at < self._saved_count:
                    self._saved_count -= 1
                    if self._exposed is not None:
                        del self._exposed[at]

    @_serialised
    def unmark_writing(self, rows: list[ChatMessage]) -> None:
        """Treat the last written rows as unsaved again, after a failed write."""
        self._saved_count -= len(rows)
        if self._exposed is not None:
            del self._exposed[self._saved_count :]

    @_serialised
    def mark_rewritten(self) -> None:
        """Treat all messages as saved."""
        self._saved_count = len(self._rows)
        self._exposed = None if self._exposed is None else [*self._rows]
        self._is_cleared = False

    def mark_archived(self) -> None:
        """Treat the cleared messages as archived."""
        self._is_cleared = False

    @_serialised
    def release_old_rows(self) -> None:
        """Release old rows that no model is shown, unless a caller has the list."""
        if self._exposed is None and len(self._rows) > _MAX_LOADED_ROWS:
            users = (at for at in range(min(len(self._rows) - _MAX_LOADED_ROWS // 2, self._saved_count), 0, -1))
            cut = next((at for at in users if self._rows[at - 1].get("role") == "user"), 1) - 1
            if cut > 0:
                del self._rows[:cut]
                self._skipped += cut
                self._saved_count -= cut
                self._released += cut

    @_serialised
    def _expose(self) -> None:
        self._load_older()
        if self._exposed is None:
            self._exposed = self._rows[: self._saved_count]

    @_serialised
    def _load_older(self) -> None:
        if self._skipped == 0 or self.stored is None:
            return
        try:
            older = read_older(self.stored.path, self.stored.tail_at, self._released)
        except OSError as error:
            raise storage_error(f"The older messages of session {self.key} cannot be read", error) from error
        if self.last_consolidated >= self._skipped:  # the cursor is in the loaded rows, and their numbers may change
            self.last_consolidated += len(older) - self._skipped
        self._rows[:0] = cast("list[ChatMessage]", older)
        self._saved_count += len(older)
        self._skipped, self._released = 0, 0

    def _load_since(self, begin: int) -> None:
        """Load the end of the file back to message number `begin`; all of it if the file has changed."""
        if self.stored is None:
            return
        try:
            opened = open_end(self.stored.path, self.message_count - begin)
        except OSError as error:
            raise storage_error(f"The older messages of session {self.key} cannot be read", error) from error
        count = len(opened.rows) - self._saved_count
        if count < 0 or (self._saved_count and opened.rows[count] != self._rows[0]):
            self._load_older()
            return
        self._rows[:0] = cast("list[ChatMessage]", opened.rows[:count])
        self._saved_count += count
        self._skipped, self._released, self.stored.tail_at = opened.skipped, 0, opened.tail_at

    def _has_enough(self, limit: int) -> bool:
        """Whether the loaded rows have enough messages that a model may see."""
        commands = sum(1 for row in self._rows if row.get("_command"))
        users = any(row.get("role") == "user" for row in self._rows)
        return len(self._rows) - commands >= limit and users
