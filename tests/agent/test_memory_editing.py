"""`/memory`: where a fact came from, forgetting, pinning and sharing it, and taking a change back byte for byte."""

import os
import re
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.agent.memory import MemoryStore
from nanobot.agent.memory.facts import parse_facts, set_pinned
from nanobot.bus.events import InboundMessage
from nanobot.errors import StorageError
from nanobot.utils.clock import FrozenClock
from tests.support.memory import MemoryBot, learn, remembering

ODD = b"\xef\xbb\xbf- First.\r\n# Memory\r\n\r\n- Likes tea.\r\n- Has a dog\r\n  named Rex\r\n\r\nend  \r\n- \xff odd"
NUTS = "- Is allergic to nuts.\n"


async def test_facts_say_which_message_brought_them_and_what_they_replaced(tmp_path: Path):
    async with remembering(tmp_path) as it:
        it.learns("- Lives in Berlin since 2020.", said="I live in Berlin since 2020, the owner said")
        it.learns("- Lives in Paris since 2026.", said="I live in Paris since 2026")

        paris, berlin = await it.say("/memory why Paris"), await it.say("/memory why Berlin")

        assert "from a conversation cli:direct, turn t1" in paris
        assert "2026-02-26 13:21 ann: I live in Paris since 2026" in paris
        assert "It replaced: Lives in Berlin" in paris
        assert "no longer in memory" in berlin
        assert "Berlin" not in it.memory.get_memory_context()


@pytest.mark.parametrize(
    ("command", "answer", "changed"),
    [
        ("forget dog", "- Has a dog named Rex", ODD.replace(b"- Has a dog\r\n  named Rex\r\n", b"")),
        ("forget First.", "- First.", ODD.replace(b"- First.\r\n", b"")),
        ("pin rex", "Pinned: Has a dog named Rex", ODD.replace(b"Rex\r\n", b"Rex (pinned)\r\n")),
    ],
)
async def test_change_touches_one_fact_and_undo_restores_every_byte(
    tmp_path: Path, command: str, answer: str, changed: bytes
):
    async with remembering(tmp_path) as it:
        it.writes(ODD.decode("utf-8", "surrogateescape"))
        [rex] = [line.split()[0] for line in (await it.say("/memory")).splitlines() if "Rex" in line]
        assert answer in await it.say(f"/memory {command}")
        assert it.memory.memory_file.read_bytes() == changed
        if command.startswith("pin"):
            assert f"/memory unpin {rex}," in await it.say("/memory forget rex")
            await it.say(f"/memory unpin {rex}")
            assert it.memory.memory_file.read_bytes() == ODD
            await it.say("/memory undo")
        assert "Undone:" in await it.say("/memory undo")
        assert it.memory.memory_file.read_bytes() == ODD


async def test_forgotten_fact_is_learned_again_only_from_what_is_said_anew(tmp_path: Path):
    async with remembering(tmp_path) as it:
        it.learns("- Likes green tea.\n- Has a dog.", said="I like green tea")
        said_at = it.clock.now()
        it.clock.advance(60)
        await it.say("/memory forget green tea")
        now, it.clock = it.clock, FrozenClock(said_at)

        it.learns("- Has a dog.\n- The user likes green tea", said="I like green tea")
        assert "tea" not in it.text

        it.clock = now
        it.clock.advance(60)
        it.learns("- Has a dog.\n- Likes green tea", said="I like green tea")
        assert "green tea" in it.text


async def test_changes_of_two_processes_are_undone_one_after_the_other(tmp_path: Path):
    async with remembering(tmp_path) as it, remembering(tmp_path) as other:
        first = it.text
        it.learns("- One.\n")
        other.learns("- One.\n- Two.\n")
        it.writes("- One.\n- Two.\n- By hand.\n")

        texts = []
        for bot in (other, it, other):
            await bot.say("/memory undo")
            texts.append(it.text)

        log = await it.say("/memory log")
        assert texts == ["- One.\n- Two.\n", "- One.\n", first]
        assert "no change to undo" in await it.say("/memory undo")
        assert re.findall(r"^(\d+)  .*\(now\)  (\w+)", log, re.MULTILINE)[:2] == [("7", "undo"), ("6", "undo")]


async def test_words_that_match_several_facts_are_asked_about(tmp_path: Path):
    async with remembering(tmp_path) as it:
        it.learns("- Likes green tea.\n- Likes black tea.\n")

        asked = await it.say("/memory forget tea")

        assert "Several facts match" in asked and "black tea" in asked
        assert "Likes black tea." in await it.say(f"/memory forget {asked.splitlines()[2].split()[0]}")


async def test_beyond_the_budget_the_least_important_facts_go_to_the_archive_where_a_search_finds_them(tmp_path: Path):
    async with remembering(tmp_path) as it:
        it.memory.write_long_term("- Always pays in cash.\n")
        it.memory.budget_bytes = 60
        it.learns(f"{NUTS}- Asked about rain today.\n- Always pays in cash.")

        assert "rain" not in it.text and "allergic" in it.text
        assert "ARCHIVE.md:3: - Asked about rain today." in await it.say("/memory search RAIN")
        assert "ARCHIVE.md" in it.memory.get_memory_context()


async def test_undo_of_a_fact_forgotten_in_the_archive_leaves_later_ones_there(tmp_path: Path):
    async with remembering(tmp_path) as it:
        it.memory.write_long_term(NUTS)
        it.memory.budget_bytes = 30
        it.learns(f"{NUTS}- Asked about rain today.\n- Talked of snow tonight.")
        await it.say("/memory forget rain")
        it.learns(f"{NUTS}- Was told of Elbe bridges yesterday.")
        await it.say("/memory forget snow")

        archives = []
        for _ in range(3):
            await it.say("/memory undo")
            archives.append([word for word in ("rain", "snow", "Elbe") if word in it.archive])

        assert archives == [["snow", "Elbe"], ["snow"], ["rain", "snow"]]


@pytest.mark.parametrize("broken", ["MEMORY.md", "database"])
async def test_change_that_the_disk_refuses_is_not_done_in_any_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
):
    usual = MemoryStore.write

    def write(self: MemoryStore, path: Path, content: bytes | None) -> None:
        if path.name == broken:
            raise StorageError("The disk is full.")
        usual(self, path, content)

    async with remembering(tmp_path) as it:
        it.learns(f"{NUTS}- Likes rain.\n")
        await it.say("/memory share rain")
        with monkeypatch.context() as full:
            full.setattr(MemoryStore, "write", write)
            if broken == "database":
                full.setattr("nanobot.agent.memory.revisions.writing", _refuse)
            told = await it.say("/memory forget rain")

        assert "Forgotten" not in told and ("full" in told or "cannot be" in told)
        assert "rain" in it.memory.shared_file.read_text(encoding="utf-8")
        assert "rain" in it.text
        await it.say("/memory forget rain")
        assert (it.memory.shared_file.read_text(encoding="utf-8"), it.text) == ("", NUTS)


def _refuse(*args: Any) -> Any:
    raise StorageError("The database cannot be written.")


async def test_old_revisions_lose_their_texts_but_not_what_they_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("nanobot.agent.memory.revisions._KEPT_TEXTS", 5)
    async with remembering(tmp_path) as it:
        it.learns("- Likes green tea.\n- Has a dog.\n- Speaks French.", said="I like green tea a lot")
        await it.say("/memory share French")
        await it.say("/memory share dog")
        await it.say("/memory forget dog")
        for number in range(9):
            it.learns(f"- Likes green tea.\n- Speaks French.\n- Fact number {number} of many.")

        undone = [await it.say("/memory undo") for _ in range(9)]

        assert "Undone" in undone[0] and "no longer stored" in undone[-1]
        assert "I like green tea a lot" in await it.say("/memory why green tea")
        assert "shared by the owner" in await it.say("/memory why French")
        it.learns("- Likes green tea.\n- Has a dog.")
        assert "dog" not in it.text
        it.memory.shared_file.unlink()
        assert re.match(r"\d+  \S+ \S+ .*  hand SHARED.md: - Speaks French", await it.say("/memory log"))


async def test_log_of_the_original_is_searched_and_content_found_at_first_is_no_change(tmp_path: Path):
    async with remembering(tmp_path) as it:
        it.writes("# Memory\n")
        old = it.memory.memory_dir / "history.jsonl"
        old.write_text('{"cursor": 1, "timestamp": "2026-02-26 13:21", "content": "Met Anna"}\ncursor\n', "utf-8")

        assert await it.say("/memory search anna") == "history.jsonl:1: Met Anna"
        assert await it.say("/memory search cursor") == "No matches."
        assert (await it.say("/memory log")).endswith("hand MEMORY.md: initial content")
        assert "no change to undo" in await it.say("/memory undo")


@pytest.mark.skipif(os.name == "nt", reason="links take rights there")
async def test_links_in_a_chats_folder_lead_to_no_other_memory(tmp_path: Path):
    async with remembering(tmp_path) as it:
        it.memory.write_long_term("- canary\n")
        chat = it.of("telegram:-100")
        chat.memory_dir.mkdir(parents=True)
        for name in ("MEMORY.md", "HISTORY.md", "2026-01-01.md"):
            (chat.memory_dir / name).symlink_to("../../MEMORY.md")
        os.mkfifo(chat.archive_file)

        for command in ("", "search canary", "forget canary", "log"):
            message = InboundMessage("telegram", "zoe", "-100", f"/memory {command}", in_group=True)
            assert "- canary" not in (await it.bot.run_turn(message)).text
        assert "canary" not in chat.get_memory_context()
        with pytest.raises(StorageError):
            chat.append_history("words for the owner")
        assert it.text == "- canary\n"


# --- over time


def plant(it: MemoryBot, sessions: int, facts: int) -> tuple[int, int]:
    """So many sessions, every few of which tell a fact; each summary adds small talk and says some facts again."""
    words = ["amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "hazel", "inlet", "jade"]
    told = [f"{words[n % 10].title()} {words[n // 10]} costs {n + 7} coins." for n in range(facts)]
    for session in range(sessions):
        it.clock.advance(3_600)
        update, said = it.memory.read_long_term().rstrip(), ""
        if session % (sessions // facts) == 0 and session * facts // sessions < facts:
            fact = told[session * facts // sessions]
            said = f"Remember: {fact}"
            update += f"\n- {fact}\n- The user's {fact[0].lower()}{fact[1:]}" if session % 2 else f"\n- {fact}"
        it.learns(f"{update}\n- Asked about the weather of day {session} today.", said=said)
    return sum(fact in it.memory.get_memory_context() for fact in told), len(it.text.encode())


@pytest.mark.parametrize(
    ("sessions", "facts", "known", "budget"),
    [
        (20, 10, 10, 600),
        pytest.param(500, 100, 95, 8_192, marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
    ],
)
async def test_planted_facts_stay_within_the_budget_over_many_sessions(
    tmp_path: Path, sessions: int, facts: int, known: int, budget: int
):
    async with remembering(tmp_path) as it:
        it.memory.budget_bytes = budget

        answerable, size = plant(it, sessions, facts)

    assert answerable >= known
    assert size <= budget


LINES = """\
# Memory
## Home
- Likes tea.
- likes TEA
- Likes tea. (pinned)
- Likes coffee. (pinned)
- Has a dog
  named Rex
  named Max
- Lives in Rome.
Speaks Welsh.

""".splitlines()


@given(
    before=st.lists(st.sampled_from(LINES), max_size=8),
    update=st.lists(st.sampled_from(LINES), max_size=10),
    pins=st.sets(st.integers(0, 7)),
    budget=st.integers(20, 200),
    is_late=st.booleans(),
)
def test_pinned_fact_survives_every_update_word_for_word_and_no_update_pins_one(
    before: list[str], update: list[str], pins: set[int], budget: int, is_late: bool
):
    seen = "\n".join(before) + "\n"
    keys = {fact.key for number, fact in enumerate(parse_facts(seen)) if number in pins}
    text = set_pinned(seen, keys, pinned=True)
    pinned = {(fact.key, fact.text) for fact in parse_facts(text) if fact.pinned}
    with TemporaryDirectory() as folder:
        clock = FrozenClock(datetime(2026, 2, 26, tzinfo=UTC))
        memory = MemoryStore(Path(folder), clock=clock, budget_bytes=budget, database=Path(folder, "nanobot.db"))
        memory.write_long_term(text)
        try:
            learn(memory, "Talked.", "\n".join(update), seen=seen if is_late else text)
        except StorageError:  # the line that was pinned meanwhile was changed by the update
            assert memory.read_long_term() == text
        after = parse_facts(memory.read_long_term())
    assert {fact.key for fact in after if fact.pinned} == {key for key, _ in pinned}
    assert {fact.text for fact in after if fact.pinned} <= {text for _, text in pinned}
