"""Writing so that a crash leaves the old file or the new one, whole."""

import os
from pathlib import Path

import pytest

from nanobot.utils.files import sweep_temps, write_atomic

POSIX = pytest.mark.skipif(os.name == "nt", reason="modes, links and pipes are POSIX things here")


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path):
    write_atomic(tmp_path / "a.txt", "old")
    write_atomic(tmp_path / "a.txt", "new ☃")

    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "new ☃"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


@POSIX
def test_a_new_file_is_the_owners_alone_and_an_old_one_keeps_its_mode(tmp_path: Path):
    (tmp_path / "old").touch(mode=0o644)

    for name in ("old", "new"):
        write_atomic(tmp_path / name, "text")

    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("old", "new")] == [0o644, 0o600]


@POSIX
def test_a_link_stays_and_what_it_names_is_replaced(tmp_path: Path):
    (tmp_path / "real").write_text("old", encoding="utf-8")
    (tmp_path / "link").symlink_to("real")

    write_atomic(tmp_path / "link", "new")

    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text(encoding="utf-8") == "new"


@POSIX
def test_a_folder_or_a_pipe_is_never_replaced(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")

    for name, hint in (("folder", "Is a folder"), ("pipe", "Is a device or a pipe"), ("link", "Is a device or a pipe")):
        with pytest.raises(OSError, match=hint):
            write_atomic(tmp_path / name, "text")

    assert (tmp_path / "pipe").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link", "pipe"]


def test_what_killed_writes_left_long_ago_is_swept_and_nothing_else(tmp_path: Path):
    keep = [".a.json.0000000a.tmp", ".b.json.0000000b.tmp", "a.json.tmp", ".a.json.bak"]
    for name in (*keep, ".a.json.0000000c.tmp"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / keep[0]).touch()  # a write that is going on

    sweep_temps(tmp_path / "a.json", older_than_s=60)

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(keep)
