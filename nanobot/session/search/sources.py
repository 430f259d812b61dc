"""What is searchable: the visible messages of sessions and the entries of memory files.

Left out are commands, our own texts for the model, runtime context, and results of earlier searches, which would match
themselves.
"""

import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import cast

from nanobot.messages.types import INTERRUPTED, ChatMessage, Provenance, least_trusted, stored_provenance, visible_text
from nanobot.security.provenance import IN_PART
from nanobot.session.folder import SessionFolder
from nanobot.session.lines import Row, is_record
from nanobot.utils.text import json_objects

SEARCH_TOOL = "session_search"
OLD_LOG = "history.jsonl"
"""The memory log of later releases of the original: one `{cursor, timestamp, content}` per line."""
LONGEST_RESULT = 4_000
"""Indexed characters of a tool result: pages and files are stored elsewhere, and would bury what people said."""
LONGEST_SAID = 60_000
_MESSAGES = ("message", "message_user")
"""Tools that send a message to people."""

_STAMP = re.compile(r"\[(\d{4}-\d{2}-\d{2})[ T](\d{2}:\d{2})[^\]\n]*\]")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_GAP = re.compile(r"\n[ \t\r]*\n")
_MEMORY_FILE = re.compile(r"(?:MEMORY|HISTORY|ARCHIVE|SHARED|\d{4}-\d{2}(?:-\d{2})?)\.md")
_DAY_HEADING = re.compile(r"# (\d{4}-\d{2}-\d{2})\b")
"""In the notes of a month, before those of a day."""


@dataclass(frozen=True, slots=True)
class IndexSource:
    """A searchable file: a session or a memory file."""

    path: Path
    is_memory: bool = False
    archived: bool = False
    folder: str = ""
    """The folder of the chat a memory file belongs to; empty for the owner's memory."""
    member: str = ""
    """The session's file in `path`, the archive of a month; empty if `path` is the file itself."""
    member_stamp: str = ""

    @property
    def stem(self) -> str:
        """The name of the session's file without its suffix."""
        return (self.member or self.path.name).removesuffix(".jsonl")

    @property
    def only_grows(self) -> bool:
        """Whether the file is append-only, so that its indexed part need not be read again."""
        return not self.is_memory or self.path.name in ("HISTORY.md", "ARCHIVE.md")

    def stamp(self) -> str:
        """Return inode (of a packed file its checksum), size and modification time as text; empty if it is missing or
        a link.
        """
        if self.member:
            return self.member_stamp
        try:
            status = os.lstat(self.path)
        except OSError:
            return ""
        return stamp_of(status) if stat.S_ISREG(status.st_mode) else ""


def stamp_of(status: os.stat_result) -> str:
    return f"{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"


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
            return self.source.stem if self.source.archived else self.key
        return "/".join(filter(None, ["memory", self.source.folder, self.source.path.name]))


def sources_of(sessions: SessionFolder, memory: Path) -> Iterator[IndexSource]:
    """Yield every searchable file. The revisions of memory are not searched: outdated facts stay hidden."""
    for path, archived in sessions.files():
        yield IndexSource(path, archived=archived)
    for path, info in sessions.packed():
        yield IndexSource(path, archived=True, member=info.filename, member_stamp=f"{info.CRC}:{info.file_size}:0")
    for path in [*memory.glob("*.md"), *memory.glob("chats/*/*.md"), *memory.glob(OLD_LOG)]:
        if _MEMORY_FILE.fullmatch(path.name) or path.name == OLD_LOG:
            yield IndexSource(path, is_memory=True, folder="" if path.parent == memory else f"chats/{path.parent.name}")


@dataclass(frozen=True, slots=True)
class SearchableText:
    """A searchable message or memory entry."""

    time: float
    """In seconds since 1970; 0 if unknown."""
    role: str
    text: str
    trust: Provenance
    turn_id: str = ""


def message_in(row: Row, key: str) -> SearchableText | None:
    """Return what of a session's row is searchable."""
    text = searchable_text(row)
    if not text:
        return None
    time = seconds_of(row.get("timestamp"))
    return SearchableText(time, str(row["role"]), text, trust_in(row, key), str(row.get("turn_id") or ""))


def searchable_text(row: Row) -> str:
    """Return the searchable text of a message; empty if it has none."""
    role = row.get("role")
    if role not in ("user", "assistant", "tool") or row.get("_command") or is_record(row):
        return ""
    if row.get("error") not in (None, INTERRUPTED) or row.get("name") == SEARCH_TOOL:
        return ""
    text = visible_text(cast(ChatMessage, row))
    if role == "assistant" and row.get("tool_calls"):
        text = "\n".join([text, *_sent_texts(row["tool_calls"])])
    return text[: LONGEST_RESULT if role == "tool" else LONGEST_SAID].strip()


def _sent_texts(calls: object) -> Iterator[str]:
    """Yield the messages that these calls send to other chats."""
    for call in calls if isinstance(calls, list) else ():
        try:
            function = call["function"]
            arguments = json.loads(function["arguments"]) if function["name"] in _MESSAGES else {}
            yield from (text for text in [arguments.get("content")] if isinstance(text, str))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue  # files may hold anything


def entries_in(data: bytes, name: str, changed: float) -> Iterator[SearchableText]:
    """Yield the entries of a memory file: those of a log with their stamps, else paragraphs with the file's date."""
    if name == OLD_LOG:
        for row in json_objects(data):
            if isinstance(content := row.get("content"), str) and content.strip():
                stamp = row.get("timestamp")
                text = f"{stamp}\n{content}" if isinstance(stamp, str) else content
                yield _entry(seconds_of(stamp), text.strip())
        return
    day = _DAY.fullmatch(name.removesuffix(".md"))
    time = seconds_of(day[0]) if day else changed
    for paragraph in _GAP.split(data.decode(errors="replace")):
        text = paragraph.strip()
        if heading := _DAY_HEADING.match(text):
            time = seconds_of(heading[1])
        if stamped := _STAMP.match(text):
            time = seconds_of(f"{stamped[1]}T{stamped[2]}")
        if text and not text.startswith("#"):
            yield _entry(time, text)


def _entry(time: float, text: str) -> SearchableText:
    """Return an entry of the memory, trusted according to its own marks."""
    marks = (kind for kind, mark in IN_PART.items() if mark in text)
    return SearchableText(time, "memory", text, least_trusted([Provenance.FILE, *marks]))


def seconds_of(timestamp: object) -> float:
    """Convert a stored time to seconds since 1970; 0 if it is invalid."""
    try:
        return datetime.fromisoformat(timestamp).timestamp() if isinstance(timestamp, str) else 0.0
    except (ValueError, OverflowError, OSError):
        return 0.0


def trust_in(row: Row, key: str) -> Provenance:
    """Return the trust of a message and its turn; for old messages, by their kind."""
    marks = [str(row[name]) for name in ("provenance", "own_provenance") if row.get(name)]
    return least_trusted(marks) if marks else stored_provenance(row, key)
