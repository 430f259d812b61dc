"""Tasks: what subagents were asked to do and how it ended, in the table `tasks`.

A task stays open until its end was reported. Its row names the process that works on it; when that dies, another one
takes it over.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.agent.requester import Requester
from nanobot.agent.subagent.roles import TaskRole
from nanobot.agent.tools.base import SUBAGENT_SESSION
from nanobot.messages.types import Provenance
from nanobot.utils import codec
from nanobot.utils.database import Database, reading
from nanobot.utils.lease import ProcessLease

if TYPE_CHECKING:
    from sqlite3 import Connection

log = logging.getLogger(__name__)

SCHEMA = """
CREATE TABLE IF NOT EXISTS tasks (
    id TEXT PRIMARY KEY, turn TEXT NOT NULL, lease TEXT NOT NULL, reported INTEGER NOT NULL,
    created_at REAL NOT NULL, ended_at REAL, data TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS tasks_by_state ON tasks (reported, ended_at);
CREATE INDEX IF NOT EXISTS tasks_by_turn ON tasks (turn);
"""


class TaskState(StrEnum):
    """The state of a task. Set by code, never from a model's claim alone."""

    WAITING = "waiting"
    """Waits for a free slot."""
    RUNNING = "running"
    DONE = "done"
    LIMIT = "limit"
    """Reached its limit of steps, time or money."""
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_over(self) -> bool:
        return self not in (TaskState.WAITING, TaskState.RUNNING)


@dataclass(frozen=True, slots=True)
class TaskOrder:
    """What is to be done, and for whom. Fixed when it is asked for."""

    text: str
    label: str
    requester: Requester
    """Its session gets the report."""
    role: TaskRole = TaskRole.WORKER
    turn_id: str = ""
    root: str = ""
    """The session at the top if a subagent asked, else that of the requester."""
    depth: int = 1
    goal: str = ""
    """Id of the goal whose turn asked, if any."""
    waited: bool = False
    """Whether the turn that asked waits for the result."""
    quiet: bool = False
    """Whether the turn that asked sends nothing; then the report is not sent either."""

    @property
    def parent(self) -> str:
        """The session that asked."""
        return self.requester.session_key

    @property
    def key(self) -> tuple[str, TaskRole, str]:
        """Equal for two orders of the same work."""
        return self.parent, self.role, " ".join(self.text.split()).casefold()

    def belongs_to(self, session_key: str) -> bool:
        return session_key in (self.parent, self.root)


@dataclass(slots=True)
class Task:
    """One task: its order, and how far it is."""

    id: str
    order: TaskOrder
    state: TaskState = TaskState.WAITING
    created_at: float = 0.0
    began_at: float | None = None
    ended_at: float | None = None
    tries: int = 0
    cost_usd: float | None = None
    result: str = ""
    seen: Provenance = Provenance.TOOL
    """The least trusted content the subagent read."""
    reported: bool = False
    """Whether somebody has the result, or nobody is to get it."""

    @property
    def session_key(self) -> str:
        """Session of the subagent, with its transcript."""
        return f"{SUBAGENT_SESSION}{self.id}"

    @property
    def attempt_key(self) -> str:
        """Key of the message that starts the current attempt."""
        return f"{self.session_key}:{self.tries}"

    @property
    def journal_key(self) -> str:
        """Key of the report, so that it is delivered once."""
        return f"{self.session_key}:report"


class TaskStore:
    """The tasks of a bot, and this process's hold on them. Methods raise StorageError."""

    def __init__(self, database: Database, lease: ProcessLease) -> None:
        """The database has the tables of SCHEMA."""
        self._database = database
        self._lease = lease

    async def save(self, task: Task) -> None:
        """Save a task that this process works on. Once it returns, the task survives a crash."""
        data = codec.to_json(task)
        row = (task.id, task.order.turn_id, self._lease.name, task.reported, task.created_at, task.ended_at, data)

        def write(db: "Connection") -> None:
            self._lease.hold()
            db.execute("INSERT OR REPLACE INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?)", row)

        await self._database.ask(write)

    async def inherit(self, session_key: str | None = None) -> list[Task]:
        """Take over and return the open tasks of dead processes, of one session or all. No two callers get the same."""
        if not self._database.path.exists():
            return []

        def take(db: "Connection") -> list[Task]:
            leases = [lease for (lease,) in db.execute("SELECT DISTINCT lease FROM tasks WHERE NOT reported")]
            dead = [lease for lease in leases if lease != self._lease.name and not self._lease.is_alive(lease)]
            found = [task for lease in dead for task in _select(db, "NOT reported AND lease = ?", lease)]
            found = [task for task in found if session_key is None or task.order.belongs_to(session_key)]
            if found:
                self._lease.hold()
                rows = [(self._lease.name, task.id) for task in found]
                db.executemany("UPDATE tasks SET lease = ? WHERE id = ?", rows)
            return sorted(found, key=lambda task: task.created_at)

        return await self._database.ask(take)

    async def of_turn(self, turn_id: str) -> list[Task]:
        """Return the tasks that this turn asked for, reported ones included."""
        return await self._database.ask(lambda db: [*_select(db, "turn = ?", turn_id)], is_synced=False)

    async def recent(self, *, since: float) -> list[Task]:
        """Return the open tasks of all processes and those that ended after `since`, oldest first."""
        if not self._database.path.exists():
            return []
        where = "NOT reported OR ended_at > ?"
        tasks = await self._database.ask(lambda db: [*_select(db, where, since)], is_synced=False)
        return sorted(tasks, key=lambda task: task.created_at)

    async def sweep(self, *, before: float) -> list[str]:
        """Delete reported tasks that ended before this time. Return their session keys."""
        delete = "DELETE FROM tasks WHERE reported AND ended_at < ? RETURNING id"
        ids = await self._database.ask(lambda db: db.execute(delete, (before,)).fetchall())
        return [f"{SUBAGENT_SESSION}{task_id}" for (task_id,) in ids]


def _select(db: "Connection", where: str, *values: object) -> Iterator[Task]:
    """Yield the tasks of these rows. One that cannot be read is logged and hides no other."""
    for task_id, data in db.execute(f"SELECT id, data FROM tasks WHERE {where}", values):  # noqa: S608 ours
        try:
            yield codec.from_json(Task, data)
        except ValueError as error:
            log.warning("the task %s in nanobot.db cannot be read: %s", task_id, error)


def task_counts(database: Path, lease: ProcessLease) -> tuple[int, int]:
    """Return how many tasks run and wait. Tasks of dead processes count as neither. Blocks; raises StorageError."""
    with reading(database, SCHEMA) as db:
        names = [name for (name,) in db.execute("SELECT DISTINCT lease FROM tasks WHERE NOT reported")]
        alive = [name for name in names if lease.is_alive(name)]
        states = [task.state for name in alive for task in _select(db, "NOT reported AND lease = ?", name)]
    return states.count(TaskState.RUNNING), states.count(TaskState.WAITING)
