"""Reading session files: the end of a file in milliseconds however long it is, or all of it on demand.

Our metadata records say how many messages precede them (`messages`), how many of these are past (`last_consolidated`),
and at which byte the first one after these starts (`offset`). Files of the original lack two of them; then lines are
counted without parsing them.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from nanobot.messages.types import ChatMessage, visible_text
from nanobot.session.file_names import key_of
from nanobot.session.lines import Row, decode, is_record, parse_time
from nanobot.utils.open_no_follow import open_own

TAIL_ROWS = 500
"""Messages loaded when a session is opened."""
TITLE_CHARS = 60
_BLOCK = 1 << 16
_MARK = b'"_type"'


@dataclass(frozen=True, slots=True)
class FileFingerprint:
    """The state of a file, to detect writes by others."""

    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "FileFingerprint":
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where the messages start that are not in memory yet: behind `count` others, at the byte `offset`."""

    count: int = 0
    offset: int = 0


@dataclass(slots=True)
class StoredFile:
    """What is known of a session's file."""

    path: Path
    fingerprint: FileFingerprint | None = None
    """The file as last seen; None if there is none yet, or if another process wrote to it since."""
    record: Row = field(default_factory=dict)
    """The metadata record as it was read."""
    record_at: int = 0
    messages: int = 0
    """Number of messages in the file when it was read."""
    cursor: Cursor = Cursor()
    rows_at: int = 0
    """Offset of the first row that is loaded."""
    written: bytes = b""
    """The part of the last record whose change requires a new record; empty if there is no record."""
    writing: int = 0
    """Appends in flight."""

    @property
    def is_new(self) -> bool:
        """Whether there is no file yet."""
        return self.fingerprint is None and not self.written


def open_session(path: Path) -> tuple[StoredFile, list[Row], int]:
    """Load what a model may see of a session: about the last messages past the cursor, starting at a user message.

    Also return how many messages precede them. Raises OSError.
    """
    with _open(path) as file:
        stored = _read_record(path, file)
        stored.cursor = cursor = _find_stored_cursor(file, stored)
        rows, stored.rows_at = _read_back(file, _size_of(file), cursor.offset, TAIL_ROWS)
    skipped = max(stored.messages - len(rows), cursor.count) if stored.rows_at > cursor.offset else cursor.count
    return stored, rows, skipped


def read_before(path: Path, end: int, limit: int) -> tuple[list[Row], int]:
    """Return about the last `limit` messages before the offset `end`, starting at a user message, and the first one's
    offset. Raises OSError.
    """
    with _open(path) as file:
        return _read_back(file, end, 0, limit)


def read_from(path: Path, start: int, limit: int) -> list[Row]:
    """Return at most `limit` messages from the offset `start` on, reading no more of the file. Raises OSError."""
    with _open(path) as file:
        file.seek(start)
        return list(islice((row for line in file for row in decode(line)[0] if not is_record(row)), limit))


def find_cursor(path: Path, known: Cursor, count: int) -> Cursor:
    """Return the cursor behind `count` messages, starting from a known one before it. Raises OSError.

    If several messages share a damaged line, it is the start of the line: rather repeat a message than lose one.
    """
    with _open(path) as file:
        return _skip(file, known if known.count <= count else Cursor(), count, lambda line: len(_messages_of(line)))


# --- what a file says of itself


def session_key(record: Row, path: Path) -> str:
    """Return the key of a record, else the one of the file name."""
    key = record.get("key")
    return key if isinstance(key, str) else key_of(path.stem)


def owner_of(path: Path) -> str | None:
    """Return the key that a file names; None if it names none or cannot be read."""
    try:
        with _open(path) as file:
            key = _last_record(file)[0].get("key")
    except OSError:
        return None
    return key if isinstance(key, str) else None


def list_entry(path: Path, archived: bool) -> dict[str, Any] | None:
    """Describe a session for `list_sessions`; None if it cannot be read."""
    try:
        with _open(path) as file:
            stored = _read_record(path, file)
            state = FileFingerprint.of(os.fstat(file.fileno()))
            file.seek(max(0, state.size - _BLOCK))
            _, _, last = file.read(_BLOCK).rpartition(b'"timestamp"')
    except OSError:
        return None
    record, key = stored.record, session_key(stored.record, path)
    modified = datetime.fromtimestamp(state.mtime_ns / 1e9)
    last_time = b"".join(last[:64].split(b'"')[1:2]).decode(errors="replace")  # of the last message
    return {
        "name": path.stem if archived else key,
        "key": key,
        "created_at": (parse_time(record.get("created_at")) or modified).isoformat(),
        "updated_at": (parse_time(last_time) or parse_time(record.get("updated_at")) or modified).isoformat(),
        "path": str(path),
        "archived": archived,
        "messages": stored.messages,
        "metadata": metadata if isinstance(metadata := record.get("metadata"), dict) else {},
    }


def session_title(path: Path, metadata: Mapping[str, Any]) -> str:
    """Return the title that a person gave the session, else the first line of its first user message, shortened; empty
    if the first bytes of its file have none.
    """
    given = metadata.get("title")
    if isinstance(given, str) and given.strip():
        return given
    try:
        with _open(path) as file:
            head = file.read(_BLOCK)
    except OSError:  # deleted since it was listed
        return ""
    rows = (row for line in head.splitlines() for row in decode(line)[0])
    users = (row for row in rows if row.get("role") == "user" and not row.get("_command"))
    lines = (visible_text(cast(ChatMessage, row)).strip().partition("\n")[0] for row in users)
    title = next(filter(None, (" ".join(line.split()) for line in lines)), "")
    return title if len(title) <= TITLE_CHARS else f"{title[:TITLE_CHARS].rstrip()}…"


# --- bytes


def _open(path: Path) -> BinaryIO:
    return open(open_own(path, os.O_RDONLY), "rb")


def _size_of(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _read_record(path: Path, file: BinaryIO) -> StoredFile:
    """Find the last metadata record, and count the messages that it does not count."""
    fingerprint = FileFingerprint.of(os.fstat(file.fileno()))
    record, begin, end = _last_record(file)
    before = _number(record, "messages")
    if before is None:
        before = _count_between(file, 0, begin)
    return StoredFile(path, fingerprint, record, begin, before + _count_between(file, end, fingerprint.size))


def _last_record(file: BinaryIO) -> tuple[Row, int, int]:
    """Find the last metadata record and where its line starts and ends; an empty one at the start if there is none."""
    for start, data in _blocks_before(file, _size_of(file)):
        hit = len(data)
        while (hit := data.rfind(_MARK, 0, hit)) >= 0:
            begin = data.rfind(b"\n", 0, hit) + 1
            line = data[begin:].split(b"\n", 1)[0]
            for row in reversed(decode(line)[0]):
                if is_record(row):
                    return row, start + begin, start + begin + len(line)
    return {}, 0, 0


def _find_stored_cursor(file: BinaryIO, stored: StoredFile) -> Cursor:
    """Return the cursor of a file. Its offset is believed if a line starts there; else lines are counted."""
    count = min(_number(stored.record, "last_consolidated") or 0, stored.messages)
    offset = _number(stored.record, "offset") or 0
    if count and 0 < offset <= stored.record_at:
        file.seek(offset - 1)
        if file.read(1) == b"\n":
            return Cursor(count, offset)
    return _skip(file, Cursor(), count, _count)


def _skip(file: BinaryIO, known: Cursor, count: int, count_in: Callable[[bytes], int]) -> Cursor:
    """Return the cursor behind `count` messages, or before the line that has more than that."""
    messages, at = known.count, known.offset
    file.seek(at)
    while messages < count and (line := file.readline()):
        more = count_in(line)
        if messages + more > count:
            break
        messages, at = messages + more, at + len(line)
    return Cursor(messages, at)


def _read_back(file: BinaryIO, end: int, first: int, limit: int) -> tuple[list[Row], int]:
    """Read the last lines between two offsets: `limit` visible messages, and back to a user's. Return the messages and
    their offset.
    """
    rows: list[Row] = []
    start, visible, is_enough = end, 0, False
    for start, data in _blocks_before(file, end, first):  # noqa: B007 used below
        block = [row for line in data.split(b"\n") if line for row in _messages_of(line)]
        rows[:0] = block
        for row in reversed(block):
            if not row.get("_command"):
                visible += 1
                is_enough = is_enough or (visible >= limit and row.get("role") == "user")
        if is_enough:
            break
    return rows, start


def _messages_of(line: bytes) -> list[Row]:
    return [row for row in decode(line)[0] if not is_record(row)]


def _blocks_before(file: BinaryIO, end: int, first: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines between two offsets, the last one first, each with its offset."""
    size = _BLOCK
    while end > first:
        start = max(end - size, first)
        file.seek(start)
        data = file.read(end - start)
        if start > first:
            cut = data.find(b"\n", 0, -1) + 1
            if cut == 0:  # a line longer than the block
                size *= 2
                continue
            start, data = start + cut, data[cut:]
        yield start, data
        end, size = start, _BLOCK


def _count_between(file: BinaryIO, first: int, end: int) -> int:
    return sum(_count(data) for _, data in _blocks_before(file, end, first))


def _count(data: bytes) -> int:
    """Count the message lines of a block without parsing them. Truncated lines do not end like an object."""
    lines = data.count(b"}\n") + data.endswith(b"}") + (data.count(b"}\r\n") if b"\r" in data else 0)
    records = data.count(_MARK) if data.rfind(_MARK) >= 0 else 0  # backwards is three times as fast
    return max(lines - records, 0)


def _number(record: Row, name: str) -> int | None:
    value = record.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
