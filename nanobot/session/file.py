"""One session file: reading its end in milliseconds however long it is, and appending whole lines durably.

Our metadata records say how many messages precede them (`messages`), how many of these are past (`last_consolidated`),
and at which byte the first one after these starts (`offset`). Files of the original lack two of them; then lines are
counted without parsing them.

Appends of many sessions share a round: all lines are written, then each file is synced, so that the file system commits
once for all. The folder's lock excludes other writers during the writes, not during the syncs.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from nanobot.messages.shown import visible_text
from nanobot.messages.types import ChatMessage
from nanobot.session.file_format import Row, decode, is_record, key_of, parse_time
from nanobot.utils.files import missing_newline, sync_data, sync_folder, write_whole
from nanobot.utils.locks import file_lock
from nanobot.utils.open_no_follow import open_own

TAIL_ROWS = 500
"""Messages loaded when a session is opened."""
TITLE_CHARS = 60
_BLOCK = 1 << 16
_MARK = b'"_type"'
_SYNCS_AT_ONCE = 4
"""The file system combines concurrent syncs: 100 files took 0.3 s one after another, and take 0.02 s."""


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


# --- appending


@dataclass(slots=True)
class Append:
    """Lines to append, and the result: their offset, or why they were not written."""

    path: Path
    data: bytes
    header: bytes = b""
    """First line of a file that does not exist yet."""
    start: int = 0
    fingerprint: FileFingerprint | None = None
    """The file after the write."""
    created: bool = False
    error: OSError | None = None


@cache
def _sync_threads(process: int) -> ThreadPoolExecutor:
    """Kept, since starting threads costs more than the syncs; by process, since a fork has none of them."""
    del process
    return ThreadPoolExecutor(_SYNCS_AT_ONCE - 1, thread_name_prefix="sync")


def append_all(lock: Path, appends: Sequence[Append]) -> None:
    """Write and sync appends. Each is written completely or not at all; failures are in `error`."""
    opened: dict[Path, int] = {}
    failed: dict[Path, OSError] = {}

    def sync(paths: Sequence[Path]) -> None:
        for path in paths:
            try:
                sync_data(opened[path])
            except OSError as error:
                failed[path] = error

    try:
        with file_lock(lock, open_own):
            for append in appends:
                try:
                    _write(append, opened)
                except OSError as error:
                    append.error = error
        mine, *others = [[*opened][number::_SYNCS_AT_ONCE] for number in range(_SYNCS_AT_ONCE)]
        theirs = [_sync_threads(os.getpid()).submit(sync, paths) for paths in others if paths]
        sync(mine)
        wait(theirs)
        for append in appends:
            append.error = append.error or failed.get(append.path)
        for folder in {append.path.parent for append in appends if append.created and append.error is None}:
            sync_folder(folder)
    except OSError as error:
        for append in appends:
            append.error = append.error or error
    finally:
        for descriptor in opened.values():
            os.close(descriptor)


def _write(append: Append, opened: dict[Path, int]) -> None:
    """Write one append; the caller has the lock. A file that ends in an incomplete line gets a line break first."""
    descriptor = opened.get(append.path)
    if descriptor is None:
        descriptor = opened[append.path] = open_own(append.path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    end = os.lseek(descriptor, 0, os.SEEK_END)
    append.created = end == 0
    before = append.header if append.created else missing_newline(descriptor)
    try:
        write_whole(descriptor, before + append.data)
    except OSError:
        with suppress(OSError):  # otherwise the next append starts a new line
            os.ftruncate(descriptor, end)
        raise
    append.start = end + (0 if append.created else len(before))
    append.fingerprint = FileFingerprint.of(os.fstat(descriptor))


class GroupCommit:
    """Batches appends: those submitted during a round are written together in the next one."""

    def __init__(self, lock: Path) -> None:
        self._lock = lock
        self._waiting: list[tuple[Append, asyncio.Future[None]]] = []
        self._round: asyncio.Task[None] | None = None

    def submit(self, append: Append) -> "asyncio.Future[None]":
        """Queue an append. The future ends once it is on the disk, or with its error; cancelling it stops nothing."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._waiting.append((append, done))
        if self._round is None or self._round.done() or self._round.get_loop() is not loop:
            self._round = loop.create_task(self._rounds())
        return done

    async def _rounds(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            failure: Exception | None = None
            try:
                await asyncio.to_thread(append_all, self._lock, [append for append, _ in batch])
            except Exception as error:  # every waiter must learn of it
                failure = error
            except BaseException:
                for _, done in [*batch, *self._waiting]:
                    done.cancel()  # the loop is closing, and success is unknown
                raise
            for append, done in batch:
                problem = failure or append.error
                if not done.done():
                    done.set_result(None) if problem is None else done.set_exception(problem)
