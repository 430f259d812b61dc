"""Work that goes on after the turn that asked for it, in the table `work`: the tasks of subagents, and goals.

It is open until its end was reported. Its row names the process that works on it; when that dies, another one takes it
over.
"""

import logging
import secrets
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nanobot.agent.command import is_from_owner
from nanobot.agent.scope import OWNERS, Scope
from nanobot.agent.tools.base import ToolContext
from nanobot.bus.events import Address, InboundMessage
from nanobot.messages.types import Origin, Provenance, is_outside, least_trusted
from nanobot.utils import codec
from nanobot.utils.database import Database, reading
from nanobot.utils.locks import ProcessLease

if TYPE_CHECKING:
    from sqlite3 import Connection

log = logging.getLogger(__name__)

SCHEMA = """
CREATE TABLE IF NOT EXISTS work (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, session TEXT NOT NULL, turn TEXT NOT NULL, lease TEXT NOT NULL,
    is_open INTEGER NOT NULL, created_at REAL NOT NULL, ended_at REAL, data TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS work_by_session ON work (session, kind, is_open);
CREATE INDEX IF NOT EXISTS work_by_state ON work (is_open, ended_at);
CREATE INDEX IF NOT EXISTS work_by_turn ON work (turn);
"""


class WorkState(StrEnum):
    """Set by code, never from a model's claim alone."""

    WAITING = "waiting"
    """A task waits for a free slot, a goal for a person who resumes it."""
    RUNNING = "running"
    """A task runs."""
    ACTIVE = "active"
    """One turn of a goal follows another."""
    ASKING = "asking"
    """A goal waits for the person's answer."""
    DONE = "done"
    LIMIT = "limit"
    """Reached its limit of steps, time or money."""
    FAILED = "failed"
    STOPPED = "stopped"
    DROPPED = "dropped"
    """The agent says that the goal cannot be reached."""

    @property
    def is_over(self) -> bool:
        """Whether it ended. A person may still resume a goal."""
        return self not in (WorkState.WAITING, WorkState.RUNNING, WorkState.ACTIVE, WorkState.ASKING)


@dataclass(slots=True, kw_only=True)
class Work(ABC):
    """A task or a goal."""

    id: str = field(default_factory=lambda: secrets.token_hex(4))
    state: WorkState = WorkState.WAITING
    created_at: float = 0.0
    ended_at: float | None = None
    reported: bool = False
    """Whether its end was reported, or needs no report."""

    @property
    @abstractmethod
    def root(self) -> str:
        """The session it is for."""

    @property
    def turn_id(self) -> str:
        """The turn that asked for it, if it is found by that."""
        return ""

    @property
    def is_open(self) -> bool:
        return not (self.state.is_over and self.reported)


T = TypeVar("T", bound=Work)


class WorkStore(Generic[T]):
    """The tasks or the goals of a bot, and this process's hold on them. `where` is a condition in SQL. Methods raise
    StorageError.
    """

    def __init__(self, kind: type[T], database: Database, lease: ProcessLease) -> None:
        """The database has the tables of SCHEMA."""
        self._kind = kind
        self._database = database
        self._lease = lease

    async def add(self, item: T, *, is_only: bool = False) -> bool:
        """Save and own new work; once this returns, it survives a crash. `is_only`: a session has one of this kind, so
        ended ones are deleted, and if one is open, return False.
        """
        kind, times, data = self._kind.__name__, (item.created_at, item.ended_at), codec.to_json(item)
        row = (item.id, kind, item.root, item.turn_id, self._lease.name, item.is_open, *times, data)

        def insert(db: "Connection") -> bool:
            if is_only:
                db.execute("DELETE FROM work WHERE kind = ? AND session = ? AND NOT is_open", (kind, item.root))
                if db.execute("SELECT 1 FROM work WHERE kind = ? AND session = ?", (kind, item.root)).fetchone():
                    return False
            self._lease.hold()
            db.execute("INSERT INTO work VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            return True

        return await self._database.ask(insert)

    async def save(self, item: T) -> None:
        """Save the progress of work that this process owns. What was deleted stays deleted."""
        row = (item.is_open, item.ended_at, codec.to_json(item), item.id)
        update = "UPDATE work SET is_open = ?, ended_at = ?, data = ? WHERE id = ?"
        await self._database.ask(lambda db: db.execute(update, row))

    async def find(self, where: str, *values: object) -> list[T]:
        """Return the work of all processes for which the condition holds, oldest first."""
        if not self._database.path.exists():
            return []
        return await self._database.ask(lambda db: _select(db, self._kind, where, *values), is_synced=False)

    async def take(self, session_key: str | None = None, *, with_ended: bool = False) -> list[T]:
        """Take over and return the open work of dead processes, of one session or all, oldest first; `with_ended`: also
        what has ended. No two callers get the same.
        """
        if not self._database.path.exists():
            return []

        def take(db: "Connection") -> list[T]:
            leases = [lease for (lease,) in db.execute("SELECT DISTINCT lease FROM work WHERE is_open")]
            dead = [lease for lease in leases if lease != self._lease.name and not self._lease.is_alive(lease)]
            free = f"? IN (session, '') AND (is_open AND lease IN ({', '.join('?' * len(dead))}) OR NOT is_open AND ?)"
            items = _select(db, self._kind, free, session_key or "", *dead, with_ended)
            if items:
                self._lease.hold()
                rows = [(self._lease.name, item.id) for item in items]
                db.executemany("UPDATE work SET lease = ? WHERE id = ?", rows)
            return items

        return await self._database.ask(take)

    async def delete(self, where: str, *values: object) -> list[T]:
        """Delete the work for which the condition holds, and return it."""

        def delete(db: "Connection") -> list[T]:
            items = _select(db, self._kind, where, *values)
            db.executemany("DELETE FROM work WHERE id = ?", [(item.id,) for item in items])
            return items

        return await self._database.ask(delete)

    def has_open(self, session_key: str) -> bool:
        """Whether any process has open work for this session. Cheap: every turn asks this."""
        query = "SELECT 1 FROM work WHERE session = ? AND kind = ? AND is_open"
        return bool(self._database.find(query, session_key, self._kind.__name__))

    async def is_elsewhere(self, session_key: str) -> bool:
        """Whether another living process has open work for this session."""
        query = "SELECT lease FROM work WHERE session = ? AND kind = ? AND is_open AND lease <> ?"
        values = (session_key, self._kind.__name__, self._lease.name)

        def is_elsewhere(db: "Connection") -> bool:
            return any(self._lease.is_alive(lease) for (lease,) in db.execute(query, values).fetchall())

        return await self._database.ask(is_elsewhere, is_synced=False)


def read_work(database: Path, kind: type[T], *, alive: ProcessLease | None = None) -> list[T]:
    """Return all work of this kind, oldest first; with `alive`, what living processes work on. Needs no event loop.
    Blocks; raises StorageError.
    """
    with reading(database, SCHEMA) as db:
        if alive is None:
            return _select(db, kind, "1")
        leases = [lease for (lease,) in db.execute("SELECT DISTINCT lease FROM work WHERE is_open")]
        names = [lease for lease in leases if alive.is_alive(lease)]
        return _select(db, kind, f"is_open AND lease IN ({', '.join('?' * len(names))})", *names)


def _select(db: "Connection", kind: type[T], where: str, *values: object) -> list[T]:
    """Return the work of these rows, oldest first. A row that cannot be read is logged and hides no other."""
    query = f"SELECT id, data FROM work WHERE kind = ? AND ({where}) ORDER BY created_at"  # noqa: S608 ours
    items: list[T] = []
    for item_id, data in db.execute(query, (kind.__name__, *values)).fetchall():
        try:
            items.append(codec.from_json(kind, data))
        except ValueError as error:
            log.warning("the %s %s in nanobot.db cannot be read: %s", kind.__name__.lower(), item_id, error)
    return items


@dataclass(frozen=True, slots=True)
class Requester:
    """The person, chat and turn that asked, as they were then. The work is done in their name and reported to them."""

    session_key: str
    address: Address
    provenance: Provenance = Provenance.OWNER
    """Provenance of the request."""
    origin: Origin = Origin.CLI
    """Origin of the turn that asked."""
    sender_id: str | None = None
    attended: bool = False
    scope: Scope = OWNERS

    @classmethod
    def of(cls, ctx: ToolContext) -> "Requester":
        """The requester of a tool call. What entered the turn may be repeated in the request, so it counts."""
        provenance = least_trusted([ctx.asker, ctx.entered]) if is_outside(ctx.entered) else ctx.asker
        return cls(ctx.session_key, ctx.address, provenance, ctx.origin, ctx.sender_id, ctx.attended, ctx.scope)

    def is_controlled_by(self, message: InboundMessage) -> bool:
        """Whether the sender may stop, resume or answer the work: an owner, or the person who asked for it."""
        return is_from_owner(message) or (message.channel, message.sender_id) == (self.address.channel, self.sender_id)

    def message(self, content: str, **fields: Any) -> InboundMessage:
        """Return a message to the session in their name; `fields` are those of InboundMessage.at."""
        fields = {"session_key": self.session_key, "provenance": self.provenance, **fields}
        return InboundMessage.at(self.address, self.sender_id, content, **fields)

    def stand_in(self, context: ToolContext) -> ToolContext:
        """Return the context of a turn of this work as that of the turn that asked: who may answer its questions."""
        return replace(context, origin=self.origin, attended=self.attended)
