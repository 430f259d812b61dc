"""The index, open: what can be found in it, and how it is brought up to date."""

import errno
import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import BinaryIO

from nanobot.messages.types import Origin, is_outside
from nanobot.security.vault import masked
from nanobot.session.lines import is_record
from nanobot.session.search.rows import Piece, entries_in, findable, messages_in, seconds_of, trust_in
from nanobot.session.search.sources import (
    KINDS,
    IndexedFile,
    Kind,
    Place,
    Source,
    age_in,
    inode_in,
    is_same,
    marks_of,
    only_grows,
    stamp_of,
    whole_lines,
)
from nanobot.session.search.tables import make_tables
from nanobot.session.search.words import words_of
from nanobot.session.stems import key_of

log = logging.getLogger(__name__)

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
_BREATH_S = 0.0005
"""Between two blocks, for those who wait for the interpreter."""


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
                Source(row[1], KINDS[row[2]], bool(row[3]), row[4]),
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
            make_tables(self._db)
            self._files = None
        known = {file.source.place: file for file in self.files()}
        here = {source.place for source in sources}
        lost = [file for place, file in known.items() if place not in here]
        changed = [
            (source, stamp)
            for source in sources
            if (stamp := stamp_of(source)) and not is_same(known.get(source.place), source, stamp)
        ]
        if not changed and not lost:
            return True
        self._files = None
        free = {
            file.id: file for file in [*lost, *(known[source.place] for source, _ in changed if source.place in known)]
        }
        began = self._last_row()
        work: list[tuple[Source, str, IndexedFile | None]] = []
        for source, stamp in sorted(changed, key=lambda one: age_in(one[1])):
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
        same = [file for file in free.values() if inode_in(file.stamp) == inode_in(stamp)]
        if there is not None and there.id in free:
            same.append(there)
        return next(
            (file for file in same if file.source.kind is source.kind and self._continues(source, stamp, file)), None
        )

    def _continues(self, source: Source, stamp: str, before: IndexedFile) -> bool:
        """Whether what we read of it then is in it still."""
        if source.kind is Kind.MEMORY and not only_grows(source):
            return False
        with suppress(OSError), self._open(source, stamp) as file:
            return (before.head, before.tail) == marks_of(file, before.read_to)
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
                    data = whole_lines(file, state.read_to, size, everything=source.kind is Kind.MEMORY)
                    if not data:
                        break
                    state = self._take_in(state, data, file)
                    if self.is_late():
                        return False
                    time.sleep(_BREATH_S)
                head, tail = marks_of(file, state.read_to)
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
        head, tail = marks_of(file, state.read_to)
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
        if is_memory and str(os.fstat(file.fileno()).st_ino) != inode_in(stamp):
            file.close()
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source.place)
        return file


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
