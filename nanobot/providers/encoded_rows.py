"""Rows as the bytes they are in a body: each is encoded once, however many requests it is part of.

A chat sends its whole history with every request, and all of it but the end was sent before.
"""

from collections.abc import Sequence

from nanobot.messages.types import ChatMessage
from nanobot.providers.wire import Dialect, encode, reads_files, wire_messages

MOST_BYTES = 2 << 20
"""What is remembered at most, beside the rows themselves: a dozen long chats, or hundreds of short ones."""
_BESIDE_TEXT = 200
"""Bytes that it takes to remember a row, beside its text."""

_Known = dict[int, tuple[ChatMessage, object, bytes]]
"""By identity: the row, held so that nothing else can come to stand at its place, its content, and its bytes."""


class RowsEncoder:
    """Encodes the rows of any number of chats, and remembers those it has seen last.

    A row must not be changed afterwards, but for its `content`: that one is looked at.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._memories: dict[Dialect, _Memory] = {}

    def encode(self, rows: Sequence[ChatMessage], dialect: Dialect) -> bytes | None:
        """The rows as the JSON that `wire_messages` comes to; None where it takes reading files or joining rows."""
        if dialect.merge_users:
            return None
        memory = self._memories.setdefault(dialect, _Memory(dialect))
        encoded = memory.encode(rows)
        if memory.size > self._most_bytes // 2:
            memory.grow_old()
        return encoded


class _Memory:
    """Rows in one dialect: those of late, and those of before, which are let go when they are not met again."""

    def __init__(self, dialect: Dialect) -> None:
        self.size = 0
        self._dialect = dialect
        self._recent: _Known = {}
        self._older: _Known = {}
        self._system: tuple[object, bytes] = (None, b"")

    def encode(self, rows: Sequence[ChatMessage]) -> bytes | None:
        recent, parts = self._recent, []
        for row in rows:
            known = recent.get(id(row))
            if known is None or known[1] is not row["content"]:
                part = self._met_again(row)
                if part is None:
                    return None
                parts.append(part)
            else:
                parts.append(known[2])
        return b"[" + b",".join(parts) + b"]"

    def grow_old(self) -> None:
        self._older, self._recent, self.size = self._recent, {}, 0

    def _met_again(self, row: ChatMessage) -> bytes | None:
        """The bytes of a row that is new here, or was not met of late."""
        content = row["content"]
        if row["role"] == "system":  # long, and the same in all chats
            if self._system[0] != content:
                self._system = content, self._encoded(row)
            return self._system[1]
        known = self._older.get(id(row))
        if known is None or known[1] is not content:
            if self._dialect.images and reads_files(row):
                return None
            known = row, content, self._encoded(row)
        self._recent[id(row)] = known
        self.size += len(known[2]) + _BESIDE_TEXT
        return known[2]

    def _encoded(self, row: ChatMessage) -> bytes:
        (message,) = wire_messages([row], self._dialect)
        return encode(message)
