"""The ledger: one row for every request sent to a model, in the table `calls`.

A row is written before its request is sent, so a killed process leaves the rows of the requests that it had in flight.
It is updated with the next commit after the end. Commits are not synced, since after a power failure the provider's
bill is still there.
"""

import asyncio
import logging
import secrets
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from nanobot.errors import StorageError
from nanobot.usage.types import LedgerRow
from nanobot.utils.database import Database
from nanobot.utils.text import escape_surrogates

if TYPE_CHECKING:
    from sqlite3 import Connection

log = logging.getLogger(__name__)

SCHEMA = """
CREATE TABLE IF NOT EXISTS calls (
    id TEXT PRIMARY KEY, sent_at TEXT NOT NULL, cause TEXT NOT NULL, session TEXT NOT NULL, turn TEXT NOT NULL,
    provider TEXT NOT NULL, model TEXT NOT NULL, outcome TEXT NOT NULL, error TEXT, prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL, cache_written_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL, usd REAL, ms INTEGER NOT NULL, estimated INTEGER NOT NULL,
    process TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS calls_by_time ON calls (sent_at);
CREATE TABLE IF NOT EXISTS limits (
    key TEXT NOT NULL, period TEXT NOT NULL, raised_usd REAL NOT NULL DEFAULT 0, reported_usd REAL,
    reported_level TEXT, PRIMARY KEY (key, period)) WITHOUT ROWID;
"""
_COLUMNS = tuple(LedgerRow.__annotations__)
_WRITE = (  # the columns of keys and indexes never change: those are left alone by an update
    f"INSERT INTO calls VALUES ({', '.join(f':{name}' for name in _COLUMNS)}) "  # noqa: S608 names of ours
    f"ON CONFLICT DO UPDATE SET {', '.join(f'{name} = :{name}' for name in _COLUMNS if name not in ('id', 'sent_at'))}"
)
_MAX_UNWRITTEN = 10_000


class Ledger:
    """Writes the rows. `process` is the id that this process writes into them."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.process = secrets.token_hex(4)
        self._numbers = count(1)
        self.unwritten: list[LedgerRow] = []
        """Rows that the disk has refused; they are written with the next one."""
        self._last_write: asyncio.Future[None] | None = None
        self._has_failed = False

    def new_id(self) -> str:
        """A new id for a row."""
        return f"{self.process}-{next(self._numbers)}"

    async def write(self, row: LedgerRow) -> None:
        """Write a row, or update the one with its id. On return it survives this process.

        Never raises a StorageError: a full disk must not fail a turn.
        """
        with suppress(StorageError):
            await self.write_soon(row, is_urgent=True)

    def write_soon(self, row: LedgerRow, *, is_urgent: bool = False) -> "asyncio.Future[None]":
        """Like `write`, with the next commit; rows that could not be written before are written, too."""
        rows, self.unwritten = [*self.unwritten, row], []
        written = self.database.soon(lambda db: write_calls(db, rows), is_synced=False, is_urgent=is_urgent)
        written.add_done_callback(partial(self._check_written, rows))
        self._last_write = written
        return written

    async def flush(self) -> None:
        """Return once all rows are written, or have failed. Cancelling is safe."""
        if self._last_write is not None:
            await asyncio.wait((self._last_write,))

    def _check_written(self, rows: list[LedgerRow], written: "asyncio.Future[None]") -> None:
        """Keep the rows if the disk failed; log when that begins and ends."""
        error = None if written.cancelled() else written.exception()
        if error is not None:
            self.unwritten = [*rows, *self.unwritten][-_MAX_UNWRITTEN:]
            if not self._has_failed:
                log.warning("Model usage cannot be written: %s", error)
        elif self._has_failed:
            log.info("Model usage is written again")
        self._has_failed = error is not None


def write_calls(db: "Connection", rows: list[LedgerRow]) -> None:
    """Write rows, or update those with their ids."""
    db.executemany(
        _WRITE,
        [
            {name: escape_surrogates(value) if isinstance(value, str) else value for name, value in row.items()}
            for row in rows
        ],
    )
