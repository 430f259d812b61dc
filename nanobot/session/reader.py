"""Reading session files: the end of a file in milliseconds however long it is, or all of it on demand.

Our metadata records say how many messages precede them (`messages`), how many of these are past (`last_consolidated`),
and at which byte the first one after these starts (`offset`). Files of the original lack two of them; then lines are
counted without parsing them.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

from nanobot.messages.shown import visible_text
from nanobot.messages.types import ChatMessage
from nanobot.session.file_names import key_of
from nanobot.session.lines import DecodedLines, Row, decode, is_record, parse_time
from nanobot.utils.open_no_follow import append_own, open_own, read_own

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
    offset: int | None = 0
    """None if it is not known yet."""


@dataclass(slots=True)
class SessionEnd:
    """What the end of a session file says, and its last messages. `skipped` messages precede `rows`."""

    fingerprint: FileFingerprint
    record: Row = field(default_factory=dict)
    record_at: int = 0
    messages: int = 0
    """Number of messages in the file."""
    cursor: Cursor = Cursor()
    rows: list[Row] = field(default_factory=list)
    skipped: int = 0
    rows_at: int = 0
    """Offset of the first of `rows`."""


def open_end(path: Path, limit: int = TAIL_ROWS) -> SessionEnd:
    """Load what a model may see of a session: about the last `limit` messages past the cursor, starting at a user
    message. Damaged lines among them are saved beside the file. Raises OSError.
    """
    with _open(path) as file:
        end = _read_record(file)
        cursor, first = end.cursor, end.cursor.offset or 0
        if cursor.offset is None:
            limit = min(limit, end.messages - cursor.count)
        end.rows, end.rows_at, damaged = _read_back(file, end.fingerprint.size, first, limit)
    if end.rows_at > first:
        end.skipped = max(end.messages - len(end.rows), 0 if cursor.offset is None else cursor.count)
    elif first:
        end.skipped = cursor.count
    save_damaged_lines(path, damaged)
    return end


def read_before(path: Path, end: int, limit: int) -> tuple[list[Row], int]:
    """Return about the last `limit` messages before the offset `end`, starting at a user message, and the first one's
    offset. Raises OSError.
    """
    with _open(path) as file:
        rows, start, damaged = _read_back(file, end, 0, limit)
    save_damaged_lines(path, damaged)
    return rows, start


def read_all(path: Path) -> DecodedLines:
    """Load every valid message of a file, and save damaged lines beside it. Raises OSError."""
    lines = DecodedLines()
    with _open(path) as file:
        for line in file:
            lines.add(line)
    save_damaged_lines(path, lines.damaged)
    return lines


def read_from(path: Path, start: int, limit: int) -> list[Row]:
    """Return at most `limit` messages from the offset `start` on, reading no more of the file. Raises OSError."""
    lines = DecodedLines()
    with _open(path) as file:
        file.seek(start)
        for line in file:
            lines.add(line)
            if len(lines.rows) >= limit:
                break
    save_damaged_lines(path, lines.damaged)
    return lines.rows[:limit]


def find_cursor(path: Path, known: Cursor, count: int) -> Cursor:
    """Return the cursor behind `count` messages, starting from a known one before it. Raises OSError.

    If several messages share a damaged line, it is the start of the line: rather repeat a message than lose one.
    """
    if count < known.count:
        known = Cursor()
    with _open(path) as file:
        messages, at = known.count, known.offset
        if at is None:
            messages = at = 0
            while messages < known.count and (line := file.readline()):
                messages += _count(line)
                at += len(line)
        file.seek(at)
        for line in file:
            more = len([row for row in decode(line)[0] if not is_record(row)]) if messages < count else 0
            if messages >= count or messages + more > count:
                break
            messages, at = messages + more, at + len(line)
    return Cursor(messages, at)


def save_damaged_lines(path: Path, damaged: list[bytes]) -> None:
    """Append damaged lines to a file beside the session, each once. On failure they stay in the session file only."""
    if not damaged:
        return
    damaged_file = path.with_name(path.name + ".corrupt")
    try:
        saved = set(read_own(damaged_file).split(b"\n")) if damaged_file.exists() else set()
        new = [line for line in dict.fromkeys(damaged) if line not in saved]
        if new:
            append_own(damaged_file, b"\n".join(new) + b"\n")
    except OSError:
        return


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
            end = _read_record(file)
            size = end.fingerprint.size
            file.seek(max(0, size - _BLOCK))
            _, _, last = file.read(_BLOCK).rpartition(b'"timestamp"')
    except OSError:
        return None
    record = end.record
    last_time = last[:64].split(b'"')[1:2]  # of the last message
    modified = datetime.fromtimestamp(end.fingerprint.mtime_ns / 1e9)
    created = parse_time(record.get("created_at")) or modified
    updated = parse_time(b"".join(last_time).decode(errors="replace")) or parse_time(record.get("updated_at"))
    key = session_key(record, path)
    return {
        "name": path.stem if archived else key,
        "key": key,
        "created_at": created.isoformat(),
        "updated_at": (updated or modified).isoformat(),
        "path": str(path),
        "archived": archived,
        "messages": end.messages,
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
    rows = [row for line in head.splitlines() for row in decode(line)[0]]
    users = (row for row in rows if row.get("role") == "user" and not row.get("_command"))
    lines = (visible_text(cast(ChatMessage, row)).strip().partition("\n")[0] for row in users)
    texts = (" ".join(line.split()) for line in lines)
    title = next(filter(None, texts), "")
    return title if len(title) <= TITLE_CHARS else f"{title[:TITLE_CHARS].rstrip()}…"


# --- bytes


def _open(path: Path) -> BinaryIO:
    descriptor = open_own(path, os.O_RDONLY)
    try:
        return open(descriptor, "rb")
    except OSError:  # a folder
        os.close(descriptor)
        raise


def _read_record(file: BinaryIO) -> SessionEnd:
    """Find the last metadata record, and count the messages that it does not count."""
    status = os.fstat(file.fileno())
    end = SessionEnd(FileFingerprint.of(status))
    end.record, end.record_at, record_end = _last_record(file)
    before = _number(end.record, "messages")
    if before is None:
        before = _count_between(file, 0, end.record_at)
    end.messages = before + _count_between(file, record_end, status.st_size)
    end.cursor = _cursor_of(file, end)
    return end


def _last_record(file: BinaryIO) -> tuple[Row, int, int]:
    """Find the last metadata record and where its line starts and ends; an empty one at the start if there is none."""
    for start, data in _blocks_before(file, os.fstat(file.fileno()).st_size):
        hit = len(data)
        while (hit := data.rfind(_MARK, 0, hit)) >= 0:
            begin = data.rfind(b"\n", 0, hit) + 1
            line = data[begin:].split(b"\n", 1)[0]
            for row in reversed(decode(line)[0]):
                if is_record(row):
                    return row, start + begin, start + begin + len(line)
    return {}, 0, 0


def _cursor_of(file: BinaryIO, end: SessionEnd) -> Cursor:
    """Return the cursor of a file; its offset is believed if a line starts there."""
    count = min(_number(end.record, "last_consolidated") or 0, end.messages)
    offset = _number(end.record, "offset") if count else 0
    if offset is not None and 0 < offset <= end.record_at:
        file.seek(offset - 1)
        offset = offset if file.read(1) == b"\n" else None
    elif offset != 0:
        offset = None
    return Cursor(count, offset)


def _read_back(file: BinaryIO, end: int, first: int, limit: int) -> tuple[list[Row], int, list[bytes]]:
    """Read the last lines between two offsets: `limit` visible messages, and back to a user's.

    Return their rows, their offset, and damaged lines.
    """
    parts: list[DecodedLines] = []
    start, visible, is_enough = end, 0, False
    for start, data in _blocks_before(file, end, first):  # noqa: B007 used below
        lines = DecodedLines()
        lines.add_all(data)
        parts.insert(0, lines)
        for row in reversed(lines.rows):
            if not row.get("_command"):
                visible += 1
                is_enough = is_enough or (visible >= limit and row.get("role") == "user")
        if is_enough:
            break
    rows = list(chain.from_iterable(lines.rows for lines in parts))
    return rows, start, list(chain.from_iterable(lines.damaged for lines in parts))


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
