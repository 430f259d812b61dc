"""A session's window survives a restart, and whatever happens to the file meanwhile."""

import json
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.window.state import MAX_ROWS, Calibration, Window
from nanobot.agent.window.storage import open_window, save_window
from nanobot.messages.types import ChatMessage
from nanobot.session.manager import SessionManager

KEY = "cli:direct"
WINDOW = Window(4, 8, 6, 10, 12, 2_000, {"m": Calibration(1.2, 9_000)})


def row(number: int) -> ChatMessage:
    role: Any = "assistant" if number % 2 else "user"
    return {"role": role, "content": str(number), "timestamp": f"2026-01-01T00:00:00.{number:06}"}


async def kept(home: Path, count: int, first: int) -> Path:
    """A stored session with a window; its file."""
    manager = SessionManager(home)
    session = manager.get_or_create(KEY)
    await manager.append(session, *map(row, range(count)))
    save_window(session, first, WINDOW)
    await manager.append(session, row(count))
    return home / "sessions" / "cli_direct.jsonl"


def reopened(home: Path) -> tuple[list[str], Window]:
    rows, window = open_window(SessionManager(home).get_or_create(KEY))
    return [str(row["content"]) for row in rows], window


async def test_after_a_restart_the_rows_begin_where_the_window_does(tmp_path: Path):
    await kept(tmp_path, 1_000, first=900)

    rows, window = reopened(tmp_path)

    assert rows == [str(number) for number in range(904, 1_001)]
    assert window == WINDOW.shifted(-4)


async def test_what_went_into_memory_leaves_the_window_and_the_rest_stays_as_it_was_shown(tmp_path: Path):
    await kept(tmp_path, 1_000, first=900)
    manager = SessionManager(tmp_path)
    session = manager.get_or_create(KEY)
    session.last_consolidated = 908
    manager.save(session)

    rows, window = reopened(tmp_path)

    assert rows[0] == "908"
    assert (window.start, window.shrunk, window.clipped) == (0, 2, 4)


async def test_a_window_that_fits_nothing_any_more_is_begun_anew_with_what_was_learned(tmp_path: Path):
    path = await kept(tmp_path, 1_000, first=900)
    record = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
    others = [json.dumps({**row(number), "timestamp": "2020-01-01"}) for number in range(50)]
    path.write_text("\n".join([json.dumps(record), *others]) + "\n", encoding="utf-8")

    rows, window = reopened(tmp_path)

    assert len(rows) == 50
    assert window == Window(learned=WINDOW.learned)


@pytest.mark.parametrize("found", ["garbage", {"start": "x"}, {"start": 10**9, "at": [10**9, "never"]}, {"at": [1]}])
async def test_garbage_in_the_metadata_does_no_harm(tmp_path: Path, found: object):
    manager = SessionManager(tmp_path)
    session = manager.get_or_create(KEY)
    session.metadata["window"] = found
    await manager.append(session, *map(row, range(10)))

    rows, window = reopened(tmp_path)

    assert len(rows) == 10
    assert window == Window()


async def test_a_long_session_without_a_window_gets_one_that_does_not_slide(tmp_path: Path):
    manager = SessionManager(tmp_path)
    session = manager.get_or_create(KEY)
    await manager.append(session, *map(row, range(1_000)))

    first, _ = open_window(session)
    await manager.append(session, row(1_000), row(1_001))
    second, _ = reopened(tmp_path)

    assert len(first) == MAX_ROWS
    assert second[0] == first[0]["content"]


async def test_a_session_that_begins_afresh_has_no_window(tmp_path: Path):
    await kept(tmp_path, 100, first=50)
    manager = SessionManager(tmp_path)
    manager.archive(KEY)

    assert open_window(manager.get_or_create(KEY)) == ([], Window())
