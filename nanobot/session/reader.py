"""Reading session files: the end of a file in milliseconds however long it is, or all of it on demand.

Our metadata records say how many message lines precede them (`lines`), at which byte the first message past the cursor
starts (`offset`), and how many valid messages precede that (`count`). Files of the original have none of these; then
lines are counted without parsing them.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nanobot.session.lines import DecodedLines, Row, decode, is_record
from nanobot.utils.open_no_follow import append_own, open_own, read_own

TAIL_ROWS = 500
"""Messages loaded when a session is opened."""
_BLOCK = 1 << 17
_FIRST_CHUNK = 1 << 17
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
class Anchor:
    """A position in a file: `offset` bytes, preceded by `count` valid messages on `lines` lines."""

    count: int = 0
    lines: int = 0
    offset: int = 0


@dataclass(slots=True)
class SessionTail:
    """The loaded end of a session file. `skipped` messages precede `rows`."""

    fingerprint: FileFingerprint
    record: Row = field(default_factory=dict)
    record_at: int = 0
    anchor: Anchor = Anchor()
    lines: int = 0
    rows: list[Row] = field(default_factory=list)
    skipped: int = 0
    tail_at: int = 0


def open_end(path: Path, limit: int = TAIL_ROWS) -> SessionTail:
    """Load what a model may see of a session: about the last `limit` messages past the cursor, starting at a user
    message. Damaged lines among them are saved beside the file. Raises OSError.
    """
    with _open(path) as descriptor:
        opened = _peek(descriptor)
        start, tail = _tail(descriptor, opened, limit)
    opened.rows, opened.tail_at, anchor = tail.rows, start, opened.anchor
    opened.skipped = opened.lines - tail.lines + anchor.count - anchor.lines if start > anchor.offset else anchor.count
    save_damaged_lines(path, tail.damaged)
    return opened


def read_all(path: Path) -> DecodedLines:
    """Load every valid message of a file, and save damaged lines beside it. Raises OSError."""
    lines = DecodedLines()
    with _open(path) as descriptor:
        for _, block in _blocks(descriptor, 0, os.fstat(descriptor).st_size):
            lines.add_all(block)
    save_damaged_lines(path, lines.damaged)
    return lines


def read_older(path: Path, end: int, more: int) -> list[Row]:
    """Return the messages before the offset `end`, and `more` messages after it. Raises OSError."""
    before, after = DecodedLines(), DecodedLines()
    with _open(path) as descriptor:
        for _, block in _blocks(descriptor, 0, end):
            before.add_all(block)
        for _, block in _blocks(descriptor, end, os.fstat(descriptor).st_size):
            if len(after.rows) >= more:
                break
            after.add_all(block)
    save_damaged_lines(path, before.damaged)
    return before.rows + after.rows[:more]


def read_from(path: Path, start: int, limit: int) -> list[Row]:
    """Return at most `limit` messages from the offset `start` on, reading no more of the file. Raises OSError."""
    lines = DecodedLines()
    with _open(path) as descriptor:
        for _, block in _blocks(descriptor, start, os.fstat(descriptor).st_size):
            for line in _split(block):
                lines.add(line)
                if len(lines.rows) >= limit:
                    break
            if len(lines.rows) >= limit:
                break
    save_damaged_lines(path, lines.damaged)
    return lines.rows[:limit]


def peek(path: Path) -> tuple[SessionTail, str | None]:
    """Return the last metadata record with the line count, and the last message's timestamp. Raises OSError."""
    with _open(path) as descriptor:
        opened = _peek(descriptor)
        size = opened.fingerprint.size
        end = _read(descriptor, max(0, size - _BLOCK), size)
    at = end.rfind(b'"timestamp"')
    parts = end[at : at + 64].split(b'"', 4) if at >= 0 else []
    return opened, parts[3].decode(errors="replace") if len(parts) > 3 else None


def find_anchor(path: Path, anchor: Anchor, count: int) -> Anchor:
    """Return the anchor of message number `count`, starting from a known one before it. Raises OSError.

    If several messages share a damaged line, the anchor is that of the line.
    """
    if count < anchor.count:
        anchor = Anchor()
    rows, lines = anchor.count, anchor.lines
    with _open(path) as descriptor:
        size = os.fstat(descriptor).st_size
        for begin, block in _blocks(descriptor, anchor.offset, size):
            at = begin
            for line in _split(block):
                if rows >= count:
                    return Anchor(rows, lines, at)
                parsed = DecodedLines()
                parsed.add(line)
                if rows + len(parsed.rows) > count:  # a line of several messages: rather repeat one than lose one
                    return Anchor(rows, lines, at)
                rows, lines, at = rows + len(parsed.rows), lines + parsed.lines, at + len(line)
    return Anchor(rows, lines, size)


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


@contextmanager
def _open(path: Path) -> Iterator[int]:
    descriptor = open_own(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read(descriptor: int, start: int, end: int) -> bytes:
    """Return the bytes from `start` to `end`, fewer at the end of the file."""
    os.lseek(descriptor, start, os.SEEK_SET)
    parts = []
    while start < end and (part := os.read(descriptor, end - start)):
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def _split(block: bytes) -> list[bytes]:
    return [line + b"\n" for line in block.split(b"\n")[:-1]] + [line for line in block.split(b"\n")[-1:] if line]


def _blocks(descriptor: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines from `start` to `end`, each with its offset."""
    incomplete: list[bytes] = []
    begin = position = start
    while position < end:
        block = _read(descriptor, position, min(end, position + 2 * _BLOCK))
        if not block:
            break
        position += len(block)
        cut = block.rfind(b"\n") + 1
        if cut == 0:
            incomplete.append(block)
            continue
        whole = b"".join([*incomplete, block[:cut]])
        yield begin, whole
        begin += len(whole)
        incomplete = [block[cut:]]
    if rest := b"".join(incomplete):
        yield begin, rest


def _peek(descriptor: int) -> SessionTail:
    """Find the last metadata record from the end, counting lines on the way."""
    status = os.fstat(descriptor)
    size = position = status.st_size
    opened = SessionTail(FileFingerprint.of(status))
    after = int(size > 0 and _read(descriptor, size - 1, size) != b"\n")
    while position > 0:
        start = max(0, position - _BLOCK)
        block = _read(descriptor, start, min(size, position + len(_MARK) - 1))
        hit = block.rfind(_MARK) if _MARK in block else -1
        while hit >= 0:
            line_start = _line_start(descriptor, start + hit)
            record = _record_in(descriptor, line_start, size)
            if record is not None:
                opened.record, opened.record_at = record, line_start
                opened.lines = after + block.count(b"\n", hit, position - start) - 1
                opened.lines += _lines_before(descriptor, record, line_start)
                opened.anchor = _anchor(descriptor, record, line_start, opened.lines)
                return opened
            hit = block.rfind(_MARK, 0, hit)
        after += block.count(b"\n", 0, position - start)
        position = start
    opened.lines = after
    return opened


def _line_start(descriptor: int, offset: int) -> int:
    """Return where the line containing this offset starts."""
    while offset > 0:
        start = max(0, offset - _BLOCK)
        cut = _read(descriptor, start, offset).rfind(b"\n")
        if cut >= 0:
            return start + cut + 1
        offset = start
    return 0


def _record_in(descriptor: int, start: int, size: int) -> Row | None:
    line = b""
    while b"\n" not in line and start + len(line) < size:
        line += _read(descriptor, start + len(line), min(size, start + len(line) + max(_BLOCK, len(line))))
    rows, _ = decode(line.split(b"\n", 1)[0])
    return next((row for row in reversed(rows) if is_record(row)), None)


def _number(record: Row, name: str) -> int | None:
    value = record.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _lines_before(descriptor: int, record: Row, offset: int) -> int:
    lines = _number(record, "lines")
    if lines is not None:
        return lines
    return sum(_chat_lines(block) for _, block in _blocks(descriptor, 0, offset))


def count_messages(path: Path, anchor: Anchor) -> int:
    """Count the messages of a file without damaged lines, starting from a known anchor. Raises OSError.

    Lines are judged by their first and last characters and not parsed, which rejects truncated lines.
    """
    with _open(path) as descriptor:
        blocks = _blocks(descriptor, anchor.offset, os.fstat(descriptor).st_size)
        return anchor.count + sum(_is_message(line) for _, block in blocks for line in block.splitlines())


def _is_message(line: bytes) -> bool:
    return line.startswith(b"{") and line.rstrip().endswith(b"}") and _MARK not in line


def _chat_lines(block: bytes) -> int:
    """Count the message lines without parsing."""
    return block.count(b"\n") - block.count(_MARK)


def _anchor(descriptor: int, record: Row, record_at: int, lines: int) -> Anchor:
    """Return where the messages past the cursor start."""
    consolidated = min(_number(record, "last_consolidated") or 0, lines)
    offset, count = _number(record, "offset"), _number(record, "count")
    if (
        offset is not None
        and count is not None
        and offset <= record_at
        and (offset == 0 or _read(descriptor, offset - 1, offset) == b"\n")
    ):
        return Anchor(count, consolidated, offset)
    if consolidated == 0:
        return Anchor()
    return Anchor(consolidated, consolidated, _offset_of(descriptor, consolidated, lines))


def _offset_of(descriptor: int, line: int, lines: int) -> int:
    """Return the offset of message line number `line` of `lines`, searching from the nearer end."""
    size = os.fstat(descriptor).st_size
    chunk = _FIRST_CHUNK
    while lines - line < line and chunk < size:
        start = _line_start(descriptor, size - chunk)
        data = _read(descriptor, start, size)
        count = sum(_MARK not in text for text in _split(data))
        if count >= lines - line:
            return _walk(data, start, count - (lines - line))
        chunk *= 2
    before = 0
    for begin, block in _blocks(descriptor, 0, size):
        count = _chat_lines(block)
        if before + count >= line:
            return _walk(block, begin, line - before)
        before += count
    return size


def _walk(data: bytes, at: int, count: int) -> int:
    """Return the offset after `count` message lines of the data, which starts at offset `at`."""
    for line in _split(data):
        if count == 0:
            break
        at += len(line)
        count -= _MARK not in line
    return at


def _tail(descriptor: int, opened: SessionTail, limit: int) -> tuple[int, DecodedLines]:
    """Return start and content of the last rows from a user message on, in chunks that double in size."""
    size, chunk = opened.fingerprint.size, _FIRST_CHUNK
    while True:
        start = max(opened.anchor.offset, size - chunk)
        if start > opened.anchor.offset:
            start = max(_line_start(descriptor, start), opened.anchor.offset)
        data = _read(descriptor, start, size)
        for cut in dict.fromkeys((_last_lines(data, limit), 0)):
            lines = DecodedLines()
            lines.add_all(data[cut:])
            if start + cut <= opened.anchor.offset or _reaches(lines.rows, limit):
                return start + cut, lines
        chunk *= 2


def _reaches(rows: list[Row], limit: int) -> bool:
    """Whether the rows contain the last `limit` ones and a user message at or before their start."""
    shown = [row for row in rows if not row.get("_command")]
    return len(shown) >= limit and any(row.get("role") == "user" for row in shown[: len(shown) - limit + 1])


def _last_lines(data: bytes, limit: int) -> int:
    """Return where the last `limit` lines probably start, to avoid parsing more than needed."""
    cut = len(data)
    for _ in range(limit + limit // 8 + 2):
        cut = data.rfind(b"\n", 0, cut)
        if cut < 0:
            return 0
    return cut + 1
