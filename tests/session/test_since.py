"""The messages from one on: where a window begins, however long the session."""

import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from nanobot.messages.types import ChatMessage
from nanobot.session.manager import Session, SessionManager

KEY = "cli:direct"


def row(number: int) -> ChatMessage:
    """Every third message is the user's."""
    role: Any = "user" if number % 3 == 0 else "assistant"
    return {"role": role, "content": f"{number} " + "x" * 60, "timestamp": f"2026-01-01T00:00:00.{number:06}"}


def number_of(message: ChatMessage) -> int:
    return int(str(message["content"]).split()[0])


def stored(home: Path, count: int, last_consolidated: int = 0, damaged: int | None = None) -> Session:
    """A session of so many messages, freshly opened from its file."""
    path = home / "sessions" / "cli_direct.jsonl"
    path.parent.mkdir(parents=True)
    record = {"_type": "metadata", "key": KEY, "metadata": {}, "last_consolidated": last_consolidated}
    lines = [json.dumps(one) for one in [record, *map(row, range(count))]]
    if damaged is not None:
        lines.insert(damaged, '{"role": "user", "cont')
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return SessionManager(home).get_or_create(KEY)


@pytest.mark.parametrize("index", [0, 3, 300, 297, 2_100, 2_700, 2_997])
def test_the_rows_begin_at_the_message_that_was_asked_for(tmp_path: Path, index: int):
    session = stored(tmp_path, 3_000)

    rows = session.since(index)

    assert [number_of(row) for row in rows] == list(range(index, 3_000))
    assert session.message_count - len(rows) == index


def test_they_begin_at_a_users_message(tmp_path: Path):
    assert number_of(stored(tmp_path, 900).since(100)[0]) == 102


def test_where_none_follows_they_begin_at_the_one_before(tmp_path: Path):
    assert [number_of(row) for row in stored(tmp_path, 900).since(898)] == [897, 898, 899]


def test_nothing_that_went_into_memory_is_among_them(tmp_path: Path):
    assert number_of(stored(tmp_path, 900, last_consolidated=450).since(3)[0]) == 450


def test_an_empty_session_has_none():
    assert Session(KEY).since(0) == []


def test_messages_that_are_not_on_the_disk_yet_are_among_them(tmp_path: Path):
    session = stored(tmp_path, 2_000)
    session.add_message("user", "2000 new")

    assert [number_of(row) for row in session.since(600)] == list(range(600, 2_001))


async def test_reading_further_back_loses_nothing_and_writes_nothing_twice(tmp_path: Path):
    manager = SessionManager(tmp_path)
    stored(tmp_path, 3_000)
    session = manager.get_or_create(KEY)
    session.since(1_500)

    await manager.append(session, {**row(3_000), "role": "user"})

    again = SessionManager(tmp_path).get_or_create(KEY)
    assert [number_of(one) for one in session.messages] == list(range(3_001))
    assert [number_of(one) for one in again.messages] == list(range(3_001))


def test_a_damaged_line_in_between_loses_nothing(tmp_path: Path):
    session = stored(tmp_path, 3_000, damaged=1_800)

    rows = session.since(1_200)

    assert {number_of(row) for row in rows} >= set(range(1_202, 3_000))
    assert [number_of(row) for row in rows] == sorted(number_of(row) for row in rows)
    assert [number_of(row) for row in session.messages] == list(range(3_000))


def test_of_a_very_long_session_only_what_is_wanted_is_read(tmp_path: Path):
    session = stored(tmp_path, 30_000)
    another = SessionManager(tmp_path).get_or_create(KEY)

    tracemalloc.start()
    rows = session.since(29_001)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    started = time.process_time()
    again = another.since(29_001)
    seconds = time.process_time() - started

    assert len(rows) == len(again) == 999
    assert peak < 5_000_000
    assert seconds < 1
