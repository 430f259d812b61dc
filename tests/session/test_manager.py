"""Sessions as a plain library and as the engine uses them."""

import asyncio
import json
import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from nanobot.errors import StorageError
from nanobot.messages.types import ChatMessage
from nanobot.session.manager import Session, SessionManager
from tests.support.home import told

KEY = "cli:direct"


def user(text: str) -> ChatMessage:
    return {"role": "user", "content": text}


def said(text: str) -> ChatMessage:
    return {"role": "assistant", "content": text}


def contents(session: Session | None) -> list[Any]:
    assert session is not None
    return [row["content"] for row in session.messages]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def manager(tmp_path: Path) -> SessionManager:
    return SessionManager(tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sessions" / "cli_direct.jsonl"


# --- a plain library


def test_what_was_saved_is_there_in_another_process(tmp_path: Path, manager: SessionManager):
    session = manager.get_or_create(KEY)
    session.add_message("user", "hello")
    session.metadata["model"] = "m"
    manager.save(session)

    again = SessionManager(tmp_path).get_or_create(KEY)

    assert contents(again) == ["hello"]
    assert again.metadata == {"model": "m"}
    assert (again.created_at, again.updated_at) == (session.created_at, session.updated_at)


def test_a_file_begins_with_its_metadata_and_grows_by_lines(manager: SessionManager, file: Path):
    session = manager.get_or_create(KEY)
    session.add_message("user", "你好", sender_id="me")
    manager.save(session)
    before = file.read_bytes()

    session.add_message("assistant", "hi")
    manager.save(session)

    assert lines(file)[0]["_type"] == "metadata"
    assert lines(file)[0]["key"] == KEY
    assert file.read_bytes().startswith(before)
    assert "你好" in before.decode()
    assert set(lines(file)[1]) == {"role", "content", "sender_id", "timestamp"}
    assert datetime.fromisoformat(lines(file)[2]["timestamp"]).tzinfo is None


def test_saving_twice_writes_nothing(manager: SessionManager, file: Path):
    session = manager.get_or_create(KEY)
    session.add_message("user", "x")
    manager.save(session)
    before = file.read_bytes()

    manager.save(session)

    assert file.read_bytes() == before


def test_messages_are_a_list_one_may_append_to(tmp_path: Path, manager: SessionManager):
    session = manager.get_or_create(KEY)
    session.messages.append(user("a"))
    manager.save(session)
    session.messages.append(said("b"))
    session.messages.extend([user("c")])
    manager.save(session)

    assert contents(SessionManager(tmp_path).get_or_create(KEY)) == ["a", "b", "c"]


@pytest.mark.parametrize("edit", ["assign", "replace", "delete", "insert"])
def test_changed_messages_replace_the_file_and_the_old_one_is_kept(tmp_path: Path, manager: SessionManager, edit: str):
    session = manager.get_or_create(KEY)
    for text in "abc":
        session.add_message("user", text)
    manager.save(session)
    match edit:
        case "assign":
            session.messages = session.messages[-1:]
        case "replace":
            session.messages[0] = {**session.messages[0], "content": "A"}
        case "delete":
            del session.messages[1]
        case _:
            session.messages.insert(0, user("z"))
    expected = contents(session)

    manager.save(session)
    session.add_message("user", "more")
    manager.save(session)

    assert contents(SessionManager(tmp_path).get_or_create(KEY)) == [*expected, "more"]
    [archived] = (tmp_path / "sessions" / "archive").iterdir()
    assert contents(manager.read(archived)) == ["a", "b", "c"]


def test_clearing_destroys_nothing(tmp_path: Path, manager: SessionManager):
    session = manager.get_or_create(KEY)
    session.add_message("user", "old")
    manager.save(session)

    session.clear()
    session.add_message("user", "new")
    manager.save(session)

    assert contents(SessionManager(tmp_path).get_or_create(KEY)) == ["new"]
    [archived] = (tmp_path / "sessions" / "archive").iterdir()
    assert contents(manager.read(archived)) == ["old"]


def test_a_session_made_by_hand_is_saved_and_what_was_there_is_kept(tmp_path: Path, manager: SessionManager):
    first = manager.get_or_create(KEY)
    first.add_message("user", "old")
    manager.save(first)

    manager.save(Session(KEY, [user("a"), said("b"), user("c")], last_consolidated=2))

    again = SessionManager(tmp_path).get_or_create(KEY)
    assert contents(again) == ["a", "b", "c"]
    assert [row["content"] for row in again.get_history()] == ["c"]
    assert len(list((tmp_path / "sessions" / "archive").iterdir())) == 1


def test_invalidate_forgets_what_was_not_saved(manager: SessionManager):
    manager.get_or_create(KEY).add_message("user", "x")

    manager.invalidate(KEY)

    assert contents(manager.get_or_create(KEY)) == []


def test_what_is_not_saved_yet_stays_in_memory(manager: SessionManager):
    manager.get_or_create(KEY).add_message("user", "x")

    assert contents(manager.get_or_create(KEY)) == ["x"]


# --- what a model sees


def test_history_is_the_last_messages_from_a_user_on():
    session = Session(KEY, [user("1"), said("2"), user("3"), said("4"), user("5"), said("6")])

    assert [row["content"] for row in session.get_history(3)] == ["5", "6"]
    assert [row["content"] for row in session.get_history()] == ["1", "2", "3", "4", "5", "6"]
    assert session.get_history(0) == []


def test_history_leaves_out_commands_and_what_was_consolidated():
    command: Any = {"role": "user", "content": "/status", "_command": True}
    session = Session(KEY, [user("old"), said("old"), command, user("new")], last_consolidated=2)

    assert [row["content"] for row in session.get_history()] == ["new"]


def test_history_goes_back_to_the_user_when_a_turn_is_longer_than_the_window():
    session = Session(KEY, [user("do it"), *(said(str(number)) for number in range(20))])

    assert session.get_history(5)[0]["content"] == "do it"


def test_the_cursor_is_stored_with_the_place_it_points_to(tmp_path: Path, manager: SessionManager, file: Path):
    session = manager.get_or_create(KEY)
    for number in range(10):
        session.add_message("user", str(number))
    manager.save(session)
    session.last_consolidated = 7
    manager.save(session)

    record = lines(file)[-1]
    assert (record["_type"], record["last_consolidated"]) == ("metadata", 7)
    assert json.loads(file.read_bytes()[record["offset"] :].split(b"\n")[0])["content"] == "7"
    again = SessionManager(tmp_path).get_or_create(KEY)
    assert [row["content"] for row in again.get_history()] == ["7", "8", "9"]
    assert again.message_count == 10
    assert contents(again) == [str(number) for number in range(10)]
    assert again.messages[again.last_consolidated]["content"] == "7"


# --- files of the original


def test_a_file_of_the_original_is_read_as_it_is(tmp_path: Path, manager: SessionManager, file: Path):
    record = {"_type": "metadata", "created_at": "2026-01-01T10:00:00", "updated_at": "2026-01-02T10:00:00",
              "metadata": {"runtime_checkpoint": {"a": 1}, "pending_user_turn": True, "goal_state": {},
                           "_last_summary": {}}, "last_consolidated": 2}  # fmt: skip
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    rows: list[dict[str, Any]] = [
        {"role": "user", "content": "old"}, {"role": "assistant", "content": "old"},
        {"role": "user", "content": [{"type": "text", "text": "see"}, image], "timestamp": "2026-01-02T10:00:00+00:00"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {"name": "x"}}]},
    ]  # fmt: skip
    before = write_lines(file, [record, *rows]).read_bytes()

    session = manager.get_or_create(KEY)

    assert session.messages == rows
    assert session.get_history() == rows[2:]
    assert session.metadata == record["metadata"]
    assert session.created_at == datetime(2026, 1, 1, 10)
    assert file.read_bytes() == before


def test_a_key_comes_from_the_name_where_the_file_has_none(manager: SessionManager, tmp_path: Path):
    write_lines(tmp_path / "sessions" / "telegram_12_3.jsonl", [{"role": "user", "content": "x"}])

    assert [row["key"] for row in manager.list_sessions()] == ["telegram:12_3"]
    assert contents(manager.get_or_create("telegram:12_3")) == ["x"]


def test_a_file_at_the_old_place_moves_here_when_it_is_used(tmp_path: Path, file: Path):
    old = write_lines(tmp_path / "home" / "sessions" / "cli_direct.jsonl", [{"role": "user", "content": "x"}])
    manager = SessionManager(tmp_path, old_folder=old.parent)

    assert [row["key"] for row in manager.list_sessions()] == [KEY]
    assert contents(manager.get_or_create(KEY)) == ["x"]
    assert file.exists()
    assert not old.exists()


# --- the engine


async def test_appended_messages_are_on_the_disk_when_append_returns(manager: SessionManager, file: Path):
    async with manager.hold(KEY) as session:
        await manager.append(session, user("a"))
        await manager.append(session, said("b"), user("c"))

        assert [row.get("content") for row in lines(file)[1:]] == ["a", "b", "c"]
        assert [row["content"] for row in session.get_history()] == ["a", "b", "c"]


async def test_append_writes_a_changed_metadata_record_alone(manager: SessionManager, file: Path):
    session = manager.get_or_create(KEY)
    await manager.append(session, user("a"))

    session.metadata["title"] = "b"
    await manager.append(session)

    assert lines(file)[-1]["metadata"] == {"title": "b"}


async def test_concurrent_appends_of_one_session_keep_their_order(tmp_path: Path, manager: SessionManager):
    session = manager.get_or_create(KEY)

    await asyncio.gather(*(manager.append(session, user(str(number))) for number in range(50)))

    expected = [str(number) for number in range(50)]
    assert contents(session) == expected
    assert contents(SessionManager(tmp_path).get_or_create(KEY)) == expected


async def test_cancelling_an_append_leaves_it_whole(tmp_path: Path, manager: SessionManager):
    session = manager.get_or_create(KEY)
    for number in range(30):
        task = asyncio.create_task(manager.append(session, user(f"{number}a"), said(f"{number}b")))
        await asyncio.sleep(0.0002 * (number % 4))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await manager.append(session, user("end"))

    assert contents(SessionManager(tmp_path).get_or_create(KEY)) == contents(session)
    assert sum(text.endswith("a") for text in contents(session)) == sum(
        text.endswith("b") for text in contents(session)
    )


async def test_a_session_is_held_once_and_in_order(manager: SessionManager):
    order: list[int] = []

    async def turn(number: int) -> None:
        async with manager.hold(KEY):
            order.append(number)
            await asyncio.sleep(0.001)
            order.append(number)

    await asyncio.gather(*(turn(number) for number in range(5)))

    assert order == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


async def test_holding_waits_for_another_holder_and_says_so_once(tmp_path: Path, manager: SessionManager):
    other = SessionManager(tmp_path)
    waited: list[str] = []

    async def second() -> list[Any]:
        async with manager.hold(KEY, on_wait=lambda: waited.append("!")) as session:
            return contents(session)

    async with other.hold(KEY) as session:
        waiting = asyncio.create_task(second())
        await asyncio.sleep(0.03)
        await other.append(session, user("from the other"))
        assert not waiting.done()

    assert await waiting == ["from the other"]
    assert waited == ["!"]


async def test_a_cancelled_wait_holds_nothing(tmp_path: Path, manager: SessionManager):
    other = SessionManager(tmp_path)

    async with other.hold(KEY):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02), manager.hold(KEY):
                pytest.fail("held twice")

    async with asyncio.timeout(1), manager.hold(KEY):
        pass


async def test_archive_moves_the_file_and_the_session_begins_afresh(tmp_path: Path, manager: SessionManager):
    session = manager.get_or_create(KEY)
    await manager.append(session, user("old"))

    archived = manager.archive(KEY)
    await manager.append(manager.get_or_create(KEY), user("new"))

    assert archived is not None
    assert archived.parent == tmp_path / "sessions" / "archive"
    assert contents(manager.read(archived)) == ["old"]
    assert contents(SessionManager(tmp_path).get_or_create(KEY)) == ["new"]
    assert manager.find(archived.stem) == archived


def test_archiving_nothing_is_nothing(manager: SessionManager):
    assert manager.archive(KEY) is None


def test_the_list_is_newest_first_and_says_what_is_archived(manager: SessionManager):
    for key in ("cli:a", "telegram:1", "cli:b"):
        session = manager.get_or_create(key)
        session.add_message("user", key)
        manager.save(session)
    manager.archive("telegram:1")

    rows = manager.list_sessions()

    assert [(row["key"], row["archived"], row["messages"]) for row in rows] == [
        ("cli:b", False, 1), ("telegram:1", True, 1), ("cli:a", False, 1),
    ]  # fmt: skip
    assert manager.latest(lambda key: key.startswith("cli:")) == "cli:b"
    assert manager.latest(lambda key: key.startswith("slack:")) is None


def test_delete_takes_the_file_and_the_memory_of_it(manager: SessionManager):
    session = manager.get_or_create(KEY)
    session.add_message("user", "x")
    manager.save(session)

    assert manager.delete(KEY)
    assert not manager.delete(KEY)
    assert contents(manager.get_or_create(KEY)) == []


def test_looking_for_a_session_promises_its_name_to_nobody(tmp_path: Path, manager: SessionManager):
    assert manager.find("a/b") is None
    session = manager.get_or_create("a:b")
    session.add_message("user", "x")
    manager.save(session)

    assert (tmp_path / "sessions" / "a_b.jsonl").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="file modes are POSIX")
def test_sessions_are_private(manager: SessionManager, file: Path):
    session = manager.get_or_create(KEY)
    session.add_message("user", "x")
    manager.save(session)

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


# --- the disk refuses


def test_a_folder_in_place_of_the_file_is_a_clear_error(manager: SessionManager, file: Path):
    file.mkdir(parents=True)

    with pytest.raises(StorageError, match="There is a folder where a file should be"):
        manager.get_or_create(KEY)


async def test_a_file_in_place_of_the_folder_is_a_clear_error(tmp_path: Path, manager: SessionManager):
    (tmp_path / "sessions").write_text("oops")

    with pytest.raises(StorageError):
        async with manager.hold(KEY):
            pytest.fail("held")


@pytest.mark.skipif(sys.platform == "win32", reason="a limit on file sizes is POSIX")
def test_a_disk_that_takes_only_half_a_line_is_an_error_and_nothing_is_torn(tmp_path: Path):
    out = told("tests.programs.full_disk_session", str(tmp_path))

    session = SessionManager(tmp_path).get_or_create(KEY)
    assert out.split("\n")[:2] == ["refused 1", "refused 2"]
    assert contents(session) == ["before", "y" * 5000, "after"]


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_reads_and_refuses_to_write(manager: SessionManager, file: Path):
    write_lines(file, [{"role": "user", "content": "x"}])
    file.chmod(0o400)
    file.parent.chmod(0o500)
    session = manager.get_or_create(KEY)
    session.add_message("user", "y")

    with pytest.raises(StorageError, match="Check who owns"):
        manager.save(session)

    file.parent.chmod(0o700)
    assert contents(session) == ["x", "y"]


# --- somebody else writes meanwhile


def saved(manager: SessionManager, text: str) -> Session:
    session = manager.get_or_create(KEY)
    session.add_message("user", text)
    manager.save(session)
    return session


def test_a_new_file_in_place_of_changed_messages_keeps_what_another_wrote(tmp_path: Path, manager: SessionManager):
    session = saved(manager, "mine")
    session.messages[0] = {**session.messages[0], "content": "edited"}
    saved(SessionManager(tmp_path), "theirs")

    manager.save(session)

    assert contents(session) == ["edited", "theirs"]
    assert contents(SessionManager(tmp_path).get_or_create(KEY)) == ["edited", "theirs"]


def test_after_another_wrote_the_session_is_read_again(tmp_path: Path, manager: SessionManager):
    session = saved(manager, "a")
    saved(SessionManager(tmp_path), "b")
    session.add_message("user", "c")
    manager.save(session)

    again = manager.get_or_create(KEY)

    assert again is session
    assert contents(again) == ["a", "b", "c"]


async def test_what_the_disk_refused_is_not_part_of_the_session(tmp_path: Path, manager: SessionManager):
    session = manager.get_or_create(KEY)
    (tmp_path / "sessions").write_text("a file in the way")

    with pytest.raises(StorageError):
        await manager.append(session, user("lost"))

    (tmp_path / "sessions").unlink()
    await manager.append(session, user("kept"))
    assert contents(SessionManager(tmp_path).get_or_create(KEY)) == contents(session) == ["kept"]


async def test_many_sessions_share_their_rounds(tmp_path: Path, manager: SessionManager):
    sessions = [manager.get_or_create(f"chat:{number}") for number in range(50)]

    await asyncio.gather(*(manager.append(session, user(session.key), said("ok")) for session in sessions))

    fresh = SessionManager(tmp_path)
    assert all(contents(fresh.get_or_create(session.key)) == [session.key, "ok"] for session in sessions)
    assert len(fresh.list_sessions()) == 50


def test_sessions_may_be_asked_for_in_many_threads_at_once(tmp_path):
    manager, before = SessionManager(tmp_path), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            found = [*threads.map(manager.get_or_create, [f"phone:{number}" for number in range(1_500)])]
    finally:
        sys.setswitchinterval(before)

    assert [one.key for one in found] == [f"phone:{number}" for number in range(1_500)]


async def test_who_waits_in_another_process_is_let_in_before_the_next_turn_of_who_has_it(tmp_path: Path):
    one, other = SessionManager(tmp_path), SessionManager(tmp_path)
    waits, order = asyncio.Event(), []

    async def from_elsewhere() -> None:
        async with other.hold("cli:direct", waits.set):
            order.append("other")

    async with one.hold("cli:direct"):
        waiting = asyncio.create_task(from_elsewhere())
        await waits.wait()
    await one.yield_to_waiters("cli:direct")
    async with one.hold("cli:direct"):
        order.append("one")
    await waiting

    assert order == ["other", "one"]
