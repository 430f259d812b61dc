"""A crash leaves the old file or the new one, whole; what is appended is there."""

import os
import stat

import pytest

from nanobot.utils.files import (
    make_private_folder,
    remove_stale_temps,
    write_atomic,
)

posix = pytest.mark.skipif(os.name == "nt", reason="file modes and links are POSIX's")


def mode_of(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_replaced_in_one_step_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")

    write_atomic(path, "new ü")

    assert path.read_bytes() == "new ü".encode()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


@posix
def test_a_new_file_is_its_owners_alone_and_an_old_one_keeps_its_mode(tmp_path):
    open_to_all = tmp_path / "open"
    open_to_all.write_text("x")
    open_to_all.chmod(0o666)

    write_atomic(open_to_all, "y")
    write_atomic(tmp_path / "new", "y")

    assert [mode_of(tmp_path / name) for name in ("open", "new")] == [0o666, 0o600]


@posix
def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")

    write_atomic(tmp_path / "link", "new")

    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


@posix
def test_missing_folders_are_private_and_those_that_exist_keep_their_mode(tmp_path):
    tmp_path.chmod(0o755)

    made = make_private_folder(tmp_path / "a" / "b")

    assert [mode_of(folder) for folder in (tmp_path, made.parent, made)] == [0o755, 0o700, 0o700]


@posix
def test_a_folder_or_a_pipe_is_never_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")

    for name, hint in (("folder", "Is a folder"), ("pipe", "Is a device or a pipe"), ("link", "Is a device or a pipe")):
        with pytest.raises(OSError, match=hint):
            write_atomic(tmp_path / name, "text")

    assert (tmp_path / "pipe").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link", "pipe"]


def test_what_killed_writes_left_long_ago_is_swept_and_nothing_else(tmp_path):
    keep = [".a.json.0000000a.tmp", ".b.json.0000000b.tmp", "a.json.tmp", ".a.json.bak"]
    for name in (*keep, ".a.json.0000000c.tmp"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / keep[0]).touch()  # a write that is going on

    remove_stale_temps(tmp_path / "a.json", older_than_s=60)

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(keep)
