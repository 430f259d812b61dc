"""What a mailbox has to remember: how far it is read, which mail belongs to which thread, what was answered when."""

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
"""Threads that nobody wrote in for so many mails are begun anew by the next one."""
HOUR_S = 3600.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS mails (
    id INTEGER PRIMARY KEY, message_id TEXT NOT NULL, chat_id TEXT NOT NULL, thread_id TEXT, subject TEXT NOT NULL,
    ancestors TEXT NOT NULL, UNIQUE (message_id, chat_id));
CREATE INDEX IF NOT EXISTS mails_of_a_thread ON mails (chat_id, thread_id);
CREATE TABLE IF NOT EXISTS replies (
    message_id TEXT PRIMARY KEY, chat_id TEXT NOT NULL, thread_id TEXT, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS folders (
    name TEXT PRIMARY KEY, validity INTEGER NOT NULL, last_uid INTEGER NOT NULL, looked_at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS salt (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), word TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class MailRecord:
    """A mail that came or went."""

    message_id: str
    thread_id: str | None
    """None: it began the conversation from our side, so answers to it belong to the chat itself."""
    subject: str
    ancestors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MailPosition:
    """How far a folder is read; its UIDs mean nothing where `validity` has changed."""

    validity: int
    last_uid: int
    looked_at: float
    """By the wall clock."""


@asynccontextmanager
async def open_store(path: Path) -> AsyncIterator["MailStore"]:
    """The book in this file, made where there is none. Raises StorageError where it cannot be opened."""
    async with open_database(path, _SCHEMA) as database:
        yield MailStore(database, await database.ask(_salt))


class MailStore:
    """To be used inside `open_store`. Every method raises StorageError where the disk refuses.

    The case of a chat_id makes no difference.
    """

    def __init__(self, database: Database, salt: str) -> None:
        self._ask = database.ask
        self.salt = salt
        """Known to nobody else and the same as long as the book is: what our message ids are made with."""

    async def place(self, folder: str) -> MailPosition | None:
        """How far it is read; None where it never was."""
        asked = "SELECT validity, last_uid, looked_at FROM folders WHERE name = ?"
        row = await self._ask(lambda db: db.execute(asked, (folder,)).fetchone())
        return MailPosition(*row) if row else None

    async def read_to(self, folder: str, place: MailPosition) -> None:
        """It is read that far."""
        row = (folder, place.validity, place.last_uid, place.looked_at)
        await self._ask(lambda db: _do(db, "INSERT OR REPLACE INTO folders VALUES (?, ?, ?, ?)", row))

    async def find(self, chat_id: str, message_ids: Sequence[str]) -> MailRecord | None:
        """The last of these mails that came from this person, or went to them."""

        def select(db: "Connection") -> MailRecord | None:
            for message_id in reversed(message_ids):
                row = db.execute(
                    f"{_KNOWN} WHERE message_id = ? AND chat_id = ?", (message_id, chat_id.lower())
                ).fetchone()
                if row:
                    return _known(row)
            return None

        return await self._ask(select)

    async def last_of(self, chat_id: str, thread_id: str | None) -> MailRecord | None:
        """The latest mail of a thread."""
        asked = f"{_KNOWN} WHERE chat_id = ? AND thread_id IS ? ORDER BY id DESC LIMIT 1"
        row = await self._ask(lambda db: db.execute(asked, (chat_id.lower(), thread_id)).fetchone())
        return _known(row) if row else None

    async def note(self, chat_id: str, mail: MailRecord) -> None:
        """A mail came or went. One that is in the book stays as it is."""
        row = (mail.message_id, chat_id.lower(), mail.thread_id, mail.subject, json.dumps(mail.ancestors))

        def insert(db: "Connection") -> None:
            db.execute(
                "INSERT INTO mails (message_id, chat_id, thread_id, subject, ancestors) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                row,
            )
            db.execute("DELETE FROM mails WHERE id <= (SELECT MAX(id) FROM mails) - ?", (_MOST_MAILS,))

        await self._ask(insert)

    async def answered(self, chat_id: str, thread_id: str | None, message_id: str, now: float) -> None:
        """A thread got a reply."""

        def insert(db: "Connection") -> None:
            db.execute("DELETE FROM replies WHERE at < ?", (now - HOUR_S,))
            db.execute(
                "INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?)", (message_id, chat_id.lower(), thread_id, now)
            )

        await self._ask(insert)

    async def replies(self, chat_id: str, thread_id: str | None, now: float, *, but: str) -> int:
        """How many replies a thread got in the last hour, one not counted."""
        asked = "SELECT COUNT(*) FROM replies WHERE chat_id = ? AND thread_id IS ? AND at > ? AND message_id != ?"
        row = (chat_id.lower(), thread_id, now - HOUR_S, but)
        return await self._ask(lambda db: int(db.execute(asked, row).fetchone()[0]))


_KNOWN = "SELECT message_id, thread_id, subject, ancestors FROM mails"


def _known(row: tuple[str, str | None, str, str]) -> MailRecord:
    return MailRecord(row[0], row[1], row[2], tuple(json.loads(row[3])))


def _do(db: "Connection", statement: str, row: Sequence[object]) -> None:
    db.execute(statement, tuple(row))


def _salt(db: "Connection") -> str:
    db.execute("INSERT OR IGNORE INTO salt VALUES (1, ?)", (secrets.token_hex(16),))
    return str(db.execute("SELECT word FROM salt").fetchone()[0])
