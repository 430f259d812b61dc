"""The journal: messages accepted once and settled once, replies sent once; through kill -9 and full disks.

A message in is on the disk before its platform hears that it came, under a key of its own, so that what comes twice is
dropped for good. A message out that lasts is on the disk before it is sent, and stays open until the platform has it.
"""

import json
import logging
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nanobot.bus.events import Growth, InboundMessage, OutboundKind, OutboundMessage
from nanobot.utils.text import is_sound, sound_json

if TYPE_CHECKING:
    from sqlite3 import Connection

    from nanobot.utils.database import Database

log = logging.getLogger(__name__)

KEPT_DAYS = 30
"""How long a settled message is remembered: a platform that repeats it later than that is believed."""


class InboundState(StrEnum):
    """How far an accepted message is."""

    RECEIVED = "received"
    RUNNING = "running"
    ANSWERED = "answered"
    """Its reply is in the journal, on its way."""
    SENT = "sent"
    """The platform has the reply."""
    REFUSED = "refused"
    """The person was told why there is no answer."""
    FAILED = "failed"
    """There is no answer, or it could not be sent; that was reported."""


OPEN = (InboundState.RECEIVED, InboundState.RUNNING)


class OutboundState(StrEnum):
    """How far a message out is."""

    WAITING = "waiting"
    SENDING = "sending"
    SENT = "sent"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class JournalCounts:
    """What became of everything the journal remembers. received = answered + refused + queued, always."""

    received: int = 0
    answered: int = 0
    """Those with an answer or a word about why there is none."""
    refused: int = 0
    queued: int = 0
    waiting_out: int = 0
    """Messages out that their platform does not have yet."""
    failed_out: int = 0


class Journal(Protocol):
    """What the bus asks of a journal. Every method raises StorageError where the disk refuses.

    What is handed in is written in that order.
    """

    async def receive(self, message: InboundMessage) -> bool:
        """Accept it, and give it its `journal_key`; on the disk when this returns. False: it was here before."""
        ...

    async def begin(self, key: str, turn_id: str) -> None:
        """Its turn runs. In no hurry: it is written with what comes next, or soon."""
        ...

    async def settle(self, key: str, state: InboundState, reason: str = "") -> None:
        """This is how it ended. The first end stands, but for ANSWERED, which becomes SENT or FAILED later, and
        for SENT where what was sent turns out to be the word about why there is no answer. In no hurry either.
        """
        ...

    async def written(self) -> None:
        """All that was handed in so far is on the disk."""
        ...

    async def unsettled(self) -> list[InboundMessage]:
        """What was accepted and has not ended, oldest first."""
        ...

    async def hold(self, messages: list[OutboundMessage]) -> list[bool]:
        """Keep messages that are about to go out, and give them their `journal_id`. False for one that went already:
        a turn has one reply, and the same text goes out once for the same message.
        """
        ...

    async def sending(self, journal_id: int, sent_ids: tuple[str, ...]) -> None:
        """The platform is about to be handed the rest of it; it has the pieces with these ids."""
        ...

    async def showing(self, turn_id: str, growth: Growth) -> None:
        """So much is seen of the turn's answer as it grows, or is about to be."""
        ...

    async def shown(self) -> dict[str, Growth]:
        """By turn, what was seen of an answer that is not sent yet."""
        ...

    async def sent(self, journal_id: int, platform_ids: tuple[str, ...]) -> None:
        """The platform has it, under these ids. The message it answers is settled with it."""
        ...

    async def failed(self, journal_id: int, reason: str) -> None:
        """The platform will not have it."""
        ...

    async def unsent(self) -> list[OutboundMessage]:
        """What was held and neither sent nor failed, oldest first; `may_repeat` where the platform may have it."""
        ...

    async def counts(self) -> JournalCounts:
        """What became of everything."""
        ...


_SCHEMA = """
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
async def open_journal(path: Path) -> AsyncIterator["SqliteJournal"]:
    """The journal in this file, made where there is none; at the end all that was handed to it is on the disk.

    Raises StorageError where it cannot be opened. A file that is no journal is kept beside it, and a new one begun: one
    that cannot be read must not keep anybody from being answered.
    """
    from nanobot.utils.database import open_database  # only who keeps a journal waits for it

    async with open_database(path, _SCHEMA) as database:
        await database.ask(_forget)
        yield SqliteJournal(database)


class SqliteJournal:
    """A journal in one SQLite file: WAL, every commit synced. To be used inside `open_journal`."""

    def __init__(self, database: "Database") -> None:
        self._ask = database.ask
        self._soon = database.soon

    async def receive(self, message: InboundMessage) -> bool:
        """Accept it; on the disk when this returns."""
        message.journal_key = message.journal_key or _key_of(message)
        body = sound_json(message.to_json())

        def insert(db: "Connection") -> bool:
            row = (message.journal_key, InboundState.RECEIVED, body, time.time())
            return (
                db.execute(
                    "INSERT INTO inbound (key, state, body, received_at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                    row,
                ).rowcount
                > 0
            )

        return await self._ask(insert)

    async def begin(self, key: str, turn_id: str) -> None:
        """Its turn runs."""

        def update(db: "Connection") -> None:
            row = (InboundState.RUNNING, turn_id, key, *OPEN)
            db.execute("UPDATE inbound SET state = ?, turn_id = ? WHERE key = ? AND state IN (?, ?)", row)

        await self._soon(update)

    async def settle(self, key: str, state: InboundState, reason: str = "") -> None:
        """This is how it ended."""
        await self._soon(lambda db: _settle(db, key, state, reason))

    async def written(self) -> None:
        """All that was handed in so far is on the disk."""
        await self._ask(lambda db: None)

    async def unsettled(self) -> list[InboundMessage]:
        """What was accepted and has not ended, oldest first."""

        def select(db: "Connection") -> list[tuple[str, str]]:
            _settle_what_was_answered(db)
            return db.execute("SELECT key, body FROM inbound WHERE state IN (?, ?) ORDER BY id", OPEN).fetchall()

        found = []
        for key, body in await self._ask(select):
            try:
                message = InboundMessage.from_json(json.loads(body))
            except (ValueError, TypeError, KeyError) as error:
                log.warning("a message in the journal cannot be read: %r", error)
                await self.settle(key, InboundState.FAILED, f"it cannot be read: {error!r}")
                continue
            message.journal_key = key
            found.append(message)
        return found

    async def hold(self, messages: list[OutboundMessage]) -> list[bool]:
        """Keep messages that are about to go out, in one commit."""
        rows = [(sound_json(message.to_json()), _reply_of(message), _text_of(message)) for message in messages]
        now = time.time()

        def insert(db: "Connection") -> list[int | None]:
            ids: list[int | None] = []
            for message, (body, reply_of, text_of) in zip(messages, rows, strict=True):
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

    async def sending(self, journal_id: int, sent_ids: tuple[str, ...]) -> None:
        """The platform is about to be handed the rest of it."""

        def update(db: "Connection") -> None:
            row = (OutboundState.SENDING, sound_json(sent_ids), journal_id)
            db.execute("UPDATE outbound SET state = ?, platform_ids = ? WHERE id = ?", row)

        await self._ask(update)

    async def showing(self, turn_id: str, growth: Growth) -> None:
        """So much is seen of the turn's answer as it grows, or is about to be."""
        row = (turn_id, sound_json(growth.to_json()), time.time())
        await self._ask(lambda db: db.execute("INSERT OR REPLACE INTO shown VALUES (?, ?, ?)", row).rowcount)

    async def shown(self) -> dict[str, Growth]:
        """By turn, what was seen of an answer that is not sent yet."""
        rows = await self._ask(lambda db: db.execute("SELECT turn_id, growth FROM shown").fetchall())
        return {turn_id: Growth.from_json(json.loads(growth)) for turn_id, growth in rows}

    async def sent(self, journal_id: int, platform_ids: tuple[str, ...]) -> None:
        """The platform has it, under these ids."""

        def update(db: "Connection") -> None:
            row = (OutboundState.SENT, sound_json(platform_ids), time.time(), journal_id)
            db.execute("UPDATE outbound SET state = ?, platform_ids = ?, settled_at = ?, body = NULL WHERE id = ?", row)
            _settle_what_it_answers(db, journal_id, InboundState.SENT, "")
            db.execute("DELETE FROM shown WHERE turn_id = (SELECT reply_of FROM outbound WHERE id = ?)", (journal_id,))

        await self._ask(update)

    async def failed(self, journal_id: int, reason: str) -> None:
        """The platform will not have it. Its text is kept, for the owner to read."""

        def update(db: "Connection") -> None:
            row = (OutboundState.FAILED, _sound(reason), time.time(), journal_id)
            db.execute("UPDATE outbound SET state = ?, reason = ?, settled_at = ? WHERE id = ?", row)
            _settle_what_it_answers(db, journal_id, InboundState.FAILED, reason)

        await self._ask(update)

    async def unsent(self) -> list[OutboundMessage]:
        """What was held and neither sent nor failed, oldest first."""

        def select(db: "Connection") -> list[tuple[int, str, str, str | None, float]]:
            states = (OutboundState.WAITING, OutboundState.SENDING)
            asked = "SELECT id, state, body, platform_ids, created_at FROM outbound WHERE state IN (?, ?) ORDER BY id"
            return db.execute(asked, states).fetchall()

        found = []
        for journal_id, state, body, ids, held_at in await self._ask(select):
            try:
                message = OutboundMessage.from_json(json.loads(body))
            except (ValueError, TypeError, KeyError) as error:
                log.warning("a message out in the journal cannot be read: %r", error)
                await self.failed(journal_id, f"it cannot be read: {error!r}")
                continue
            message.journal_id, message.held_at = journal_id, held_at
            message.sent_ids = tuple(json.loads(ids or "[]"))
            message.may_repeat = state == OutboundState.SENDING
            found.append(message)
        return found

    async def counts(self) -> JournalCounts:
        """What became of everything it remembers."""

        def select(db: "Connection") -> tuple[dict[str, int], dict[str, int]]:
            asked = "SELECT state, COUNT(*) FROM {} GROUP BY state"
            return dict(db.execute(asked.format("inbound"))), dict(db.execute(asked.format("outbound")))

        inbound, outbound = await self._ask(select)
        refused, queued = inbound.get(InboundState.REFUSED, 0), sum(inbound.get(state, 0) for state in OPEN)
        received = sum(inbound.values())
        waiting = outbound.get(OutboundState.WAITING, 0) + outbound.get(OutboundState.SENDING, 0)
        return JournalCounts(
            received, received - refused - queued, refused, queued, waiting, outbound.get(OutboundState.FAILED, 0)
        )


def _settle(db: "Connection", key: str, state: InboundState, reason: str) -> None:
    last = InboundState.SENT if state is InboundState.REFUSED else InboundState.ANSWERED
    row = (state, _sound(reason) or None, time.time(), key, *OPEN, InboundState.ANSWERED, last)
    db.execute(
        "UPDATE inbound SET state = ?, reason = ?, settled_at = ?, body = NULL WHERE key = ? AND state IN (?, ?, ?, ?)",
        row,
    )


def _settle_what_it_answers(db: "Connection", journal_id: int, state: InboundState, reason: str) -> None:
    """A reply that is sent, or never will be, settles its message; a notice or a text on the way does not."""
    asked = "SELECT answers FROM outbound WHERE id = ? AND reply_of IS NOT NULL AND answers IS NOT NULL"
    for (key,) in db.execute(asked, (journal_id,)).fetchall():
        _settle(db, key, state, reason)


def _settle_what_was_answered(db: "Connection") -> None:
    """A crash came between a reply and the end of its message: the reply is held, so there is one."""
    asked = (
        "SELECT answers, state FROM outbound WHERE reply_of IS NOT NULL "
        "AND answers IN (SELECT key FROM inbound WHERE state IN (?, ?))"
    )
    for key, state in db.execute(asked, OPEN).fetchall():
        _settle(db, key, _AS_ITS_REPLY.get(state, InboundState.ANSWERED), "")


_AS_ITS_REPLY = {OutboundState.SENT: InboundState.SENT, OutboundState.FAILED: InboundState.FAILED}


def _forget(db: "Connection") -> None:
    long_ago = time.time() - KEPT_DAYS * 86400
    for table in ("inbound", "outbound", "shown"):
        db.execute(f"DELETE FROM {table} WHERE settled_at < ?", (long_ago,))  # noqa: S608 names of ours


def _key_of(message: InboundMessage) -> str:
    """What makes it the same message when it comes again; one that has no id never is."""
    return _sound(f"{message.channel}:{message.chat_id}:{message.message_id or secrets.token_hex(8)}")


def _reply_of(message: OutboundMessage) -> str | None:
    return message.turn_id if message.kind is OutboundKind.REPLY else None


def _text_of(message: OutboundMessage) -> str | None:
    if message.answers is None:
        return None
    parts = (message.channel, message.chat_id, message.thread_id, message.answers, message.content, message.media)
    return sha256(sound_json(parts).encode()).hexdigest()


def _sound(text: str) -> str:
    return text if is_sound(text) else text.encode("utf-8", "backslashreplace").decode()
