"""What is opened is what was judged: also while another process puts links where folders were."""

import os
import sys
from pathlib import Path

import pytest

from nanobot.security.files.open import Opener
from nanobot.security.files.paths import PathDeniedError, PathPolicy
from tests.support.processes import swapping

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links of POSIX")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    for folder in ("ws/folder", "outside", "home/.ssh"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "ws/folder/file").write_text("mine", encoding="utf-8")
    (tmp_path / "outside/file").write_text("theirs", encoding="utf-8")
    (tmp_path / "outside/outsiders").touch()
    (tmp_path / "home/.ssh/file").write_text("key", encoding="utf-8")
    return tmp_path / "ws"


@pytest.mark.skipif(sys.platform != "linux", reason="swaps by a call of Linux")
@pytest.mark.parametrize("what", ["folder", "folder/file"])
def test_four_thousand_swaps_never_lead_a_read_or_a_write_outside(workspace: Path, what: str):
    outside = workspace.parent / "outside"
    target = outside if what == "folder" else outside / "file"
    link = workspace / "link"
    link.symlink_to(target)
    opener, read, refused = Opener(PathPolicy(workspace, restrict=True)), set(), 0

    with swapping(workspace / what, link, target) as child:
        while child.poll() is None:
            try:
                with opener.read("folder/file") as file:
                    read.add(file.read())
                with opener.place("folder/file") as place:
                    place.replace(b"mine", 0o600)
                with opener.place("folder/new/x", make=True) as place:
                    place.replace(b"mine", 0o600)
                with opener.folder("folder") as folder:
                    read.update(entry.name.encode() for entry in folder.entries())
            except (OSError, PathDeniedError):
                refused += 1

    assert child.returncode == 0
    assert refused
    assert b"mine" in read
    assert not {b"theirs", b"outsiders"} & read
    assert sorted(path.name for path in outside.iterdir()) == ["file", "outsiders"]
    assert (outside / "file").read_text(encoding="utf-8") == "theirs"


def test_a_folder_held_open_is_not_left_by_a_link_below_it(workspace: Path):
    with Opener(PathPolicy(workspace)).folder(".") as folder:
        (workspace / "folder").rename(workspace / "old")
        (workspace / "folder").symlink_to(workspace.parent / "outside")

        with pytest.raises(OSError):
            folder.entries("folder")
        assert [entry.name for entry in folder.entries("old")] == ["file"]


def test_a_yes_to_a_rule_opens_that_place_and_no_other(workspace: Path):
    home = workspace.parent / "home"
    policy = PathPolicy(workspace, unreadable=(home / ".ssh",))
    keys, folder = Opener(policy, {f"secrets:{home}/.ssh/file"}), Opener(policy, {f"folder:{workspace.parent}/outside"})

    with keys.read(home / ".ssh/file") as file:
        assert file.read() == b"key"
    with folder.place(workspace.parent / "outside/below/new", make=True) as place:
        place.replace(b"x", 0o600)
    for opener, path in ((keys, home / ".ssh"), (folder, home / ".ssh/file")):
        with pytest.raises(PathDeniedError):
            opener.read(path)
    for opener, path in ((keys, home / ".ssh/file"), (keys, home / "x"), (folder, home / "x")):
        with pytest.raises(PathDeniedError), opener.place(path):
            pass


def test_a_file_goes_to_a_chat_only_if_it_is_one_and_no_secret_by_another_name(workspace: Path):
    secret = workspace.parent / "home/.ssh/file"
    os.link(secret, workspace / "innocent")
    os.mkfifo(workspace / "pipe")
    opener = Opener(PathPolicy(workspace, unreadable=(secret.parent,)))

    assert opener.resolve_sendable("folder/file") == workspace.resolve() / "folder/file"
    for path in ("innocent", "pipe", "../outside/file", secret):
        with pytest.raises(PathDeniedError):
            opener.resolve_sendable(path)
    with pytest.raises(IsADirectoryError):
        opener.resolve_sendable("folder")
