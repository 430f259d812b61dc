"""The journal: each message is accepted once and settled once, each reply is sent once, also after kill -9.

An inbound message is on the disk before it is acknowledged to its platform, under a key that detects duplicates. A
durable outbound message is on the disk before it is sent, and stays open until the platform has it.
"""

import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.bus.events import InboundMessage, OutboundKind, OutboundMessage, StreamUpdate
from nanobot.utils import codec
from nanobot.utils.database import Database, open_database
from nanobot.utils.text import escape_surrogates, strict_json

if TYPE_CHECKING:
    from sqlite3 import Connection

log = logging.getLogger(__name__)

KEPT_DAYS = 30
"""How long a settled message is kept: a duplicate that arrives later is accepted again."""
_DAY_S = 86400
"""Settled messages are pruned once in this time."""


class InboundState(StrEnum):
    """State of an accepted message."""

    RECEIVED = "received"
    RUNNING = "running"
    ANSWERED = "answered"
    """Its reply is journaled."""
    SENT = "sent"
    """The platform has the reply."""
    REFUSED = "refused"
    """Not answered; the person was told why."""
    FAILED = "failed"
    """No answer, or it could not be sent."""


OPEN = (InboundState.RECEIVED, InboundState.RUNNING)


class OutboundState(StrEnum):
    """State of an outbound message."""

    WAITING = "waiting"
    SENDING = "sending"
    SENT = "sent"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class JournalCounts:
    """Number of messages by state. received = answered + refused + queued, always."""

    received: int = 0
    answered: int = 0
    """Answered or failed."""
    refused: int = 0
    queued: int = 0
    waiting_out: int = 0
    """Outbound messages not sent yet."""
    failed_out: int = 0


SCHEMA = """
CREATE TABLE IF NOT EXISTS inbound (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, state TEXT NOT NULL, body TEXT, turn_id TEXT, reason TEXT,
    received_at REAL NOT NULL, settled_at REAL);
CREATE INDEX IF NOT EXISTS inbound_state ON inbound (state);
CREATE TABLE IF NOT EXISTS outbound (
    id INTEGER PRIMARY KEY, state TEXT NOT NULL, body TEXT, reply_of TEXT UNIQUE, text_of TEXT UNIQUE, answers TEXT,
    platform_ids TEXT, reason TEXT, created_at REAL NOT NULL, settled_at REAL);
CREATE INDEX IF NOT EXISTS outbound_state ON outbound (state);
CREATE TABLE IF NOT EXISTS shown (turn_id TEXT PRIMARY KEY, growth TEXT NOT NULL, settled_at REAL NOT NULL);
"""


@asynccontextmanager
async def open_journal(path: Path, now: Callable[[], float] = time.time) -> AsyncIterator["Journal"]:
    """Open or create the journal in this file; on exit all writes are on the disk.

    Raises StorageError if it cannot be opened. A file that is not a journal is renamed and a new one created, so that
    messages are answered anyway.
    """
    async with open_database(path, SCHEMA) as database:
        yield Journal(database, now)


class Journal:
    """The journal in a database. Writes keep their order; every method raises StorageError on a disk error."""

    def __init__(self, database: Database, now: Callable[[], float] = time.time) -> None:
        self._ask = database.ask
        self._soon = database.soon
        self._now = now
        self._pruned_at = 0.0

    async def receive(self, message: InboundMessage) -> bool:
        """Accept a message and set its `journal_key`; durable on return. Return False for a duplicate."""
        if not message.journal_key:  # a message without an id is never a duplicate
            unique_id = message.message_id or secrets.token_hex(8)
            message.journal_key = escape_surrogates(f"{message.channel}:{message.chat_id}:{unique_id}")
        row = (message.journal_key, InboundState.RECEIVED, strict_json(message.to_json()), now := self._now())
        if now - self._pruned_at >= _DAY_S:
            self._pruned_at = now
            self._soon(lambda db: _prune(db, now))
        query = "INSERT INTO inbound (key, state, body, received_at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
        return await self._ask(_statement(query, *row)) > 0

    async def save(self, message: InboundMessage) -> None:
        """Update an accepted message, after more of its attachments were downloaded."""
        row = (strict_json(message.to_json()), message.journal_key, *OPEN)
        await self._ask(_statement("UPDATE inbound SET body = ? WHERE key = ? AND state IN (?, ?)", *row))

    async def begin(self, key: str, turn_id: str) -> None:
        """Record that its turn has started. Written soon, with the next commit."""
        query = "UPDATE inbound SET state = ?, turn_id = ? WHERE key = ? AND state IN (?, ?)"
        await self._soon(_statement(query, InboundState.RUNNING, turn_id, key, *OPEN))

    async def settle(self, key: str, state: InboundState, reason: str = "") -> None:
        """Record how a message ended. Written soon, with the next commit.

        The first end counts, except that ANSWERED becomes SENT or FAILED later, and SENT becomes REFUSED if what was
        sent was the refusal.
        """
        now = self._now()
        await self._soon(lambda db: _settle(db, key, state, reason, now))

    async def flush(self) -> None:
        """Wait until all earlier writes are on the disk."""
        await self._ask(lambda db: None)

    async def load_unsettled(self) -> list[InboundMessage]:
        """Messages that are accepted and not settled, oldest first."""
        now = self._now()

        def select(db: "Connection") -> list[tuple[str, str]]:
            # replies journaled just before a crash are still to be sent, but their messages are answered
            are_open = "answers IN (SELECT key FROM inbound WHERE state IN (?, ?))"
            _settle_answered(db, are_open, OPEN, InboundState.ANSWERED, "", now)
            return db.execute("SELECT key, body FROM inbound WHERE state IN (?, ?) ORDER BY id", OPEN).fetchall()

        messages = []
        for key, body in await self._ask(select):
            try:
                message = InboundMessage.from_json(json.loads(body))
            except ValueError as error:
                log.warning("cannot read an inbound message in the journal: %r", error)
                await self.settle(key, InboundState.FAILED, f"it cannot be read: {error!r}")
                continue
            message.journal_key = key
            messages.append(message)
        return messages

    async def add_outbound(self, messages: list[OutboundMessage]) -> list[bool]:
        """Journal messages before they are sent and set their `journal_id`. Return False for each duplicate.

        A turn has one reply, and a text that the `message` tool sent is not sent again by it or by the reply. Questions
        and notices are never duplicates.
        """
        rows = [(strict_json(message.to_json()), _dedupe_key(message)) for message in messages]
        now = self._now()

        def insert(db: "Connection") -> list[int | None]:
            ids: list[int | None] = []
            for message, (body, text_of) in zip(messages, rows, strict=True):
                reply_of = message.turn_id if message.kind is OutboundKind.REPLY else None
                row = (OutboundState.WAITING, body, reply_of, text_of, message.answers, now)
                done = db.execute(
                    "INSERT INTO outbound (state, body, reply_of, text_of, answers, created_at) "
                    "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                    row,
                )
                ids.append(done.lastrowid if done.rowcount > 0 else None)
            return ids

        for message, journal_id in zip(messages, ids := await self._ask(insert), strict=True):
            message.journal_id, message.held_at = journal_id, now
        return [journal_id is not None for journal_id in ids]

    async def record_sending(self, journal_id: int, sent_ids: tuple[str, ...]) -> None:
        """Record that the rest of a message is about to be sent; the platform has the parts with these ids."""
        query = "UPDATE outbound SET state = ?, platform_ids = ? WHERE id = ?"
        await self._ask(_statement(query, OutboundState.SENDING, strict_json(sent_ids), journal_id))

    async def record_shown(self, turn_id: str, update: StreamUpdate) -> None:
        """Record what the platform shows, or is about to show, of a turn's streamed answer."""
        row = (turn_id, codec.to_json(update), self._now())
        await self._ask(_statement("INSERT OR REPLACE INTO shown VALUES (?, ?, ?)", *row))

    async def load_shown(self) -> dict[str, StreamUpdate]:
        """Streamed answers that are not sent completely, by turn id."""
        rows = await self._ask(lambda db: db.execute("SELECT turn_id, growth FROM shown").fetchall())
        return {turn_id: codec.from_json(StreamUpdate, body) for turn_id, body in rows}

    async def record_sent(self, journal_id: int, platform_ids: tuple[str, ...]) -> None:
        """Record that the platform has a message, and settle the message that it answers."""
        now = self._now()

        def update(db: "Connection") -> None:
            row = (OutboundState.SENT, strict_json(platform_ids), now, journal_id)
            db.execute("UPDATE outbound SET state = ?, platform_ids = ?, settled_at = ?, body = NULL WHERE id = ?", row)
            _settle_answered(db, "id = ?", (journal_id,), InboundState.SENT, "", now)
            db.execute("DELETE FROM shown WHERE turn_id = (SELECT reply_of FROM outbound WHERE id = ?)", (journal_id,))

        await self._ask(update)

    async def record_failed(self, journal_id: int, reason: str) -> None:
        """Record that a message cannot be sent, and settle the message that it answers. Its text is kept."""
        now = self._now()

        def update(db: "Connection") -> None:
            row = (OutboundState.FAILED, escape_surrogates(reason), now, journal_id)
            db.execute("UPDATE outbound SET state = ?, reason = ?, settled_at = ? WHERE id = ?", row)
            _settle_answered(db, "id = ?", (journal_id,), InboundState.FAILED, reason, now)

        await self._ask(update)

    async def load_unsent(self) -> list[OutboundMessage]:
        """Messages neither sent nor failed, oldest first; `may_repeat` if the platform may have one already."""

        def select(db: "Connection") -> list[tuple[int, str, str, str | None, float]]:
            states = (OutboundState.WAITING, OutboundState.SENDING)
            query = "SELECT id, state, body, platform_ids, created_at FROM outbound WHERE state IN (?, ?) ORDER BY id"
            return db.execute(query, states).fetchall()

        messages = []
        for journal_id, state, body, ids, held_at in await self._ask(select):
            try:
                message = OutboundMessage.from_json(json.loads(body))
            except ValueError as error:
                log.warning("cannot read an outbound message in the journal: %r", error)
                await self.record_failed(journal_id, f"it cannot be read: {error!r}")
                continue
            message.journal_id, message.held_at = journal_id, held_at
            message.sent_ids = tuple(json.loads(ids or "[]"))
            message.may_repeat = state == OutboundState.SENDING
            messages.append(message)
        return messages

    async def counts(self) -> JournalCounts:
        """Count messages by state."""

        def select(db: "Connection") -> tuple[dict[str, int], dict[str, int]]:
            query = "SELECT state, COUNT(*) FROM {} GROUP BY state"
            return dict(db.execute(query.format("inbound"))), dict(db.execute(query.format("outbound")))

        inbound, outbound = await self._ask(select)
        refused, queued = inbound.get(InboundState.REFUSED, 0), sum(inbound.get(state, 0) for state in OPEN)
        received = sum(inbound.values())
        waiting = outbound.get(OutboundState.WAITING, 0) + outbound.get(OutboundState.SENDING, 0)
        return JournalCounts(
            received, received - refused - queued, refused, queued, waiting, outbound.get(OutboundState.FAILED, 0)
        )


def _statement(query: str, *row: object) -> Callable[["Connection"], int]:
    """Work for the database that returns how many rows it changed."""
    return lambda db: db.execute(query, row).rowcount


def _settle(db: "Connection", key: str, state: InboundState, reason: str, now: float) -> None:
    last = InboundState.SENT if state is InboundState.REFUSED else InboundState.ANSWERED
    row = (state, escape_surrogates(reason) or None, now, key, *OPEN, InboundState.ANSWERED, last)
    db.execute(
        "UPDATE inbound SET state = ?, reason = ?, settled_at = ?, body = NULL WHERE key = ? AND state IN (?, ?, ?, ?)",
        row,
    )


def _settle_answered(
    db: "Connection", which: str, values: tuple[object, ...], state: InboundState, reason: str, now: float
) -> None:
    """Settle the messages that these outbound messages answer; notices and progress texts settle none."""
    query = f"SELECT answers FROM outbound WHERE reply_of IS NOT NULL AND answers IS NOT NULL AND {which}"  # noqa: S608
    for (key,) in db.execute(query, values).fetchall():
        _settle(db, key, state, reason, now)


def _prune(db: "Connection", now: float) -> None:
    """Delete what was settled long ago."""
    for table in ("inbound", "outbound", "shown"):
        db.execute(f"DELETE FROM {table} WHERE settled_at < ?", (now - KEPT_DAYS * _DAY_S,))  # noqa: S608 names of ours


def _dedupe_key(message: OutboundMessage) -> str | None:
    """The dedupe key of a text written by a model; None for questions and notices, which may repeat."""
    if message.answers is None or not (message.by_tool or message.kind is OutboundKind.REPLY):
        return None
    parts = (message.channel, message.chat_id, message.thread_id, message.answers, message.content, message.media)
    return sha256(strict_json(parts).encode()).hexdigest()
