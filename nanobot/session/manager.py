"""SessionManager: sessions on the disk, one append-only JSON-lines file each.

A turn costs the bytes of the turn, however long the session. Reading order: types (a session in memory) -> manager ->
reader (files to sessions) -> writer (rows to the disk) -> records, lines (what a line may be) -> stems (file names).
"""

import asyncio
import contextlib
import os
import shutil
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import datetime
from glob import escape
from pathlib import Path
from typing import Any, cast
from weakref import WeakValueDictionary

from nanobot.errors import StorageError
from nanobot.messages.types import ChatMessage
from nanobot.session.lines import Row, encode
from nanobot.session.locks import ProcessLock, locked
from nanobot.session.reader import Anchor, Print, locate, open_end, read_all
from nanobot.session.records import apply_record, changeable, key_in, listing_of, owner_of, record_of
from nanobot.session.stems import other_stem_of, stem_of
from nanobot.session.types import Session, Stored, print_of
from nanobot.session.writer import WRITE_LOCK, Append, GroupCommit, append_all
from nanobot.utils.files import make_private_folder, sync_folder, write_atomic
from nanobot.utils.refusals import refusal

_RECORD_EVERY = 1 << 18
"""Bytes after which the metadata record is written again, so that the next opening finds it near the end."""
_CACHED = 64
"""Sessions kept in memory while nobody holds them."""
_POLL_S = (0.005, 0.1)

__all__ = ["Session", "SessionManager"]


class SessionManager:
    """The sessions of a workspace. Reading never fails for what is in a file; the disk's refusals are StorageErrors."""

    def __init__(self, workspace: Path | str, *, old_folder: Path | None = None) -> None:
        self.folder = Path(workspace).expanduser() / "sessions"
        self.archive_folder = self.folder / "archive"
        self._locks = self.folder / ".locks"
        self._old_folder = old_folder
        self._live: WeakValueDictionary[str, Session] = WeakValueDictionary()
        self._recent: OrderedDict[str, Session] = OrderedDict()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._claims: dict[str, str] = {}
        self._commits = GroupCommit(self._locks / WRITE_LOCK)
        self._writes: set[asyncio.Task[None]] = set()

    # --- a session in memory

    def get_or_create(self, key: str) -> Session:
        """The session, as the disk has it now, with what was added to it here and not saved yet."""
        session = self._live.get(key)
        if session is None:
            session = Session(key)
            session.stored = Stored(self._path(key))
            self._load(session)
            self._live[key] = session
        elif self._is_outdated(session):
            self._load(session)
        self._remember(session)
        return session

    def invalidate(self, key: str) -> None:
        """Forget what is in memory; the next asking reads the disk."""
        self._live.pop(key, None)
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
            lock = ProcessLock(self._locks / f"{self._path(key).stem}.lock")
            await self._acquire(key, lock, on_wait)
            try:
                live = self._live.get(key)
                if live is None or self._is_outdated(live):  # a long file is not read on the event loop
                    await asyncio.to_thread(self.get_or_create, key)
                yield self.get_or_create(key)
            finally:
                lock.release()

    async def append(self, session: Session, *messages: ChatMessage) -> None:
        """Put messages behind the others and return once they are on the disk, with all that waited before them and a
        changed metadata record. Raises StorageError, and then none of these is part of the session. Cancelling is
        safe: they are written wholly all the same.
        """
        new = session.add_rows(messages)
        moved = session.stored is None or session.last_consolidated != session.stored.anchor.count
        try:
            if moved or session.cleared or session.was_changed(deeply=False):
                await asyncio.to_thread(self.save, session)
                return
            append = self._next_append(session)
        except StorageError:
            session.lose(new)
            raise
        if append is None:
            return
        rows = session.waiting
        session.keep(rows)
        task = asyncio.create_task(self._commit(session, append, rows))
        self._writes.add(task)
        task.add_done_callback(self._wrote)
        await asyncio.shield(task)

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
        append_all(self._locks / WRITE_LOCK, [append])
        if append.error is not None:
            session.unkeep(rows)
            _distrust(_stored(session))
            raise refusal(f"Session {session.key} could not be saved", append.error) from append.error
        self._note(session, append)

    def archive(self, key: str) -> Path | None:
        """Move the session's file to the archive; it begins afresh. Where it went, None if there was nothing."""
        session = self.get_or_create(key)
        if session.waiting:
            self.save(session)
        try:
            path = self._to_archive(_stored(session).path)
        except OSError as error:
            raise refusal(f"Session {key} could not be archived", error) from error
        self.invalidate(key)
        session.clear()
        session.metadata = {}
        session.created_at = datetime.now()
        session.stored = Stored(self._path(key))
        session.rewritten()
        self._live[key] = session
        return path

    # --- sessions on the disk

    def list_sessions(self) -> list[dict[str, Any]]:
        """A row for each session, live and archived, newest first: key, created_at, updated_at, path, archived,
        messages (their number). What cannot be opened is left out.
        """
        rows = [row for path, archived in self._files() if (row := listing_of(path, archived)) is not None]
        return sorted(rows, key=lambda row: str(row["updated_at"]), reverse=True)

    def latest(self, prefix: str = "") -> str | None:
        """The key of the live session that was used last, of those whose key begins so."""
        keys = (str(row["key"]) for row in self.list_sessions() if not row["archived"])
        return next((key for key in keys if key.startswith(prefix)), None)

    def find(self, key_or_stem: str) -> Path | None:
        """The file of a live session by its key, or of any session by the stem of its file."""
        path = self._path(key_or_stem, claim=False)
        if path.is_file():
            return path
        return next((path for path, _ in self._files() if path.stem == key_or_stem), None)

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
            with locked(self._locks / WRITE_LOCK):
                path.unlink()
                path.with_name(path.name + ".corrupt").unlink(missing_ok=True)
        except OSError as error:
            raise refusal(f"{path} could not be deleted", error) from error
        for key, session in list(self._live.items()):
            if session.stored is not None and session.stored.path == path:
                self.invalidate(key)
        return True

    # --- which file

    def _path(self, key: str, *, claim: bool = True) -> Path:
        """The file of a key: its stem, unless that is another key's; what lies at the old place is moved here."""
        path = self.folder / f"{stem_of(key)}.jsonl"
        other = self.folder / f"{other_stem_of(key)}.jsonl"
        try:
            if self._is_taken(path, key) or (other.exists() and not path.exists()):
                path = other
            if claim:
                self._claims[path.stem.casefold()] = key
            if self._old_folder is not None and not path.exists():
                self._fetch_old(path, key)
        except OSError as error:
            raise refusal(f"Session {key} cannot be opened", error) from error
        return path

    def _is_taken(self, path: Path, key: str) -> bool:
        """Whether another key has this file, or, where there is none yet, was promised its name."""
        claimed = self._claims.get(path.stem.casefold())
        if claimed == key:
            return False
        owner = owner_of(path) if path.exists() else claimed
        return owner not in {None, key}

    def _claim(self, session: Session) -> None:
        """A session that has no file yet may find that another process gave its name away meanwhile."""
        if session.stored is None:  # made by hand: what is there under its key makes room for it
            session.stored = Stored(self._path(session.key))
            self._to_archive(session.stored.path)
            self._live[session.key] = session
        stored = session.stored
        if stored.print is None and not stored.record and (owner := owner_of(stored.path)) not in {None, session.key}:
            self._claims[stored.path.stem.casefold()] = str(owner)
            session.stored = Stored(self._path(session.key))

    def _fetch_old(self, path: Path, key: str) -> None:
        old = cast(Path, self._old_folder) / path.name
        if old.is_file() and owner_of(old) in {None, key}:
            try:
                make_private_folder(path.parent)
                shutil.move(old, path)
            except OSError as error:
                raise refusal(f"{old} could not be moved to {path}", error) from error

    def _files(self) -> Iterable[tuple[Path, bool]]:
        places = [(self.folder, False), (self.archive_folder, True)]
        if self._old_folder is not None and self._old_folder != self.folder:
            places.append((self._old_folder, False))
        seen = set()
        for folder, archived in places:
            try:
                there = [path for path in sorted(folder.glob("*.jsonl")) if path.is_file()] if folder.is_dir() else []
            except OSError as error:
                raise refusal(f"{folder} cannot be read", error) from error
            for path in there:
                if (path.name, archived) not in seen:
                    seen.add((path.name, archived))
                    yield path, archived

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

    def _remember(self, session: Session) -> None:
        self._recent[session.key] = session
        self._recent.move_to_end(session.key)
        if len(self._recent) > _CACHED:
            clean = (key for key, old in self._recent.items() if not old.waiting and not old.cleared)
            self._recent.pop(next(clean, ""), None)

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

    async def _commit(self, session: Session, append: Append, rows: list[ChatMessage]) -> None:
        stored = _stored(session)
        stored.writing += 1
        try:
            await self._commits.write(append)
        except Exception as error:  # whatever it was, memory must not claim what the disk may not have
            session.lose(rows)
            _distrust(stored)
            if isinstance(error, OSError):
                raise refusal(f"Session {session.key} could not be saved", error) from error
            raise
        finally:
            stored.writing -= 1
        self._note(session, append)

    def _wrote(self, task: asyncio.Task[None]) -> None:
        """Let go of a write. Who was cancelled while waiting for it does not hear of its failure."""
        self._writes.discard(task)
        if not task.cancelled():
            task.exception()

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
        self._to_archive(path)
        session.stored = Stored(path)
        session.began_afresh()

    def _rewrite(self, session: Session) -> None:
        """A new file in place of the old one, which goes to the archive. Messages of another writer are kept."""
        stored = _stored(session)
        with locked(self._locks / WRITE_LOCK):
            for stray in self.folder.glob(f".{escape(stored.path.name[:80])}.*.tmp"):
                stray.unlink()  # of a process killed while it held this lock
            if stored.path.exists():
                known = Counter(session.known_prints())
                theirs = [
                    row for row in read_all(stored.path).rows if not _take(known, print_of(cast(ChatMessage, row)))
                ]
                self._copy_to_archive(stored.path)
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

    def _to_archive(self, path: Path) -> Path | None:
        if not path.exists():
            return None
        with locked(self._locks / WRITE_LOCK):
            target = self._archive_path(path)
            os.replace(path, target)
            sync_folder(target.parent)
            sync_folder(path.parent)
        return target

    def _copy_to_archive(self, path: Path) -> None:
        target = self._archive_path(path)
        try:
            os.link(path, target)
        except OSError:  # no links on this file system
            shutil.copy2(path, target)

    def _archive_path(self, path: Path) -> Path:
        make_private_folder(self.archive_folder)
        stem = f"{path.stem}-{datetime.now():%Y%m%d-%H%M%S}"
        names = (f"{stem}.jsonl", *(f"{stem}-{number}.jsonl" for number in range(2, 10_000)))
        return next(place for name in names if not (place := self.archive_folder / name).exists())

    async def _acquire(self, key: str, lock: ProcessLock, on_wait: Callable[[], None] | None) -> None:
        pause, longest = _POLL_S
        try:
            if lock.try_acquire():
                return
            if on_wait is not None:
                on_wait()
            while not lock.try_acquire():
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, longest)
        except OSError as error:
            raise refusal(f"Session {key} cannot be locked", error) from error


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
