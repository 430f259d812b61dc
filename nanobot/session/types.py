"""A session: the stored conversation of one session key, as it stands in memory.

Of a long session only the end is in memory. `messages` is the whole list, read when somebody asks for it; `get_history`
is what a model may see and needs the end alone.
"""

import marshal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import wraps
from itertools import chain
from pathlib import Path
from threading import RLock
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from nanobot.messages.types import ChatMessage
from nanobot.session.reader import Anchor, Print, open_end, read_older
from nanobot.utils.refusals import refusal

_KEPT_ROWS = 1200
"""Rows at which a session that lives long lets go of its older half; a model is shown 500 at most."""


P = ParamSpec("P")
R = TypeVar("R")


def _alone(method: "Callable[Concatenate[Session, P], R]") -> "Callable[Concatenate[Session, P], R]":
    """One thread at a time: two that read the older messages at once would put them before the others twice."""

    @wraps(method)
    def held(session: "Session", /, *args: P.args, **kwargs: P.kwargs) -> R:
        with session._lock:  # noqa: SLF001 its own methods
            return method(session, *args, **kwargs)

    return held


@dataclass(slots=True)
class Stored:
    """What the manager knows of a session's file."""

    path: Path
    print: Print | None = None
    """The file as we last saw it; None where there is none yet, or where somebody else wrote to it meanwhile."""
    record: bytes = b""
    """The part of the last metadata record that a changed one would differ in."""
    record_at: int = 0
    anchor: Anchor = field(default_factory=Anchor)
    lines: int | None = 0
    """Lines that are messages, where we know."""
    tail_at: int = 0
    """Where the rows begin that were read at once."""
    writing: int = 0
    """Appends on their way to the disk."""


class Session:
    """One conversation. Its messages may be appended to, assigned to and sliced; `SessionManager.save` keeps them."""

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
        """How many messages, from the first on, have gone into memory and are no longer shown to a model."""
        self.stored: Stored | None = None
        self._rows: list[ChatMessage] = [] if messages is None else messages
        self._skipped = 0
        self._forgotten = 0  # of the skipped ones, those behind `stored.tail_at`
        self._kept = 0  # of _rows, from the first on, those that are on the disk or on their way
        self._last_kept: ChatMessage | None = None
        self._prints: list[int] | None = None  # of the kept ones, since somebody outside has the list
        self._cleared = False
        self._lock = RLock()

    def __repr__(self) -> str:
        return f"Session({self.key!r}, {self._skipped + len(self._rows)} messages)"

    @property
    def messages(self) -> list[ChatMessage]:
        """All messages. Older ones are read now if they were not yet; may raise StorageError."""
        self._expose()
        return self._rows

    @messages.setter
    def messages(self, messages: list[ChatMessage]) -> None:
        self._expose()
        self._rows = messages

    @property
    @_alone
    def message_count(self) -> int:
        """How many messages there are, without reading them."""
        return self._skipped + len(self._rows)

    @property
    def rows_in_memory(self) -> int:
        """How many messages are in memory."""
        return len(self._rows)

    def add_message(self, role: str, content: Any, **extra: Any) -> None:
        """Put a message behind the others, with the time if it has none. It is on the disk after `save`."""
        self.add_rows([cast(ChatMessage, {"role": role, "content": content, **extra})])

    @_alone
    def get_history(self, max_messages: int = 500) -> list[ChatMessage]:
        """What a model may see: the last messages past the consolidated ones, from a user's message on.

        Commands are left out. Where the last messages hold none of the user's, it goes back to the one before them.
        """
        wanted = max(max_messages, 0)
        if self._skipped > self.last_consolidated and not self._holds(wanted):
            self._load_older()
        begin = max(self.last_consolidated - self._skipped, 0)
        rows = [row for row in self._rows[begin:] if not row.get("_command")]
        first = max(len(rows) - wanted, 0)
        users = [at for at, row in enumerate(rows) if row.get("role") == "user"]
        start = next((at for at in users if at >= first), users[-1] if users and wanted else len(rows))
        return rows[start:]

    @_alone
    def since(self, index: int) -> list[ChatMessage]:
        """The messages from number `index` on, none that went into memory, from a user's message on. May raise
        StorageError.

        Commands are among them, so the first one is number `message_count - len(rows)`. Older messages are read if they
        are wanted, and no more of them than that.
        """
        begin = max(index, self.last_consolidated, 0)
        if begin < self._skipped:
            self._load_since(begin)
        rows = self._rows
        begin = max(begin - self._skipped, 0)
        consolidated = max(self.last_consolidated - self._skipped, 0)
        places = chain(range(begin, len(rows)), reversed(range(consolidated, min(begin, len(rows)))))
        start = next((at for at in places if rows[at].get("role") == "user"), len(rows))
        return rows[start:]

    @property
    def last_message(self) -> ChatMessage | None:
        """The last message, None where there is none."""
        return self._rows[-1] if self._rows else None

    @_alone
    def clear(self) -> None:
        """Begin afresh. What was stored goes to the archive at the next `save`."""
        self._rows, self._skipped, self._forgotten = [], 0, 0
        self._kept, self._last_kept, self._prints = 0, None, None
        self._cleared = True
        self.last_consolidated = 0
        self.updated_at = datetime.now()

    # --- for the manager

    @_alone
    def add_rows(self, rows: Iterable[ChatMessage]) -> list[ChatMessage]:
        """Put rows behind the others, each with the time; what was put."""
        now = datetime.now()
        stamped = [
            row if "timestamp" in row else cast(ChatMessage, {**row, "timestamp": now.isoformat()}) for row in rows
        ]
        self._rows += stamped
        self.updated_at = now
        return stamped

    @_alone
    def load(self, rows: list[ChatMessage], skipped: int) -> None:
        """What the file holds now; messages that are not on the disk yet stay behind it."""
        waiting = self._rows[self._kept :]
        exposed = self._prints is not None
        if exposed:
            self._rows[:] = [*rows, *waiting]
        else:
            self._rows = [*rows, *waiting]
        self._skipped, self._forgotten = skipped, 0
        self._kept, self._last_kept = len(rows), rows[-1] if rows else None
        self._prints = None
        if exposed:
            self._expose()

    @property
    def cleared(self) -> bool:
        """Whether it begins afresh since it was last saved."""
        return self._cleared

    @property
    def waiting(self) -> list[ChatMessage]:
        """Messages that are not on the disk yet."""
        return self._rows[self._kept :]

    @_alone
    def was_changed(self, *, deeply: bool) -> bool:
        """Whether messages that are on the disk were taken away, moved or, if one looks deeply, edited."""
        if self._prints is None:
            return False
        if len(self._rows) < self._kept or (self._kept and self._rows[self._kept - 1] is not self._last_kept):
            return True
        return deeply and [print_of(row) for row in self._rows[: self._kept]] != self._prints

    @_alone
    def known_prints(self) -> list[int]:
        """Of every message that was on the disk when we last looked, a number that tells whether it changed."""
        self._expose()
        return list(self._prints or ())

    @_alone
    def keep(self, rows: list[ChatMessage]) -> None:
        """These waiting rows are on their way to the disk."""
        self._kept += len(rows)
        self._last_kept = rows[-1] if rows else self._last_kept
        if self._prints is not None:
            self._prints += [print_of(row) for row in rows]

    @_alone
    def lose(self, rows: list[ChatMessage]) -> None:
        """The disk did not take these rows: they are not part of the conversation."""
        for row in rows:
            at = next((at for at in range(len(self._rows) - 1, -1, -1) if self._rows[at] is row), None)
            if at is not None:
                del self._rows[at]
                if at < self._kept:
                    self._kept -= 1
                    if self._prints is not None:
                        del self._prints[at]
        self._last_kept = self._rows[self._kept - 1] if self._kept else None

    @_alone
    def unkeep(self, rows: list[ChatMessage]) -> None:
        """The disk did not take these rows, the last ones kept: they wait again."""
        self._kept -= len(rows)
        self._last_kept = self._rows[self._kept - 1] if self._kept else None
        if self._prints is not None:
            del self._prints[self._kept :]

    @_alone
    def rewritten(self) -> None:
        """All messages are on the disk as they are."""
        self._kept, self._last_kept = len(self._rows), self._rows[-1] if self._rows else None
        self._prints = None if self._prints is None else [print_of(row) for row in self._rows]
        self._cleared = False

    def began_afresh(self) -> None:
        """What was stored before is in the archive."""
        self._cleared = False

    @_alone
    def forget_old_rows(self) -> None:
        """Let go of rows that no model is shown any more, unless somebody outside has the list."""
        if self._prints is None and len(self._rows) > _KEPT_ROWS:
            users = (at for at in range(min(len(self._rows) - _KEPT_ROWS // 2, self._kept), 0, -1))
            cut = next((at for at in users if self._rows[at - 1].get("role") == "user"), 1) - 1
            if cut > 0:
                del self._rows[:cut]
                self._skipped += cut
                self._kept -= cut
                self._forgotten += cut

    @_alone
    def _expose(self) -> None:
        self._load_older()
        if self._prints is None:
            self._prints = [print_of(row) for row in self._rows[: self._kept]]

    @_alone
    def _load_older(self) -> None:
        if self._skipped == 0 or self.stored is None:
            return
        try:
            older = read_older(self.stored.path, self.stored.tail_at, self._forgotten)
        except OSError as error:
            raise refusal(f"The older messages of session {self.key} cannot be read", error) from error
        if self.last_consolidated >= self._skipped:  # it lies in the rows we have: they may be others in number
            self.last_consolidated += len(older) - self._skipped
        self._rows[:0] = cast("list[ChatMessage]", older)
        self._kept += len(older)
        self._skipped, self._forgotten = 0, 0

    def _load_since(self, begin: int) -> None:
        """Read the end of the file again, as far back as this message; all of it where it is not what we knew."""
        if self.stored is None:
            return
        try:
            opened = open_end(self.stored.path, self.message_count - begin)
        except OSError as error:
            raise refusal(f"The older messages of session {self.key} cannot be read", error) from error
        count = len(opened.rows) - self._kept
        if count < 0 or (self._kept and opened.rows[count] != self._rows[0]):
            self._load_older()
            return
        self._rows[:0] = cast("list[ChatMessage]", opened.rows[:count])
        self._kept += count
        self._skipped, self._forgotten, self.stored.tail_at = opened.skipped, 0, opened.tail_at

    def _holds(self, wanted: int) -> bool:
        """Whether the rows in memory are enough for so many that a model may see."""
        commands = sum(1 for row in self._rows if row.get("_command"))
        users = any(row.get("role") == "user" for row in self._rows)
        return len(self._rows) - commands >= wanted and users


def print_of(row: ChatMessage) -> int:
    """A number that changes when the row does, however deep inside."""
    try:
        return hash(marshal.dumps(cast(dict[str, Any], row), 2))  # version 2 writes by value alone
    except ValueError:
        return hash(repr(row))
