"""SessionManager: sessions as append-only JSON Lines files. A turn costs its own bytes, however long the session."""

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from glob import escape
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from secrets import token_hex
from sys import maxsize
from typing import Any, cast
from weakref import WeakValueDictionary

from nanobot.errors import StorageError
from nanobot.messages.types import ChatMessage
from nanobot.session.file import (
    Append,
    Cursor,
    FileFingerprint,
    GroupCommit,
    StoredFile,
    append_all,
    find_cursor,
    list_entry,
    open_session,
    owner_of,
    read_from,
    session_key,
)
from nanobot.session.file_format import Row, encode, is_temporary, parse_time, stem_of
from nanobot.session.folder import SessionFolder, open_packed
from nanobot.session.types import AUDIENCE, Audience, Session, record_of
from nanobot.utils.aio import finish
from nanobot.utils.open_no_follow import open_own, replace_own, unlink_own
from nanobot.utils.storage_error import storage_error, storage_errors

_RECORD_EVERY = 1 << 18
"""Bytes after which the metadata record is written again, so that it is found near the end of the file."""
_SHORT_BYTES = 32_768
"""A file up to this size is read in less time than another thread takes to begin."""
_CACHED = 64
"""Sessions kept in memory while nobody holds them."""
_CACHED_ROWS = 6_000
"""Rows that the kept sessions may have together."""
_MAX_LOADED_ROWS = 1_200
"""Loaded rows at which a session is read from its end again; a model is shown 500 at most."""
_HEAD = 1 << 16
"""Bytes at the start of an archived session that are searched for group messages."""
_YIELD_S = 0.25
"""Longer than the polling interval of a process that waits for a session."""
_IN_DOUBT = b"?"
"""For `StoredFile.written` after a failed write: write the metadata record again, without a count."""

_CONVERTED = (
    "{file} was saved in UTF-16. It was converted to UTF-8 with all its content; the original is kept in {copy}."
)

log = logging.getLogger(__name__)

__all__ = ["Session", "SessionManager"]


class SessionManager:
    """The sessions of a workspace. Damaged content never makes reading fail; disk errors are StorageErrors."""

    def __init__(self, workspace: Path | str, *, old_folder: Path | None = None) -> None:
        self._files = SessionFolder(workspace, old_folder)
        self.folder = self._files.path
        self._live: WeakValueDictionary[str, Session] = WeakValueDictionary()
        self._recent: dict[str, Session] = {}
        self._recent_lock = threading.Lock()  # sessions are loaded in several threads
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._commits = GroupCommit(self._files.write_lock)

    # --- a session in memory

    def get_or_create(self, key: str) -> Session:
        """Return the session as it is on the disk now, plus its unsaved messages."""
        session = self._live.get(key)
        if session is None:
            session = Session(key)
            session.stored = StoredFile(self._files.file_of(key))
            self._load(session)
            self._live[key] = session
        elif self._is_outdated(session):
            self._load(session)
        self._remember(session)
        return session

    def invalidate(self, key: str) -> None:
        """Drop the session from memory; the next access reads the disk."""
        self._live.pop(key, None)
        with self._recent_lock:
            self._recent.pop(key, None)

    @asynccontextmanager
    async def hold(self, key: str, on_wait: Callable[[], None] | None = None) -> AsyncIterator[Session]:
        """Hold a session exclusively for a turn, across all processes. Callers in this process wait in order; calls
        `on_wait` once if another process holds it. Raises StorageError if it cannot be locked.
        """
        turn_lock = self._turns.get(key)
        if turn_lock is None:
            turn_lock = self._turns[key] = asyncio.Lock()
        async with turn_lock:
            process_lock = self._files.turn_lock(key)
            with storage_errors(f"Session {key} cannot be locked"):
                await process_lock.acquire(on_wait)
            try:
                session = self._live.get(key)
                if session is not None and not self._is_outdated(session):
                    self._remember(session)
                elif self._is_short(key):
                    session = self.get_or_create(key)
                else:
                    session = await asyncio.to_thread(self.get_or_create, key)
                yield session
            finally:
                process_lock.release()

    async def yield_to_waiters(self, key: str) -> None:
        """Let another process that waits for this session go first; for callers that hold it turn after turn."""
        if self._files.turn_lock(key).is_wanted:
            await asyncio.sleep(_YIELD_S)

    async def append(self, session: Session, *messages: ChatMessage) -> None:
        """Append messages and return once they are on the disk, with all unsaved ones before them and a changed
        metadata record. Raises StorageError; none of these messages is then part of the session. Cancelling is safe:
        the write is completed before the cancellation is raised.
        """
        new = session.add_rows(messages)
        stored = session.stored
        try:
            if stored is None or session.last_consolidated != stored.cursor.count or _needs_rewrite(session):
                await finish(asyncio.to_thread(self.save, session))
            elif (append := self._next_append(session)) is not None:
                with storage_errors(f"Session {session.key} could not be saved"):
                    await finish(self._submit(session, append))
        except StorageError:
            session.drop_rows(new)
            raise

    def save(self, session: Session) -> None:
        """Write what is not on the disk yet. If saved messages were replaced or removed, writes a new file and archives
        the old one, so nothing is ever destroyed. Raises StorageError; nothing is lost in memory.
        """
        with storage_errors(f"Session {session.key} could not be saved"):
            stored = session.stored
            if stored is None or session.is_cleared:
                stored = stored or StoredFile(self._files.file_of(session.key))
                self._files.move_to_archive(stored.path)
                session.stored, session.is_cleared = StoredFile(stored.path), False
                self._live[session.key] = session
            if _needs_rewrite(session):
                self._rewrite(session)
                return
            append = self._next_append(session)
            if append is None:
                return
            rows = session.unsaved
            append_all(self._files.write_lock, [append])
            if append.error is not None:
                _mark_in_doubt(_stored(session))
                raise append.error
            session.mark_saved(rows)
            _update_stored(_stored(session), append)

    def read_unconsolidated(self, session: Session, limit: int) -> list[ChatMessage]:
        """Return at most `limit` of the oldest messages past the cursor, reading and keeping no more than these.

        Raises StorageError.
        """
        stored = _stored(session)
        with storage_errors(f"The older messages of session {session.key} cannot be read"):
            _update_cursor(session)
            try:
                return cast("list[ChatMessage]", read_from(stored.path, stored.cursor.offset, limit))
            except FileNotFoundError:
                return []

    async def move_cursor(self, session: Session, count: int) -> None:
        """Advance the cursor by `count` messages, durably. Raises StorageError; the cursor is then unchanged.

        Cancelling is as safe as in `append`. The next `hold` loads the session from its new position.
        """
        before = session.last_consolidated
        session.last_consolidated += count
        try:
            await self.append(session)
        except StorageError:
            session.last_consolidated = before
            raise
        _stored(session).fingerprint = None

    def archive(self, key: str) -> Path | None:
        """Move the session's file to the archive and start over. Return its path, None if there was no file."""
        session = self.get_or_create(key)
        if session.unsaved:
            self.save(session)
        with storage_errors(f"Session {key} could not be archived"):
            path = self._files.move_to_archive(_stored(session).path)
        session.clear()
        session.metadata = {name: value for name, value in session.metadata.items() if name == AUDIENCE}
        session.created_at = datetime.now()
        session.stored, session.is_cleared = StoredFile(self._files.file_of(key)), False
        return path

    def reopen(self, session: Session, stem: str) -> Path | None:
        """Replace a session that the caller holds by an archived one of the same key. Return where the session's own
        messages were archived, None if it had none. Raises StorageError.
        """
        archived = self.archived_file(stem)
        if archived is None or owner_of(archived) != session.key:
            raise StorageError(f"{stem} is no archived conversation of {session.key}.")
        former = self.archive(session.key)
        with storage_errors(f"Session {stem} could not be reopened"):
            self._files.move_from_archive(archived, _stored(session).path)
        self._load(session)
        return former

    def branch(self, key: str, at: str | None = None, *, before: int | None = None, new_key: str | None = None) -> str:
        """Copy a conversation, up to the end of the turn `at`, or up to message number `before`. Return the copy's key.

        With `new_key` it is the key of the copy; a session that has it already is left as it is. Raises StorageError if
        there is no such turn, or the files cannot be read and written.
        """
        new_key = new_key or f"{key}-{token_hex(4)}"
        if self.find(new_key) is not None:
            return new_key
        source = self.read(key) or Session(key)
        rows = source.messages[:before]
        if at is not None:
            ends = [index for index, row in enumerate(rows, 1) if row.get("turn_id") == at]
            if not ends:
                raise StorageError(f"Session {key} has no turn {at}.")
            del rows[ends[-1] :]
        metadata = {name: value for name, value in source.metadata.items() if name not in ("title", "pinned")}
        cursor = min(source.last_consolidated, len(rows))
        self.save(Session(new_key, rows, metadata={**metadata, "branch_of": key}, last_consolidated=cursor))
        return new_key

    # --- sessions on the disk

    def list_sessions(self) -> list[dict[str, Any]]:
        """Return a row for each session, live and archived, newest first: name (as commands accept it), key,
        created_at, updated_at, path, archived, messages (their number). Unreadable files and temporary sessions are
        left out.
        """
        entries = (list_entry(path, archived) for path, archived in self._files.files())
        rows = [row for row in entries if row is not None and not is_temporary(str(row["key"]))]
        return sorted(rows, key=lambda row: str(row["updated_at"]), reverse=True)

    def latest(self, accepts: Callable[[str], bool]) -> str | None:
        """Return the key of the most recently used live session whose key `accepts` accepts."""
        keys = (str(row["key"]) for row in self.list_sessions() if not row["archived"])
        return next(filter(accepts, keys), None)

    def find(self, key_or_stem: str) -> Path | None:
        """Return the file of a live session by its key, or of any session by its file stem."""
        return self._files.find(key_or_stem)

    def archived_file(self, stem: str) -> Path | None:
        """Return the archived file of this stem, None if there is none. Raises StorageError."""
        return self._files.archived(stem)

    def pack_archive(self, before: datetime, keep: Collection[str]) -> int:
        """Move archived sessions whose last message is older than `before` into one archive for each month, except the
        stems to `keep`. Return how many. Blocks; raises StorageError.
        """
        months: dict[str, list[Path]] = {}
        for row in self.list_sessions():
            path, updated = Path(row["path"]), parse_time(row["updated_at"])
            if row["archived"] and path.stem not in keep and updated is not None and updated < before:
                months.setdefault(f"{updated:%Y-%m}", []).append(path)
        for month, paths in months.items():
            with storage_errors(f"Sessions of {month} could not be archived"):
                self._files.pack(month, paths)
        return sum(map(len, months.values()))

    def packed_files(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """Yield the stem and the content of the sessions in the archives of the months whose stems begin like this."""
        for path, members in groupby(self._files.packed(prefix), key=itemgetter(0)):
            with storage_errors(f"{path} cannot be read"), open_packed(path) as packed:
                for _, info in members:
                    yield info.filename.removesuffix(".jsonl"), packed.read(info)

    def audience(self, key: str) -> Audience:
        """Return who has written in a session or could read it, also before `/new`. Blocks: reads the whole session the
        first time. Raises StorageError.
        """
        session = self.get_or_create(key)
        if (audience := session.audience) is not None:
            return audience
        whole = self.read(key)

        def archived_heads() -> Iterator[bytes]:
            for path in (self.folder / "archive").glob(f"{escape(stem_of(key))}-*.jsonl"):
                with suppress(OSError), open(open_own(path, os.O_RDONLY), "rb") as file:
                    yield file.read(_HEAD)
            for _, data in self.packed_files(f"{stem_of(key)}-"):
                yield data[:_HEAD]

        audience = Audience(any(b'"in_group"' in head for head in archived_heads()))
        return session.set_audience(audience.with_rows(whole.messages if whole is not None else ()))

    def read(self, path_or_key: Path | str) -> Session | None:
        """Load a complete session for inspection, live or archived; None if there is none."""
        path = path_or_key if isinstance(path_or_key, Path) else self.find(path_or_key)
        if path is None:
            return None
        session = Session("")
        session.stored = StoredFile(path)
        self._load(session)
        session.key = session_key(_stored(session).record, path)
        _ = session.messages  # loads all of them
        session.stored = None
        return session

    def delete(self, key_or_stem: str) -> bool:
        """Delete a session's file. Return whether there was one."""
        path = self.find(key_or_stem)
        if path is None:
            return False
        with storage_errors(f"{path} could not be deleted"), self._files.write_locked():
            unlink_own(path)
            self._files.discard_packed(path.stem)  # after a crash it may be in both places
        for key, session in list(self._live.items()):
            if session.stored is not None and session.stored.path == path:
                self.invalidate(key)
        return True

    # --- disk to memory

    def _is_short(self, key: str) -> bool:
        """Whether the session's file is short, or does not exist."""
        try:
            return self._files.file_of(key).stat().st_size <= _SHORT_BYTES
        except FileNotFoundError:
            return True
        except OSError:
            return False

    def _load(self, session: Session) -> None:
        path = _stored(session).path
        try:
            stored, rows, skipped = open_session(path)
            if not stored.record and (copy := self._files.convert_utf16(path)) is not None:
                session.notices.append(_CONVERTED.format(file=path, copy=copy))
                log.warning("%s", session.notices[-1])
                stored, rows, skipped = open_session(path)
        except FileNotFoundError:
            with session.lock:
                session.stored = StoredFile(path)
                session.load([], 0)
            return
        except OSError as error:
            raise storage_error(f"{path} cannot be read", error) from error
        with session.lock:
            session.stored, session.last_consolidated = stored, stored.cursor.count
            _apply_record(session, stored.record, rows)
            stored.written = _changeable_part(session) if stored.record else b""
            session.load(cast("list[ChatMessage]", rows), skipped)

    def _is_outdated(self, session: Session) -> bool:
        stored = _stored(session)
        if session.is_cleared or stored.writing:
            return False
        if session.rows_in_memory > _MAX_LOADED_ROWS and not session.is_exposed and not session.unsaved:
            return True
        try:
            return FileFingerprint.of(stored.path.stat()) != stored.fingerprint
        except FileNotFoundError:
            return stored.fingerprint is not None
        except OSError:
            return False

    def _remember(self, session: Session) -> None:
        """Keep a session in memory, and release the least recently used ones."""
        with self._recent_lock:
            was_recent = self._recent.pop(session.key, None) is session
            self._recent[session.key] = session
            if was_recent:
                return
            recent = list(self._recent.values())
            rows = sum(other.rows_in_memory for other in recent)
            for old in recent[:-1]:
                if len(self._recent) <= _CACHED and rows <= _CACHED_ROWS:
                    break
                if not old.unsaved and not old.is_cleared:
                    del self._recent[old.key]
                    rows -= old.rows_in_memory

    # --- memory to disk

    def _next_append(self, session: Session) -> Append | None:
        """Build the append that brings the file up to date; None if it is. Raises StorageError."""
        stored = _stored(session)
        with storage_errors(f"Session {session.key} could not be saved"):
            if stored.is_new:
                stored.path = self._files.claim(stored.path, session.key)
            data = b"".join(map(encode, cast("list[Row]", session.unsaved)))
            written = _changeable_part(session)
            if not stored.is_new:
                end = stored.fingerprint.size if stored.fingerprint is not None else stored.record_at
                if written != stored.written or end + len(data) - stored.record_at > _RECORD_EVERY:
                    _update_cursor(session)
                    count = None if stored.fingerprint is None else session.message_count
                    stored.record_at = end + len(data)
                    data += _record_of(session, count, stored.cursor)
                if not data:
                    return None
            stored.written = written
            return Append(stored.path, data, _record_of(session, 0, Cursor()))

    def _submit(self, session: Session, append: Append) -> "asyncio.Future[None]":
        """Submit the unsaved rows. The future ends once they are on the disk, or with the error."""
        stored, rows = _stored(session), session.unsaved

        def written(done: "asyncio.Future[None]") -> None:
            stored.writing -= 1
            if done.cancelled():  # the loop is closing
                return
            if done.exception() is None:
                _update_stored(stored, append)
            else:  # memory must not contain what may not be on the disk
                session.drop_rows(rows)
                _mark_in_doubt(stored)

        session.mark_saved(rows)
        stored.writing += 1
        done = self._commits.submit(append)
        done.add_done_callback(written)
        return done

    def _rewrite(self, session: Session) -> None:
        """Replace the file, and archive the old one. Keeps what another process appended to it. Raises OSError."""
        path, seen = _stored(session).path, _stored(session).fingerprint
        with self._files.write_locked():
            self._files.sweep(path)
            if path.exists():
                self._files.copy_to_archive(path)
                if seen is not None and path.stat().st_ino == seen.inode:
                    session.add_rows(cast("list[ChatMessage]", read_from(path, seen.size, maxsize)))
            lines = [encode(cast(Row, row)) for row in session.messages]
            session.last_consolidated = consolidated = min(session.last_consolidated, len(lines))
            head = _record_of(session, 0, Cursor())
            cursor = Cursor(consolidated, len(head) + sum(map(len, lines[:consolidated])))
            body = head + b"".join(lines)
            replace_own(path, body + _record_of(session, len(lines), cursor))
            fingerprint = FileFingerprint.of(path.stat())
        session.stored = StoredFile(path, fingerprint, record_at=len(body), cursor=cursor)
        session.stored.written = _changeable_part(session)
        session.mark_rewritten()


def _needs_rewrite(session: Session) -> bool:
    """Whether appending does not do: messages were changed, or a new session begins with consolidated ones."""
    return session.is_cleared or session.was_changed() or (_stored(session).is_new and session.last_consolidated > 0)


def _update_stored(stored: StoredFile, append: Append) -> None:
    """Update what is known of the file after an append. After a foreign write it is read again next time."""
    before, after = stored.fingerprint, append.fingerprint
    if before is None or after is None:
        is_ours = append.created
    else:
        is_ours = before.inode == after.inode and append.start - before.size in {0, 1}
    stored.fingerprint = after if is_ours else None


def _mark_in_doubt(stored: StoredFile) -> None:
    stored.written, stored.fingerprint = _IN_DOUBT, None


def _update_cursor(session: Session) -> None:
    """Find where the messages past the cursor start in the file. Raises OSError."""
    stored = _stored(session)
    if session.last_consolidated != stored.cursor.count:
        try:
            stored.cursor = find_cursor(stored.path, stored.cursor, session.last_consolidated)
        except FileNotFoundError:
            stored.cursor = Cursor()


def _apply_record(session: Session, record: Row, rows: list[Row]) -> None:
    """Set the session's metadata and times from its record, ignoring invalid values."""
    metadata = record.get("metadata")
    session.metadata = metadata if isinstance(metadata, dict) else {}
    first, last = (parse_time(row.get("timestamp")) for row in (rows[0], rows[-1])) if rows else (None, None)
    session.created_at = parse_time(record.get("created_at")) or first or datetime.now()
    updated = parse_time(record.get("updated_at")) or session.created_at
    session.updated_at = max(updated, last or updated)


def _changeable_part(session: Session) -> bytes:
    """Encode the part of a record whose change requires writing it again."""
    return encode({"metadata": session.metadata, "last_consolidated": session.last_consolidated})


def _record_of(session: Session, messages: int | None, cursor: Cursor) -> bytes:
    """Encode a record. `messages` is the number of messages before it, None if unknown."""
    record = {**record_of(session), "last_consolidated": cursor.count, "offset": cursor.offset}
    return encode(record if messages is None else {**record, "messages": messages})


def _stored(session: Session) -> StoredFile:
    if session.stored is None:
        raise ValueError("a session without a file")
    return session.stored
