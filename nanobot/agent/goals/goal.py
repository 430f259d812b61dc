"""A goal: what to reach, for whom, its progress and its cost, in the table `goals`.

A session has one row, its current or last goal. The row names the process that works on it; when that dies, another one
takes it over.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.agent.goals.check import GoalCheck
from nanobot.agent.requester import Requester
from nanobot.errors import NanobotError
from nanobot.messages.types import Provenance
from nanobot.utils import codec
from nanobot.utils.database import Database, reading
from nanobot.utils.lease import ProcessLease

if TYPE_CHECKING:
    from sqlite3 import Connection

log = logging.getLogger(__name__)

SCHEMA = """
CREATE TABLE IF NOT EXISTS goals (
    session TEXT PRIMARY KEY, id TEXT NOT NULL, lease TEXT NOT NULL, unfinished INTEGER NOT NULL,
    created_at REAL NOT NULL, data TEXT NOT NULL) WITHOUT ROWID;
"""
ELSEWHERE = "Another nanobot process works on the goal of this session. Use that one, or end it first."


class GoalState(StrEnum):
    """The state of a goal. Set by code, never from a model's claim alone."""

    ACTIVE = "active"
    """One turn follows another."""
    ASKING = "asking"
    """Waits for the person's answer."""
    WAITING = "waiting"
    """Waits until a person resumes it."""
    DONE = "done"
    """Claimed, and the check passed."""
    DROPPED = "dropped"
    """The agent says it cannot be reached."""
    STOPPED = "stopped"
    LIMIT = "limit"
    """Reached its limit of steps or money."""

    @property
    def is_over(self) -> bool:
        """Whether it ended. A person may still resume it."""
        return self not in (GoalState.ACTIVE, GoalState.ASKING, GoalState.WAITING)


@dataclass(frozen=True, slots=True)
class GoalLimits:
    """What a goal may use at most."""

    steps: int = 200
    """Model calls, including those of its subagents."""
    usd: float = 2.0
    """Dollars, as far as prices are known."""


@dataclass(frozen=True, slots=True)
class GoalOrder:
    """What is to be reached, and for whom. Fixed when it is set."""

    text: str
    requester: Requester
    check: GoalCheck | None = None
    """The check that is demanded, if any."""
    plan: bool = False
    """Whether a planner writes a task list first."""
    review: bool = False
    """Whether a reviewer reads the result before the person does."""


@dataclass(frozen=True, slots=True)
class Note:
    """The progress, in the model's words."""

    done: str = ""
    doing: str = ""
    following: str = ""


@dataclass(slots=True)
class GoalProgress:
    """How far the work is."""

    note: Note = field(default_factory=Note)
    noted: Provenance = Provenance.OWNER
    """Least trusted provenance of the turns that wrote the note."""
    claim: GoalCheck | None = None
    """The check that passed. The turn that claimed it may still be running."""
    planned: bool = False
    sent_back: int = 0
    """Number of rejections by the reviewer."""
    objections: str = ""
    """The reviewer's last objections."""
    failures: int = 0
    """Failed turns in a row."""
    idle: int = 0
    """Turns in a row without any action."""
    unnoted: int = 0
    """Turns in a row without a change of the note."""


@dataclass(slots=True)
class GoalUsage:
    turns: int = 0
    steps: int = 0
    """Model calls, including those of its subagents."""
    cost_usd: float | None = None
    """None while no price is known."""


@dataclass(slots=True)
class Goal:
    """One goal: its order, and what became of it."""

    id: str
    order: GoalOrder
    limits: GoalLimits = field(default_factory=GoalLimits)
    state: GoalState = GoalState.ACTIVE
    why: str = ""
    """Why it waits or ended, or what it asks, as a text for people."""
    progress: GoalProgress = field(default_factory=GoalProgress)
    usage: GoalUsage = field(default_factory=GoalUsage)
    created_at: float = 0.0
    ended_at: float | None = None
    report: str = ""
    """The report of its end, or the question it waits for."""
    is_reported: bool = True
    """Whether the report was sent."""

    @property
    def session_key(self) -> str:
        return self.order.requester.session_key

    @property
    def spent(self) -> str:
        """Why it may not use more; empty if it may."""
        if self.usage.steps >= self.limits.steps:
            return f"its limit of {self.limits.steps} steps is reached"
        if (self.usage.cost_usd or 0.0) >= self.limits.usd:
            return f"its limit of ${self.limits.usd:g} is reached"
        return ""

    def extend(self, steps: int | None, usd: float | None, usual: GoalLimits) -> None:
        """Raise the limits of a resumed goal by what is asked for, or where one is reached by the usual amount."""
        used, limits = self.usage, self.limits
        if steps is not None or used.steps >= limits.steps:
            limits = replace(limits, steps=used.steps + (steps or usual.steps))
        if usd is not None or (used.cost_usd or 0.0) >= limits.usd:
            limits = replace(limits, usd=(used.cost_usd or 0.0) + (usd or usual.usd))
        self.limits = limits


class GoalStore:
    """The goals of a bot, and this process's hold on them. Methods raise StorageError."""

    def __init__(self, database: Database, lease: ProcessLease) -> None:
        """The database has the tables of SCHEMA."""
        self._database = database
        self._lease = lease

    async def load(self, session_key: str) -> Goal | None:
        """Return the session's last goal, whichever process owns it."""
        if not self._database.path.exists():
            return None
        goals = await self._database.ask(lambda db: [*_select(db, "session = ?", session_key)], is_synced=False)
        return goals[0] if goals else None

    def has_unfinished(self, session_key: str) -> bool:
        """Whether the session's last goal is unfinished, whichever process owns it. Cheap: every turn asks this."""
        return bool(self._database.find("SELECT 1 FROM goals WHERE session = ? AND unfinished", session_key))

    async def put(self, goal: Goal) -> None:
        """Save and own a new goal. Raises NanobotError if another process works on the session's old one."""
        data = codec.to_json(goal)
        row = (goal.session_key, goal.id, self._lease.name, _is_unfinished(goal), goal.created_at, data)

        def write(db: "Connection") -> bool:
            if self._is_elsewhere(db, goal.session_key):
                return False
            self._lease.hold()
            db.execute("INSERT OR REPLACE INTO goals VALUES (?, ?, ?, ?, ?, ?)", row)
            return True

        if not await self._database.ask(write):
            raise NanobotError(ELSEWHERE)

    async def save(self, goal: Goal) -> None:
        """Save the progress of a goal that this process owns. A goal that was deleted stays deleted."""
        update = "UPDATE goals SET unfinished = ?, data = ? WHERE session = ? AND id = ?"
        row = (_is_unfinished(goal), codec.to_json(goal), goal.session_key, goal.id)
        await self._database.ask(lambda db: db.execute(update, row))

    async def take(self, session_key: str) -> Goal | None:
        """Own and return the session's last goal; None if there is none. Raises NanobotError if another process works
        on it.
        """
        if not self._database.path.exists():
            return None

        def take(db: "Connection") -> list[Goal] | None:
            if self._is_elsewhere(db, session_key):
                return None
            goals = [*_select(db, "session = ?", session_key)]
            if goals:
                self._lease.hold()
                db.execute("UPDATE goals SET lease = ? WHERE session = ?", (self._lease.name, session_key))
            return goals

        goals = await self._database.ask(take)
        if goals is None:
            raise NanobotError(ELSEWHERE)
        return goals[0] if goals else None

    async def unfinished(self, session_key: str | None = None) -> list[str]:
        """Return the sessions with an unfinished goal, the oldest first: this session at most, or all."""
        if not self._database.path.exists():
            return []
        select = "SELECT session FROM goals WHERE unfinished AND ? IN (session, '') ORDER BY created_at"
        rows = self._database.ask(lambda db: db.execute(select, (session_key or "",)).fetchall(), is_synced=False)
        return [key for (key,) in await rows]

    def release(self, goal: Goal) -> None:
        """Let other processes work on the goal. Does not wait."""
        update = "UPDATE goals SET lease = '' WHERE session = ? AND id = ? AND lease = ?"
        row = (goal.session_key, goal.id, self._lease.name)
        self._database.soon(lambda db: db.execute(update, row), is_urgent=True)

    async def delete(self, session_key: str) -> None:
        """Delete the session's goal, if any."""
        await self._database.ask(lambda db: db.execute("DELETE FROM goals WHERE session = ?", (session_key,)))

    async def is_elsewhere(self, session_key: str) -> bool:
        """Whether another living process works on the session's goal."""
        return await self._database.ask(lambda db: self._is_elsewhere(db, session_key), is_synced=False)

    def _is_elsewhere(self, db: "Connection", session_key: str) -> bool:
        row = db.execute("SELECT lease FROM goals WHERE session = ?", (session_key,)).fetchone()
        return row is not None and row[0] not in ("", self._lease.name) and self._lease.is_alive(row[0])


def read_goals(database: Path) -> list[Goal]:
    """Return the goals of all sessions, oldest first, without an event loop. Blocks; raises StorageError."""
    with reading(database, SCHEMA) as db:
        return sorted(_select(db, "1"), key=lambda goal: goal.created_at)


def _select(db: "Connection", where: str, *values: object) -> Iterator[Goal]:
    """Yield the goals of these rows. One that cannot be read is logged and hides no other."""
    rows = db.execute(f"SELECT session, data FROM goals WHERE {where}", values).fetchall()  # noqa: S608 ours
    for session_key, data in rows:
        try:
            yield codec.from_json(Goal, data)
        except ValueError as error:
            log.warning("the goal of %s in nanobot.db cannot be read: %s", session_key, error)


def _is_unfinished(goal: Goal) -> bool:
    return not goal.state.is_over or not goal.is_reported


def check_length(limit: int, text: str, name: str) -> None:
    """Raise NanobotError if the text has more than `limit` characters."""
    if len(text) > limit:
        raise NanobotError(f"{name} has {len(text):,} characters; {limit:,} are the most. Put the rest into a file.")
