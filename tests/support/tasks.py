"""The tasks of subagents in a home, as its database holds them."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any


def open_tasks(home: Path) -> list[dict[str, Any]]:
    """Tasks whose end was not reported yet."""
    return _tasks(home, "NOT reported")


def reported_tasks(home: Path) -> list[dict[str, Any]]:
    """Tasks whose end was reported, oldest first."""
    return _tasks(home, "reported")


def change_tasks(home: Path, **columns: Any) -> None:
    """Set columns of all tasks."""
    assignments = ", ".join(f"{name} = :{name}" for name in columns)
    with closing(sqlite3.connect(home / "state" / "nanobot.db")) as db, db:
        db.execute(f"UPDATE tasks SET {assignments}", columns)


def _tasks(home: Path, where: str) -> list[dict[str, Any]]:
    path = home / "state" / "nanobot.db"
    if not path.exists():
        return []
    with closing(sqlite3.connect(path, timeout=10)) as db:
        try:
            rows = db.execute(f"SELECT data FROM tasks WHERE {where} ORDER BY created_at").fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            raise
    return [_flat(json.loads(data)) for (data,) in rows]


def _flat(task: dict[str, Any]) -> dict[str, Any]:
    return {**task, **task["order"], **task["order"]["requester"]}
