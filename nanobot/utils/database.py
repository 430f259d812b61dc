"""A SQLite database owned by a thread: WAL mode, every commit synced, many writes in one commit.

Writes of one event loop iteration share a commit, and so one fsync and one thread switch, which cost more than the
writes. Nothing blocks the event loop.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nanobot.errors import StorageError
from nanobot.utils.files import make_private_folder
from nanobot.utils.storage_error import os_reason

if TYPE_CHECKING:
    from sqlite3 import Connection

log = logging.getLogger(__name__)
T = TypeVar("T")

_MAX_BATCH = 512
SOON_S = 0.02
"""How long `soon` may delay a write to share a commit."""


@asynccontextmanager
async def open_database(path: Path, schema: str) -> AsyncIterator["Database"]:
    """Open the database in this file, created if missing; on exit all pending work is committed.

    Raises StorageError if it cannot be opened. A corrupt file is kept beside it, and a new one started.
    """
    database = Database(path, schema)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


@dataclass(slots=True)
class _Work(Generic[T]):
    """A function to run with the database, and the future for its result."""

    do: Callable[["Connection"], T]
    done: "asyncio.Future[T]"


class Database:
    """The thread that owns the file. Use it through `open_database`."""

    def __init__(self, path: Path, schema: str) -> None:
        self._path = path
        self._schema = schema
        self._pending: list[_Work[Any]] = []
        """Not handed to the thread yet."""
        self._handover: asyncio.Handle | None = None
        self._is_urgent = False
        self._batches: queue.SimpleQueue[list[_Work[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        """Start the thread and open the file."""
        self._loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(opened,), name=self._path.stem, daemon=True)
        self._thread.start()
        await opened

    async def close(self) -> None:
        """Commit all pending work and close the file."""
        thread, self._thread = self._thread, None  # later calls raise StorageError
        if thread is not None:
            self._hand_over()
            self._batches.put(None)
            await asyncio.to_thread(thread.join)

    async def ask(self, work: Callable[["Connection"], T]) -> T:
        """Run `work` and return its result once it is committed. Cancelling does not undo it."""
        done = self._put(work)
        if not self._is_urgent:
            self._set_handover(done.get_loop().call_soon(self._hand_over))
            self._is_urgent = True
        return await done

    def soon(self, work: Callable[["Connection"], T]) -> "asyncio.Future[T]":
        """Like `ask`, without urgency: it shares the next commit, at the latest after SOON_S.

        All work runs in the order of the calls to both methods.
        """
        done = self._put(work)
        if self._handover is None:
            self._set_handover(done.get_loop().call_later(SOON_S, self._hand_over))
        return done

    def _put(self, work: Callable[["Connection"], T]) -> "asyncio.Future[T]":
        if self._loop is None or self._thread is None:
            raise StorageError(f"{self._path.name} is closed.")
        done: asyncio.Future[T] = self._loop.create_future()
        self._pending.append(_Work(work, done))
        return done

    def _set_handover(self, handle: asyncio.Handle | None) -> None:
        if self._handover is not None:
            self._handover.cancel()
        self._handover = handle

    def _hand_over(self) -> None:
        """Hand all pending work to the thread."""
        self._set_handover(None)
        self._is_urgent = False
        pending, self._pending = self._pending, []
        if pending:
            self._batches.put(pending)

    def _run(self, opened: "asyncio.Future[None]") -> None:
        try:
            db = _connect(self._path, self._schema)
        except Exception as error:  # raised in `open`
            self._tell([_Outcome(opened, error=_storage_error(self._path, error))])
            return
        self._tell([_Outcome(opened)])
        try:
            while (batch := self._batches.get()) is not None:
                last = False
                with suppress(queue.Empty):
                    while len(batch) < _MAX_BATCH and not last:
                        more = self._batches.get_nowait()
                        last = more is None
                        batch += more or []
                db = self._recreate_if_deleted(db)
                self._tell(self._commit_batch(db, batch))
                if last:
                    break
            db = self._recreate_if_deleted(db)
        finally:
            db.close()

    def _recreate_if_deleted(self, db: "Connection") -> "Connection":
        """Return the connection; if the file was deleted, recreate it with all its data.

        Otherwise a deleted file would be written to until it is closed, and be gone at the next start.
        """
        if self._path.exists():
            return db
        try:
            again = _recreate(db, self._path, self._schema)
        except Exception as error:  # the next commit fails and reports it
            log.error("%s was deleted and cannot be recreated: %s", self._path.name, os_reason(error))  # noqa: TRY400
            return db
        log.error("%s was deleted while it was open; it was recreated with all its data", self._path)
        return again

    def _commit_batch(self, db: "Connection", batch: list[_Work[Any]]) -> "list[_Outcome]":
        """Run all in one commit; if that fails, each in its own, so that one failure does not affect the others."""
        try:
            results = self._run_in_transaction(db, batch)
        except Exception as error:  # raised in the waiting callers
            if len(batch) == 1:
                return [_Outcome(batch[0].done, error=_storage_error(self._path, error))]
            return [outcome for work in batch for outcome in self._commit_batch(db, [work])]
        return [_Outcome(work.done, result) for work, result in zip(batch, results, strict=True)]

    def _run_in_transaction(self, db: "Connection", batch: list[_Work[Any]]) -> list[Any]:
        db.execute("BEGIN IMMEDIATE")
        try:
            results = [work.do(db) for work in batch]
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        return results

    def _tell(self, outcomes: "list[_Outcome]") -> None:
        assert self._loop is not None  # noqa: S101 set by `open`
        with suppress(RuntimeError):  # the loop is closed: nothing waits any more
            self._loop.call_soon_threadsafe(_set_results, outcomes)


@dataclass(slots=True)
class _Outcome:
    """The result of a work for its waiting caller."""

    to: "asyncio.Future[Any]"
    result: object = None
    error: Exception | None = None


def _set_results(outcomes: list[_Outcome]) -> None:
    for outcome in outcomes:
        if outcome.to.cancelled():
            continue
        if outcome.error is not None:
            outcome.to.set_exception(outcome.error)
            outcome.to.exception()  # mark as retrieved: the caller may be gone
        else:
            outcome.to.set_result(outcome.result)


def _connect(path: Path, schema: str) -> "Connection":
    import sqlite3  # imported on first use

    make_private_folder(path.parent)
    path.touch(0o600, exist_ok=True)
    try:
        return _open_file(path, schema)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise  # locked, disk full, not permitted: the file itself is fine
        corrupt_copy = path.with_name(f"{path.name}.{int(time.time())}.corrupt")
        log.error(  # noqa: TRY400 the owner needs no traceback
            "%s cannot be read (%s). It is kept as %s, and a new one is started.", path.name, error, corrupt_copy.name
        )
        path.replace(corrupt_copy)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        path.touch(0o600)
        return _open_file(path, schema)


def _open_file(path: Path, schema: str) -> "Connection":
    import sqlite3

    db = sqlite3.connect(path, isolation_level=None, timeout=5)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.executescript(schema)
        db.execute("PRAGMA quick_check(1)").fetchall()
    except BaseException:
        db.close()
        raise
    return db


def _recreate(db: "Connection", path: Path, schema: str) -> "Connection":
    """Copy the database to its path and open the copy. Closes `db` first, since closing deletes the WAL file there."""
    import sqlite3

    make_private_folder(path.parent)
    copy = path.with_name(f"{path.name}.copy")
    copy.unlink(missing_ok=True)
    copy.touch(0o600)
    with closing(sqlite3.connect(copy)) as target:
        db.backup(target)
    db.close()
    copy.replace(path)
    return _open_file(path, schema)


def _storage_error(path: Path, error: Exception) -> StorageError:
    if isinstance(error, StorageError):
        return error
    storage_error = StorageError(
        f"{path.name} cannot be written: {os_reason(error)}. Check disk space and permissions."
    )
    storage_error.__cause__ = error
    return storage_error
