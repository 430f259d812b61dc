"""What is searchable, and bringing the search index up to date with it: reads only what is new, in one transaction.

Searchable are the visible messages of sessions and the entries of memory files. Left out are commands, our own texts
for the model, runtime context, and results of earlier searches, which would match themselves.

A file is recognised by its inode, so one that is moved to the archive keeps its rows; a rewritten or edited one is
indexed again; rows of a deleted one are deleted. `rows` has the texts, `words` what is searched of them.
"""

import errno
import json
import logging
import os
import re
import sqlite3
import stat
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, cast

from nanobot.messages.shown import visible_text
from nanobot.messages.types import (
    INTERRUPTED,
    ChatMessage,
    Origin,
    Provenance,
    is_outside,
    least_trusted,
    stored_provenance,
)
from nanobot.security.provenance import IN_PART
from nanobot.security.secrets import redact_known
from nanobot.session.file_format import Row, decode, is_record, key_of
from nanobot.session.folder import SessionFolder, open_packed
from nanobot.session.search.query import fold
from nanobot.utils import codec
from nanobot.utils.text import escape_surrogates, json_objects

log = logging.getLogger(__name__)

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
_VERSION = 5
"""Version of tables and folding; an index with another one is rebuilt."""
_SCHEMA = """
DROP TABLE IF EXISTS files; DROP TABLE IF EXISTS rows; DROP TABLE IF EXISTS words;
CREATE TABLE files (id INTEGER PRIMARY KEY, data TEXT NOT NULL);
CREATE TABLE rows (
    id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER NOT NULL, time REAL NOT NULL, role TEXT NOT NULL,
    turn_id TEXT NOT NULL, trust TEXT NOT NULL, text TEXT NOT NULL);
CREATE INDEX rows_of_file ON rows (file);
CREATE VIRTUAL TABLE words USING fts5 (text, tokenize = 'trigram case_sensitive 1');
"""
_OPTIMIZE_ROWS = 20_000
"""New rows after which the index is optimised, which makes it small and fast."""
_BLOCK = 1 << 18
_TAIL = 256
_PAUSE_S = 0.0005
"""Pause between two blocks, so that other threads get the interpreter."""


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

    def entry(time: float, text: str) -> SearchableText:
        marks = (kind for kind, mark in IN_PART.items() if mark in text)
        return SearchableText(time, "memory", text, least_trusted([Provenance.FILE, *marks]))

    if name == OLD_LOG:
        for row in json_objects(data):
            if isinstance(content := row.get("content"), str) and content.strip():
                stamp = row.get("timestamp")
                text = f"{stamp}\n{content}" if isinstance(stamp, str) else content
                yield entry(seconds_of(stamp), text.strip())
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
            yield entry(time, text)


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


class IndexUpdate:
    """One update of the tables, and the files that are in them then."""

    def __init__(
        self, db: sqlite3.Connection, opener: Callable[[str, int], int] | None, is_late: Callable[[], bool]
    ) -> None:
        """`opener` opens memory files; `is_late` tells whether to stop before the update is complete."""
        self._db = db
        self._opener = opener
        self._is_late = is_late
        self._added = 0
        self.files: dict[int, IndexedFile] = {}
        """By id, without files that are gone."""
        self.is_whole = False
        """Whether all that is in the files is in the index."""

    def run(self, sources: Iterable[IndexSource]) -> None:
        """Index what is new until `is_late`."""
        stamps = {source: stamp for source in sources if (stamp := source.stamp())}
        known = self._load_files()
        self.files = {file.id: file for file in known if file.source in stamps}
        if len(known) == len(stamps) and all(stamps.get(file.source) == file.stamp for file in known):
            self.is_whole = True
            return
        try:
            with _transaction(self._db):
                self.is_whole = self._update(stamps)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            log.info("another process updates the search index")

    def _update(self, stamps: dict[IndexSource, str]) -> bool:
        """Return whether the index is complete."""
        found = {(stamp.partition(":")[0], source.is_memory): source for source, stamp in stamps.items()}
        known = {(file.inode, file.source.is_memory): file for file in self._load_files()}  # perhaps newer by now
        for identity, file in known.items():
            if identity not in found:
                self._delete_rows(file)
                self._db.execute("DELETE FROM files WHERE id = ?", (file.id,))
        self.files = {}
        is_whole = True
        for identity, source in sorted(found.items(), key=lambda item: int(stamps[item[1]].rpartition(":")[2])):
            before = known.get(identity)
            if before is not None and (before.source, before.stamp) == (source, stamps[source]):
                self.files[before.id] = before
            else:
                is_whole = is_whole and not self._is_late() and self._index(source, before, identity[0])
        if self._added > _OPTIMIZE_ROWS:
            self._db.execute("INSERT INTO words (words) VALUES ('optimize')")
        return is_whole

    def _index(self, source: IndexSource, before: IndexedFile | None, inode: str) -> bool:
        """Index what is new in a file. Return False if time ran out. Unreadable files are tried again next time."""
        try:
            with self._open(source) as opened:
                stamp = source.member_stamp or stamp_of(os.fstat(opened.fileno()))
                if stamp.partition(":")[0] != inode:  # replaced meanwhile, perhaps by a link to another chat's memory
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                file = before or IndexedFile(
                    self._db.execute("INSERT INTO files (data) VALUES ('')").lastrowid or 0,
                    source,
                    "" if source.is_memory else key_of(source.stem),
                )
                is_continued = (
                    _tail_of(opened, file.read_to) == file.tail and opened.seek(0, os.SEEK_END) > file.read_to
                )
                if stamp != file.stamp and not (source.only_grows and is_continued):
                    self._delete_rows(file)
                    file = IndexedFile(file.id, source, file.key)
                file.source = source
                self.files[file.id] = file
                is_whole = self._index_blocks(file, opened, stamp)
                file.stamp = stamp if is_whole else f"{inode}:0:0"
                file.tail = _tail_of(opened, file.read_to)
                self._db.execute("UPDATE files SET data = ? WHERE id = ?", (codec.to_json(file), file.id))
                return is_whole
        except OSError as error:
            log.warning("%s cannot be searched: %s", source.path, error.strerror)
            return True

    def _open(self, source: IndexSource) -> BinaryIO:
        if source.member:
            with open_packed(source.path) as packed:
                return BytesIO(packed.read(source.member))
        return open(source.path, "rb", opener=self._opener if source.is_memory else None)

    def _index_blocks(self, file: IndexedFile, opened: BinaryIO, stamp: str) -> bool:
        while data := _next_lines(opened, file):
            if file.source.is_memory:
                texts = entries_in(data, file.source.path.name, int(stamp.rpartition(":")[2]) / 1e9)
            else:
                texts = _messages_in(file, data)
            for entry in texts:
                self._add_text(file, entry)
            file.read_to += len(data)
            if self._is_late():
                return False
            time.sleep(_PAUSE_S)
        return True

    def _add_text(self, file: IndexedFile, entry: SearchableText) -> None:
        text = escape_surrogates(redact_known(entry.text))
        if not (folded := fold(text)).strip():
            return
        number = self._db.execute(
            "INSERT INTO rows (file, time, role, text, trust, turn_id) VALUES (?, ?, ?, ?, ?, ?)",
            (file.id, entry.time, entry.role, text, entry.trust, escape_surrogates(entry.turn_id)),
        ).lastrowid
        self._db.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (number, folded))
        self._added += 1

    def _delete_rows(self, file: IndexedFile) -> None:
        self._db.execute("DELETE FROM words WHERE rowid IN (SELECT id FROM rows WHERE file = ?)", (file.id,))
        self._db.execute("DELETE FROM rows WHERE file = ?", (file.id,))

    def _load_files(self) -> list[IndexedFile]:
        return [codec.from_json(IndexedFile, data) for (data,) in self._db.execute("SELECT data FROM files")]


def make_tables(db: sqlite3.Connection) -> None:
    """Prepare a connection, and create the tables if they are missing or of another version."""
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("PRAGMA secure_delete = ON")
    if _version(db) != _VERSION:
        db.execute("PRAGMA journal_mode = WAL")
        with _transaction(db):
            if _version(db) != _VERSION:  # no other process made them meanwhile
                for statement in _SCHEMA.split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {_VERSION}")


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit what is done inside, or roll it back. Waits for other processes."""
    db.execute("BEGIN IMMEDIATE")
    with db:
        yield


def _messages_in(file: IndexedFile, data: bytes) -> Iterator[SearchableText]:
    """Yield the searchable texts of these session lines, and note whose session it is."""
    for line in data.split(b"\n"):
        for row in decode(line)[0]:
            if is_record(row):
                key = row.get("key")
                file.key = key if isinstance(key, str) else file.key
                continue
            if row.get("role") == "user":
                file.outside = file.outside or is_outside(trust_in(row, file.key))
                file.scopes.add(str(row.get("scope", "")))
                if row.get("sender_id") and row.get("origin", Origin.USER) == Origin.USER:
                    file.senders.add(str(row["sender_id"]))
            if text := searchable_text(row):
                trust, turn_id = trust_in(row, file.key), str(row.get("turn_id") or "")
                yield SearchableText(seconds_of(row.get("timestamp")), str(row["role"]), text, trust, turn_id)


def _next_lines(opened: BinaryIO, file: IndexedFile) -> bytes:
    """Read on: the rest of a memory file; of a session whole lines. Empty if there is nothing more."""
    opened.seek(file.read_to)
    if file.source.is_memory:
        return opened.read()
    data = b""
    while more := opened.read(_BLOCK):
        data += more
        if cut := data.rfind(b"\n") + 1:
            return data[:cut]
    return data if decode(data)[1] else b""  # a last line without a line break


def _tail_of(file: BinaryIO, end: int) -> int:
    """Return a checksum of the bytes before an offset."""
    file.seek(max(0, end - _TAIL))
    return zlib.crc32(file.read(min(_TAIL, end)))
