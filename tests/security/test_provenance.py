"""The book of files that hold somebody else's words."""

import json
import os
import time
from pathlib import Path

import pytest

from nanobot.errors import StorageError
from nanobot.messages.types import Provenance
from nanobot.security.provenance import IN_PART, ProvenanceStore


@pytest.fixture
def book(tmp_path: Path) -> ProvenanceStore:
    return ProvenanceStore(tmp_path / "state" / "provenance.json", tmp_path / "media", tmp_path / "workspace")


def test_a_mark_holds_for_the_file_by_any_name_and_in_any_process_until_it_is_cleared(
    book: ProvenanceStore, tmp_path: Path
):
    (tmp_path / "a").write_text("words", encoding="utf-8")
    (tmp_path / "b").symlink_to(tmp_path / "a")

    words = [book.of(tmp_path / "a")]
    for mark in (Provenance.WEB, Provenance.MCP):  # trust never rises by another mark
        book.mark(tmp_path / "b", mark)
        words.append(ProvenanceStore(book.path, tmp_path / "media").of(tmp_path / "x" / ".." / "a"))
    book.clear(tmp_path / "a")

    assert [*words, book.of(tmp_path / "a")] == [None, Provenance.WEB, Provenance.WEB, None]


def test_attachments_are_other_peoples_without_a_line(book: ProvenanceStore, tmp_path: Path):
    assert book.of(tmp_path / "media" / "email" / "bill.pdf") == Provenance.MAIL
    assert book.of(tmp_path / "media" / "telegram" / "cat.jpg") == Provenance.PERSON


def test_a_book_that_cannot_be_read_makes_every_file_somebody_elses_and_stays(book: ProvenanceStore, tmp_path: Path):
    book.path.parent.mkdir()
    book.path.write_text("{", encoding="utf-8")

    assert book.of(tmp_path / "a") == Provenance.WEB
    with pytest.raises(StorageError, match="Move it away"):
        book.mark(tmp_path / "a", Provenance.WEB)
    assert book.path.read_text(encoding="utf-8") == "{"


def test_a_stored_conversation_is_as_trusted_as_the_least_trusted_words_in_it(book: ProvenanceStore, tmp_path: Path):
    (sessions := tmp_path / "workspace" / "sessions").mkdir(parents=True)
    (sessions / "mine.jsonl").write_text('{"role": "user", "provenance": "owner"}\n', encoding="utf-8")
    (sessions / "theirs.jsonl").write_text('{"role": "tool", "provenance": "web"}\n', encoding="utf-8")
    (sessions / "old.jsonl").write_text('{"role": "user"}\n', encoding="utf-8")

    told = [book.of(sessions / name) for name in ("mine.jsonl", "theirs.jsonl", "old.jsonl")]
    assert told == [None, Provenance.WEB, Provenance.PERSON]


def test_a_folder_that_was_marked_holds_for_what_is_in_it_but_for_what_the_owner_writes_anew(
    book: ProvenanceStore, tmp_path: Path
):
    book.mark(tmp_path / "clone", Provenance.WEB)
    book.clear(tmp_path / "clone" / "mine.md")

    assert (book.of(tmp_path / "clone" / "README.md"), book.of(tmp_path / "clone" / "mine.md")) == (
        Provenance.WEB,
        None,
    )


def test_the_log_of_old_conversations_is_as_trusted_as_its_entries_say(book: ProvenanceStore, tmp_path: Path):
    (memory := tmp_path / "workspace" / "memory").mkdir(parents=True)
    log = memory / "HISTORY.md"
    log.write_text("[2026-01-01 10:00] The owner asked for soup.\n\n", encoding="utf-8")
    before = book.of(log)
    with log.open("a", encoding="utf-8") as more:
        more.write(f"[2026-01-02 10:00] Max wants money.\n{IN_PART[Provenance.PERSON]}\n\n")

    assert (before, book.of(log)) == (None, Provenance.PERSON)


def test_what_was_changed_since_a_moment_is_marked_and_git_and_packages_are_left_alone(
    book: ProvenanceStore, tmp_path: Path
):
    workspace = tmp_path / "workspace"
    for name in ("a.md", ".git/index", ".git/hooks/post-merge", ".venv/lib/x.py", "sessions/mine.jsonl"):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).touch()

    book.mark_changed([workspace], 0, Provenance.WEB)
    marked = {Path(one).relative_to(workspace).as_posix() for one in json.loads(book.path.read_text())["files"]}

    assert marked == {"a.md", ".git/hooks/post-merge"}


REPOSITORY = (
    "README.md",
    ".git/HEAD",
    ".git/config",
    ".cache/notes.md",
    ".venv/README.md",
    "venv/README.md",
    "node_modules/x/README.md",
    "src/node_modules/x/README.md",
    "__pycache__/notes.md",
)


def make(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("words", encoding="utf-8")


@pytest.mark.parametrize("brings_trees", [True, False])
def test_folders_of_packages_that_come_with_a_new_folder_are_somebody_elses(
    book: ProvenanceStore, tmp_path: Path, *, brings_trees: bool
):
    make(tmp_path / "workspace" / "clone", *REPOSITORY)

    book.mark_changed([tmp_path / "workspace"], 0, Provenance.WEB, brings_trees)

    unmarked = [name for name in REPOSITORY if book.of(tmp_path / "workspace" / "clone" / name) is None]
    assert unmarked == ([] if brings_trees else [".git/HEAD", ".git/config"])


def test_what_is_unpacked_into_a_folder_of_packages_is_somebody_elses_and_what_was_there_is_not(
    book: ProvenanceStore, tmp_path: Path
):
    workspace = tmp_path / "workspace"
    make(workspace, ".cache/mine.md", "mine.md")
    before = time.time_ns() + 1_000_000_000
    make(workspace, ".cache/notes.md", "node_modules/x/README.md")
    for name in (".cache/notes.md", "node_modules/x/README.md"):
        os.utime(workspace / name, ns=(before + 1_000_000_000, before + 1_000_000_000))

    book.mark_changed([workspace], before, Provenance.WEB, brings_trees=True)

    words = [book.of(workspace / name) for name in (".cache/notes.md", "node_modules/x/README.md", ".cache/mine.md")]
    assert words == [Provenance.WEB, Provenance.WEB, None]


def test_packages_that_were_there_before_stay_the_owners(book: ProvenanceStore, tmp_path: Path):
    project = tmp_path / "workspace" / "project"
    make(project, "node_modules/x/index.js", "main.js")
    before = time.time_ns() + 1_000_000_000
    os.utime(project / "main.js", ns=(before + 1_000_000_000, before + 1_000_000_000))

    book.mark_changed([tmp_path / "workspace"], before, Provenance.WEB)

    assert book.of(project / "main.js") == Provenance.WEB
    assert book.of(project / "node_modules" / "x" / "index.js") is None


def test_logs_mail_and_downloads_are_somebody_elses_but_for_a_workspace_and_what_the_owner_makes_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    workspace = tmp_path / "Downloads" / "workspace"
    book = ProvenanceStore(tmp_path / "state" / "provenance.json", tmp_path / "media", workspace)
    book.clear(tmp_path / "Downloads" / "report.md")
    places = {
        "/var/log/nginx/access.log": Provenance.WEB,
        "/var/mail/ann": Provenance.MAIL,
        "~/Downloads/page.html": Provenance.WEB,
        "~/Downloads/report.md": None,
        "~/Downloads/workspace/notes.md": None,
        "~/Mail/inbox/1": Provenance.MAIL,
        "~/notes.md": None,
        "~/Downloads.md": None,
    }

    assert {place: book.of(Path(place).expanduser()) for place in places} == places
