"""A workspace appears by itself, and nothing of the user's is touched."""

import os
from pathlib import Path

import pytest

from nanobot.utils.installation import open_workspace, prepare_workspace


def test_a_workspace_is_made_where_there_is_none_and_left_alone_where_there_is_one(tmp_path: Path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "notes.txt").write_text("mine", encoding="utf-8")

    open_workspace(tmp_path / "new")
    open_workspace(tmp_path / "project")

    assert (tmp_path / "new" / "AGENTS.md").is_file()
    assert [path.name for path in (tmp_path / "project").iterdir()] == ["notes.txt"]


@pytest.mark.skipif(os.name == "nt", reason="links and modes are what POSIX has")
def test_a_link_of_the_users_is_not_written_through(tmp_path: Path):
    (tmp_path / "AGENTS.md").symlink_to(tmp_path / "elsewhere.md")

    prepare_workspace(tmp_path)

    assert not (tmp_path / "elsewhere.md").exists()


@pytest.mark.skipif(os.name == "nt", reason="links and modes are what POSIX has")
def test_a_new_folder_is_the_owners_alone_and_an_old_one_keeps_its_mode(tmp_path: Path):
    old = tmp_path / "old"
    old.mkdir(mode=0o755)

    prepare_workspace(old)
    prepare_workspace(tmp_path / "new")

    assert old.stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "new" / "memory").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "new" / "memory" / "MEMORY.md").stat().st_mode & 0o777 == 0o600
