"""Searchable files: what each is, how the index recognises it, and which part of it is new."""

import os
import stat
import zlib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from nanobot.session.lines import decode

_BLOCK = 1 << 18
_MARK = 256
"""Bytes at the start, and before the indexed end, whose checksums identify a file."""


class SourceKind(StrEnum):
    SESSION = "session"
    MEMORY = "memory"


KINDS = {str(kind): kind for kind in SourceKind}


@dataclass(frozen=True, slots=True)
class IndexSource:
    """A searchable file."""

    place: str
    """Its path, as text: of thousands of files most are only compared."""
    kind: SourceKind = SourceKind.SESSION
    archived: bool = False
    folder: str = ""
    """The folder of the chat a memory file belongs to; empty for the owner's memory."""

    @property
    def path(self) -> Path:
        return Path(self.place)


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """The index entry of a file."""

    id: int
    source: IndexSource
    key: str
    """The session key; empty for memory files."""
    stamp: str
    read_to: int
    head: int
    tail: int
    outside: bool = False
    """Whether people other than the owner wrote in it."""
    senders: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    """The chats whose memory its turns could read; empty for the owner's."""

    @property
    def name(self) -> str:
        """The name shown to people, which the commands accept."""
        if self.source.kind is SourceKind.SESSION:
            return self.source.path.stem if self.source.archived else self.key
        return "/".join(filter(None, ["memory", self.source.folder, self.source.path.name]))


@dataclass(frozen=True, slots=True)
class FilePosition:
    """The position of a searchable text."""

    row: int
    file: int
    at: int
    size: int
    nth: int
    time: float
    role: str


def whole_lines(file: BinaryIO, start: int, size: int, *, everything: bool) -> bytes:
    """Read the next bytes up to a line end, and a complete last line without one. Empty if there are none."""
    file.seek(start)
    if everything:
        return file.read(size - start)
    data = b""
    while start + len(data) < size:
        more = file.read(min(_BLOCK, size - start - len(data)))
        if not more:
            break
        data += more
        if cut := data.rfind(b"\n") + 1:
            return data[:cut]
    return data if decode(data)[1] else b""


def file_checksums(file: BinaryIO, read_to: int) -> tuple[int, int]:
    """Return checksums of the file's start, and of the bytes before an offset."""
    file.seek(0)
    head = zlib.crc32(file.read(min(_MARK, read_to)))
    file.seek(max(0, read_to - _MARK))
    return head, zlib.crc32(file.read(min(_MARK, read_to)))


def file_stamp(source: IndexSource) -> str:
    """Return inode, size and modification time as text; empty if it is missing or a link."""
    try:
        status = os.lstat(source.place)
    except OSError:
        return ""
    return f"{status.st_ino}:{status.st_size}:{status.st_mtime_ns}" if stat.S_ISREG(status.st_mode) else ""


def inode_in(stamp: str) -> str:
    return stamp.partition(":")[0]


def age_in(stamp: str) -> int:
    """Return the modification time in nanoseconds since the epoch."""
    return int(stamp.rpartition(":")[2])


def only_grows(source: IndexSource) -> bool:
    """Whether a memory file is append-only."""
    return source.path.name in ("HISTORY.md", "ARCHIVE.md")


def is_same(known: IndexedFile | None, source: IndexSource, stamp: str) -> bool:
    """Whether the file is unchanged since it was indexed."""
    return known is not None and known.stamp == stamp and known.source == source
