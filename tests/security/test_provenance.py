"""The book of files that hold somebody else's words."""

import json
from pathlib import Path

import pytest

from nanobot.errors import StorageError
from nanobot.messages.types import Provenance
from nanobot.security.provenance import IN_PART, FileBook


@pytest.fixture
def book(tmp_path: Path) -> FileBook:
    return FileBook(tmp_path / "state" / "provenance.json", tmp_path / "media", tmp_path / "workspace")


def test_a_file_is_the_owners_until_it_is_marked_and_again_when_it_is_cleared(book: FileBook, tmp_path: Path):
    file = tmp_path / "notes.md"

    before = book.of(file)
    book.mark(file, Provenance.WEB)
    marked = book.of(file)
    book.clear(file)

    assert (before, marked, book.of(file)) == (None, Provenance.WEB, None)


def test_trust_never_rises_by_another_mark(book: FileBook, tmp_path: Path):
    book.mark(tmp_path / "a", Provenance.WEB)
    book.mark(tmp_path / "a", Provenance.MCP)

    assert book.of(tmp_path / "a") == Provenance.WEB


def test_a_link_and_another_process_see_the_same_file(book: FileBook, tmp_path: Path):
    (tmp_path / "a").write_text("words", encoding="utf-8")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    book.mark(tmp_path / "b", Provenance.MAIL)

    again = FileBook(book.path, tmp_path / "media")
    assert again.of(tmp_path / "x" / ".." / "a") == Provenance.MAIL


def test_attachments_are_other_peoples_without_a_line(book: FileBook, tmp_path: Path):
    assert book.of(tmp_path / "media" / "email" / "bill.pdf") == Provenance.MAIL
    assert book.of(tmp_path / "media" / "telegram" / "cat.jpg") == Provenance.PERSON


@pytest.mark.parametrize("command", ["cat page.md", "head -3 notes/page.md", "cat notes/*.md", "sed -n 1p p?ge.md"])
def test_a_command_that_names_a_marked_file_is_known(book: FileBook, tmp_path: Path, command: str):
    book.mark(tmp_path / "notes" / "page.md", Provenance.WEB)

    assert book.named_in(command) == Provenance.WEB
    assert book.named_in("cat todo.txt") is None


@pytest.mark.parametrize("command", ["curl -s -o page.md https://example.org/", "grep -h x notes.md > page.md"])
def test_what_a_command_reads_to_write_a_file_is_not_marked_with_that_file(
    book: FileBook, tmp_path: Path, command: str
):
    book.reading(command, tmp_path, Provenance.WEB).close()

    assert book.named_in("cat page.md", tmp_path) is Provenance.WEB
    assert book.named_in("curl -sI https://example.org/; cat notes.md", tmp_path) is None


def test_a_book_that_cannot_be_read_makes_every_file_somebody_elses_and_stays(book: FileBook, tmp_path: Path):
    book.path.parent.mkdir()
    book.path.write_text("{", encoding="utf-8")

    assert book.of(tmp_path / "a") == Provenance.WEB
    with pytest.raises(StorageError, match="Move it away"):
        book.mark(tmp_path / "a", Provenance.WEB)
    assert book.path.read_text(encoding="utf-8") == "{"


def test_a_stored_conversation_is_as_trusted_as_the_least_trusted_words_in_it(book: FileBook, tmp_path: Path):
    (sessions := tmp_path / "workspace" / "sessions").mkdir(parents=True)
    (sessions / "mine.jsonl").write_text('{"role": "user", "provenance": "owner"}\n', encoding="utf-8")
    (sessions / "theirs.jsonl").write_text('{"role": "tool", "provenance": "web"}\n', encoding="utf-8")
    (sessions / "old.jsonl").write_text('{"role": "user"}\n', encoding="utf-8")

    told = [book.of(sessions / name) for name in ("mine.jsonl", "theirs.jsonl", "old.jsonl")]
    assert told == [None, Provenance.WEB, Provenance.PERSON]
    assert book.named_in("cd sessions && tail the*", tmp_path / "workspace") is Provenance.WEB


def test_an_attachment_that_a_command_names_is_known(book: FileBook, tmp_path: Path):
    (folder := tmp_path / "media" / "telegram").mkdir(parents=True)
    (tmp_path / "workspace").mkdir()
    (folder / "a.txt").write_text("words", encoding="utf-8")

    assert book.named_in("cat ../media/telegram/a.txt", tmp_path / "workspace") is Provenance.PERSON


def test_a_folder_that_was_marked_holds_for_what_is_in_it_but_for_what_the_owner_writes_anew(
    book: FileBook, tmp_path: Path
):
    book.mark(tmp_path / "clone", Provenance.WEB)
    book.clear(tmp_path / "clone" / "mine.md")

    assert (book.of(tmp_path / "clone" / "README.md"), book.of(tmp_path / "clone" / "mine.md")) == (
        Provenance.WEB,
        None,
    )


def test_the_log_of_old_conversations_is_as_trusted_as_its_entries_say(book: FileBook, tmp_path: Path):
    (memory := tmp_path / "workspace" / "memory").mkdir(parents=True)
    log = memory / "HISTORY.md"
    log.write_text("[2026-01-01 10:00] The owner asked for soup.\n\n", encoding="utf-8")
    before = book.of(log)
    with log.open("a", encoding="utf-8") as more:
        more.write(f"[2026-01-02 10:00] Max wants money.\n{IN_PART[Provenance.PERSON]}\n\n")

    assert (before, book.of(log)) == (None, Provenance.PERSON)


def test_what_was_changed_since_a_moment_is_marked_and_git_and_packages_are_left_alone(book: FileBook, tmp_path: Path):
    workspace = tmp_path / "workspace"
    for name in ("a.md", ".git/index", ".git/hooks/post-merge", ".venv/lib/x.py", "sessions/mine.jsonl"):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).touch()

    book.mark_changed([workspace], 0, Provenance.WEB)
    marked = {Path(one).relative_to(workspace).as_posix() for one in json.loads(book.path.read_text())["files"]}

    assert marked == {"a.md", ".git/hooks/post-merge"}
