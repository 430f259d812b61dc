"""No key leaves the folder, and any file system takes the name."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.session.file_names import key_of, stem_of
from nanobot.session.manager import SessionManager

HARD_KEYS = [
    "", ".", "..", "../../etc/passwd", "a/../../b", "x" * 1000, "好" * 300, "🦊:🐻", "con", "NUL:1", "aux.txt",
    "a\x00b", "a\nb", "\ud800", " spaced ", "end.", 'all<>:"/\\|?*', "C:\\Windows", ".hidden",
]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "stem"), [("cli:direct", "cli_direct"), ("a:b/c", "a_b_c"), ('x<>:"/\\|?*y', "x_________y")]
)
def test_an_ordinary_key_has_the_stem_of_the_original(key: str, stem: str):
    assert stem_of(key) == stem


def test_the_first_line_of_a_stem_was_a_colon():
    assert key_of("telegram_12_3") == "telegram:12_3"


def roundtrip(folder: Path, key: str) -> Path:
    manager = SessionManager(folder)
    session = manager.get_or_create(key)
    session.add_message("user", f"from {key!r}")
    manager.save(session)
    again = SessionManager(folder).get_or_create(key)
    assert [row["content"] for row in again.messages] == [f"from {key!r}"]
    [row] = SessionManager(folder).list_sessions()
    assert row["key"] == key
    return Path(row["path"])


@pytest.mark.parametrize("key", HARD_KEYS)
def test_a_hard_key_stays_in_the_folder(tmp_path: Path, key: str):
    file = roundtrip(tmp_path, key)

    assert file.parent == tmp_path / "sessions"
    assert len((file.name + ".utf-16").encode()) < 255


@given(st.text(st.characters(exclude_categories=[]), max_size=80))
def test_any_key_stays_in_the_folder(key: str):
    with TemporaryDirectory() as folder:
        assert roundtrip(Path(folder), key).parent == Path(folder) / "sessions"


def test_two_keys_that_meet_in_one_name_keep_apart(tmp_path: Path):
    keys = ["a:b", "a/b", "a_b", "A:b", "a?b"]
    manager = SessionManager(tmp_path)
    for key in keys:
        session = manager.get_or_create(key)
        session.add_message("user", key)
    for key in keys:
        manager.save(manager.get_or_create(key))

    again = SessionManager(tmp_path)

    for key in reversed(keys):
        assert [row["content"] for row in again.get_or_create(key).messages] == [key]
    assert (tmp_path / "sessions" / "a_b.jsonl").exists()


def test_two_processes_that_meet_in_one_name_keep_apart(tmp_path: Path):
    one, two = SessionManager(tmp_path), SessionManager(tmp_path)
    first, second = one.get_or_create("a:b"), two.get_or_create("a/b")
    first.add_message("user", "one")
    second.add_message("user", "two")

    one.save(first)
    two.save(second)

    assert [row["content"] for row in SessionManager(tmp_path).get_or_create("a:b").messages] == ["one"]
    assert [row["content"] for row in SessionManager(tmp_path).get_or_create("a/b").messages] == ["two"]
