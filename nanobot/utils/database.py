"""A SQLite database that a thread of its own keeps: WAL, every commit synced, and many writes in one commit.

What many tasks write in one pass of the event loop shares one commit, and so one fsync and one change of threads, which
cost more than the writing. Nothing blocks the event loop; idle, the thread costs nothing.
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

if TYPE_CHECKING:
    from sqlite3 import Connection

log = logging.getLogger(__name__)
T = TypeVar("T")

_MOST_A_COMMIT = 512
SOON_S = 0.02
"""How long what nobody waits for may wait for company."""


@asynccontextmanager
async def open_database(path: Path, schema: str) -> AsyncIterator["Database"]:
    """The database in this file, made where there is none; at the end all that was handed to it is on the disk.

    Raises StorageError where it cannot be opened. A file that is no database is kept beside it, and a new one begun.
    """
    database = Database(path, schema)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


@dataclass(slots=True)
class _Work(Generic[T]):
    """Something to do with the database, and who waits for it."""

    do: Callable[["Connection"], T]
    done: "asyncio.Future[T]"


class Database:
    """The thread that owns the file. To be used inside `open_database`."""

    def __init__(self, path: Path, schema: str) -> None:
        self._path = path
        self._schema = schema
        self._asked: list[_Work[Any]] = []
        """What the thread was not handed yet."""
        self._hand_over_at: asyncio.Handle | None = None
        self._hurries = False
        self._work: queue.SimpleQueue[list[_Work[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        """Begin the thread and open the file."""
        self._loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(opened,), name=self._path.stem, daemon=True)
        self._thread.start()
        await opened

    async def close(self) -> None:
        """Let go of the file when all is written."""
        thread, self._thread = self._thread, None  # what is asked from here on is told that it is closed
        if thread is not None:
            self._hand_over()
            self._work.put(None)
            await asyncio.to_thread(thread.join)

    async def ask(self, work: Callable[["Connection"], T]) -> T:
        """What it returns, once it is on the disk. Cancelling does not take it back."""
        done = self._put(work)
        if not self._hurries:
            self._hand_over_with(done.get_loop().call_soon(self._hand_over))
            self._hurries = True
        return await done

    def soon(self, work: Callable[["Connection"], T]) -> "asyncio.Future[T]":
        """The same for what nobody has to wait for: it shares the next commit, which comes soon.

        All is done in the order it was asked for, whichever way.
        """
        done = self._put(work)
        if self._hand_over_at is None:
            self._hand_over_with(done.get_loop().call_later(SOON_S, self._hand_over))
        return done

    def _put(self, work: Callable[["Connection"], T]) -> "asyncio.Future[T]":
        if self._loop is None or self._thread is None:
            raise StorageError(f"{self._path.name} is closed.")
        done: asyncio.Future[T] = self._loop.create_future()
        self._asked.append(_Work(work, done))
        return done

    def _hand_over_with(self, handle: asyncio.Handle | None) -> None:
        if self._hand_over_at is not None:
            self._hand_over_at.cancel()
        self._hand_over_at = handle

    def _hand_over(self) -> None:
        """Let the thread have all that was asked for since the last time."""
        self._hand_over_with(None)
        self._hurries = False
        asked, self._asked = self._asked, []
        if asked:
            self._work.put(asked)

    def _run(self, opened: "asyncio.Future[None]") -> None:
        try:
            db = _connect(self._path, self._schema)
        except Exception as error:  # told to who opens it
            self._tell([_Told(opened, error=_refusal(self._path, error))])
            return
        self._tell([_Told(opened)])
        try:
            while (batch := self._work.get()) is not None:
                last = False
                with suppress(queue.Empty):
                    while len(batch) < _MOST_A_COMMIT and not last:
                        more = self._work.get_nowait()
                        last = more is None
                        batch += more or []
                db = self._there(db)
                self._tell(self._committed(db, batch))
                if last:
                    break
            db = self._there(db)
        finally:
            db.close()

    def _there(self, db: "Connection") -> "Connection":
        """The same; where somebody deleted its file, a new one with all that was in it.

        A deleted file goes on to be written as long as it is open, and is gone at the next start.
        """
        if self._path.exists():
            return db
        try:
            again = _restored(db, self._path, self._schema)
        except Exception as error:  # told to who asks: the disk, or what took the file away
            log.error("%s was deleted and cannot be made anew: %s", self._path.name, error)  # noqa: TRY400
            return db
        log.error("%s was deleted while it was open; it is made anew, with all that was in it", self._path)
        return again

    def _committed(self, db: "Connection", batch: list[_Work[Any]]) -> "list[_Told]":
        """All in one commit; where that fails, each by itself, so that one does not spoil the others."""
        try:
            results = self._together(db, batch)
        except Exception as error:  # the disk, or one of them: told to who waits
            if len(batch) == 1:
                return [_Told(batch[0].done, error=_refusal(self._path, error))]
            return [told for one in batch for told in self._committed(db, [one])]
        return [_Told(one.done, result) for one, result in zip(batch, results, strict=True)]

    def _together(self, db: "Connection", batch: list[_Work[Any]]) -> list[Any]:
        db.execute("BEGIN IMMEDIATE")
        try:
            results = [one.do(db) for one in batch]
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        return results

    def _tell(self, all_told: "list[_Told]") -> None:
        assert self._loop is not None  # noqa: S101 `open` came first
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(_pass_on, all_told)


@dataclass(slots=True)
class _Told:
    """What came of a work, for who waits for it."""

    to: "asyncio.Future[Any]"
    result: object = None
    error: Exception | None = None


def _pass_on(all_told: list[_Told]) -> None:
    for told in all_told:
        if told.to.cancelled():
            continue
        if told.error is not None:
            told.to.set_exception(told.error)
            told.to.exception()  # who asked may have gone meanwhile
        else:
            told.to.set_result(told.result)


def _connect(path: Path, schema: str) -> "Connection":
    import sqlite3  # only who keeps a database waits for it

    make_private_folder(path.parent)
    path.touch(0o600, exist_ok=True)
    try:
        return _opened(path, schema)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise  # locked, full, not permitted: nothing is wrong with the file
        aside = path.with_name(f"{path.name}.{int(time.time())}.corrupt")
        log.error(  # noqa: TRY400 the owner needs no traceback
            "%s cannot be read (%s). It is kept as %s, and a new one is begun.", path.name, error, aside.name
        )
        path.replace(aside)
        for beside in ("-wal", "-shm"):
            path.with_name(path.name + beside).unlink(missing_ok=True)
        path.touch(0o600)
        return _opened(path, schema)


def _opened(path: Path, schema: str) -> "Connection":
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


def _restored(db: "Connection", path: Path, schema: str) -> "Connection":
    """A copy of it at its place, opened; it itself is closed, since its end deletes the WAL that lies there."""
    import sqlite3

    make_private_folder(path.parent)
    copy = path.with_name(f"{path.name}.copy")
    copy.unlink(missing_ok=True)
    copy.touch(0o600)
    with closing(sqlite3.connect(copy)) as target:
        db.backup(target)
    db.close()
    copy.replace(path)
    return _opened(path, schema)


def _refusal(path: Path, error: Exception) -> StorageError:
    if isinstance(error, StorageError):
        return error
    refused = StorageError(f"{path.name} cannot be written: {error}. Look at the disk's space and permissions.")
    refused.__cause__ = error
    return refused
