"""What was said is found wherever it is stored, and the files are the truth."""

import json
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nanobot.messages.types import Provenance
from nanobot.security import secrets as vault
from nanobot.session.folder import SessionFolder
from nanobot.session.manager import SessionManager
from nanobot.session.search.index import RecallResult, SearchIndex
from nanobot.session.search.update import IndexedFile, sources_of


def anything(file: IndexedFile) -> bool:
    return True


class Place:
    """A workspace with its index."""

    def __init__(self, folder: Path) -> None:
        self.sessions = SessionManager(folder)
        self.memory = folder / "memory"
        self.path = folder / "state" / "search.db"
        files = SessionFolder(folder)
        self.sources = lambda: sources_of(files, self.memory)
        self.recall = SearchIndex(self.path, self.sources)

    def say(self, key: str, *texts: str, role: str = "user", **more: Any) -> None:
        session = self.sessions.get_or_create(key)
        for text in texts:
            session.add_message(role, text, **more)
        self.sessions.save(session)

    def find(self, text: str, **more: Any) -> list[str]:
        return [hit.text for hit in self.search(text, **more).hits]

    def search(self, text: str, **more: Any) -> RecallResult:
        return self.recall.search(text, more.pop("may_read", anything), **more)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize(
    ("key", "role", "name", "trust"),
    [
        ("cli:direct", "user", None, Provenance.OWNER),
        ("telegram:7", "user", None, Provenance.PERSON),
        ("cli:direct", "tool", "web_fetch", Provenance.WEB),
        ("cli:direct", "tool", "inbox", Provenance.MAIL),
    ],
)
def test_old_message_that_does_not_say_where_it_came_from_is_trusted_as_its_kind(
    place: Place, key: str, role: str, name: str | None, trust: Provenance
):
    place.say(key, "My dentist is Dr. Weiss", role=role, **({"name": name, "tool_call_id": "c"} if name else {}))

    assert [hit.trust for hit in place.search("dentist").hits] == [trust]


def test_nothing_of_a_session_that_is_gone_is_shown_while_another_process_holds_the_index(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("nanobot.session.search.index._LOCK_TIMEOUT_S", 0.1)
    place.say("a:1", "alpha")
    place.say("a:2", "alpha of another")
    place.find("alpha")
    place.sessions.delete("a:1")
    with closing(sqlite3.connect(place.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        found = place.search("alpha")

    assert not found.is_whole
    assert [hit.text for hit in found.hits] == ["alpha of another"]


def stored(place: Place) -> bytes:
    return b"".join(path.read_bytes() for path in place.path.parent.glob("search.db*"))


@pytest.mark.parametrize("damage", [b"", b"no database at all", None])
def test_a_damaged_or_lost_index_is_made_anew(place: Place, damage: bytes | None):
    place.say("a:1", "alpha " * 500)
    place.find("alpha")
    if damage is None:
        data = bytearray(place.path.read_bytes())
        data[4096:12288] = os.urandom(8192)
        place.path.write_bytes(data)
    else:
        place.path.write_bytes(damage)

    assert len(place.find("alpha")) == 1


def test_commands_our_words_results_of_searches_and_what_was_sent_beside_are_not_found(place: Place):
    place.say("a:1", "canary one", _command=True)
    place.say("a:1", "canary two", origin="system")
    place.say("a:1", "canary three", role="tool", name="session_search", tool_call_id="c")
    place.say("a:1", "hello", runtime_context="[Runtime Context] canary four")
    place.say("a:1", "hi\n[Runtime Context]\nChannel: canary five")
    place.say("a:1", "canary six", role="assistant", error="failed")
    place.say("a:1", "canary seven", role="tool", name="read_file", tool_call_id="d")

    assert place.find("canary") == ["canary seven"]
    assert place.find("canary", results=False) == []


def test_what_was_written_to_another_chat_is_found(place: Place):
    told = json.dumps({"content": "the canary flew", "chat_id": "8"})
    call = {"id": "c", "type": "function", "function": {"name": "message", "arguments": told}}
    place.say("a:1", "I write to Ann.", role="assistant", tool_calls=[call, {"function": 7}, None])

    assert place.find("canary") == ["I write to Ann. the canary flew"]


@pytest.mark.parametrize("is_known_late", [False, True])
def test_a_secret_is_neither_shown_nor_found(place: Place, is_known_late: bool):
    place.say("a:1", "the key is sk-verysecretvalue99 for alpha")
    if is_known_late:
        place.find("alpha")

    with vault.secrets_scope(lambda: {"sk-verysecretvalue99": "providers.custom.api_key"}):
        by_secret = [*place.find("verysecretvalue99"), *place.find("verysecret*"), *place.find("verysecret* the")]
        [shown] = place.find("alpha")

    assert by_secret == []
    assert "verysecret" not in shown
    assert is_known_late or b"verysecret" not in stored(place)


def test_all_words_first_then_other_endings_then_some(place: Place):
    place.say("a:1", "the meeting is on Monday", "budget for Monday", "meetings on Tuesday")

    both, endings, some = place.search("meeting monday"), place.search("meeting tuesday"), place.search("budget lunar")

    assert [hit.text for hit in both.hits] == ["the meeting is on Monday"]
    assert [hit.text for hit in endings.hits] == ["meetings on Tuesday"]
    assert (some.is_loose, [hit.text for hit in some.hits]) == (True, ["budget for Monday"])


def test_words_come_before_parts_of_words_and_endings(place: Place):
    place.say("a:1", "the invoices of March", "a voice", "an invoice", "in 東京tower", "tower of 京東")

    assert place.find("voice", limit=1) == ["a voice"]
    assert place.find("voice") == ["a voice", "an invoice", "the invoices of March"]
    assert place.find("tower") == ["tower of 京東", "in 東京tower"]
    assert place.find("東京") == ["in 東京tower"]


def test_half_a_character_and_names_that_are_no_text_harm_nothing(place: Place, tmp_path: Path):
    place.say("a:\ud800", "alpha \ud800 beta", turn_id="\udc00", sender_id="\ud800")
    name = os.fsdecode(b"caf\xe9.jsonl")
    (tmp_path / "sessions" / name).write_text(json.dumps({"role": "user", "content": "alpha gamma"}), encoding="utf-8")

    assert len(place.find("alpha")) == 2
    assert len(place.find("beta")) == len(place.find("gamma")) == 1


def test_of_equals_the_newer_comes_first(place: Place):
    place.say("a:1", "alpha then", timestamp="2020-01-01T00:00:00")
    place.say("a:2", "alpha now", timestamp=f"{time.strftime('%Y-%m-%d')}T00:00:00")

    assert place.find("alpha") == ["alpha now", "alpha then"]
    assert place.find("alpha", since=1_700_000_000) == ["alpha now"]


def test_memory_is_found_by_its_entries(place: Place):
    (place.memory / "chats" / "x").mkdir(parents=True)
    (place.memory / "HISTORY.md").write_text(
        "[2026-02-01 10:00] Talked of alpha.\n\n"
        "[2026-02-02 11:30] A beta. (In part from somebody else than the owner.)\n\n",
        encoding="utf-8",
    )
    (place.memory / "2026-02-03.md").write_text("# 2026-02-03\n\nalpha again\n\ngamma\n", encoding="utf-8")
    (place.memory / "CHANGES.md").write_text("alpha was wrong", encoding="utf-8")
    (place.memory / "chats" / "x" / "HISTORY.md").write_text("[2026-02-01 10:00] alpha there\n\n", encoding="utf-8")

    hits = {hit.name: hit for hit in place.search("alpha").hits}
    beta = place.search("beta").hits[0]

    assert sorted(hits) == ["memory/2026-02-03.md", "memory/HISTORY.md", "memory/chats/x/HISTORY.md"]
    assert hits["memory/HISTORY.md"].text == "[2026-02-01 10:00] Talked of alpha."
    assert hits["memory/HISTORY.md"].time == "2026-02-01 10:00"
    assert (beta.trust, hits["memory/HISTORY.md"].trust) == (Provenance.PERSON, Provenance.FILE)


def test_a_link_in_the_memory_leads_nowhere(place: Place, tmp_path: Path):
    place.memory.mkdir()
    (tmp_path / "secret.txt").write_text("alpha", encoding="utf-8")
    (place.memory / "2026-01-01.md").symlink_to(tmp_path / "secret.txt")

    assert place.find("alpha") == []


def test_a_long_message_is_shown_around_the_words(place: Place):
    place.say("a:1", "x " * 4000 + "the needle lies here" + " y" * 4000)

    shown = place.find("needle")[0]

    assert "the needle lies here" in shown
    assert len(shown) < 700


@pytest.mark.skipif(os.name == "nt", reason="links take rights there")
def test_a_file_that_becomes_a_link_while_it_is_opened_shows_nothing_of_where_it_leads(place: Place):
    note = place.memory / "chats" / "a-1" / "2026-01-01.md"
    note.parent.mkdir(parents=True)
    (place.memory / "MEMORY.md").write_text("- told in private\n", encoding="utf-8")
    note.write_text("decoy\n", encoding="utf-8")

    def swap_and_open(path: str, flags: int) -> int:
        if Path(path) == note:
            note.unlink()
            note.symlink_to("../../MEMORY.md")
        return os.open(path, flags)

    found = SearchIndex(place.path, place.sources, swap_and_open).search("private", anything)

    assert [hit.name for hit in found.hits] == ["memory/MEMORY.md"]


def test_the_log_that_later_releases_of_the_original_wrote_is_found(place: Place):
    place.memory.mkdir()
    rows = [{"cursor": 1, "timestamp": "2026-02-26 13:21", "content": "Met Anna, zebra"}, {"cursor": 2}, ["x"]]
    lines = "".join(json.dumps(row) + "\n" for row in rows) + '{"cursor": 3, "content": "zebra cut'
    (place.memory / "history.jsonl").write_text(lines, encoding="utf-8")

    [hit] = place.search("zebra").hits

    assert (hit.name, hit.time, hit.text) == (
        "memory/history.jsonl",
        "2026-02-26 13:21",
        "2026-02-26 13:21 Met Anna, zebra",
    )


@pytest.mark.parametrize("word", ["서울", "서", "京", "cat", "50%", "meet*", '"cat"', "door"])
def test_what_holds_the_one_word_that_was_asked_for_holds_all_of_them(place: Place, word: str):
    place.say("a:1", "내일 서울에서 만나요, 東京で会う, a cat of 50 at the door, meeting")

    found = place.search(word)

    assert (len(found.hits), found.is_loose) == (1, False)
