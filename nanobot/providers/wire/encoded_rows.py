"""Caches the encoded bytes of rows, so that each is encoded once for all requests that contain it.

A chat sends its whole history with every request, and all but the end of it was sent before.
"""

from collections.abc import Sequence

from nanobot.messages.types import ChatMessage
from nanobot.providers.wire.chat_request import RequestDialect, encode, has_files, wire_messages

MAX_BYTES = 2 << 20
"""Cache limit: a dozen long chats, or hundreds of short ones."""
_ENTRY_OVERHEAD = 200
"""Bytes a cache entry takes beside its text."""

_Entries = dict[int, tuple[ChatMessage, object, bytes]]
"""By identity: the row (referenced, so that its id is not reused), its content, and its bytes."""


class RowsEncoder:
    """Encodes the rows of any number of chats and caches the recent ones.

    A row must not change after it was encoded, except for its `content`, which is compared.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._caches: dict[RequestDialect, _RowCache] = {}

    def encode(self, rows: Sequence[ChatMessage], dialect: RequestDialect) -> bytes | None:
        """The JSON of `wire_messages`; None if that needs reading files or merging rows."""
        if dialect.merge_users:
            return None
        cache = self._caches.setdefault(dialect, _RowCache(dialect))
        encoded = cache.encode(rows)
        if cache.size > self._max_bytes // 2:
            cache.rotate()
        return encoded


class _RowCache:
    """The rows of one dialect in two generations: those of the previous one are dropped unless used again."""

    def __init__(self, dialect: RequestDialect) -> None:
        self.size = 0
        self._dialect = dialect
        self._current: _Entries = {}
        self._previous: _Entries = {}
        self._system: tuple[object, bytes] = (None, b"")

    def encode(self, rows: Sequence[ChatMessage]) -> bytes | None:
        current, parts = self._current, []
        for row in rows:
            entry = current.get(id(row))
            if entry is None or entry[1] is not row["content"]:
                part = self._encode_or_reuse(row)
                if part is None:
                    return None
                parts.append(part)
            else:
                parts.append(entry[2])
        return b"[" + b",".join(parts) + b"]"

    def rotate(self) -> None:
        self._previous, self._current, self.size = self._current, {}, 0

    def _encode_or_reuse(self, row: ChatMessage) -> bytes | None:
        """The bytes of a row that is not in the current generation."""
        content = row["content"]
        if row["role"] == "system":  # long, and equal in all chats
            if self._system[0] != content:
                self._system = content, self._encode_row(row)
            return self._system[1]
        entry = self._previous.get(id(row))
        if entry is None or entry[1] is not content:
            if self._dialect.images and has_files(row):
                return None
            entry = row, content, self._encode_row(row)
        self._current[id(row)] = entry
        self.size += len(entry[2]) + _ENTRY_OVERHEAD
        return entry[2]

    def _encode_row(self, row: ChatMessage) -> bytes:
        (message,) = wire_messages([row], self._dialect)
        return encode(message)
