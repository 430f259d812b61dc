"""Sessions as a plain library and as the engine uses them."""

import asyncio
import stat
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.agent.events import Notice
from nanobot.errors import StorageError
from nanobot.session.manager import Session, SessionManager
from nanobot.testing import open_bot
from tests.session.support import KEY, contents, fresh, lines, said, saved, user, write_rows
from tests.support.home import told


@pytest.fixture
def manager(tmp_path: Path) -> SessionManager:
    return SessionManager(tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sessions" / "cli_direct.jsonl"


# --- a plain library


def test_a_file_begins_with_its_metadata_and_grows_by_lines(tmp_path: Path, manager: SessionManager, file: Path):
    session = saved(manager, "你好")
    before = file.read_bytes()
    manager.save(session)
    assert file.read_bytes() == before

    session.messages.append(said("hi"))
    session.metadata["model"] = "m"
    manager.save(session)
    again = fresh(tmp_path)

    assert file.read_bytes().startswith(before)
    assert "你好" in before.decode()
    assert (lines(file)[0]["_type"], lines(file)[0]["key"]) == ("metadata", KEY)
    assert set(lines(file)[1]) == {"role", "content", "timestamp"}
    assert datetime.fromisoformat(lines(file)[1]["timestamp"]).tzinfo is None
    assert contents(again) == ["你好", "hi"]
    assert (again.metadata, again.created_at, again.updated_at) == (
        {"model": "m"},
        session.created_at,
        session.updated_at,
    )
    if sys.platform != "win32":
        assert [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent)] == [0o600, 0o700]


@pytest.mark.parametrize("edit", ["assign", "replace", "delete", "insert", "clear"])
def test_changed_messages_replace_the_file_and_the_old_one_is_kept(tmp_path: Path, manager: SessionManager, edit: str):
    session = saved(manager, *"abc")
    match edit:
        case "assign":
            session.messages = session.messages[-1:]
        case "replace":
            session.messages[0] = {**session.messages[0], "content": "A"}
        case "delete":
            del session.messages[1]
        case "insert":
            session.messages.insert(0, user("z"))
        case _:
            session.clear()
    expected = contents(session)

    manager.save(session)
    saved(manager, "more")

    assert contents(fresh(tmp_path)) == [*expected, "more"]
    [archived] = (tmp_path / "sessions" / "archive").iterdir()
    assert contents(manager.read(archived)) == ["a", "b", "c"]


def test_unsaved_messages_stay_in_memory_until_it_is_told_to_forget_them(manager: SessionManager):
    manager.get_or_create(KEY).add_message("user", "x")
    before = contents(manager.get_or_create(KEY))

    manager.invalidate(KEY)

    assert (before, contents(manager.get_or_create(KEY))) == (["x"], [])


HISTORY = [user("old"), said("old"), {"role": "user", "content": "/status", "_command": True}, user("1"), said("2")]


@pytest.mark.parametrize(
    ("rows", "cursor", "limit", "shown"),
    [
        ([user("1"), said("2"), user("3"), said("4"), user("5"), said("6")], 0, 3, ["5", "6"]),
        ([user("1"), said("2")], 0, 500, ["1", "2"]),
        ([user("1"), said("2")], 0, 0, []),
        (HISTORY, 2, 500, ["1", "2"]),
        ([user("do it"), *(said(str(at)) for at in range(4))], 0, 2, ["do it", "0", "1", "2", "3"]),
    ],
)
def test_history_is_the_last_messages_past_the_cursor_from_a_user_on(rows: Any, cursor: int, limit: int, shown: Any):
    assert contents(Session(KEY, rows, last_consolidated=cursor).get_history(limit)) == shown


# --- files of the original, and of people


def test_a_file_of_the_original_is_read_as_it_is(manager: SessionManager, file: Path):
    record = {"_type": "metadata", "created_at": "2026-01-01T10:00:00", "updated_at": "2026-01-02T10:00:00",
              "metadata": {"runtime_checkpoint": {"a": 1}, "pending_user_turn": True, "goal_state": {},
                           "_last_summary": {}}, "last_consolidated": 2}  # fmt: skip
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    rows: list[dict[str, Any]] = [
        {"role": "user", "content": "old"}, {"role": "assistant", "content": "old"},
        {"role": "user", "content": [{"type": "text", "text": "see"}, image], "timestamp": "2026-01-02T10:00:00+00:00"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {"name": "x"}}]},
    ]  # fmt: skip
    before = write_rows(file, record, *rows).read_bytes()

    session = manager.get_or_create(KEY)

    assert session.messages == rows
    assert session.get_history() == rows[2:]
    assert session.metadata == record["metadata"]
    assert session.created_at == datetime(2026, 1, 1, 10)
    assert file.read_bytes() == before


def test_a_key_comes_from_the_name_where_the_file_has_none(manager: SessionManager, tmp_path: Path):
    write_rows(tmp_path / "sessions" / "telegram_12_3.jsonl", user("x"))

    assert [row["key"] for row in manager.list_sessions()] == ["telegram:12_3"]
    assert contents(manager.get_or_create("telegram:12_3")) == ["x"]


def test_a_file_at_the_old_place_moves_here_when_it_is_used(tmp_path: Path, file: Path):
    old = write_rows(tmp_path / "home" / "sessions" / "cli_direct.jsonl", user("x"))
    manager = SessionManager(tmp_path, old_folder=old.parent)

    assert [row["key"] for row in manager.list_sessions()] == [KEY]
    assert contents(manager.get_or_create(KEY)) == ["x"]
    assert (file.exists(), old.exists()) == (True, False)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
async def test_a_session_that_an_editor_saved_in_utf_16_goes_on_in_utf_8(tmp_path: Path, encoding: str):
    file = tmp_path / "workspace" / "sessions" / "cli_direct.jsonl"
    rows = ({"_type": "metadata", "key": KEY, "metadata": {}}, user("grün is my colour"), said("Noted."))
    before = write_rows(file, *rows, encoding=encoding).read_bytes()

    async with open_bot(tmp_path, "green", "bye") as bot:
        await bot.say("which colour?")
        await bot.say("thanks")

    notices = [event.text for event in bot.sink.events if isinstance(event, Notice)]
    assert "grün is my colour" in str(bot.provider.requests[0])
    assert ["was saved in UTF-16" in text for text in notices] == [True]
    assert contents(fresh(tmp_path / "workspace"))[::2] == ["grün is my colour", "which colour?", "thanks"]
    assert file.read_text(encoding="utf-8").startswith('{"_type"')
    assert file.with_name("cli_direct.jsonl.utf-16").read_bytes() == before


# --- names


HARD_KEYS = [
    "", ".", "..", "../../etc/passwd", "a/../../b", "x" * 1000, "好" * 300, "🦊:🐻", "con", "NUL:1", "aux.txt",
    "a\x00b", "a\nb", "\ud800", " spaced ", "end.", 'all<>:"/\\|?*', "C:\\Windows", ".hidden",
]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "stem"), [("cli:direct", "cli_direct"), ("a:b/c", "a_b_c"), ('x<>:"/\\|?*y', "x_________y")]
)
def test_an_ordinary_key_has_the_stem_of_the_original(tmp_path: Path, manager: SessionManager, key: str, stem: str):
    assert manager.find(key) is None  # this promises the name to nobody
    saved(manager, "x", key=key)

    assert manager.find(key) == tmp_path / "sessions" / f"{stem}.jsonl"


def stays_in_the_folder(folder: Path, key: str) -> None:
    saved(SessionManager(folder), f"from {key!r}", key=key)
    assert contents(SessionManager(folder).get_or_create(key)) == [f"from {key!r}"]
    [row] = SessionManager(folder).list_sessions()
    assert (row["key"], Path(row["path"]).parent) == (key, folder / "sessions")
    assert len((Path(row["path"]).name + ".utf-16").encode()) < 255


@pytest.mark.parametrize("key", HARD_KEYS)
def test_a_hard_key_stays_in_the_folder(tmp_path: Path, key: str):
    stays_in_the_folder(tmp_path, key)


@given(st.text(st.characters(exclude_categories=[]), max_size=80))
def test_any_key_stays_in_the_folder(tmp_path_factory: pytest.TempPathFactory, key: str):
    stays_in_the_folder(tmp_path_factory.mktemp("any"), key)


@pytest.mark.parametrize("processes", [1, 2])
async def test_keys_that_meet_in_one_name_keep_apart(tmp_path: Path, processes: int):
    keys = ["a:b", "a/b", "a_b", "A:b", "a?b"]
    managers = [SessionManager(tmp_path) for _ in range(processes)]
    sessions = [(manager := managers[at % processes], manager.get_or_create(key)) for at, key in enumerate(keys)]
    if processes == 1:
        await asyncio.gather(*(manager.append(session, user(session.key)) for manager, session in sessions))
    for manager, session in sessions if processes > 1 else ():
        await manager.append(session, user(session.key))

    again = SessionManager(tmp_path)

    assert [contents(again.get_or_create(key)) for key in reversed(keys)] == [[key] for key in reversed(keys)]
    assert (tmp_path / "sessions" / "a_b.jsonl").exists()


# --- the engine


async def test_appended_messages_are_on_the_disk_when_append_returns(manager: SessionManager, file: Path):
    async with manager.hold(KEY) as session:
        await manager.append(session, user("a"))
        await manager.append(session, said("b"), user("c"))
        assert [row.get("content") for row in lines(file)[1:]] == ["a", "b", "c"]
        assert contents(session.get_history()) == ["a", "b", "c"]

        session.metadata["title"] = "t"
        await manager.append(session)

    assert lines(file)[-1]["metadata"] == {"title": "t"}


async def test_concurrent_appends_of_one_session_keep_their_order(tmp_path: Path, manager: SessionManager):
    session = manager.get_or_create(KEY)

    await asyncio.gather(*(manager.append(session, user(str(number))) for number in range(50)))

    expected = [str(number) for number in range(50)]
    assert contents(session) == contents(fresh(tmp_path)) == expected


async def test_cancelling_an_append_leaves_it_whole(tmp_path: Path, manager: SessionManager):
    session = manager.get_or_create(KEY)
    for number in range(30):
        task = asyncio.create_task(manager.append(session, user(f"{number}a"), said(f"{number}b")))
        await asyncio.sleep(0.0002 * (number % 4))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await manager.append(session, user("end"))

    texts = contents(session)
    assert contents(fresh(tmp_path)) == texts
    assert sum(text.endswith("a") for text in texts) == sum(text.endswith("b") for text in texts)


async def test_holding_waits_for_another_process_and_says_so_once(tmp_path: Path, manager: SessionManager):
    other = SessionManager(tmp_path)
    waited: list[str] = []

    async def second() -> list[Any]:
        async with manager.hold(KEY, on_wait=lambda: waited.append("!")) as session:
            return contents(session)

    async with other.hold(KEY) as session:
        with pytest.raises(TimeoutError):  # a cancelled wait holds nothing
            async with asyncio.timeout(0.02), manager.hold(KEY):
                pytest.fail("held twice")
        waiting = asyncio.create_task(second())
        await asyncio.sleep(0.03)
        await other.append(session, user("from the other"))
        assert not waiting.done()

    assert await waiting == ["from the other"]
    assert waited == ["!"]


async def test_who_waits_in_another_process_is_let_in_before_the_next_turn_of_who_has_it(tmp_path: Path):
    one, other = SessionManager(tmp_path), SessionManager(tmp_path)
    waits, order = asyncio.Event(), []

    async def from_elsewhere() -> None:
        async with other.hold(KEY, waits.set):
            order.append("other")

    async with one.hold(KEY):
        waiting = asyncio.create_task(from_elsewhere())
        await waits.wait()
    await one.yield_to_waiters(KEY)
    async with one.hold(KEY):
        order.append("one")
    await waiting

    assert order == ["other", "one"]


async def test_archive_moves_the_file_and_the_session_begins_afresh(tmp_path: Path, manager: SessionManager):
    assert manager.archive("nothing") is None
    session = manager.get_or_create(KEY)
    await manager.append(session, user("old"))

    archived = manager.archive(KEY)
    await manager.append(manager.get_or_create(KEY), user("new"))

    assert archived is not None
    assert archived.parent == tmp_path / "sessions" / "archive"
    assert contents(manager.read(archived)) == ["old"]
    assert contents(fresh(tmp_path)) == ["new"]
    assert manager.find(archived.stem) == archived


def test_the_list_is_newest_first_and_says_what_is_archived(manager: SessionManager):
    for key in ("cli:a", "telegram:1", "cli:b"):
        saved(manager, key, key=key)
    manager.archive("telegram:1")

    rows = manager.list_sessions()

    assert [(row["key"], row["archived"], row["messages"]) for row in rows] == [
        ("cli:b", False, 1), ("telegram:1", True, 1), ("cli:a", False, 1),
    ]  # fmt: skip
    assert manager.latest(lambda key: key.startswith("cli:")) == "cli:b"
    assert manager.latest(lambda key: key.startswith("slack:")) is None


def test_delete_takes_the_file_and_the_memory_of_it(manager: SessionManager):
    saved(manager, "x")

    assert manager.delete(KEY)
    assert not manager.delete(KEY)
    assert contents(manager.get_or_create(KEY)) == []


# --- the disk refuses


def test_a_folder_in_place_of_the_file_is_a_clear_error(manager: SessionManager, file: Path):
    file.mkdir(parents=True)

    with pytest.raises(StorageError, match="There is a folder where a file should be"):
        manager.get_or_create(KEY)


async def test_what_the_disk_refused_is_not_part_of_the_session(tmp_path: Path, manager: SessionManager):
    session = manager.get_or_create(KEY)
    session.add_message("user", "lost too")
    (tmp_path / "sessions").write_text("a file in the way")

    with pytest.raises(StorageError):
        await manager.append(session, user("lost"))
    with pytest.raises(StorageError):
        async with manager.hold(KEY):
            pytest.fail("held")

    (tmp_path / "sessions").unlink()
    await manager.append(session, user("kept"))
    assert contents(fresh(tmp_path)) == contents(session) == ["kept"]


@pytest.mark.skipif(sys.platform == "win32", reason="a limit on file sizes is POSIX")
def test_a_disk_that_takes_only_half_a_line_is_an_error_and_nothing_is_torn(tmp_path: Path):
    out = told("tests.programs.full_disk_session", str(tmp_path))

    assert out.split("\n")[:2] == ["refused 1", "refused 2"]
    assert contents(fresh(tmp_path)) == ["before", "y" * 5000, "after"]


# --- somebody else writes meanwhile


def test_a_new_file_in_place_of_changed_messages_keeps_what_another_wrote(tmp_path: Path, manager: SessionManager):
    session = saved(manager, "mine")
    session.messages[0] = {**session.messages[0], "content": "edited"}
    saved(SessionManager(tmp_path), "theirs")

    manager.save(session)

    assert contents(session) == contents(fresh(tmp_path)) == ["edited", "theirs"]
