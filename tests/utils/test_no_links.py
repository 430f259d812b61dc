import errno
import os
import sys
from pathlib import Path

import pytest

from nanobot.utils.open_no_follow import open_folder, open_no_follow, replace_own

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be opened there")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Real names only, since a temporary folder may lie behind a link."""
    tree = tmp_path.resolve() / "tree"
    (tree / "a/b").mkdir(parents=True)
    (tree / "a/b/file").write_text("here", encoding="utf-8")
    (tree / "link").symlink_to("a")
    (tree / "a/b/last").symlink_to("file")
    (tree / "loop").symlink_to("loop")
    return tree


def test_a_path_without_links_is_opened(tree: Path):
    with open(open_no_follow(str(tree / "a/b/file"), os.O_RDONLY), encoding="utf-8") as file:
        assert file.read() == "here"


@pytest.mark.parametrize("path", ["link/b/file", "a/b/last", "loop", "loop/x", "link"])
def test_a_link_anywhere_in_it_is_an_error(tree: Path, path: str):
    with pytest.raises(OSError) as told:
        open_no_follow(str(tree / path), os.O_RDONLY)

    assert told.value.errno in (errno.ELOOP, errno.ENOTDIR)


def test_what_begins_at_an_open_folder_stays_beneath_it(tree: Path):
    folder = open_folder(tree / "a")

    os.close(open_no_follow("b/file", os.O_RDONLY, beneath=folder))
    os.close(open_no_follow(".", os.O_RDONLY, beneath=folder))
    with pytest.raises(OSError, match="cross-device"):
        open_no_follow("../a/b/file", os.O_RDONLY, beneath=folder)
    os.close(folder)


def test_missing_folders_are_made_and_a_link_among_them_is_not_followed(tree: Path):
    os.close(open_folder(tree / "a/new/deep", make=0o777))
    with pytest.raises(OSError):
        open_folder(tree / "link/new2", make=0o777)

    assert (tree / "a/new/deep").is_dir()
    assert not (tree / "a/new2").exists()


@pytest.mark.parametrize("path", ["a/b/last", "link/b/file", "link/b/new"])
def test_a_file_of_ours_is_written_through_no_link(tree: Path, path: str):
    with pytest.raises(OSError):
        replace_own(tree / path, b"attack")

    assert (tree / "a/b/file").read_text(encoding="utf-8") == "here"
    assert sorted(path.name for path in (tree / "a/b").iterdir()) == ["file", "last"]
