"""A memory in a person's hands: where a fact came from, forgetting it, sharing it, taking a change back."""

import os
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanobot.agent.memory import revisions as memory_book
from nanobot.agent.memory.editor import MemoryEditor, format_change
from nanobot.agent.memory.edits import edits_of_update
from nanobot.agent.memory.facts import parse_facts
from nanobot.agent.memory.retention import read_for_model, store_edits
from nanobot.agent.memory.revisions import ChangeSource
from nanobot.agent.memory.store import MemoryStore
from nanobot.agent.scope import Scope
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.types import Provenance
from nanobot.utils.clock import FrozenClock

ODD = b"\xef\xbb\xbf# Memory\r\n\r\n- Likes tea.\r\n- Has a dog\r\n  named Rex\r\n\r\n\r\ntrailing  \r\n- \xff odd"


class EditorHarness:
    def __init__(self, folder: Path, scope: Scope | None = None) -> None:
        self.clock = FrozenClock(datetime(2026, 2, 26, 13, 21, tzinfo=UTC))
        self.memory = MemoryStore(folder, clock=self.clock, scope=scope or Scope())
        self.editor = MemoryEditor(self.memory, self.clock)

    def learns(self, update: str, *said: str, at: str = "2026-02-26T13:00:00+00:00", **more: Any) -> None:
        rows: Any = [
            {
                "role": "user",
                "content": text,
                "timestamp": at,
                "turn_id": "t1",
                "provenance": "owner",
                "sender_id": "ann",
            }
            for text in said
        ]
        edits = edits_of_update(read_for_model(self.memory.revisions), update)
        store_edits(self.memory.revisions, "Talked.", edits, ChangeSource("telegram:7", rows=rows, **more))

    @property
    def text(self) -> str:
        return self.memory.read_long_term()


@pytest.fixture
def harness(tmp_path: Path) -> EditorHarness:
    return EditorHarness(tmp_path)


def test_a_fact_says_from_which_message_it_came_and_when(harness: EditorHarness):
    harness.learns("- Likes green tea.", "hello", "I like green tea a lot")

    [known] = harness.editor.facts()
    told = harness.editor.why(known.fact.id)

    assert "from a conversation telegram:7, turn t1" in told
    assert "2026-02-26 13:00 ann: I like green tea a lot" in told


def test_forgetting_and_taking_it_back_leaves_every_byte(harness: EditorHarness):
    harness.memory.memory_dir.mkdir(parents=True)
    harness.memory.memory_file.write_bytes(ODD)

    [gone] = harness.editor.forget("dog")
    without = harness.memory.memory_file.read_bytes()
    harness.editor.undo()

    assert gone.text == "Has a dog named Rex"
    assert without == ODD.replace(b"- Has a dog\r\n  named Rex\r\n", b"")
    assert harness.memory.memory_file.read_bytes() == ODD


def test_what_was_forgotten_is_not_learned_again_from_what_was_said_before_but_from_what_is_said_anew(
    harness: EditorHarness,
):
    harness.learns("- Likes green tea.\n- Has a dog.", "I like green tea")
    harness.clock.advance(60)
    harness.editor.forget("green tea")

    harness.learns("- Has a dog.\n- The user likes green tea", "I like green tea")
    assert "tea" not in harness.text

    harness.learns("- Has a dog.\n- Likes green tea", "I like green tea", at="2026-02-26T14:00:00+00:00")
    assert "green tea" in harness.text


def test_a_corrected_fact_is_the_only_one_and_the_old_one_is_in_the_book(harness: EditorHarness):
    harness.learns("- Lives in Berlin since 2020.", "I live in Berlin since 2020")
    harness.learns("- Lives in Paris since 2026.", "I live in Paris since 2026")

    assert "Berlin" not in harness.memory.get_memory_context()
    assert "It replaced: Lives in Berlin" in harness.editor.why("Paris")
    assert "no longer in memory" in harness.editor.why("Berlin")


def test_changes_are_taken_back_one_after_the_other(harness: EditorHarness):
    harness.learns("- One.")
    harness.learns("- One.\n- Two.")
    harness.memory.memory_file.write_text("- One.\n- Two.\n- By hand.\n", encoding="utf-8")

    texts = []
    for _ in range(3):
        harness.editor.undo()
        texts.append(harness.text)

    assert texts == ["- One.\n- Two.\n", "- One.\n", ""]
    with pytest.raises(NanobotError, match="no change to undo"):
        harness.editor.undo()


def test_several_facts_with_the_same_words_are_asked_about(harness: EditorHarness):
    harness.learns("- Likes green tea.\n- Likes black tea.")

    with pytest.raises(NanobotError, match="Several facts match") as raised:
        harness.editor.forget("tea")
    assert "black tea" in str(raised.value)
    assert harness.editor.forget("black")[0].text == "Likes black tea."


def test_a_shared_fact_is_told_in_every_chat_and_once_to_the_owner(harness: EditorHarness):
    harness.learns("- Speaks French.\n- Has a secret.")

    harness.editor.share("French")

    group = harness.memory.of(Scope("telegram:-100")).get_memory_context()
    assert "Speaks French" in group
    assert "secret" not in group
    assert harness.memory.get_memory_context().count("Speaks French") == 1
    harness.editor.undo()
    assert harness.memory.of(Scope("telegram:-100")).get_memory_context() == ""


def test_beyond_its_budget_the_least_important_facts_go_to_the_archive_where_a_search_finds_them(tmp_path: Path):
    harness = EditorHarness(tmp_path)
    harness.memory.budget_bytes = 60
    harness.learns("- Is allergic to nuts.\n- Asked about rain today.\n- Always pays in cash.")

    assert "rain" not in harness.text
    assert "allergic" in harness.text
    assert [(found.file, found.text) for found in harness.editor.search("RAIN")] == [
        ("ARCHIVE.md", "- Asked about rain today.")
    ]
    assert "ARCHIVE.md" in harness.memory.get_memory_context()


def test_undoing_what_was_forgotten_in_the_archive_leaves_there_what_had_no_room(tmp_path: Path):
    harness = EditorHarness(tmp_path)
    harness.memory.budget_bytes = 30
    harness.learns("- Is allergic to nuts.\n- Asked about rain today.\n- Talked of snow tonight.")
    harness.editor.forget("rain")
    harness.learns("- Is allergic to nuts.\n- Was told of Elbe bridges yesterday.")
    harness.editor.forget("snow")

    archives = []
    for _ in range(3):
        harness.editor.undo()
        archives.append(harness.memory.archive_file.read_text(encoding="utf-8"))

    found = [[word for word in ("rain", "snow", "Elbe") if word in archive] for archive in archives]
    assert found == [["snow", "Elbe"], ["snow"], ["rain", "snow"]]


def test_a_disk_that_is_full_for_one_of_two_files_leaves_both_as_they_were(
    harness: EditorHarness, monkeypatch: pytest.MonkeyPatch
):
    harness.learns("- Is allergic to nuts.\n- Likes rain.")
    harness.editor.share("rain")
    usual = MemoryStore.write

    def write(self: MemoryStore, path: Path, content: bytes | None) -> None:
        if path.name == "MEMORY.md":
            raise StorageError("The disk is full.")
        usual(self, path, content)

    with monkeypatch.context() as full:
        full.setattr(MemoryStore, "write", write)
        with pytest.raises(StorageError):
            harness.editor.forget("rain")

    assert "rain" in harness.memory.shared_file.read_text(encoding="utf-8")
    assert "rain" in harness.text


def test_facts_of_others_words_say_so(harness: EditorHarness):
    harness.learns("- The server is called plum.", "what is it?", provenance=Provenance.MCP)

    assert "not the owner's own (mcp)" in harness.editor.why("plum")


def test_two_processes_write_in_one_book(tmp_path: Path):
    one, other = EditorHarness(tmp_path), EditorHarness(tmp_path)
    one.learns("- One.")
    other.learns("- One.\n- Two.")
    one.learns("- One.\n- Two.\n- Three.")

    assert [change.number for change in other.memory.revisions.changes()] == [1, 2, 3]


def planted(harness: EditorHarness, sessions: int, facts: int) -> tuple[int, int]:
    """So many sessions, every few of which tell a fact; each summary adds small talk and says some facts again."""
    words = ["amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "hazel", "inlet", "jade"]
    told = [f"{words[n % 10].title()} {words[n // 10]} costs {n + 7} coins." for n in range(facts)]
    for session in range(sessions):
        harness.clock.advance(3_600)
        update = harness.text.rstrip()
        at = harness.clock.now().isoformat()
        said = []
        if session % (sessions // facts) == 0 and session * facts // sessions < facts:
            fact = told[session * facts // sessions]
            said.append(f"Remember: {fact}")
            update += f"\n- {fact}\n- The user's {fact[0].lower()}{fact[1:]}" if session % 2 else f"\n- {fact}"
        update += f"\n- Asked about the weather of day {session} today."
        harness.learns(update, *said, at=at)
    return sum(fact in harness.memory.get_memory_context() for fact in told), len(harness.text.encode())


def test_over_many_sessions_the_planted_facts_stay_within_the_budget(harness: EditorHarness):
    harness.memory.budget_bytes = 600

    answerable, size = planted(harness, 20, 10)

    assert answerable == 10
    assert size <= 600


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_over_five_hundred_sessions_ninety_five_of_a_hundred_facts_are_answerable(harness: EditorHarness):
    answerable, size = planted(harness, 500, 100)

    assert answerable >= 95
    assert size <= 8_192


@pytest.mark.skipif(os.name == "nt", reason="links take rights there")
def test_what_a_command_put_into_a_chats_folder_leads_to_no_other_memory(harness: EditorHarness):
    harness.memory.write_long_term("- canary\n")
    chat = EditorHarness(harness.memory.memory_dir.parent, Scope("telegram:-100"))
    chat.memory.memory_dir.mkdir(parents=True)
    for name in ("MEMORY.md", "HISTORY.md", "2026-01-01.md"):
        (chat.memory.memory_dir / name).symlink_to("../../MEMORY.md")
    os.mkfifo(chat.memory.archive_file)

    assert chat.editor.search("canary") == []
    assert "canary" not in chat.memory.get_memory_context()
    for change in (chat.editor.facts, chat.editor.clear, partial(chat.memory.append_history, "words for the owner")):
        with pytest.raises(NanobotError):
            change()
    assert harness.text == "- canary\n"


def test_the_log_of_later_releases_of_the_original_is_searched(harness: EditorHarness):
    harness.memory.memory_dir.mkdir(parents=True)
    old = harness.memory.memory_dir / "history.jsonl"
    old.write_text('{"cursor": 1, "timestamp": "2026-02-26 13:21", "content": "Met Anna"}\ncursor\n', encoding="utf-8")

    assert [(one.file, one.line, one.text) for one in harness.editor.search("anna")] == [
        ("history.jsonl", 1, "Met Anna")
    ]
    assert harness.editor.search("cursor") == []


def test_a_fact_behind_a_byte_order_mark_is_a_fact_like_others(harness: EditorHarness):
    harness.memory.memory_dir.mkdir(parents=True)
    harness.memory.memory_file.write_bytes(b"\xef\xbb\xbf- Likes tea.\r\n- Has a cat.\r\n")

    assert [known.fact.text for known in harness.editor.facts()] == ["Likes tea.", "Has a cat."]
    assert harness.editor.facts()[0].origin is not None
    harness.editor.forget("Likes tea.")
    assert harness.memory.memory_file.read_bytes() == b"\xef\xbb\xbf- Has a cat.\r\n"


def test_a_file_that_is_seen_for_the_first_time_is_no_change(harness: EditorHarness):
    harness.memory.write_long_term("# Memory\n")

    assert [format_change(one).partition("  hand ")[2] for one in harness.editor.log()] == [
        "MEMORY.md: initial content"
    ]


def test_what_cannot_be_written_down_is_not_done(harness: EditorHarness, tmp_path: Path):
    database = tmp_path / "state" / "nanobot.db"
    harness.memory = MemoryStore(tmp_path, clock=harness.clock, database=database)
    harness.editor = MemoryEditor(harness.memory, harness.clock)
    harness.memory.write_long_term("- Likes tea\n- Has a cat\n")
    harness.editor.facts()
    database.unlink()
    database.mkdir()

    for change in (partial(harness.editor.share, "tea"), partial(harness.editor.forget, "tea")):
        with pytest.raises(NanobotError, match="cannot be"):
            change()

    assert harness.text == "- Likes tea\n- Has a cat\n"
    assert not harness.memory.shared_file.exists()


def test_old_revisions_lose_their_texts_but_not_what_they_tell(harness: EditorHarness, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory_book, "_KEPT_TEXTS", 5)
    harness.learns("- Likes green tea.\n- Has a dog.\n- Speaks French.", "I like green tea a lot")
    harness.editor.share("French")
    harness.editor.share("dog")
    harness.editor.forget("dog")
    for number in range(10):
        harness.learns(f"- Likes green tea.\n- Speaks French.\n- Fact number {number} of many.")

    revisions = harness.memory.revisions
    with pytest.raises(NanobotError, match="no longer"):
        revisions.texts(revisions.changes()[0])
    assert all(revisions.texts(revisions.changes()[-4]))
    assert "I like green tea a lot" in harness.editor.why("green tea")
    assert "shared by the owner" in harness.editor.why("French")
    harness.learns("- Likes green tea.\n- Has a dog.")
    assert harness.text == "- Likes green tea.\n"
    assert MemoryStore(harness.memory.memory_dir.parent).revisions.origins() == revisions.origins()
    harness.memory.shared_file.unlink()
    assert (harness.editor.log()[0].by, harness.editor.log()[0].file) == ("hand", "SHARED.md")


LINES = st.sampled_from(
    [
        "# Memory",
        "## Home",
        "- Likes tea.",
        "- likes TEA",
        "- Likes tea. (pinned)",
        "- Likes coffee. (pinned)",
        "- Has a dog",
        "  named Rex",
        "  named Max",
        "- Lives in Rome.",
        "Speaks Welsh.",
        "",
    ]
)


@settings(max_examples=20)
@given(
    before=st.lists(LINES, max_size=8),
    update=st.lists(LINES, max_size=10),
    pins=st.sets(st.integers(0, 7)),
    budget=st.integers(20, 200),
    is_late=st.booleans(),
)
def test_a_pinned_fact_survives_every_update_word_for_word_and_no_update_pins_one(
    before: list[str], update: list[str], pins: set[int], budget: int, is_late: bool
):
    with TemporaryDirectory() as folder:
        memory = MemoryStore(Path(folder), clock=FrozenClock(datetime(2026, 2, 26, tzinfo=UTC)), budget_bytes=budget)
        memory.write_long_term("\n".join(before) + "\n")
        editor = MemoryEditor(memory, FrozenClock(datetime(2026, 2, 26, tzinfo=UTC)))
        seen = memory.read_long_term()
        facts = [details.fact for details in editor.facts()]
        for fact in [fact for number, fact in enumerate(facts) if number in pins]:
            with suppress(NanobotError):  # the same words may be pinned on another line
                editor.pin(fact.id)
        text = memory.read_long_term()
        pinned = {(fact.key, fact.text) for fact in parse_facts(text) if fact.pinned}

        with suppress(StorageError):  # the line that was pinned meanwhile was changed by the update: nothing is written
            store_edits(memory.revisions, "Talked.", edits_of_update(seen if is_late else text, "\n".join(update)))

        after = parse_facts(memory.read_long_term())
    assert {fact.key for fact in after if fact.pinned} == {key for key, _ in pinned}
    assert {fact.text for fact in after if fact.pinned} <= {text for _, text in pinned}


def test_pinning_marks_one_line_and_is_undone(harness: EditorHarness):
    harness.memory.memory_file.parent.mkdir(parents=True)
    harness.memory.memory_file.write_bytes(ODD)

    rex = harness.editor.pin("rex")

    assert harness.memory.memory_file.read_bytes() == ODD.replace(b"Rex\r\n", b"Rex (pinned)\r\n")
    assert harness.editor.pin(rex.id, pinned=False).id == rex.id
    assert harness.memory.memory_file.read_bytes() == ODD
    harness.editor.undo()
    with pytest.raises(NanobotError, match=f"nanobot memory unpin {rex.id}"):
        harness.editor.forget(rex.id)
