"""Rows of a ledger: made for a test, or read from a home."""

import sqlite3
from contextlib import closing
from dataclasses import fields
from itertools import count
from pathlib import Path
from typing import Any

from nanobot.usage.ledger import SCHEMA, write_calls
from nanobot.usage.types import LedgerRow
from nanobot.utils.database import reading

_numbers = count(1)


def row(sent_at: str = "2026-11-22T12:00:00.000+00:00", **other: Any) -> LedgerRow:
    usual: dict[str, Any] = {
        "id": f"row-{next(_numbers)}",
        "sent_at": sent_at,
        "cause": "turn",
        "session": "cli:direct",
        "turn": "t1",
        "provider": "openai",
        "model": "gpt-4o",
        "process": "another",
        "outcome": "ok",
        "prompt_tokens": 100,
        "completion_tokens": 10,
        "usd": 0.5,
        "ms": 800,
    }
    return LedgerRow(**usual | other)


def rows_of(data_dir: Path) -> list[dict[str, Any]]:
    """The rows of the ledger in this data folder, oldest first."""
    return rows_in(data_dir / "state" / "nanobot.db")


def rows_in(path: Path) -> list[dict[str, Any]]:
    """The rows of the ledger in this file, oldest first."""
    with reading(path, SCHEMA) as db:
        names = [column.name for column in fields(LedgerRow)]
        rows = db.execute(f"SELECT {', '.join(names)} FROM calls ORDER BY sent_at, id")
        return [dict(zip(names, values, strict=True)) for values in rows]


def put_rows(data_dir: Path, *rows: LedgerRow) -> None:
    """Write rows into the ledger of this data folder, made if missing."""
    (data_dir / "state").mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(data_dir / "state" / "nanobot.db")) as db, db:
        db.executescript(SCHEMA)
        write_calls(db, [*rows])
