"""Long sessions: one of many messages costs what a short one does, and its cursor never hides a message."""

import asyncio
import json
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanobot.errors import StorageError
from nanobot.messages.types import ChatMessage
from nanobot.session.manager import SessionManager
from tests.session.support import (
    KEY,
    STEM,
    contents,
    fresh,
    lines,
    numbers,
    original,
    said,
    saved,
    turns,
    user,
    write_rows,
)  # fmt: skip

COUNT = 40_000


@contextmanager
def cheap(seconds: float) -> Iterator[None]:
    """What is done inside takes so much time of the processor at most."""
    started = time.process_time()
    yield
    assert time.process_time() - started < seconds


@pytest.mark.parametrize(
    "cursor",
    [0, pytest.param(COUNT - 60, marks=pytest.mark.slow)],
    ids=["never consolidated", "consolidated"],
)
async def test_a_long_session_opens_from_its_end_and_costs_the_bytes_of_the_turn(tmp_path: Path, cursor: int):
    original(tmp_path, COUNT, cursor)
    file = tmp_path / "sessions" / STEM
    with file.open("ab") as stream:  # commands in the tail do not make it read everything
        stream.write(b'{"role": "user", "content": "/status", "_command": true}\n' * 40)
    size, manager = file.stat().st_size, SessionManager(tmp_path)

    tracemalloc.start()
    session = manager.get_or_create(KEY)
    history = session.get_history()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    await manager.append(session, user("next"))
    turn = file.stat().st_size - size
    with cheap(0.2):
        again = fresh(tmp_path)

    assert contents(history[-1:]) == [str(COUNT - 1)]
    assert len(history) == (60 if cursor else 500)
    assert peak < 5_000_000
    assert turn < 4096
    assert again.message_count == COUNT + 41
    assert contents(again.get_history()[-1:]) == ["next"]


@pytest.mark.parametrize("cursor", [0, 4_940])
def test_the_older_messages_are_read_when_somebody_asks(tmp_path: Path, cursor: int):
    session = original(tmp_path, 5_000, cursor)

    assert contents(session) == numbers(0, 5_000)
    assert session.last_consolidated == cursor
    assert len(session.get_history(2000)) == (2000 if cursor == 0 else 60)


def test_whoever_has_the_messages_sees_all_of_them_while_another_thread_loads_the_file_anew(tmp_path: Path):
    manager, other = SessionManager(tmp_path), SessionManager(tmp_path)
    original(tmp_path, 2_000, 0)
    messages, seen = manager.get_or_create(KEY).messages, set[int]()

    def load_anew() -> None:
        for _ in range(20):
            session = other.get_or_create(KEY)
            session.add_rows([user("from another process")])
            other.save(session)
            manager.get_or_create(KEY)

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        loading = threading.Thread(target=load_anew)
        loading.start()
        while loading.is_alive():
            seen.add(len(messages))
    finally:
        sys.setswitchinterval(usual)

    assert min(seen) == 2_000
    assert max(seen) > 2_000


def test_a_turn_that_is_longer_than_the_window_is_read_from_its_question_on(tmp_path: Path):
    manager = SessionManager(tmp_path)
    session = saved(manager, *numbers(0, 300), "do it")
    session.add_rows([said(f"step {at} " + "x" * 1_000) for at in range(700)])
    manager.save(session)

    assert contents(fresh(tmp_path).get_history()[:1]) == ["do it"]


async def test_a_session_that_lives_long_keeps_little_in_memory_and_loses_nothing(tmp_path: Path):
    manager = SessionManager(tmp_path)
    session = manager.get_or_create(KEY)
    for at in range(0, 3000, 50):
        await manager.append(session, *turns(at, at + 50))

    async with manager.hold(KEY) as held:
        loaded = held.rows_in_memory

    assert held is session
    assert loaded < 1_200
    assert contents(session.get_history()) == numbers(2500, 3000)
    assert contents(session) == numbers(0, 3000)


# --- the messages from one on


@pytest.mark.parametrize(
    ("count", "cursor", "index", "first"),
    [
        (3_000, 0, 0, 0),
        (3_000, 0, 300, 300),
        (3_000, 0, 2_100, 2_100),
        (3_000, 0, 2_998, 2_998),
        (900, 0, 101, 102),
        (900, 0, 899, 898),
        (900, 450, 3, 450),
    ],
)
def test_the_messages_since_one_begin_at_a_users_message(
    tmp_path: Path, count: int, cursor: int, index: int, first: int
):
    session = original(tmp_path, count, cursor)
    session.add_message("assistant", str(count))

    rows = session.since(index)

    assert contents(rows) == numbers(first, count + 1)
    assert session.message_count - len(rows) == first


# --- the cursor


async def test_the_oldest_messages_past_the_cursor_are_read_and_no_more(tmp_path: Path):
    manager = SessionManager(tmp_path)
    session = manager.get_or_create(KEY)
    assert manager.read_unconsolidated(session, 10) == []
    assert not (tmp_path / "sessions" / STEM).exists()
    await manager.append(session, *turns(0, 40))

    assert contents(manager.read_unconsolidated(session, 6)) == numbers(0, 6)
    await manager.move_cursor(session, 4)

    assert contents(manager.read_unconsolidated(session, 6)) == numbers(4, 10)
    assert contents(manager.read_unconsolidated(session, 100)) == numbers(4, 40)


async def test_a_restart_sees_the_cursor_where_it_was_moved_to(tmp_path: Path):
    manager = SessionManager(tmp_path)
    session = manager.get_or_create(KEY)
    await manager.append(session, *turns(0, 40))
    await manager.move_cursor(session, 30)
    record = lines(file := tmp_path / "sessions" / STEM)[-1]
    await manager.append(session, *turns(40, 42))

    assert (record["_type"], record["last_consolidated"]) == ("metadata", 30)
    assert json.loads(file.read_bytes()[record["offset"] :].split(b"\n")[0])["content"] == "30"
    for seen in (manager.get_or_create(KEY), fresh(tmp_path)):
        assert (seen.last_consolidated, seen.message_count) == (30, 42)
        assert contents(seen.get_history()) == numbers(30, 42)
        assert contents(seen) == numbers(0, 42)


@pytest.mark.parametrize("edited", [b'"zero, as edited"', b'""', b'"0"}\n{"role": "user", "content": "new"'])
async def test_a_file_that_was_edited_before_its_cursor_shows_what_is_past_it(tmp_path: Path, edited: bytes):
    manager = SessionManager(tmp_path)
    session = manager.get_or_create(KEY)
    await manager.append(session, *turns(0, 40))
    await manager.move_cursor(session, 30)
    file = tmp_path / "sessions" / STEM
    file.write_bytes(file.read_bytes().replace(b'"0"', edited, 1))

    history = fresh(tmp_path).get_history()

    assert contents(history)[-10:] == numbers(30, 40)
    assert len(history) <= 12


async def test_a_cursor_that_cannot_be_kept_does_not_move(tmp_path: Path):
    manager = SessionManager(tmp_path)
    session = saved(manager, *numbers(0, 20))
    file = tmp_path / "sessions" / STEM
    whole = file.read_bytes()
    file.unlink()
    file.mkdir()

    with pytest.raises(StorageError):
        await manager.move_cursor(session, 10)

    assert session.last_consolidated == 0
    file.rmdir()
    file.write_bytes(whole)
    await manager.move_cursor(manager.get_or_create(KEY), 12)
    assert fresh(tmp_path).last_consolidated == 12


TWO = b'{"role": "user", "content": "two"}'
"""Before a line of its own, it makes a line of two messages."""


def long_file(folder: Path, rows: int, spoiled: dict[int, bytes]) -> None:
    """A file of the original; at some rows other bytes stand in front of the line."""
    path = write_rows(folder / "sessions" / STEM, {"_type": "metadata", "key": KEY, "metadata": {}})
    with path.open("ab") as file:
        for at, row in enumerate(turns(0, rows)):
            file.write(spoiled.get(at, b"") + json.dumps(row).encode() + b"\n")


@settings(max_examples=12)
@given(
    st.dictionaries(st.integers(0, 1199), st.sampled_from([b"half of a li\n", TWO, b"\0\0\0\n"])), st.integers(150, 700)
)
def test_whatever_is_damaged_no_message_slips_past_the_cursor(
    tmp_path_factory: pytest.TempPathFactory, spoiled: dict[int, bytes], step: int
):
    folder = tmp_path_factory.mktemp("home")
    long_file(folder, 1_200, spoiled)
    seen: list[Any] = []

    async def consume() -> list[ChatMessage]:
        manager = SessionManager(folder)
        while True:
            async with manager.hold(KEY) as session:
                rows = manager.read_unconsolidated(session, step)
                seen.extend(contents(rows))
                await manager.move_cursor(session, len(rows))
            if len(rows) < step:
                async with manager.hold(KEY) as session:
                    return session.get_history()

    left = asyncio.run(consume())

    assert left == []
    assert list(dict.fromkeys(text for text in seen if text != "two")) == numbers(0, 1_200)
    after = fresh(folder)
    assert after.get_history() == []
    assert after.last_consolidated == len(after.messages)
