"""A session of 100,000 messages costs what a short one does."""

import gc
import json
import time
import tracemalloc
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from nanobot.session.manager import Session, SessionManager

KEY = "cli:direct"
COUNT = 100_000


def original(path: Path, last_consolidated: int, count: int = COUNT) -> Path:
    """A file as the original writes it: one metadata line, then messages."""
    record = {"_type": "metadata", "key": KEY, "created_at": "2026-01-01T00:00:00", "metadata": {},
              "last_consolidated": last_consolidated}  # fmt: skip
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(record) + "\n" + messages(count), encoding="utf-8")
    return path


@cache
def messages(count: int) -> str:
    roles = ("user", "assistant")
    rows: Iterator[dict[str, Any]] = (
        {"role": roles[at % 2], "content": f"{at} " + "x" * 130, "timestamp": "2026-01-01T00:00:00.000000"}
        for at in range(count)
    )
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(params=[0, COUNT - 60], ids=["never consolidated", "consolidated"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return original(tmp_path / "sessions" / "cli_direct.jsonl", request.param)


async def test_a_long_session_opens_from_its_end_and_costs_the_bytes_of_the_turn(tmp_path: Path, file: Path):
    size = file.stat().st_size
    tracemalloc.start()
    manager = SessionManager(tmp_path)
    session = manager.get_or_create(KEY)
    history = session.get_history()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    await manager.append(session, {"role": "user", "content": "next"})
    turn = file.stat().st_size - size
    started = time.process_time()
    again = SessionManager(tmp_path).get_or_create(KEY)
    opened = time.process_time() - started

    assert history[0]["role"] == "user"
    assert str(history[-1]["content"]).startswith(f"{COUNT - 1} ")
    assert len(history) in {60, 500}
    assert peak < 5_000_000
    assert turn < 4096
    assert opened < 0.2
    assert again.message_count == COUNT + 1
    assert again.get_history()[-1]["content"] == "next"


def test_commands_in_the_tail_do_not_make_it_read_everything(tmp_path: Path):
    file = original(tmp_path / "sessions" / "cli_direct.jsonl", COUNT - 60)
    with file.open("ab") as stream:
        stream.write(b'{"role": "user", "content": "/status", "_command": true}\n' * 40)
    session = SessionManager(tmp_path).get_or_create(KEY)

    started = time.process_time()
    history = session.get_history()
    seconds = time.process_time() - started

    assert len(history) == 60
    assert seconds < 0.2


@pytest.mark.parametrize("cursor", [0, 4_940])
def test_the_older_messages_are_read_when_somebody_asks(tmp_path: Path, cursor: int):
    original(tmp_path / "sessions" / "cli_direct.jsonl", cursor, 5_000)
    session = SessionManager(tmp_path).get_or_create(KEY)

    messages = session.messages

    assert len(messages) == 5_000
    assert all(str(row["content"]).startswith(f"{at} ") for at, row in enumerate(messages))
    assert session.last_consolidated == cursor
    assert len(session.get_history(2000)) == (2000 if cursor == 0 else 60)


async def test_a_session_that_lives_long_keeps_little_in_memory_and_loses_nothing(tmp_path: Path):
    manager = SessionManager(tmp_path)
    session = manager.get_or_create(KEY)
    for at in range(0, 3000, 50):
        rows: list[Any] = [
            {"role": "user" if n % 2 == 0 else "assistant", "content": str(n)} for n in range(at, at + 50)
        ]
        await manager.append(session, *rows)

    async with manager.hold(KEY) as held:
        loaded = held.rows_in_memory
    history = session.get_history()

    assert held is session
    assert loaded < 1_200
    assert [row["content"] for row in history] == [str(number) for number in range(2500, 3000)]
    assert [row["content"] for row in session.messages] == [str(number) for number in range(3000)]


async def test_the_record_is_never_far_from_the_end(tmp_path: Path):
    manager = SessionManager(tmp_path)
    session = manager.get_or_create(KEY)
    for _ in range(40):
        await manager.append(session, {"role": "user", "content": "x" * 50_000})

    data = (tmp_path / "sessions" / "cli_direct.jsonl").read_bytes()

    assert len(data) - data.rfind(b'"_type"') < 400_000
    assert data.count(b'"_type"') < 12


def test_rows_from_the_disk_share_what_every_row_says(tmp_path: Path):
    manager = SessionManager(tmp_path)
    session = manager.get_or_create(KEY)
    call = {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}
    session.add_message("assistant", None, tool_calls=[call], provenance="owner")
    session.add_message("assistant", None, tool_calls=[call], provenance="owner")
    manager.save(session)
    manager.invalidate(KEY)

    first, second = manager.get_or_create(KEY).messages

    assert all(one is other for one, other in zip(first, second, strict=True))
    assert first["role"] is second["role"]
    assert all(one is other for one, other in zip(first["tool_calls"][0], second["tool_calls"][0], strict=True))


def test_long_sessions_that_nobody_holds_leave_memory_before_there_are_many(tmp_path: Path):
    manager = SessionManager(tmp_path)
    for number in range(20):
        session = manager.get_or_create(f"many:{number}")
        session.add_rows([{"role": "user", "content": f"{number} {at}"} for at in range(500)])
        manager.save(session)
    del session
    gc.collect()

    kept = [one for one in gc.get_objects() if isinstance(one, Session) and one.key.startswith("many:")]

    assert {one.key for one in kept} == {f"many:{number}" for number in range(7, 20)}  # the last, and 6,000 rows
    assert manager.get_or_create("many:0").message_count == 500
