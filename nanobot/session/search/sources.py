"""Files in which something can be found: what each is, how the index knows it again, what of it is new."""

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
"""Bytes at the beginning, and before where we stopped, by which a file is known again."""


class Kind(StrEnum):
    """What a file is."""

    SESSION = "session"
    MEMORY = "memory"


KINDS = {str(kind): kind for kind in Kind}


@dataclass(frozen=True, slots=True)
class Source:
    """A file in which something can be found."""

    place: str
    """Its path. As text: of thousands of files most are only compared."""
    kind: Kind = Kind.SESSION
    archived: bool = False
    folder: str = ""
    """Of a memory file, whose memory: the folder of a chat below the owner's, empty for the owner's own."""

    @property
    def path(self) -> Path:
        """Its path."""
        return Path(self.place)


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """What the index knows of a file."""

    id: int
    source: Source
    key: str
    """The session's; empty for memory."""
    stamp: str
    read_to: int
    head: int
    tail: int
    outside: bool = False
    """Whether others than the owner wrote in it."""
    senders: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    """The chats whose memory its turns were told of; the empty one is the owner's."""

    @property
    def name(self) -> str:
        """As people call it, and as the commands take it."""
        if self.source.kind is Kind.SESSION:
            return self.source.path.stem if self.source.archived else self.key
        return "/".join(filter(None, ["memory", self.source.folder, self.source.path.name]))


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was found."""

    row: int
    file: int
    at: int
    size: int
    nth: int
    time: float
    role: str


def whole_lines(file: BinaryIO, start: int, size: int, *, everything: bool) -> bytes:
    """The next bytes that end a line; what stands at the end without one, if it is whole. Empty if there are none."""
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


def marks_of(file: BinaryIO, read_to: int) -> tuple[int, int]:
    """The bytes the file begins with, and those before this place, each as a number."""
    file.seek(0)
    head = zlib.crc32(file.read(min(_MARK, read_to)))
    file.seek(max(0, read_to - _MARK))
    return head, zlib.crc32(file.read(min(_MARK, read_to)))


def stamp_of(source: Source) -> str:
    """How the file is now; empty where there is none, or it is a link."""
    try:
        found = os.lstat(source.place)
    except OSError:
        return ""
    return f"{found.st_ino}:{found.st_size}:{found.st_mtime_ns}" if stat.S_ISREG(found.st_mode) else ""


def inode_in(stamp: str) -> str:
    """The file itself, whatever is in it."""
    return stamp.partition(":")[0]


def age_in(stamp: str) -> int:
    """When it was written to last, in nanoseconds since the epoch."""
    return int(stamp.rpartition(":")[2])


def only_grows(source: Source) -> bool:
    """Whether a memory file is one that is written to at its end alone."""
    return source.path.name in ("HISTORY.md", "ARCHIVE.md")


def is_same(known: IndexedFile | None, source: Source, stamp: str) -> bool:
    """Whether nothing of it is new."""
    return known is not None and known.stamp == stamp and known.source == source
