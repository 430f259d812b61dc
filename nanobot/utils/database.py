"""A SQLite database owned by a thread: WAL mode, many writes in one commit.

Work that arrives while the thread is busy shares the next commit, and so one fsync and one thread switch, which cost
more than the writes. Nothing blocks the event loop. Several processes may use one file.
"""

import asyncio
import logging
import queue
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nanobot.errors import StorageError
from nanobot.utils.files import PRIVATE_FILE, make_private_folder
from nanobot.utils.storage_error import os_reason

if TYPE_CHECKING:
    from sqlite3 import Connection

log = logging.getLogger(__name__)
T = TypeVar("T")

_MAX_BATCH = 512
_TABLE = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+)")
SOON_S = 0.02
"""How long `soon` may delay a write to share a commit."""


@asynccontextmanager
async def open_database(path: Path, schema: str, *, is_owner: bool = True) -> AsyncIterator["Database"]:
    """Open the database in this file, created if missing; on exit all pending work is committed.

    Raises StorageError if it cannot be opened. See `Database` for `is_owner`.
    """
    database = Database(path, schema, is_owner=is_owner)
    try:
        await database.ask(lambda db: None)
        yield database
    finally:
        await database.close()


@contextmanager
def reading(path: Path, schema: str) -> Iterator["Connection"]:
    """A connection to read from, without an event loop. Without a file, or if nobody has created these tables in it
    yet, they are empty; nothing is created.

    Blocks. Raises StorageError, also for what SQLite raises inside.
    """
    import sqlite3

    try:
        with ExitStack() as stack:
            if path.exists():
                uri = f"{path.absolute().as_uri()}?mode=ro"
                db = stack.enter_context(closing(sqlite3.connect(uri, uri=True, timeout=5)))
                known = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
                if known.issuperset(_TABLE.findall(schema)):
                    yield db
                    return
            db = stack.enter_context(closing(sqlite3.connect(":memory:")))
            db.executescript(schema)
            yield db
    except sqlite3.Error as error:
        raise StorageError(f"{path} cannot be read: {error}. Run `nanobot doctor`.") from error


@contextmanager
def writing(path: Path, schema: str) -> Iterator["Connection"]:
    """A transaction without an event loop, committed on exit. Creates the file if missing.

    Blocks. Raises StorageError, also for what SQLite raises inside; nothing is written then.
    """
    import sqlite3

    try:
        with closing(_connect(path, schema, is_owner=False)) as db:
            db.execute("BEGIN IMMEDIATE")
            yield db
            db.execute("COMMIT")
    except (sqlite3.Error, OSError) as error:
        raise _storage_error(path, error) from error


@dataclass(slots=True)
class _Work(Generic[T]):
    """A function to run with the database, its outcome, and the future that gets it."""

    do: Callable[["Connection"], T]
    done: "asyncio.Future[T]"
    is_synced: bool
    result: T | None = None
    error: StorageError | None = None


class Database:
    """The thread that owns a connection to the file. Both are opened by the first work.

    The process with `is_owner` checks the file when it opens it: a corrupt one is kept beside it, and a new one
    started. Others raise StorageError.
    """

    def __init__(self, path: Path, schema: str, *, is_owner: bool = False) -> None:
        self.path = path
        self._schema = schema
        self._is_owner = is_owner
        self._pending: list[_Work[Any]] = []
        """Not handed to the thread yet."""
        self._handover: asyncio.Handle | None = None
        self._batches: queue.SimpleQueue[list[_Work[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._syncs: bool | None = None
        """Whether the thread's connection syncs each commit; None until it is set."""
        self._reader: Connection | None = None
        """A connection for `find`, used by the event loop itself."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    async def close(self) -> None:
        """Commit all pending work and close the file. Later work fails with a StorageError."""
        self._is_closed = True
        if self._reader is not None:  # first: the last connection to close removes the log of SQLite
            self._reader.close()
            self._reader = None
        thread, self._thread = self._thread, None
        if thread is not None:
            self._hand_over()
            self._batches.put(None)
            await asyncio.to_thread(thread.join)

    def find(self, query: str, *values: object) -> list[Any]:
        """The rows of a query by key, read at once: in WAL mode a reader waits for nobody, and a few rows take
        microseconds. Writes that are not committed yet are not seen. Raises StorageError.
        """
        if self._is_closed:
            raise StorageError(f"{self.path.name} is closed.")
        if self._reader is None and not self.path.exists():
            return []
        import sqlite3

        try:
            if self._reader is None:
                uri = f"{self.path.absolute().as_uri()}?mode=ro"
                self._reader = sqlite3.connect(
                    uri, uri=True, isolation_level=None, timeout=0.1, check_same_thread=False
                )
            return self._reader.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise StorageError(f"{self.path} cannot be read: {error}. Run `nanobot doctor`.") from error

    async def ask(self, work: Callable[["Connection"], T], *, is_synced: bool = True) -> T:
        """Run `work` and return its result once it is committed. Cancelling does not undo it.

        Without `is_synced` the commit survives the process, but not a power failure.
        """
        return await self.soon(work, is_synced=is_synced, is_urgent=True)

    def soon(
        self, work: Callable[["Connection"], T], *, is_synced: bool = True, is_urgent: bool = False
    ) -> "asyncio.Future[T]":
        """Like `ask`, without waiting. Work that is not urgent may wait for other work up to SOON_S, to share its
        commit. All work runs in the order of the calls to both methods.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        if self._is_closed:
            _set_results([_Work(work, done, is_synced, error=StorageError(f"{self.path.name} is closed."))])
            return done
        if self._loop is not loop:  # handovers of another loop ended with it
            self._loop, self._handover = loop, None
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self.path.stem, daemon=True)
            self._thread.start()
        self._pending.append(_Work(work, done, is_synced))
        if is_urgent:
            self._hand_over()
        elif self._handover is None:
            self._handover = loop.call_later(SOON_S, self._hand_over)
        return done

    def _hand_over(self) -> None:
        """Hand all pending work to the thread."""
        if self._handover is not None:
            self._handover.cancel()
        self._handover = None
        pending, self._pending = self._pending, []
        if pending:
            self._batches.put(pending)

    def _run(self) -> None:
        db: Connection | None = None
        while (batch := self._batches.get()) is not None:
            with suppress(queue.Empty):
                while len(batch) < _MAX_BATCH:
                    if (more := self._batches.get_nowait()) is None:
                        self._batches.put(None)  # the end, for the next iteration
                        break
                    batch += more
            try:
                db = db or _connect(self.path, self._schema, is_owner=self._is_owner)
            except Exception as error:  # raised in the waiting callers; the next batch tries again
                for work in batch:
                    work.error = _storage_error(self.path, error)
            else:
                self._commit(db, batch)
            for loop in {work.done.get_loop() for work in batch}:
                with suppress(RuntimeError):  # the loop is closed: nothing waits any more
                    loop.call_soon_threadsafe(_set_results, [work for work in batch if work.done.get_loop() is loop])
        if db is not None:
            self._keep_deleted(db)
            db.close()

    def _keep_deleted(self, db: "Connection") -> None:
        """If the file was deleted meanwhile, write its data to a new one: else it would be gone with the connection."""
        if self.path.exists():
            return
        try:
            make_private_folder(self.path.parent)
            db.execute("VACUUM INTO ?", (str(self.path),))
            self.path.chmod(PRIVATE_FILE)
            log.error("%s was deleted while it was open; it was recreated with all its data", self.path)
        except Exception as error:  # closing goes on
            log.error("%s was deleted and cannot be recreated: %s", self.path, os_reason(error))  # noqa: TRY400

    def _commit(self, db: "Connection", batch: list[_Work[Any]]) -> None:
        """Run all in one commit; if that fails, each in its own, so that one failure does not affect the others."""
        try:
            # In WAL mode NORMAL syncs at checkpoints only; both survive the process, and keep the file sound.
            if (is_synced := any(work.is_synced for work in batch)) is not self._syncs:
                db.execute(f"PRAGMA synchronous = {'FULL' if is_synced else 'NORMAL'}")
                self._syncs = is_synced
            db.execute("BEGIN IMMEDIATE")
            try:
                for work in batch:
                    work.result = work.do(db)
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
        except Exception as error:  # raised in the waiting callers
            if len(batch) == 1:
                batch[0].error = _storage_error(self.path, error)
                return
            for work in batch:
                self._commit(db, [work])


def _set_results(batch: list[_Work[Any]]) -> None:
    for work in batch:
        if work.done.cancelled():
            continue
        if work.error is not None:
            work.done.set_exception(work.error)
            work.done.exception()  # mark as retrieved: the caller may be gone
        else:
            work.done.set_result(work.result)


def _connect(path: Path, schema: str, *, is_owner: bool) -> "Connection":
    import sqlite3  # imported on first use

    make_private_folder(path.parent)
    path.touch(0o600, exist_ok=True)
    db = sqlite3.connect(path, isolation_level=None, timeout=5)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(schema)
        if is_owner:
            db.execute("PRAGMA quick_check(1)").fetchall()
    except sqlite3.DatabaseError as error:
        db.close()
        if isinstance(error, sqlite3.OperationalError) or not is_owner:
            raise  # locked, disk full, not permitted: the file itself is fine
        corrupt_copy = path.with_name(f"{path.name}.{int(time.time())}.corrupt")
        log.error(  # noqa: TRY400 the owner needs no traceback
            "%s cannot be read (%s). It is kept as %s, and a new one is started.", path.name, error, corrupt_copy.name
        )
        path.replace(corrupt_copy)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return _connect(path, schema, is_owner=False)
    return db


def _storage_error(path: Path, error: Exception) -> StorageError:
    if isinstance(error, StorageError):
        return error
    storage_error = StorageError(
        f"{path.name} cannot be written: {os_reason(error)}. Check disk space and permissions."
    )
    storage_error.__cause__ = error
    return storage_error
