"""The index: a SQLite database of which words stand where in which file, and of nothing else.

It is brought up to date before it is asked, and reads only what grew: a file is known by its place and inode, and by
the bytes it begins with and those before the place up to which it was read. So one that moved to the archive is the
same one, and one that was written anew is read anew. What was found in a file that is gone, or was another, is struck
off; its words stay until they are too many, then all is made anew. A damaged index is thrown away: the files have it.
"""

import errno
import json
import logging
import os
import sqlite3
import stat
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, TypeVar

from nanobot.errors import StorageError
from nanobot.messages.types import Origin, is_outside
from nanobot.security.vault import masked
from nanobot.session.lines import decode, is_record
from nanobot.session.search.rows import Piece, entries_in, findable, messages_in, seconds_of, trust_in
from nanobot.session.search.words import words_of
from nanobot.session.stems import key_of
from nanobot.utils.files import PRIVATE_FILE, make_private_folder
from nanobot.utils.locks import ProcessLock
from nanobot.utils.refusals import refusal

log = logging.getLogger(__name__)
T = TypeVar("T")

_VERSION = 2
"""Of the tables and of how text becomes words: an index of another one is made anew."""
_SCHEMA = """
CREATE TABLE files (
    id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, archived INTEGER NOT NULL,
    folder TEXT NOT NULL, key TEXT NOT NULL, stamp TEXT NOT NULL, read_to INTEGER NOT NULL,
    head INTEGER NOT NULL, tail INTEGER NOT NULL, outside INTEGER NOT NULL, senders TEXT NOT NULL,
    scopes TEXT NOT NULL);
CREATE TABLE rows (
    id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER NOT NULL, at INTEGER NOT NULL, size INTEGER NOT NULL,
    nth INTEGER NOT NULL, time REAL NOT NULL, role TEXT NOT NULL);
CREATE INDEX rows_of_file ON rows (file);
CREATE VIRTUAL TABLE words USING fts5 (text, place, content = '', tokenize = 'ascii');
"""
_BLOCK = 1 << 18
_MARK = 256
"""Bytes at the beginning, and before where we stopped, by which a file is known again."""
_MANY = 20_000
"""New rows after which the index is put in order, which makes it small and quick."""
_DEAD_AT_LEAST = 2_000
_RANKED = 5_000
"""Of more messages than this that fit, the newest are ranked: to weigh all would take longer than anybody waits."""
_MANY_RANKED = 200_000
"""The same where those that may be told of can only be picked from all."""
_MOST_NAMED = 200
"""Files that a question names."""
_HALF_AS_GOOD_S = 90 * 86400.0
"""After so long a message counts three quarters of what it would count today; in the end, half."""
_POLL_S = 0.01
_BREATH_S = 0.0005
"""Between two blocks, for those who wait for the interpreter."""
_PASSING = ("locked", "busy", "full", "readonly", "read-only", "unable to open", "disk i/o", "permission")
"""What a database says that is sound."""


class Kind(StrEnum):
    """What a file is."""

    SESSION = "session"
    MEMORY = "memory"


_KINDS = {str(kind): kind for kind in Kind}


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


class SearchIndex:
    """The index in a file. Everything blocks; other processes may use the same one."""

    def __init__(
        self, path: Path, sources: Callable[[], Iterable[Source]], opener: Callable[[str, int], int] | None = None
    ) -> None:
        """`opener` opens what lies where tools write: a link may stand there."""
        self._path = path
        self._sources = sources
        self._opener = opener
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Whoever brings it up to date is to leave off: the process ends."""
        self._stopping.set()

    def ask(self, work: Callable[["OpenIndex"], T], patience_s: float) -> T:
        """What comes of it, with the index brought up to date as far as can be done so soon. Raises StorageError."""
        try:
            return self._ask(work, patience_s)
        except sqlite3.Error as error:
            if _will_pass(error):
                raise self._refusal(error) from error
            log.warning("The search index is damaged and made anew: %s", error)
            self._throw_away()
        try:
            return self._ask(work, patience_s)
        except sqlite3.Error as error:
            raise self._refusal(error) from error

    def clear(self) -> None:
        """Forget everything, so that nothing is left of what was deleted: the next search makes it anew. Raises
        StorageError."""
        if not self._path.exists():
            return
        try:
            with closing(self._connect()) as db:
                _make(db)
                db.execute("VACUUM")
                db.execute("PRAGMA wal_checkpoint (TRUNCATE)")
        except sqlite3.Error:
            self._throw_away()

    def _ask(self, work: Callable[["OpenIndex"], T], patience_s: float) -> T:
        with closing(self._connect()) as db:
            until = time.monotonic() + patience_s
            index = OpenIndex(db, self._opener, lambda: self._stopping.is_set() or time.monotonic() > until)
            index.is_whole = self._update(index)
            return work(index)

    def _refusal(self, error: sqlite3.Error) -> StorageError:
        if "no such module" in str(error):
            return StorageError(
                "The Python that nanobot runs on has a SQLite without FTS5, so nothing can be searched."
            )
        return StorageError(f"{self._path} cannot be used: {error}. Look at the disk's space and permissions.")

    def _connect(self) -> sqlite3.Connection:
        try:
            make_private_folder(self._path.parent)
            self._path.touch(PRIVATE_FILE, exist_ok=True)
        except OSError as error:
            raise refusal(f"{self._path} cannot be used", error) from error
        db = sqlite3.connect(self._path, isolation_level=None, timeout=10, check_same_thread=False)
        try:
            db.execute("PRAGMA synchronous = NORMAL")
            if db.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
                db.execute("PRAGMA journal_mode = WAL")
                _make(db)
        except BaseException:
            db.close()
            raise
        return db

    def _throw_away(self) -> None:
        try:
            for end in ("", "-wal", "-shm"):
                self._path.with_name(self._path.name + end).unlink(missing_ok=True)
        except OSError as error:
            raise refusal(f"{self._path} is damaged and cannot be deleted", error) from error

    def _update(self, index: "OpenIndex") -> bool:
        """Bring it up to date; whether that is done. Another process that does so is waited for."""
        lock = ProcessLock(self._path.with_suffix(".lock"))
        try:
            while not lock.try_acquire():
                if index.is_late():
                    return False
                time.sleep(_POLL_S)
        except OSError as error:
            raise refusal(f"{self._path} cannot be locked", error) from error
        try:
            return index.update(list(self._sources()))
        finally:
            lock.release()


class OpenIndex:
    """A connection to the index."""

    def __init__(
        self, db: sqlite3.Connection, opener: Callable[[str, int], int] | None, is_late: Callable[[], bool]
    ) -> None:
        """`is_late` says whether to leave off what is not done yet."""
        self._db = db
        self._opener = opener
        self.is_late = is_late
        self._files: list[IndexedFile] | None = None
        self.is_whole = False
        """Whether all that is in the files is in the index."""

    # --- asking

    def files(self) -> list[IndexedFile]:
        """Every file it knows."""
        if self._files is None:
            self._files = self._all_files()
        return self._files

    def _all_files(self) -> list[IndexedFile]:
        rows = self._db.execute(
            "SELECT id, path, kind, archived, folder, key, stamp, read_to, head, tail, outside, senders, scopes"
            " FROM files"
        )
        return [
            IndexedFile(
                row[0],
                Source(row[1], _KINDS[row[2]], bool(row[3]), row[4]),
                row[5], row[6], row[7], row[8], row[9], bool(row[10]), _names(row[11]), _names(row[12]),
            )
            for row in rows
        ]  # fmt: skip

    def find(
        self, expression: str, files: Collection[int], limit: int, *, since: float = 0.0, but: str = ""
    ) -> list[Place]:
        """Where the words stand, the best first: by how rare they are and how often they stand there, and the newer the
        better. `files` are those that may be looked into; what one role said is left out, `but`."""
        named = self._only_in(files)
        found = self._db.execute(
            "SELECT r.id, r.file, r.at, r.size, r.nth, r.time, r.role FROM"
            " (SELECT rowid, bm25(words, 1.0, 0.0) AS score FROM words WHERE words MATCH ? ORDER BY rowid DESC LIMIT ?)"
            " AS w JOIN rows AS r ON r.id = w.rowid WHERE r.time >= ? AND r.role <> ?"
            " AND r.file IN (SELECT value FROM json_each(?))"
            " ORDER BY w.score * (0.5 + 0.5 / (1.0 + max(0.0, ? - r.time) / ?))"
            " * CASE r.role WHEN 'tool' THEN 0.5 ELSE 1.0 END, r.time DESC LIMIT ?",
            (
                f"text : ({expression}){named or ''}", _MANY_RANKED if named is None else _RANKED, since, but,
                json.dumps(list(files)), time.time(), _HALF_AS_GOOD_S, limit,
            ),
        )  # fmt: skip
        return [Place(*row) for row in found]

    def _only_in(self, files: Collection[int]) -> str | None:
        """The end of a question that is to find something in these files alone, told by the shorter list; None where
        both are too long to be told."""
        others = [file.id for file in self.files() if file.id not in files]
        if not others:
            return ""
        shorter = min(files, others, key=len)
        if len(shorter) > _MOST_NAMED:
            return None
        named = " OR ".join(f"f{one}" for one in shorter)
        return f" AND place : ({named or 'none'})" if len(files) <= len(others) else f" NOT place : ({named})"

    def around(self, row: int, before: int, after: int) -> list[Place]:
        """What stands there, and beside it in the same file; empty where there is no such row."""
        columns = "SELECT id, file, at, size, nth, time, role FROM rows"
        own = self._db.execute(f"{columns} WHERE id = ?", (row,)).fetchone()
        if own is None:
            return []
        file = own[1]
        earlier = self._db.execute(f"{columns} WHERE file = ? AND id < ? ORDER BY id DESC LIMIT ?", (file, row, before))
        later = self._db.execute(f"{columns} WHERE file = ? AND id > ? ORDER BY id LIMIT ?", (file, row, after))
        return [Place(*one) for one in [*reversed(earlier.fetchall()), own, *later.fetchall()]]

    def read(self, file: IndexedFile, place: Place) -> bytes:
        """The bytes that stand there now. Raises OSError."""
        with self._open(file.source, file.stamp) as opened:
            opened.seek(place.at)
            return opened.read(place.size)

    # --- bringing it up to date

    def update(self, sources: list[Source]) -> bool:
        """Read what is new, as far as there is time; whether all of it was read."""
        if self._is_worn():
            _make(self._db)
            self._files = None
        known = {file.source.place: file for file in self.files()}
        here = {source.place for source in sources}
        lost = [file for place, file in known.items() if place not in here]
        changed = [
            (source, stamp)
            for source in sources
            if (stamp := _stamp(source)) and not _is_same(known.get(source.place), source, stamp)
        ]
        if not changed and not lost:
            return True
        self._files = None
        free = {
            file.id: file for file in [*lost, *(known[source.place] for source, _ in changed if source.place in known)]
        }
        began = self._last_row()
        work: list[tuple[Source, str, IndexedFile | None]] = []
        for source, stamp in sorted(changed, key=lambda one: _age(one[1])):
            before = self._known_as(source, stamp, free, known.get(source.place))
            if before is not None:
                del free[before.id]
            work.append((source, stamp, before))
        self._strike_off(free.values())
        for source, stamp, before in work:
            if not self._read_on(source, stamp, before):
                return False
        if self._last_row() - began > _MANY:
            self._db.execute("INSERT INTO words (words) VALUES ('optimize')")
        return True

    def _known_as(
        self, source: Source, stamp: str, free: dict[int, IndexedFile], there: IndexedFile | None
    ) -> IndexedFile | None:
        """The file this one was when we last looked: the one of its inode, else the one of its place."""
        same = [file for file in free.values() if _inode(file.stamp) == _inode(stamp)]
        if there is not None and there.id in free:
            same.append(there)
        return next(
            (file for file in same if file.source.kind is source.kind and self._continues(source, stamp, file)), None
        )

    def _continues(self, source: Source, stamp: str, before: IndexedFile) -> bool:
        """Whether what we read of it then is in it still."""
        if source.kind is Kind.MEMORY and not _only_grows(source):
            return False
        with suppress(OSError), self._open(source, stamp) as file:
            return (before.head, before.tail) == _marks(file, before.read_to)
        return False

    def _strike_off(self, files: Iterable[IndexedFile]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        for file in files:
            self._db.execute("DELETE FROM rows WHERE file = ?", (file.id,))
            self._db.execute("DELETE FROM files WHERE id = ?", (file.id,))
        self._db.execute("COMMIT")

    def _read_on(self, source: Source, stamp: str, before: IndexedFile | None) -> bool:
        """Take in what is new in a file; whether we came to its end. What cannot be opened waits for another time."""
        try:
            with self._open(source, stamp) as file:
                state = self._begun(source, before)
                size = os.fstat(file.fileno()).st_size
                while state.read_to < size:
                    data = _whole_lines(file, state.read_to, size, everything=source.kind is Kind.MEMORY)
                    if not data:
                        break
                    state = self._take_in(state, data, file)
                    if self.is_late():
                        return False
                    time.sleep(_BREATH_S)
                head, tail = _marks(file, state.read_to)
                self._note(replace(state, source=source, stamp=stamp, head=head, tail=tail))
        except OSError as error:
            log.warning("%s cannot be searched: %s", source.place, error.strerror)
        return True

    def _begun(self, source: Source, before: IndexedFile | None) -> IndexedFile:
        """The file's line in the table, made where there is none; its place free, should another have it still."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute(
            "UPDATE files SET path = path || '?' || id WHERE path = ? AND id <> ?",
            (source.place, before.id if before else -1),
        )
        if before is None:
            key = key_of(source.path.stem) if source.kind is Kind.SESSION else ""
            made = self._db.execute(
                "INSERT INTO files (path, kind, archived, folder, key, stamp, read_to, head, tail, outside, senders,"
                " scopes) VALUES (?, ?, ?, ?, ?, '', 0, 0, 0, 0, '[]', '[]')",
                (source.place, source.kind, source.archived, source.folder, key),
            )
            before = IndexedFile(int(made.lastrowid or 0), source, key, "", 0, 0, 0)
        self._db.execute("COMMIT")
        return replace(before, source=source)

    def _take_in(self, state: IndexedFile, data: bytes, file: BinaryIO) -> IndexedFile:
        """Keep what can be found in these bytes; the file as it is known now, on the disk with them."""
        pieces: list[Piece]
        if state.source.kind is Kind.SESSION:
            pieces, state = _conversation(state, data)
        else:
            changed = os.fstat(file.fileno()).st_mtime
            pieces = list(entries_in(data, state.read_to, state.source.path.name, changed))
        state = replace(state, read_to=state.read_to + len(data))
        head, tail = _marks(file, state.read_to)
        self._db.execute("BEGIN IMMEDIATE")
        for piece in pieces:
            words = words_of(masked(piece.text))
            if not words:
                continue
            row = self._db.execute(
                "INSERT INTO rows (file, at, size, nth, time, role) VALUES (?, ?, ?, ?, ?, ?)",
                (state.id, piece.at, piece.size, piece.nth, piece.time, piece.role),
            ).lastrowid
            self._db.execute("INSERT INTO words (rowid, text, place) VALUES (?, ?, ?)", (row, words, f"f{state.id}"))
        self._write(replace(state, head=head, tail=tail))
        self._db.execute("COMMIT")
        return state

    def _note(self, state: IndexedFile) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._write(state)
        self._db.execute("COMMIT")

    def _write(self, state: IndexedFile) -> None:
        source = state.source
        self._db.execute(
            "UPDATE files SET path = ?, kind = ?, archived = ?, folder = ?, key = ?, stamp = ?, read_to = ?, head = ?,"
            " tail = ?, outside = ?, senders = ?, scopes = ? WHERE id = ?",
            (
                source.place, source.kind, source.archived, source.folder, state.key, state.stamp, state.read_to,
                state.head, state.tail, state.outside, json.dumps(sorted(state.senders)),
                json.dumps(sorted(state.scopes)), state.id,
            ),
        )  # fmt: skip

    def _last_row(self) -> int:
        found = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'rows'").fetchone()
        return int(found[0]) if found else 0

    def _is_worn(self) -> bool:
        """Whether so much of it is of files that are gone, that it is better made anew."""
        last = self._last_row()
        if last < _DEAD_AT_LEAST:
            return False
        live = self._db.execute("SELECT count(*) FROM rows").fetchone()[0]
        return bool(last - live > _DEAD_AT_LEAST and last - live > live // 2)

    def _open(self, source: Source, stamp: str) -> BinaryIO:
        """The file that was looked at. Raises OSError, also where another one of the memory stands there by now: a
        command may have put a link in its place, to words that this chat is not told."""
        is_memory = source.kind is Kind.MEMORY
        file = open(source.place, "rb", opener=self._opener if is_memory else None)  # noqa: SIM115 handed on
        if is_memory and str(os.fstat(file.fileno()).st_ino) != _inode(stamp):
            file.close()
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source.place)
        return file


def _make(db: sqlite3.Connection) -> None:
    """Empty tables. In one transaction: another process finds the old ones or the new ones."""
    db.execute("PRAGMA secure_delete = ON")
    db.execute("BEGIN IMMEDIATE")
    try:
        for kind, name in (("TABLE", "words"), ("TABLE", "rows"), ("TABLE", "files")):
            db.execute(f"DROP {kind} IF EXISTS {name}")
        db.execute("DELETE FROM sqlite_sequence") if _has_sequence(db) else None
        for statement in filter(str.strip, _SCHEMA.split(";")):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {_VERSION}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _has_sequence(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_sequence'").fetchone() is not None


def _will_pass(error: sqlite3.Error) -> bool:
    """Whether the disk or another process says no, and not the index."""
    said = str(error).lower()
    return "no such module" in said or any(word in said for word in _PASSING)


@lru_cache(maxsize=10_000)
def _names(told: str) -> frozenset[str]:
    return frozenset(json.loads(told))


def _conversation(state: IndexedFile, data: bytes) -> tuple[list[Piece], IndexedFile]:
    """What can be found in these lines of a session, and what they tell of it."""
    key, outside, senders, scopes = state.key, state.outside, set(state.senders), set(state.scopes)
    pieces: list[Piece] = []
    for at, size, nth, row in messages_in(data, state.read_to):
        if is_record(row):
            said = row.get("key")
            key = said if isinstance(said, str) else key
            continue
        if row.get("role") == "user":
            outside = outside or is_outside(trust_in(row, key))
            scopes.add(str(row.get("scope", "")))
            if row.get("sender_id") and row.get("origin", Origin.USER) == Origin.USER:
                senders.add(str(row["sender_id"]))
        if text := findable(row):
            pieces.append(Piece(at, size, nth, seconds_of(row.get("timestamp")), str(row["role"]), text))
    return pieces, replace(state, key=key, outside=outside, senders=frozenset(senders), scopes=frozenset(scopes))


def _whole_lines(file: BinaryIO, start: int, size: int, *, everything: bool) -> bytes:
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


def _marks(file: BinaryIO, read_to: int) -> tuple[int, int]:
    """The bytes the file begins with, and those before this place, each as a number."""
    file.seek(0)
    head = zlib.crc32(file.read(min(_MARK, read_to)))
    file.seek(max(0, read_to - _MARK))
    return head, zlib.crc32(file.read(min(_MARK, read_to)))


def _stamp(source: Source) -> str:
    """How the file is now; empty where there is none, or it is a link."""
    try:
        found = os.lstat(source.place)
    except OSError:
        return ""
    return f"{found.st_ino}:{found.st_size}:{found.st_mtime_ns}" if stat.S_ISREG(found.st_mode) else ""


def _inode(stamp: str) -> str:
    return stamp.partition(":")[0]


def _age(stamp: str) -> int:
    return int(stamp.rpartition(":")[2])


def _only_grows(source: Source) -> bool:
    """Whether a memory file is one that is written to at its end alone."""
    return source.path.name in ("HISTORY.md", "ARCHIVE.md")


def _is_same(known: IndexedFile | None, source: Source, stamp: str) -> bool:
    return known is not None and known.stamp == stamp and known.source == source
