"""The saved state of a mailbox: its read position, the threads of mails, and recent replies."""

import json
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.utils.database import Database, open_database

if TYPE_CHECKING:
    from sqlite3 import Connection

_MOST_MAILS = 20_000
"""Mails kept; a mail that answers an older one starts a new thread."""
HOUR_S = 3600.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS mails (
    id INTEGER PRIMARY KEY, message_id TEXT NOT NULL, chat_id TEXT NOT NULL, thread_id TEXT, subject TEXT NOT NULL,
    ancestors TEXT NOT NULL, UNIQUE (message_id, chat_id));
CREATE INDEX IF NOT EXISTS mails_of_a_thread ON mails (chat_id, thread_id);
CREATE TABLE IF NOT EXISTS replies (
    message_id TEXT PRIMARY KEY, chat_id TEXT NOT NULL, thread_id TEXT, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS folders (
    name TEXT PRIMARY KEY, validity INTEGER NOT NULL, last_uid INTEGER NOT NULL, checked_at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS salt (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), word TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class MailRecord:
    """A received or sent mail."""

    message_id: str
    thread_id: str | None
    """None if we started the conversation: answers then belong to the chat itself."""
    subject: str
    ancestors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MailPosition:
    """How far a folder is read. UIDs are meaningless once `validity` has changed."""

    validity: int
    last_uid: int
    checked_at: float
    """By the wall clock."""


@asynccontextmanager
async def open_store(path: Path) -> AsyncIterator["MailStore"]:
    """The store in this file, created if missing. Raises StorageError if it cannot be opened."""
    async with open_database(path, _SCHEMA) as database:
        yield MailStore(database, await database.ask(_salt))


class MailStore:
    """Use it inside `open_store`. Every method raises StorageError if the disk fails.

    The case of a chat_id makes no difference.
    """

    def __init__(self, database: Database, salt: str) -> None:
        self._ask = database.ask
        self.salt = salt
        """A secret kept with the store; part of the hash in our message ids."""

    async def position(self, folder: str) -> MailPosition | None:
        """The position in a folder; None if it was never read."""
        statement = "SELECT validity, last_uid, checked_at FROM folders WHERE name = ?"
        row = await self._ask(lambda db: db.execute(statement, (folder,)).fetchone())
        return MailPosition(*row) if row else None

    async def save_position(self, folder: str, position: MailPosition) -> None:
        """Save the position in a folder."""
        row = (folder, position.validity, position.last_uid, position.checked_at)
        await self._ask(lambda db: _execute(db, "INSERT OR REPLACE INTO folders VALUES (?, ?, ?, ?)", row))

    async def find(self, chat_id: str, message_ids: Sequence[str]) -> MailRecord | None:
        """The last of these mails that was received from or sent to this person."""

        def select(db: "Connection") -> MailRecord | None:
            for message_id in reversed(message_ids):
                row = db.execute(
                    f"{_SELECT_MAIL} WHERE message_id = ? AND chat_id = ?", (message_id, chat_id.lower())
                ).fetchone()
                if row:
                    return _parse_mail(row)
            return None

        return await self._ask(select)

    async def last_in_thread(self, chat_id: str, thread_id: str | None) -> MailRecord | None:
        """The latest mail of a thread."""
        statement = f"{_SELECT_MAIL} WHERE chat_id = ? AND thread_id IS ? ORDER BY id DESC LIMIT 1"
        row = await self._ask(lambda db: db.execute(statement, (chat_id.lower(), thread_id)).fetchone())
        return _parse_mail(row) if row else None

    async def record(self, chat_id: str, mail: MailRecord) -> None:
        """Record a received or sent mail, unless it is recorded already."""
        row = (mail.message_id, chat_id.lower(), mail.thread_id, mail.subject, json.dumps(mail.ancestors))

        def insert(db: "Connection") -> None:
            db.execute(
                "INSERT INTO mails (message_id, chat_id, thread_id, subject, ancestors) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                row,
            )
            db.execute("DELETE FROM mails WHERE id <= (SELECT MAX(id) FROM mails) - ?", (_MOST_MAILS,))

        await self._ask(insert)

    async def record_reply(self, chat_id: str, thread_id: str | None, message_id: str, now: float) -> None:
        """Record a reply in a thread."""

        def insert(db: "Connection") -> None:
            db.execute("DELETE FROM replies WHERE at < ?", (now - HOUR_S,))
            db.execute(
                "INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?)", (message_id, chat_id.lower(), thread_id, now)
            )

        await self._ask(insert)

    async def replies(self, chat_id: str, thread_id: str | None, now: float, *, excluding: str) -> int:
        """The number of replies in a thread within the last hour, except this message."""
        statement = "SELECT COUNT(*) FROM replies WHERE chat_id = ? AND thread_id IS ? AND at > ? AND message_id != ?"
        row = (chat_id.lower(), thread_id, now - HOUR_S, excluding)
        return await self._ask(lambda db: int(db.execute(statement, row).fetchone()[0]))


_SELECT_MAIL = "SELECT message_id, thread_id, subject, ancestors FROM mails"


def _parse_mail(row: tuple[str, str | None, str, str]) -> MailRecord:
    return MailRecord(row[0], row[1], row[2], tuple(json.loads(row[3])))


def _execute(db: "Connection", statement: str, row: Sequence[object]) -> None:
    db.execute(statement, tuple(row))


def _salt(db: "Connection") -> str:
    db.execute("INSERT OR IGNORE INTO salt VALUES (1, ?)", (secrets.token_hex(16),))
    return str(db.execute("SELECT word FROM salt").fetchone()[0])
