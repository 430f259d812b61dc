"""The searchable files of a workspace, and what the index knows of each."""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nanobot.session.folder import SessionFolder
from nanobot.session.search.rows import OLD_LOG

_MEMORY_FILE = re.compile(r"(?:MEMORY|HISTORY|ARCHIVE|SHARED|\d{4}-\d{2}-\d{2})\.md")


@dataclass(frozen=True, slots=True)
class IndexSource:
    """A searchable file: a session or a memory file."""

    path: Path
    is_memory: bool = False
    archived: bool = False
    folder: str = ""
    """The folder of the chat a memory file belongs to; empty for the owner's memory."""

    @property
    def only_grows(self) -> bool:
        """Whether the file is append-only, so that its indexed part need not be read again."""
        return not self.is_memory or self.path.name in ("HISTORY.md", "ARCHIVE.md")

    def stamp(self) -> str:
        """Return inode, size and modification time as text; empty if it is missing or a link."""
        try:
            status = os.lstat(self.path)
        except OSError:
            return ""
        return f"{status.st_ino}:{status.st_size}:{status.st_mtime_ns}" if stat.S_ISREG(status.st_mode) else ""


@dataclass(slots=True)
class IndexedFile:
    """What the index knows of a file."""

    id: int
    source: IndexSource
    key: str
    """The session key; empty for memory files."""
    stamp: str = ""
    read_to: int = 0
    tail: int = 0
    """Checksum of the last bytes before `read_to`: if they differ, the file was edited."""
    outside: bool = False
    """Whether people other than the owner wrote in it."""
    senders: set[str] = field(default_factory=set)
    scopes: set[str] = field(default_factory=set)
    """The chats whose memory its turns could read; empty text for the owner's."""

    @property
    def inode(self) -> str:
        return self.stamp.partition(":")[0]

    @property
    def name(self) -> str:
        """The name shown to people, which the commands accept."""
        if not self.source.is_memory:
            return self.source.path.stem if self.source.archived else self.key
        return "/".join(filter(None, ["memory", self.source.folder, self.source.path.name]))


def sources_of(sessions: SessionFolder, memory: Path) -> Iterator[IndexSource]:
    """Yield every searchable file. The revisions of memory are not searched: outdated facts stay hidden."""
    for path, archived in sessions.files():
        yield IndexSource(path, archived=archived)
    for path in [*memory.glob("*.md"), *memory.glob("chats/*/*.md"), *memory.glob(OLD_LOG)]:
        if _MEMORY_FILE.fullmatch(path.name) or path.name == OLD_LOG:
            yield IndexSource(path, is_memory=True, folder="" if path.parent == memory else f"chats/{path.parent.name}")
