"""Messages between subagents of one goal, in the table `team_messages`.

What was read is recorded in the readers' sessions, by message key.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nanobot.messages.types import Provenance
from nanobot.utils import codec
from nanobot.utils.database import Database

if TYPE_CHECKING:
    from sqlite3 import Connection

SCHEMA = """
CREATE TABLE IF NOT EXISTS team_messages (goal TEXT NOT NULL, sent_at REAL NOT NULL, data TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS team_messages_by_goal ON team_messages (goal);
"""
_KEY = "letter:"


@dataclass(frozen=True, slots=True)
class TeamMessage:
    """A message from one subagent to others of the same goal."""

    id: str
    by: str
    """Id of the sender's task."""
    label: str
    """Label of the sender's task."""
    to: tuple[str, ...]
    """Ids of the recipients' tasks."""
    text: str
    provenance: Provenance
    """The least trusted content it may derive from."""

    @property
    def journal_key(self) -> str:
        """Key of its row in the readers' sessions, so that it is read once."""
        return f"{_KEY}{self.id}"


def is_team_message(journal_key: str | None) -> bool:
    return journal_key is not None and journal_key.startswith(_KEY)


class TeamMailbox:
    """The messages of all goals. Methods raise StorageError."""

    def __init__(self, database: Database) -> None:
        """The database has the tables of SCHEMA."""
        self._database = database

    async def messages(self, goal: str) -> list[TeamMessage]:
        """Return the goal's messages, oldest first."""

        def select(db: "Connection") -> list[TeamMessage]:
            rows = db.execute("SELECT data FROM team_messages WHERE goal = ? ORDER BY rowid", (goal,))
            return [codec.from_json(TeamMessage, data) for (data,) in rows]

        return await self._database.ask(select, is_synced=False)

    async def add(self, goal: str, message: TeamMessage, sent_at: float) -> None:
        """Store a message. Once it returns, the message survives a crash."""
        row = (goal, sent_at, codec.to_json(message))
        await self._database.ask(lambda db: db.execute("INSERT INTO team_messages VALUES (?, ?, ?)", row))

    async def sweep(self, *, before: float) -> None:
        """Delete the messages sent before this time."""
        await self._database.ask(lambda db: db.execute("DELETE FROM team_messages WHERE sent_at < ?", (before,)))
