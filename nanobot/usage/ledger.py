"""The ledger: one row for every request sent to a model, in the table `calls`, and its sums.

A row is written before its request is sent, so a killed process leaves the rows of the requests that it had in flight.
It is updated with the next commit after the end. Commits are not synced, since after a power failure the provider's
bill is still there.
"""

import asyncio
import logging
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import date, datetime, timedelta
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

from nanobot.errors import StorageError
from nanobot.usage.types import LedgerRow, format_dollars
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
_COLUMNS = tuple(column.name for column in fields(LedgerRow))
_WRITE = (  # the columns of keys and indexes never change: those are left alone by an update
    f"INSERT INTO calls ({', '.join(_COLUMNS)}) VALUES ({', '.join(f':{name}' for name in _COLUMNS)}) "  # noqa: S608 names of ours
    f"ON CONFLICT DO UPDATE SET {', '.join(f'{name} = :{name}' for name in _COLUMNS if name not in ('id', 'sent_at'))}"
)
_MAX_UNWRITTEN = 10_000
By = Literal["day", "model", "provider", "session", "cause"]


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
    values = ({name: getattr(row, name) for name in _COLUMNS} for row in rows)
    db.executemany(
        _WRITE,
        [
            {name: escape_surrogates(value) if isinstance(value, str) else value for name, value in row.items()}
            for row in values
        ],
    )


@dataclass(slots=True)
class UsageSum:
    """Usage of several calls."""

    calls: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cache_written_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    spent: float = 0.0
    unpriced: int = 0
    """Calls of models without a known price, missing in `spent`."""

    @property
    def usd(self) -> float | None:
        """Dollars spent as far as prices are known; None if none is."""
        return None if self.unpriced and not self.spent else self.spent

    @property
    def cached_share(self) -> float:
        """Share of the input tokens that were read from a cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def to_json(self) -> dict[str, Any]:
        """The fields, documented in docs/guides/money.md."""
        fields = asdict(self)
        del fields["spent"]
        return fields | {"cached_share": round(self.cached_share, 4), "usd": self.usd}


@dataclass(slots=True)
class UsageSummary:
    """Usage today, this month, of one session, and in groups over some days."""

    today: UsageSum = field(default_factory=UsageSum)
    month: UsageSum = field(default_factory=UsageSum)
    session: UsageSum = field(default_factory=UsageSum)
    groups: dict[str, UsageSum] = field(default_factory=dict)


_SUMS = (
    "COUNT(*), COUNT(*) FILTER (WHERE outcome = 'failed'), IFNULL(SUM(prompt_tokens), 0), "
    "IFNULL(SUM(cached_tokens), 0), IFNULL(SUM(cache_written_tokens), 0), IFNULL(SUM(completion_tokens), 0), "
    "IFNULL(SUM(reasoning_tokens), 0), TOTAL(usd), COUNT(*) - COUNT(usd)"
)
"""The fields of a UsageSum, in order."""


def sum_up(db: "Connection", now: datetime, *, by: By = "day", days: int = 30, session: str = "") -> UsageSummary:
    """Sum the ledger. Groups are sorted by falling cost, days by date. Blocks.

    `days`: length of the groups' period, including today. `session` is summed separately, over this month.
    """
    today = now.date()
    first = today.replace(day=1)
    next_month = (first + timedelta(days=32)).replace(day=1)
    column = "substr(sent_at, 1, 10)" if by == "day" else by
    order = "1" if by == "day" else "TOTAL(usd) DESC, 1"
    groups = db.execute(
        f"SELECT {column}, {_SUMS} FROM calls WHERE sent_at >= ? GROUP BY 1 ORDER BY {order}",  # noqa: S608 ours
        (f"{today - timedelta(days=days - 1)}",),
    )
    return UsageSummary(
        today=_sum(db, today, today + timedelta(days=1)),
        month=_sum(db, first, next_month),
        session=_sum(db, first, next_month, session),
        groups={str(name): UsageSum(*sums) for name, *sums in groups},
    )


def turn_sums(db: "Connection", session: str, since: str) -> dict[str, tuple[str, UsageSum]]:
    """Sum the calls of each turn of a session since a day (`2026-11-27`), with the model that answered. Blocks."""
    query = (
        f"SELECT turn, model, {_SUMS}, MAX(sent_at) FROM calls WHERE sent_at >= ? AND session = ? AND turn != '' "  # noqa: S608
        "GROUP BY turn"
    )
    return {turn: (model, UsageSum(*sums)) for turn, model, *sums, _ in db.execute(query, (since, session))}


def session_sums(db: "Connection", prefix: str, since: str) -> dict[str, tuple[int, UsageSum]]:
    """Sum the calls of the sessions with this prefix since a day (`2026-11-27`), with the number of turns. Blocks."""
    query = (
        f"SELECT session, COUNT(DISTINCT turn), {_SUMS} FROM calls WHERE sent_at >= ? "  # noqa: S608 ours
        "AND substr(session, 1, ?) = ? GROUP BY session"
    )
    rows = db.execute(query, (since, len(prefix), prefix))
    return {session: (turns, UsageSum(*sums)) for session, turns, *sums in rows}


def _sum(db: "Connection", start: date, end: date, session: str | None = None) -> UsageSum:
    query = f"SELECT {_SUMS} FROM calls WHERE sent_at >= ? AND sent_at < ? AND session = IFNULL(?, session)"  # noqa: S608
    return UsageSum(*db.execute(query, (f"{start}", f"{end}", session)).fetchone())


def format_sum(used: UsageSum) -> str:
    share = f" ({used.cached_share:.0%} cached)" if used.cached_tokens else ""
    parts = [
        f"{used.calls:,} {'call' if used.calls == 1 else 'calls'}"
        + (f" ({used.failed:,} failed)" if used.failed else ""),
        f"{used.prompt_tokens:,} in{share}",
        f"{used.completion_tokens:,} out",
        format_dollars(used.usd),
    ]
    if used.usd is None:
        parts[-1] = "price unknown"
    return ", ".join(parts) + (
        f" (and {used.unpriced:,} of unknown price)" if used.unpriced and used.usd is not None else ""
    )
