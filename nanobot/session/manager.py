"""SessionManager: sessions on the disk, one append-only JSON-lines file each.

A turn costs the bytes of the turn, however long the session. Reading order: types (a session in memory) -> manager ->
folder, stems (which file) -> reader (files to sessions) -> writer (rows to the disk) -> records, lines (what a line
may be).
"""

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from glob import escape
from pathlib import Path
from typing import Any, cast
from weakref import WeakValueDictionary

from nanobot.errors import StorageError
from nanobot.messages.types import ChatMessage
from nanobot.session.folder import SessionFolder
from nanobot.session.lines import Row, encode
from nanobot.session.reader import Anchor, Print, locate, open_end, read_all, read_from
from nanobot.session.records import apply_record, changeable, key_in, listing_of, record_of
from nanobot.session.stems import stem_of
from nanobot.session.types import Session, Stored, print_of
from nanobot.session.writer import Append, GroupCommit, append_all
from nanobot.utils.aio import finish
from nanobot.utils.files import write_atomic
from nanobot.utils.locks import ProcessLock, locked
from nanobot.utils.refusals import refusal

_RECORD_EVERY = 1 << 18
"""Bytes after which the metadata record is written again, so that the next opening finds it near the end."""
_CACHED = 64
"""Sessions kept in memory while nobody holds them."""
_CACHED_ROWS = 6_000
"""Rows that they may have together."""
_HEAD = 1 << 16
"""Bytes of an archived session that tell what kind of chat it was."""
_GIVES_WAY_S = 0.25
"""Longer than who waits for a session in another process lets pass between two looks."""
_READ_AT_ONCE = 1 << 15
"""Bytes of a file that is read where we stand: to change to another thread and back costs more."""

__all__ = ["Session", "SessionManager"]


class SessionManager:
    """The sessions of a workspace. Reading never fails for what is in a file; the disk's refusals are StorageErrors."""

    def __init__(self, workspace: Path | str, *, old_folder: Path | None = None) -> None:
        self._files = SessionFolder(workspace, old_folder)
        self.folder = self._files.path
        self._live: WeakValueDictionary[str, Session] = WeakValueDictionary()
        self._recent: dict[str, Session] = {}
        self._remembering = threading.Lock()  # sessions are read in threads, several at a time
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._commits = GroupCommit(self._files.write_lock)

    # --- a session in memory

    def get_or_create(self, key: str) -> Session:
        """The session, as the disk has it now, with what was added to it here and not saved yet."""
        session = self._live.get(key)
        if session is None:
            session = Session(key)
            session.stored = Stored(self._files.file_of(key))
            self._load(session)
            self._live[key] = session
        elif self._is_outdated(session):
            self._load(session)
        self._remember(session)
        return session

    def invalidate(self, key: str) -> None:
        """Forget what is in memory; the next asking reads the disk."""
        self._live.pop(key, None)
        with self._remembering:
            self._recent.pop(key, None)

    @contextlib.asynccontextmanager
    async def hold(self, key: str, on_wait: Callable[[], None] | None = None) -> AsyncIterator[Session]:
        """Hold a session for a turn: nobody else, in any process, holds it until the end. Waits in order within the
        process; calls `on_wait` once if another process is at work. Raises StorageError where no lock can be taken.
        """
        turn = self._turns.get(key)
        if turn is None:
            turn = self._turns[key] = asyncio.Lock()
        async with turn:
            lock = ProcessLock(self._files.turn_lock_of(key))
            try:
                await lock.acquire(on_wait)
            except OSError as error:
                raise refusal(f"Session {key} cannot be locked", error) from error
            try:
                session = self._live.get(key)
                if session is not None and not self._is_outdated(session):
                    self._remember(session)
                elif self._is_long(key):
                    session = await asyncio.to_thread(self.get_or_create, key)
                else:
                    session = self.get_or_create(key)
                yield session
            finally:
                lock.release()

    async def give_way(self, key: str) -> None:
        """Let another process that waits for this session have it first, for who holds it turn after turn."""
        if ProcessLock(self._files.turn_lock_of(key)).is_wanted:
            await asyncio.sleep(_GIVES_WAY_S)

    async def append(self, session: Session, *messages: ChatMessage) -> None:
        """Put messages behind the others and return once they are on the disk, with all that waited before them and a
        changed metadata record. Raises StorageError, and then none of these is part of the session. Cancelling is
        safe: they are written wholly all the same, and then the cancel is raised.
        """
        new = session.add_rows(messages)
        moved = session.stored is None or session.last_consolidated != session.stored.anchor.count
        try:
            if moved or session.cleared or session.was_changed(deeply=False):
                await finish(asyncio.to_thread(self.save, session))
                return
            append = self._next_append(session)
        except StorageError:
            session.lose(new)
            raise
        if append is None:
            return
        try:
            await finish(self._hand_in(session, append))
        except OSError as error:
            raise refusal(f"Session {session.key} could not be saved", error) from error

    def save(self, session: Session) -> None:
        """Put on the disk what is not there yet. Messages that were changed or taken away make a new file, and the old
        one goes to the archive: nothing is ever destroyed by it. Raises StorageError; nothing is lost in memory.
        """
        try:
            self._claim(session)
            if session.cleared:
                self._start_afresh(session)
            is_new = session.stored is not None and session.stored.print is None and not session.stored.record
            if session.was_changed(deeply=True) or (is_new and session.last_consolidated):
                self._rewrite(session)
                return
        except OSError as error:
            raise refusal(f"Session {session.key} could not be saved", error) from error
        append = self._next_append(session)
        if append is None:
            return
        rows = session.waiting
        session.keep(rows)
        append_all(self._files.write_lock, [append])
        if append.error is not None:
            session.unkeep(rows)
            _distrust(_stored(session))
            raise refusal(f"Session {session.key} could not be saved", append.error) from append.error
        self._note(session, append)

    def unconsolidated(self, session: Session, most: int) -> list[ChatMessage]:
        """The oldest messages on the disk that did not go into memory yet, at most so many. Of a long session no more
        is read than that, and nothing of it is kept. Raises StorageError.
        """
        try:
            path = _stored(session).path
            return cast("list[ChatMessage]", read_from(path, self._anchor(session).offset, most))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise refusal(f"The older messages of session {session.key} cannot be read", error) from error

    async def move_cursor(self, session: Session, count: int) -> None:
        """So many more messages are in memory: on the disk when this returns. Raises StorageError; then none are.

        Cancelling is as safe as in `append`. The next `hold` reads the session from its new place on.
        """
        before = session.last_consolidated
        session.last_consolidated += count
        try:
            await self.append(session)
        except StorageError:
            session.last_consolidated = before
            raise
        _stored(session).print = None

    def archive(self, key: str) -> Path | None:
        """Move the session's file to the archive; it begins afresh. Where it went, None if there was nothing."""
        session = self.get_or_create(key)
        if session.waiting:
            self.save(session)
        try:
            path = self._files.to_archive(_stored(session).path)
        except OSError as error:
            raise refusal(f"Session {key} could not be archived", error) from error
        self.invalidate(key)
        session.clear()
        session.metadata = {}
        session.created_at = datetime.now()
        session.stored = Stored(self._files.file_of(key))
        session.rewritten()
        self._live[key] = session
        return path

    # --- sessions on the disk

    def list_sessions(self) -> list[dict[str, Any]]:
        """A row for each session, live and archived, newest first: key, created_at, updated_at, path, archived,
        messages (their number). What cannot be opened is left out.
        """
        rows = [row for path, archived in self._files.files() if (row := listing_of(path, archived)) is not None]
        return sorted(rows, key=lambda row: str(row["updated_at"]), reverse=True)

    def latest(self, counts: Callable[[str], bool]) -> str | None:
        """The key of the live session that was used last, of those whose key counts."""
        keys = (str(row["key"]) for row in self.list_sessions() if not row["archived"])
        return next(filter(counts, keys), None)

    def find(self, key_or_stem: str) -> Path | None:
        """The file of a live session by its key, or of any session by the stem of its file."""
        return self._files.find(key_or_stem)

    def archived_file(self, stem: str) -> Path | None:
        """The file of this stem in the archive, if it is there."""
        path = self.folder / "archive" / f"{stem}.jsonl"
        return path if path.is_file() else None

    def archived_heads(self, key: str) -> Iterator[bytes]:
        """How the archived sessions of this key begin. Blocks."""
        for path in (self.folder / "archive").glob(f"{escape(stem_of(key))}-*.jsonl"):
            with contextlib.suppress(OSError), path.open("rb") as file:
                yield file.read(_HEAD)

    def read(self, path_or_key: Path | str) -> Session | None:
        """A whole session to look at, live or archived, all its messages read; None if there is none."""
        path = path_or_key if isinstance(path_or_key, Path) else self.find(path_or_key)
        if path is None:
            return None
        try:
            found = read_all(path)
        except OSError as error:
            raise refusal(f"{path} cannot be read", error) from error
        record = found.record or {}
        session = Session(key_in(record, path), cast("list[ChatMessage]", found.rows))
        apply_record(session, record, found.rows)
        cursor = record.get("count", record.get("last_consolidated"))
        session.last_consolidated = min(cursor, len(found.rows)) if isinstance(cursor, int) and cursor > 0 else 0
        return session

    def delete(self, key_or_stem: str) -> bool:
        """Delete a session's file, and what could not be read of it. Whether there was one."""
        path = self.find(key_or_stem)
        if path is None:
            return False
        try:
            with locked(self._files.write_lock):
                path.unlink()
                path.with_name(path.name + ".corrupt").unlink(missing_ok=True)
        except OSError as error:
            raise refusal(f"{path} could not be deleted", error) from error
        for key, session in list(self._live.items()):
            if session.stored is not None and session.stored.path == path:
                self.invalidate(key)
        return True

    def _claim(self, session: Session) -> None:
        """A session that has no file yet may find that another process gave its name away meanwhile."""
        if session.stored is None:  # made by hand: what is there under its key makes room for it
            session.stored = Stored(self._files.file_of(session.key))
            self._files.to_archive(session.stored.path)
            self._live[session.key] = session
        stored = session.stored
        is_new = stored.print is None and not stored.record
        if is_new and self._files.lost_to_another(stored.path, session.key):
            session.stored = Stored(self._files.file_of(session.key))

    # --- disk to memory

    def _load(self, session: Session) -> None:
        stored = _stored(session)
        try:
            opened = open_end(stored.path)
        except FileNotFoundError:
            session.stored = Stored(stored.path)
            session.load([], 0)
            return
        except OSError as error:
            raise refusal(f"{stored.path} cannot be read", error) from error
        session.last_consolidated = opened.anchor.count
        apply_record(session, opened.record, opened.rows)
        session.stored = Stored(
            stored.path, opened.print, b"", opened.record_at, opened.anchor, opened.lines, opened.tail_at
        )
        if opened.record:
            session.stored.record = changeable(session)
        session.load(cast("list[ChatMessage]", opened.rows), opened.skipped)

    def _is_outdated(self, session: Session) -> bool:
        stored = _stored(session)
        if session.cleared or stored.writing:
            return False
        try:
            return Print.of(stored.path.stat()) != stored.print
        except FileNotFoundError:
            return stored.print is not None
        except OSError:
            return False

    def _is_long(self, key: str) -> bool:
        """Whether it takes a while to read this session."""
        try:
            return self._files.file_of(key).stat().st_size > _READ_AT_ONCE
        except OSError:
            return False

    def _remember(self, session: Session) -> None:
        """Keep it in memory, and let go of those that were not asked for of late."""
        with self._remembering:
            known = self._recent.pop(session.key, None) is session
            self._recent[session.key] = session
            if known:
                return
            recent = list(self._recent.values())
            rows = sum(one.rows_in_memory for one in recent)
            for old in recent[:-1]:
                if len(self._recent) <= _CACHED and rows <= _CACHED_ROWS:
                    break
                if not old.waiting and not old.cleared:
                    del self._recent[old.key]
                    rows -= old.rows_in_memory

    # --- memory to disk

    def _next_append(self, session: Session) -> Append | None:
        """The lines that bring the file up to the session; None where it is."""
        try:
            self._claim(session)
            stored = _stored(session)
            wanted = changeable(session)
            rows = session.waiting
            data = b"".join(encode(cast(Row, row)) for row in rows)
            is_new = not stored.record and stored.lines == 0
            stored.lines = None if stored.lines is None else stored.lines + len(rows)
            if is_new:
                stored.record = wanted
                return Append(stored.path, data, record_of(session, 0, Anchor()))
            end = stored.print.size if stored.print is not None else stored.record_at
            if wanted != stored.record or end + len(data) - stored.record_at > _RECORD_EVERY:
                anchor = self._anchor(session)
                data += record_of(session, stored.lines, anchor)
                stored.record, stored.record_at, stored.anchor = wanted, end + len(data), anchor
            return Append(stored.path, data, record_of(session, 0, Anchor())) if data else None
        except OSError as error:
            raise refusal(f"Session {session.key} could not be saved", error) from error

    def _anchor(self, session: Session) -> Anchor:
        """Where in the file the messages past the consolidated ones begin."""
        stored = _stored(session)
        known = stored.anchor
        if session.last_consolidated == known.count:
            return known
        try:
            return locate(stored.path, known, session.last_consolidated)
        except FileNotFoundError:
            return Anchor()

    def _hand_in(self, session: Session, append: Append) -> "asyncio.Future[None]":
        """Done when the rows that wait are on the disk, or with why they are no part of the session."""
        stored, rows = _stored(session), session.waiting

        def written(done: "asyncio.Future[None]") -> None:
            stored.writing -= 1
            if done.cancelled():  # the loop closes: nobody is told anything
                return
            if done.exception() is None:
                self._note(session, append)
            else:  # whatever it was, memory must not claim what the disk may not have
                session.lose(rows)
                _distrust(stored)

        session.keep(rows)
        stored.writing += 1
        done = self._commits.hand_in(append)
        done.add_done_callback(written)
        return done

    def _note(self, session: Session, append: Append) -> None:
        """Remember the file as it is after an append. If somebody else wrote before it, it is read again next time."""
        stored = _stored(session)
        before, after = stored.print, append.print
        if before is None or after is None:
            ours = append.created
        else:
            ours = before.inode == after.inode and append.start - before.size in {0, 1}
        stored.print = append.print if ours else None
        stored.lines = stored.lines if ours else None
        session.forget_old_rows()

    def _start_afresh(self, session: Session) -> None:
        path = _stored(session).path
        self._files.to_archive(path)
        session.stored = Stored(path)
        session.began_afresh()

    def _rewrite(self, session: Session) -> None:
        """A new file in place of the old one, which goes to the archive. Messages of another writer are kept."""
        stored = _stored(session)
        with locked(self._files.write_lock):
            self._files.sweep(stored.path)
            if stored.path.exists():
                known = Counter(session.known_prints())
                theirs = [
                    row for row in read_all(stored.path).rows if not _take(known, print_of(cast(ChatMessage, row)))
                ]
                self._files.copy_to_archive(stored.path)
                session.add_rows(cast("list[ChatMessage]", theirs))
            lines = [encode(cast(Row, row)) for row in session.messages]
            session.last_consolidated = consolidated = min(session.last_consolidated, len(lines))
            head = record_of(session, 0, Anchor())
            anchor = Anchor(consolidated, consolidated, len(head) + sum(map(len, lines[:consolidated])))
            body = head + b"".join(lines)
            write_atomic(stored.path, body + record_of(session, len(lines), anchor))
            opened_print = Print.of(stored.path.stat())
        session.stored = Stored(stored.path, opened_print, changeable(session), len(body), anchor, len(lines))
        session.rewritten()


def _distrust(stored: Stored) -> None:
    """After a failure we do not know what the file holds: the metadata record is written again, without a count."""
    stored.record, stored.lines = b"?", None


def _stored(session: Session) -> Stored:
    if session.stored is None:
        raise ValueError("a session without a file")
    return session.stored


def _take(counted: Counter[int], number: int) -> bool:
    """Take one of these away, if there is one."""
    counted[number] -= 1
    return counted[number] >= 0
