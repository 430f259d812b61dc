"""The search index: a SQLite FTS5 database with the text of all conversations and memory files, secrets redacted.

It is updated before each query and reads only what is new. A file is recognised by its inode, so one that is moved to
the archive keeps its rows; a rewritten or edited one is indexed again; rows of a deleted one are deleted. Each update
is one transaction. A damaged index is deleted and rebuilt from the files.
"""

import errno
import json
import logging
import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, TypeVar

from nanobot.errors import StorageError
from nanobot.messages.types import Origin, Provenance, is_outside, least_trusted
from nanobot.security.redaction import redact_known
from nanobot.session.file_names import key_of
from nanobot.session.lines import decode, is_record
from nanobot.session.search.query import Query, find_match, fold, parse_query
from nanobot.session.search.rows import SearchableText, entries_in, message_in, trust_in
from nanobot.session.search.sources import IndexedFile, IndexSource
from nanobot.utils.files import PRIVATE_FILE, make_private_folder
from nanobot.utils.storage_error import storage_error
from nanobot.utils.text import escape_surrogates

log = logging.getLogger(__name__)
T = TypeVar("T")

MayRead = Callable[[IndexedFile], bool]
"""Whether the caller may read a file."""

_VERSION = 3
"""Version of tables and folding; an index with another one is rebuilt."""
_SCHEMA = """
DROP TABLE IF EXISTS files; DROP TABLE IF EXISTS rows; DROP TABLE IF EXISTS words; DROP TABLE IF EXISTS folded;
CREATE TABLE files (
    id INTEGER PRIMARY KEY, path BLOB NOT NULL, is_memory INTEGER NOT NULL, archived INTEGER NOT NULL,
    folder TEXT NOT NULL, key TEXT NOT NULL, stamp TEXT NOT NULL, read_to INTEGER NOT NULL, tail INTEGER NOT NULL,
    outside INTEGER NOT NULL, senders TEXT NOT NULL, scopes TEXT NOT NULL);
CREATE TABLE rows (
    id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER NOT NULL, time REAL NOT NULL, role TEXT NOT NULL,
    text TEXT NOT NULL, trust TEXT NOT NULL, turn_id TEXT NOT NULL);
CREATE INDEX rows_of_file ON rows (file);
CREATE TABLE folded (id INTEGER PRIMARY KEY, text TEXT NOT NULL);
CREATE VIRTUAL TABLE words USING fts5 (
    text, content = 'folded', content_rowid = 'id', tokenize = 'trigram case_sensitive 1');
"""
"""`folded` is the content of `words`, apart from `rows` so that terms too short for trigrams are found quickly."""
_NOT_DAMAGED = {
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM,
}  # fmt: skip
"""Codes of errors that come from the disk or a lock, not from a damaged file."""

_TIMEOUT_S = 20.0
"""Time limit for updating the index. Building it for 100,000 messages takes about ten seconds."""
_LOCK_TIMEOUT_S = 5.0
_TRIGRAM = 3
_OPTIMIZE_ROWS = 20_000
"""New rows after which the index is optimised, which makes it small and fast."""
_MAX_RANKED = 5_000
"""With more matches than this only the newest are ranked, to bound the time."""
_RECENCY_S = 90 * 86400.0
"""Age at which the recency factor of a message is 0.75; it approaches 0.5."""
_BLOCK = 1 << 18
_TAIL = 256
_PAUSE_S = 0.0005
"""Pause between two blocks, so that other threads get the interpreter."""
_MORE = 12
"""Extra candidates: some are duplicates in another file."""
_SHOWN = 320
"""Characters shown of a message."""
_BEFORE = 100
"""Characters shown before the match."""


@dataclass(frozen=True, slots=True)
class RecallHit:
    """A message or memory entry that matches."""

    number: int
    """Its id for `around`."""
    name: str
    """The session, as commands accept it, or the memory file."""
    time: str
    """YYYY-MM-DD HH:MM; empty if unknown."""
    role: str
    text: str
    """The text around the match, on one line, with ellipses where it was cut."""
    trust: Provenance


@dataclass(frozen=True, slots=True)
class RecallResult:
    """The result of a search."""

    hits: list[RecallHit] = field(default_factory=list)
    is_loose: bool = False
    """Whether no message has all the words, so that these have only some."""
    is_whole: bool = True
    """Whether the index was up to date."""


class SearchIndex:
    """The index of a workspace's conversations and memories. Methods block and raise StorageError.

    Several processes may use the same file.
    """

    def __init__(
        self,
        path: Path,
        sources: Callable[[], Iterable[IndexSource]],
        opener: Callable[[str, int], int] | None = None,
        *,
        provenance_of: Callable[[Path], Provenance | None] = lambda path: None,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        """`opener` opens memory files without following links, which a tool may have created.

        `provenance_of` returns the provenance of a memory file; None if it is the owner's. `timeout_s` limits the
        update before a query.
        """
        self._path = path
        self._sources = sources
        self._opener = opener
        self._provenance_of = provenance_of
        self._timeout_s = timeout_s
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Stop a running update, as the process ends."""
        self._stopping.set()

    def refresh(self) -> bool:
        """Update the index, so that a later query need not wait. Return whether it is complete."""
        return self._ask(lambda index: index.is_whole, self._timeout_s)

    def search(
        self,
        text: str,
        may_read: MayRead,
        *,
        limit: int = 10,
        since: float = 0.0,
        results: bool = True,
        leave_out_turn: str = "",
    ) -> RecallResult:
        """Search in files that `may_read` accepts, best match first; a turn can be left out.

        `since` is in seconds since 1970. Tool results are searched with `results`.
        """
        queries = parse_query(text)
        if not queries:
            return RecallResult()
        excluded = ("" if results else "tool", leave_out_turn or "-")

        def find(index: _OpenIndex) -> RecallResult:
            hits: dict[tuple[float, str, str], RecallHit] = {}
            is_loose = False
            for query in queries:
                if len(hits) >= limit or (hits and not query.is_all):
                    break
                for row in index.find(query, may_read, 2 * limit + _MORE, since, excluded):
                    shown = redact_known(row.text)
                    if shown != row.text and not query.matches(shown):
                        continue  # it matched a secret
                    hits.setdefault((row.time, row.role, row.text), self._hit(index, row, _excerpt(shown, queries)))
                    if len(hits) >= limit:
                        break
                is_loose = bool(hits) and not query.is_all
            return RecallResult(list(hits.values()), is_loose, index.is_whole)

        return self._ask(find, self._timeout_s)

    def around(self, number: int, may_read: MayRead, *, results: bool = True, beside: int = 3) -> RecallResult:
        """Return the messages before and after a hit; nothing if it is gone or may not be read."""

        def find(index: _OpenIndex) -> RecallResult:
            rows = [row for row in index.around(number, beside, may_read) if results or row.role != "tool"]
            return RecallResult([self._hit(index, row, redact_known(row.text)) for row in rows], False, index.is_whole)

        return self._ask(find, self._timeout_s)

    def forget_deleted(self) -> None:
        """Delete for good what the index holds of files that are gone."""
        if not self._path.exists():
            return
        self._ask(_OpenIndex.purge, 0.0)

    def _hit(self, index: "_OpenIndex", row: "_Row", text: str) -> RecallHit:
        file = index.files[row.file]
        trust = Provenance(row.trust)
        if file.source.is_memory and file.source.path.name != "HISTORY.md":  # its entries have marks
            trust = least_trusted([trust, self._provenance_of(file.source.path) or Provenance.FILE])
        shown = text if len(text) <= 2 * _SHOWN else f"{text[: 2 * _SHOWN]}…"
        minute = f"{datetime.fromtimestamp(row.time):%Y-%m-%d %H:%M}" if row.time else ""
        return RecallHit(row.id, file.name, minute, row.role, " ".join(shown.split()), trust)

    # --- the file

    def _ask(self, work: "Callable[[_OpenIndex], T]", timeout_s: float) -> T:
        """Update the index for at most `timeout_s`, then run `work` on it."""
        try:
            return self._try(work, timeout_s)
        except sqlite3.Error as error:
            if "no such" in str(error):
                raise StorageError(
                    "The Python that nanobot runs on has a SQLite without FTS5 trigrams, so nothing can be searched."
                ) from error
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _NOT_DAMAGED:
                raise self._storage_error(error) from error
            log.warning("The search index is damaged and will be rebuilt: %s", error)
            self._delete()
        try:
            return self._try(work, timeout_s)
        except sqlite3.Error as error:
            raise self._storage_error(error) from error

    def _try(self, work: "Callable[[_OpenIndex], T]", timeout_s: float) -> T:
        with closing(self._connect()) as db:
            deadline = time.monotonic() + timeout_s
            index = _OpenIndex(db, self._opener, lambda: self._stopping.is_set() or time.monotonic() > deadline)
            index.update(self._sources())
            return work(index)

    def _storage_error(self, error: sqlite3.Error) -> StorageError:
        return StorageError(f"{self._path} cannot be used: {error}. Check free space and permissions.")

    def _connect(self) -> sqlite3.Connection:
        try:
            make_private_folder(self._path.parent)
            self._path.touch(PRIVATE_FILE, exist_ok=True)
        except OSError as error:
            raise storage_error(f"{self._path} cannot be used", error) from error
        db = sqlite3.connect(self._path, isolation_level=None, timeout=_LOCK_TIMEOUT_S, check_same_thread=False)
        try:
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA secure_delete = ON")
            if _version(db) != _VERSION:
                db.execute("PRAGMA journal_mode = WAL")
                with _transaction(db):
                    if _version(db) != _VERSION:  # no other process made them meanwhile
                        for statement in _SCHEMA.split(";"):
                            db.execute(statement)
                        db.execute(f"PRAGMA user_version = {_VERSION}")
        except BaseException:
            db.close()
            raise
        return db

    def _delete(self) -> None:
        try:
            for end in ("", "-wal", "-shm"):
                self._path.with_name(self._path.name + end).unlink(missing_ok=True)
        except OSError as error:
            raise storage_error(f"{self._path} is damaged and cannot be deleted", error) from error


@dataclass(frozen=True, slots=True)
class _Row:
    id: int
    file: int
    time: float
    role: str
    text: str
    trust: str


_COLUMNS = "r.id, r.file, r.time, r.role, r.text, r.trust"


class _OpenIndex:
    def __init__(
        self, db: sqlite3.Connection, opener: Callable[[str, int], int] | None, is_late: Callable[[], bool]
    ) -> None:
        """`is_late` tells whether to stop an update before it is complete."""
        self._db = db
        self._opener = opener
        self._is_late = is_late
        self._added = 0
        self.files: dict[int, IndexedFile] = {}
        """By id, without files that are gone."""
        self.is_whole = False
        """Whether all that is in the files is in the index."""

    # --- queries

    def find(self, query: Query, may_read: MayRead, limit: int, since: float, excluded: tuple[str, str]) -> list[_Row]:
        """Return the best matches, by BM25 and age. Messages of the `excluded` role and turn are left out."""
        joint = " AND " if query.is_all else " OR "
        long = [term for term in query.terms if len(term) >= _TRIGRAM]
        if query.is_all or len(long) == len(query.terms):
            short = [term for term in query.terms if term not in long]
        else:
            long, short = [], [*query.terms]
        conditions, values = ["r.time >= ?", "r.role <> ?", "r.turn_id <> ?"], [since, *excluded]
        if short:
            conditions.append(f"({joint.join(['instr(f.text, ?) > 0'] * len(short))})")
            values += short
        score, tables = "-1.0", "folded AS f"
        if long:
            conditions.append("words MATCH ?")
            values.append(joint.join(f'"{term}"' for term in long))
            score, tables = "bm25(words)", "words JOIN folded AS f ON f.id = words.rowid"
        files = [file.id for file in self.files.values() if may_read(file)]
        # for few files without an index of words, read only theirs
        of_file = "r.file" if not long and 4 * len(files) < len(self.files) else "+r.file"
        rows = self._db.execute(
            f"SELECT {_COLUMNS} FROM ("  # noqa: S608 only our words
            f"  SELECT f.id AS id, {score} AS score FROM {tables} JOIN rows AS r ON r.id = f.id"
            f"  WHERE {' AND '.join(conditions)} AND {of_file} IN (SELECT value FROM json_each(?))"
            f"  ORDER BY {'words.rowid' if long else 'f.id'} DESC LIMIT {_MAX_RANKED}"
            ") AS w JOIN rows AS r ON r.id = w.id"
            " ORDER BY w.score * (0.5 + 0.5 / (1.0 + max(0.0, ? - r.time) / ?))"
            " * CASE r.role WHEN 'tool' THEN 0.5 ELSE 1.0 END, r.time DESC LIMIT ?",
            (*values, json.dumps(files), time.time(), _RECENCY_S, limit),
        )
        return [_Row(*row) for row in rows]

    def around(self, number: int, beside: int, may_read: MayRead) -> list[_Row]:
        """Return a row with its neighbours in the same file; empty if there is none that may be read."""
        select = f"SELECT {_COLUMNS} FROM rows AS r WHERE"  # noqa: S608 our words
        own = [_Row(*row) for row in self._db.execute(f"{select} id = ?", (number,))]
        file = self.files.get(own[0].file) if own else None
        if file is None or not may_read(file):
            return []
        earlier = self._db.execute(f"{select} file = ? AND id < ? ORDER BY id DESC LIMIT ?", (file.id, number, beside))
        later = self._db.execute(f"{select} file = ? AND id > ? ORDER BY id LIMIT ?", (file.id, number, beside))
        return [*reversed([_Row(*row) for row in earlier]), *own, *(_Row(*row) for row in later)]

    # --- update

    def update(self, sources: Iterable[IndexSource]) -> None:
        """Index what is new until `is_late`, in one transaction."""
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

    def purge(self) -> None:
        """Remove what deleted rows left in the file."""
        self._db.execute("INSERT INTO words (words) VALUES ('optimize')")
        self._db.execute("PRAGMA wal_checkpoint (TRUNCATE)")

    def _update(self, stamps: dict[IndexSource, str]) -> bool:
        """Return whether the index is complete."""
        known = self._load_files()  # again: another process may have updated it
        self.files = {file.id: file for file in known if stamps.get(file.source) == file.stamp}
        unchanged = {file.source for file in self.files.values()}
        others = {file.inode: file for file in known if file.id not in self.files}
        work: list[tuple[IndexSource, IndexedFile | None]] = []
        for source in sorted(stamps.keys() - unchanged, key=lambda source: int(stamps[source].rpartition(":")[2])):
            before = others.get(stamps[source].partition(":")[0])
            if before is not None and before.source.is_memory == source.is_memory:
                del others[before.inode]
            else:
                before = None
            work.append((source, before))
        reused = {before.id for _, before in work if before is not None}
        for file in known:
            if file.id not in self.files and file.id not in reused:
                self._delete_rows(file)
                self._db.execute("DELETE FROM files WHERE id = ?", (file.id,))
        is_whole = True
        for source, before in work:
            if self._is_late() or not self._index(source, before, stamps[source].partition(":")[0]):
                is_whole = False
                break
        if self._added > _OPTIMIZE_ROWS:
            self._db.execute("INSERT INTO words (words) VALUES ('optimize')")
        return is_whole

    def _index(self, source: IndexSource, before: IndexedFile | None, inode: str) -> bool:
        """Index what is new in a file. Return False if time ran out. Unreadable files are tried again next time."""
        try:
            with open(source.path, "rb", opener=self._opener if source.is_memory else None) as opened:
                status = os.fstat(opened.fileno())
                if str(status.st_ino) != inode:  # replaced meanwhile, perhaps by a link to another chat's memory
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                file = before or self._add_file(source)
                file.source = source
                stamp = f"{inode}:{status.st_size}:{status.st_mtime_ns}"
                is_continued = status.st_size > file.read_to and _tail_of(opened, file.read_to) == file.tail
                if stamp != file.stamp and not (source.only_grows and is_continued):
                    self._delete_rows(file)
                    file = IndexedFile(file.id, source, file.key)
                self.files[file.id] = file
                is_whole = self._index_blocks(file, opened, status)
                file.stamp = stamp if is_whole else f"{inode}:0:0"
                file.tail = _tail_of(opened, file.read_to)
                self._save(file)
                return is_whole
        except OSError as error:
            log.warning("%s cannot be searched: %s", source.path, error.strerror)
            return True

    def _index_blocks(self, file: IndexedFile, opened: BinaryIO, status: os.stat_result) -> bool:
        while data := _whole_lines(opened, file.read_to, status.st_size, everything=file.source.is_memory):
            texts = (
                entries_in(data, file.source.path.name, status.st_mtime)
                if file.source.is_memory
                else _messages_in(file, data)
            )
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
        self._db.execute("INSERT INTO folded (id, text) VALUES (?, ?)", (number, folded))
        self._db.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (number, folded))
        self._added += 1

    def _delete_rows(self, file: IndexedFile) -> None:
        self._db.execute(
            "INSERT INTO words (words, rowid, text)"
            " SELECT 'delete', f.id, f.text FROM folded AS f JOIN rows AS r ON r.id = f.id WHERE r.file = ?",
            (file.id,),
        )
        self._db.execute("DELETE FROM folded WHERE id IN (SELECT id FROM rows WHERE file = ?)", (file.id,))
        self._db.execute("DELETE FROM rows WHERE file = ?", (file.id,))

    # --- files

    def _load_files(self) -> list[IndexedFile]:
        return [
            IndexedFile(
                number, IndexSource(Path(os.fsdecode(path)), bool(is_memory), bool(archived), folder), key, stamp,
                read_to, tail, bool(outside), set(json.loads(senders)), set(json.loads(scopes)),
            )
            for number, path, is_memory, archived, folder, key, stamp, read_to, tail, outside, senders, scopes
            in self._db.execute("SELECT * FROM files")
        ]  # fmt: skip

    def _add_file(self, source: IndexSource) -> IndexedFile:
        key = "" if source.is_memory else escape_surrogates(key_of(source.path.stem))
        number = self._db.execute("INSERT INTO files VALUES (NULL, x'', 0, 0, '', '', '', 0, 0, 0, '', '')").lastrowid
        return IndexedFile(int(number or 0), source, key)

    def _save(self, file: IndexedFile) -> None:
        source = file.source
        self._db.execute(
            "REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                file.id, os.fsencode(source.path), source.is_memory, source.archived, source.folder, file.key,
                file.stamp, file.read_to, file.tail, file.outside, json.dumps(sorted(file.senders)),
                json.dumps(sorted(file.scopes)),
            ),
        )  # fmt: skip


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
                file.key = escape_surrogates(key) if isinstance(key, str) else file.key
                continue
            if row.get("role") == "user":
                file.outside = file.outside or is_outside(trust_in(row, file.key))
                file.scopes.add(str(row.get("scope", "")))
                if row.get("sender_id") and row.get("origin", Origin.USER) == Origin.USER:
                    file.senders.add(str(row["sender_id"]))
            if entry := message_in(row, file.key):
                yield entry


def _whole_lines(file: BinaryIO, start: int, size: int, *, everything: bool) -> bytes:
    """Read the next bytes up to a line end, and a complete last line without one. Empty if there are none."""
    file.seek(start)
    if everything:
        return file.read(size - start)
    data = b""
    while more := file.read(min(_BLOCK, size - start - len(data))):
        data += more
        if cut := data.rfind(b"\n") + 1:
            return data[:cut]
    return data if decode(data)[1] else b""


def _tail_of(file: BinaryIO, end: int) -> int:
    """Return a checksum of the bytes before an offset."""
    file.seek(max(0, end - _TAIL))
    return zlib.crc32(file.read(min(_TAIL, end)))


def _excerpt(text: str, queries: list[Query]) -> str:
    """Cut a long text to the part around the match."""
    if len(text) <= _SHOWN:
        return text
    start, end = find_match(text, queries)
    begin = max(0, min(start - _BEFORE, len(text) - _SHOWN))
    if begin and (blank := text.find(" ", begin, start)) >= 0:
        begin = blank + 1
    stop = max(end, begin + _SHOWN)
    return f"{'…' if begin else ''}{text[begin:stop]}{'…' if stop < len(text) else ''}"
