"""The tasks of subagents and the goals in a home, as its database holds them."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from nanobot.agent.goals.goal import Goal, GoalOrder
from nanobot.agent.work import SCHEMA, Requester
from nanobot.bus.events import Address
from nanobot.messages.types import Provenance
from nanobot.utils import codec


def open_tasks(home: Path) -> list[dict[str, Any]]:
    """Tasks whose end was not reported yet."""
    return _work(home, "kind = 'Task' AND is_open")


def reported_tasks(home: Path) -> list[dict[str, Any]]:
    """Tasks whose end was reported, oldest first."""
    return _work(home, "kind = 'Task' AND NOT is_open")


def change_work(home: Path, where: str = "1", **columns: Any) -> None:
    """Set columns of all tasks and goals, or of some."""
    assignments = ", ".join(f"{name} = :{name}" for name in columns)
    with closing(sqlite3.connect(home / "state" / "nanobot.db", timeout=10)) as db, db:
        db.execute(f"UPDATE work SET {assignments} WHERE {where}", columns)


def goal_of(home: Path) -> dict[str, Any]:
    """The only goal."""
    (goal,) = goals_in(home)
    return goal


def goals_in(home: Path) -> list[dict[str, Any]]:
    """All goals, oldest first."""
    return _work(home, "kind = 'Goal'")


def a_goal(text: str = "write a page", key: str = "cli:direct", asker: Provenance = Provenance.OWNER) -> Goal:
    """A goal that somebody at the terminal has set."""
    return Goal(order=GoalOrder(text, Requester(key, Address("cli", "direct"), asker)))


def put_goal(home: Path, goal: Goal) -> None:
    """Store a goal that no process works on."""
    (home / "state").mkdir(parents=True, exist_ok=True)
    row = (goal.id, goal.session_key, goal.is_open, goal.created_at, codec.to_json(goal))
    with closing(sqlite3.connect(home / "state" / "nanobot.db", timeout=10)) as db, db:
        db.executescript(SCHEMA)
        db.execute("INSERT INTO work VALUES (?, 'Goal', ?, '', '', ?, ?, NULL, ?)", row)


def _work(home: Path, where: str) -> list[dict[str, Any]]:
    path = home / "state" / "nanobot.db"
    if not path.exists():
        return []
    with closing(sqlite3.connect(path, timeout=10)) as db:
        try:
            rows = db.execute(f"SELECT data FROM work WHERE {where} ORDER BY created_at").fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            raise
    found = [json.loads(data) for (data,) in rows]
    return [
        {**row, **row["order"], **row["order"]["requester"], **row.get("progress", {}), **row.get("usage", {})}
        for row in found
    ]
