"""Reading a session file: the end of it in a few milliseconds however long it is, or all of it when somebody asks.

A metadata record of ours says how many lines stand before it (`lines`), at which byte the first message past the
consolidated ones begins (`offset`), and how many sound messages come before that (`count`). A file of the original has
none of these; then lines are counted, which is still much cheaper than parsing them.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nanobot.session.lines import Found, Row, decode, is_record
from nanobot.utils.files import O_BINARY, append_durable

TAIL_ROWS = 500
"""How many messages of the end are read at once."""
_BLOCK = 1 << 17
_FIRST_CHUNK = 1 << 17
_MARK = b'"_type"'


@dataclass(frozen=True, slots=True)
class Print:
    """The state of a file, to see later whether somebody else wrote to it."""

    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Print":
        """The state that a stat tells."""
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class Anchor:
    """A place in a file: so many sound messages and so many lines before this byte."""

    count: int = 0
    lines: int = 0
    offset: int = 0


@dataclass(slots=True)
class Opened:
    """The end of a session file. `skipped` messages before `rows` were not read."""

    print: Print
    record: Row = field(default_factory=dict)
    record_at: int = 0
    anchor: Anchor = Anchor()
    lines: int = 0
    rows: list[Row] = field(default_factory=list)
    skipped: int = 0
    tail_at: int = 0


def open_end(path: Path, limit: int = TAIL_ROWS) -> Opened:
    """What a model may see of a session: the messages past the consolidated ones, at most about `limit` of them, from
    a user's message on. Damaged lines met on the way are kept beside the file. Raises OSError.
    """
    with _open(path) as descriptor:
        opened = _peek(descriptor)
        start, found = _tail(descriptor, opened, limit)
    opened.rows, opened.tail_at, anchor = found.rows, start, opened.anchor
    opened.skipped = opened.lines - found.lines + anchor.count - anchor.lines if start > anchor.offset else anchor.count
    keep_damaged(path, found.damaged)
    return opened


def read_all(path: Path) -> Found:
    """Every sound message of a file. Damaged lines are kept beside it. Raises OSError."""
    found = Found()
    with _open(path) as descriptor:
        for _, block in _blocks(descriptor, 0, os.fstat(descriptor).st_size):
            found.add_all(block)
    keep_damaged(path, found.damaged)
    return found


def read_older(path: Path, end: int, more: int) -> list[Row]:
    """The messages before this byte, and so many behind it. Raises OSError."""
    found, behind = Found(), Found()
    with _open(path) as descriptor:
        for _, block in _blocks(descriptor, 0, end):
            found.add_all(block)
        for _, block in _blocks(descriptor, end, os.fstat(descriptor).st_size):
            if len(behind.rows) >= more:
                break
            behind.add_all(block)
    keep_damaged(path, found.damaged)
    return found.rows + behind.rows[:more]


def read_from(path: Path, start: int, most: int) -> list[Row]:
    """The messages from this byte on, at most so many; no more of the file is read. Raises OSError."""
    found = Found()
    with _open(path) as descriptor:
        for _, block in _blocks(descriptor, start, os.fstat(descriptor).st_size):
            for line in _split(block):
                found.add(line)
                if len(found.rows) >= most:
                    break
            if len(found.rows) >= most:
                break
    keep_damaged(path, found.damaged)
    return found.rows[:most]


def peek(path: Path) -> tuple[Opened, str | None]:
    """The last metadata record and the number of lines, without the messages; and the last message's time. OSError."""
    with _open(path) as descriptor:
        opened = _peek(descriptor)
        size = opened.print.size
        end = _read(descriptor, max(0, size - _BLOCK), size)
    at = end.rfind(b'"timestamp"')
    parts = end[at : at + 64].split(b'"', 4) if at >= 0 else []
    return opened, parts[3].decode(errors="replace") if len(parts) > 3 else None


def locate(path: Path, anchor: Anchor, count: int) -> Anchor:
    """The place where the message number `count` begins, walking from a place known before it. Raises OSError.

    Where several messages share a damaged line, the place is the line.
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
                one = Found()
                one.add(line)
                if rows + len(one.rows) > count:  # a line of several: better one twice than one not at all
                    return Anchor(rows, lines, at)
                rows, lines, at = rows + len(one.rows), lines + one.lines, at + len(line)
    return Anchor(rows, lines, size)


def keep_damaged(path: Path, damaged: list[bytes]) -> None:
    """Put what could not be read beside the file, each line once. Where that fails, the file still has it."""
    if not damaged:
        return
    beside = path.with_name(path.name + ".corrupt")
    try:
        known = set(beside.read_bytes().split(b"\n")) if beside.exists() else set()
        new = [line for line in dict.fromkeys(damaged) if line not in known]
        if new:
            append_durable(beside, b"\n".join(new) + b"\n")
    except OSError:
        return


@contextmanager
def _open(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | O_BINARY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read(descriptor: int, start: int, end: int) -> bytes:
    """The bytes from start to end, fewer where the file ends before."""
    os.lseek(descriptor, start, os.SEEK_SET)
    parts = []
    while start < end and (part := os.read(descriptor, end - start)):
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def _split(block: bytes) -> list[bytes]:
    return [line + b"\n" for line in block.split(b"\n")[:-1]] + [line for line in block.split(b"\n")[-1:] if line]


def _blocks(descriptor: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The bytes from start to end in blocks of whole lines, each with its offset."""
    kept: list[bytes] = []
    begin = position = start
    while position < end:
        block = _read(descriptor, position, min(end, position + 2 * _BLOCK))
        if not block:
            break
        position += len(block)
        cut = block.rfind(b"\n") + 1
        if cut == 0:
            kept.append(block)
            continue
        whole = b"".join([*kept, block[:cut]])
        yield begin, whole
        begin += len(whole)
        kept = [block[cut:]]
    if rest := b"".join(kept):
        yield begin, rest


def _peek(descriptor: int) -> Opened:
    """Find the last metadata record from the end, counting lines on the way."""
    status = os.fstat(descriptor)
    size = position = status.st_size
    opened = Opened(Print.of(status))
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
    """Where the line begins that this byte is in."""
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
    known = _number(record, "lines")
    if known is not None:
        return known
    return sum(_chat_lines(block) for _, block in _blocks(descriptor, 0, offset))


def _chat_lines(block: bytes) -> int:
    """Lines that are messages, told from metadata without parsing."""
    return block.count(b"\n") - block.count(_MARK)


def _anchor(descriptor: int, record: Row, record_at: int, lines: int) -> Anchor:
    """Where the messages past the consolidated ones begin."""
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
    """Where this line begins, of so many in the file: walked to from the nearer end."""
    size = os.fstat(descriptor).st_size
    chunk = _FIRST_CHUNK
    while lines - line < line and chunk < size:
        start = _line_start(descriptor, size - chunk)
        data = _read(descriptor, start, size)
        here = sum(_MARK not in one for one in _split(data))
        if here >= lines - line:
            return _walk(data, start, here - (lines - line))
        chunk *= 2
    seen = 0
    for begin, block in _blocks(descriptor, 0, size):
        here = _chat_lines(block)
        if seen + here >= line:
            return _walk(block, begin, line - seen)
        seen += here
    return size


def _walk(data: bytes, at: int, line: int) -> int:
    """Where this line of the data begins; the data begins at `at`."""
    for one in _split(data):
        if line == 0:
            break
        at += len(one)
        line -= _MARK not in one
    return at


def _tail(descriptor: int, opened: Opened, limit: int) -> tuple[int, Found]:
    """The last rows, from a user's message on, and where they begin: chunks from the end, each twice the one before."""
    size, chunk = opened.print.size, _FIRST_CHUNK
    while True:
        start = max(opened.anchor.offset, size - chunk)
        if start > opened.anchor.offset:
            start = max(_line_start(descriptor, start), opened.anchor.offset)
        data = _read(descriptor, start, size)
        for cut in dict.fromkeys((_last_lines(data, limit), 0)):
            found = Found()
            found.add_all(data[cut:])
            if start + cut <= opened.anchor.offset or _reaches(found.rows, limit):
                return start + cut, found
        chunk *= 2


def _reaches(rows: list[Row], limit: int) -> bool:
    """Whether the last `limit` rows, and those before them up to a user's message, are there."""
    shown = [row for row in rows if not row.get("_command")]
    return len(shown) >= limit and any(row.get("role") == "user" for row in shown[: len(shown) - limit + 1])


def _last_lines(data: bytes, limit: int) -> int:
    """Where the last lines begin that are probably enough, so that of short ones no more are parsed than needed."""
    cut = len(data)
    for _ in range(limit + limit // 8 + 2):
        cut = data.rfind(b"\n", 0, cut)
        if cut < 0:
            return 0
    return cut + 1
