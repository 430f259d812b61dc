"""The cursor: which messages went into memory, what is read past it, and what a restart sees of it."""

import asyncio
import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanobot.errors import StorageError
from nanobot.messages.types import ChatMessage
from nanobot.session.manager import SessionManager

KEY = "cli:direct"
STEM = "cli_direct.jsonl"


def turns(first: int, last: int) -> list[ChatMessage]:
    return [{"role": "user" if at % 2 == 0 else "assistant", "content": f"{at}"} for at in range(first, last)]


def contents(rows: list[ChatMessage]) -> list[Any]:
    return [row["content"] for row in rows]


def numbers(first: int, last: int) -> list[str]:
    return [str(at) for at in range(first, last)]


async def test_the_oldest_messages_past_the_cursor_are_read_and_no_more(tmp_path: Path):
    manager = SessionManager(tmp_path)
    session = manager.get_or_create(KEY)
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
    await manager.append(session, *turns(40, 42))

    for seen in (manager.get_or_create(KEY), SessionManager(tmp_path).get_or_create(KEY)):
        assert seen.last_consolidated == 30
        assert contents(seen.get_history()) == numbers(30, 42)
        assert contents(seen.messages) == numbers(0, 42)
    records = [json.loads(line) for line in (tmp_path / "sessions" / STEM).read_text().splitlines() if "_type" in line]
    assert records[-1]["last_consolidated"] == 30


@pytest.mark.parametrize("edited", [b'"zero, as edited"', b'"0"}\n{"role": "user", "content": "new"'])
async def test_a_file_that_was_edited_before_its_cursor_shows_what_is_past_it(tmp_path: Path, edited: bytes):
    manager = SessionManager(tmp_path)
    session = manager.get_or_create(KEY)
    await manager.append(session, *turns(0, 40))
    await manager.move_cursor(session, 30)
    file = tmp_path / "sessions" / STEM
    file.write_bytes(file.read_bytes().replace(b'"0"', edited, 1))

    again = SessionManager(tmp_path).get_or_create(KEY)

    assert contents(again.get_history())[-10:] == numbers(30, 40)
    assert len(again.get_history()) <= 12


async def test_a_session_without_a_file_has_nothing_past_its_cursor(tmp_path: Path):
    manager = SessionManager(tmp_path)

    assert manager.read_unconsolidated(manager.get_or_create(KEY), 10) == []
    assert not (tmp_path / "sessions" / STEM).exists()


async def test_a_cursor_that_cannot_be_kept_does_not_move(tmp_path: Path):
    manager = SessionManager(tmp_path)
    session = manager.get_or_create(KEY)
    await manager.append(session, *turns(0, 20))
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
    assert SessionManager(tmp_path).get_or_create(KEY).last_consolidated == 12


def long_file(folder: Path, rows: int, spoiled: dict[int, bytes]) -> Path:
    """A file of the original; at some rows other bytes stand in front of the line."""
    path = folder / "sessions" / STEM
    path.parent.mkdir(parents=True)
    lines = [spoiled.get(at, b"") + json.dumps(row).encode() + b"\n" for at, row in enumerate(turns(0, rows))]
    path.write_bytes(b'{"_type": "metadata", "key": "cli:direct", "metadata": {}}\n' + b"".join(lines))
    return path


@settings(max_examples=12)
@given(
    st.dictionaries(
        st.integers(0, 1199), st.sampled_from([b"half of a li\n", b'{"role": "user", "content": "two"}', b"\0\0\0\n"])
    ),
    st.integers(150, 700),
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
    after = SessionManager(folder).get_or_create(KEY)
    assert after.get_history() == []
    assert after.last_consolidated == len(after.messages)


def test_reading_all_messages_leaves_the_cursor_at_its_message(tmp_path: Path):
    """A line that holds two rows once pushed the cursor past a message that was in no memory yet."""
    long_file(tmp_path, 1_200, {10: b'{"role": "user", "content": "two"}'})
    session = SessionManager(tmp_path).get_or_create(KEY)

    assert len(session.messages) == 1_201

    assert session.last_consolidated == 0


async def test_a_cursor_between_two_messages_of_one_line_hides_neither(tmp_path: Path):
    long_file(tmp_path, 40, {10: b'{"role": "user", "content": "two"}'})
    manager = SessionManager(tmp_path)

    async with manager.hold(KEY) as session:
        await manager.move_cursor(session, 11)

    async with manager.hold(KEY) as session:
        assert contents(manager.read_unconsolidated(session, 3)) == ["two", "10", "11"]
        await manager.move_cursor(session, 3)
    assert contents(SessionManager(tmp_path).get_or_create(KEY).get_history(4))[0] == "36"
    assert SessionManager(tmp_path).get_or_create(KEY).last_consolidated == 13


async def test_a_cursor_in_a_session_of_100_000_messages_costs_what_lies_past_it(tmp_path: Path):
    long_file(tmp_path, 100_000, {})
    manager = SessionManager(tmp_path)
    session = manager.get_or_create(KEY)
    tracemalloc.start()
    started = time.process_time()

    rows = manager.read_unconsolidated(session, 500)
    await manager.move_cursor(session, 498)
    again = manager.read_unconsolidated(session, 500)

    seconds = time.process_time() - started
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert contents(rows) == numbers(0, 500)
    assert contents(again) == numbers(498, 998)
    assert peak < 5_000_000
    assert seconds < 1
