"""When background work of the memory is due: times with exponential backoff, in the database. Methods block."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nanobot.utils.database import reading, writing

SCHEMA = """
CREATE TABLE IF NOT EXISTS memory_revisions (
    memory TEXT NOT NULL, number INTEGER NOT NULL, file TEXT NOT NULL,
    text BLOB, is_kept INTEGER NOT NULL, revision TEXT NOT NULL, PRIMARY KEY (memory, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS memory_due (
    kind TEXT NOT NULL, key TEXT NOT NULL, due_at REAL NOT NULL, failures INTEGER NOT NULL, state TEXT NOT NULL,
    PRIMARY KEY (kind, key)) WITHOUT ROWID;
"""
"""The tables of all memories."""
_MAX_FAILURES = 30


@dataclass(frozen=True, slots=True)
class Due:
    """When a piece of work is due (wall clock, seconds), how often it failed in a row, and its own state."""

    at: float = 0.0
    failures: int = 0
    state: dict[str, Any] = field(default_factory=dict)

    def after_failure(self, now: float, first_s: float, longest_s: float) -> "Due":
        """The next time: `first_s` after the first failure, twice as long after each further one."""
        wait = min(first_s * 2**self.failures, longest_s)
        return replace(self, at=now + wait, failures=min(self.failures + 1, _MAX_FAILURES))


class DueTimes:
    """The due times of one kind of work, by key. All methods raise StorageError."""

    def __init__(self, database: Path, kind: str) -> None:
        self._database = database
        self._kind = kind

    def get(self, key: str) -> Due:
        """Return a due time; the initial one if there is none."""
        return self.all(key).get(key, Due())

    def all(self, key: str | None = None) -> dict[str, Due]:
        """Return all due times in the order of their keys, or that of one key."""
        with reading(self._database, SCHEMA) as db:
            query = "SELECT key, due_at, failures, state FROM memory_due WHERE kind = ?1 AND (?2 IS NULL OR key = ?2)"
            rows = db.execute(f"{query} ORDER BY key", (self._kind, key))
            return {key: Due(at, failures, json.loads(state)) for key, at, failures, state in rows}

    def claim(self, key: str, now: float, seconds: float) -> Due | None:
        """Return a due time, None if there is none. If it has come, other processes see it `seconds` later."""
        due = self.all(key).get(key)
        if due is None or due.at > now:
            return due
        with writing(self._database, SCHEMA) as db:
            values = (now + seconds, self._kind, key, due.at)
            row = db.execute("UPDATE memory_due SET due_at = ? WHERE kind = ? AND key = ? AND due_at = ?", values)
        return due if row.rowcount else replace(due, at=now + seconds)

    def put(self, key: str, due: Due) -> None:
        """Store a due time."""
        with writing(self._database, SCHEMA) as db:
            row = (self._kind, key, due.at, due.failures, json.dumps(due.state))
            db.execute("INSERT OR REPLACE INTO memory_due VALUES (?, ?, ?, ?, ?)", row)

    def delete(self, key: str) -> None:
        """Forget a due time."""
        with writing(self._database, SCHEMA) as db:
            db.execute("DELETE FROM memory_due WHERE kind = ? AND key = ?", (self._kind, key))
