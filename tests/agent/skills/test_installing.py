"""A skill comes in whole or not at all, never over another without a word, and is replaced only when that is said."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nanobot.agent.skills.bundle import read_bundle
from nanobot.agent.skills.install import Installer
from nanobot.agent.skills.loader import SkillsLoader
from nanobot.errors import NanobotError, StorageError


@pytest.fixture
def installer(tmp_path: Path) -> Installer:
    return Installer(tmp_path / "workspace" / "skills", tmp_path / "state" / "installing.lock")


def source(tmp_path: Path, name: str = "tea", script: str = "boil\n", text: str = "") -> Path:
    folder = tmp_path / "from" / name
    (folder / "scripts").mkdir(parents=True, exist_ok=True)
    told = text or f"---\nname: {name}\ndescription: Make good tea.\n---\nBoil.\n"
    (folder / "SKILL.md").write_text(told, encoding="utf-8")
    (folder / "scripts" / "boil.sh").write_text(f"#!/bin/sh\n{script}", encoding="utf-8")
    return folder


def files(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_what_was_offered_is_what_is_installed(tmp_path: Path, installer: Installer):
    folder = source(tmp_path)
    offer = installer.offer(read_bundle(folder))
    before = files(folder)
    (folder / "scripts" / "boil.sh").write_text("rm -rf ~\n", encoding="utf-8")  # after the person looked at it

    place = installer.install(offer)

    assert files(place) == before
    assert [path.name for path in place.parent.iterdir()] == ["tea"]


@pytest.mark.parametrize(
    ("folder", "told", "name"), [("tea", "tea", "tea"), ("Tea Time", "tea-time", "tea-time"), ("tea", "Tea_1", "tea")]
)
def test_a_name_of_its_own_else_its_folder_s(tmp_path: Path, installer: Installer, folder: str, told: str, name: str):
    bundle = read_bundle(source(tmp_path, folder, text=f"---\nname: {told}\ndescription: Make good tea.\n---\nBoil.\n"))

    assert installer.offer(bundle).name == name
    assert installer.offer(bundle, "other").name == "other"


@pytest.mark.parametrize("name", ["../out", "A", "a/b", ".hidden", "", "-"])
def test_no_name_leads_elsewhere(tmp_path: Path, installer: Installer, name: str):
    bundle = read_bundle(source(tmp_path, "Not A Name", text="---\ndescription: Make good tea.\n---\nBoil.\n"))

    with pytest.raises(NanobotError, match=r"not a valid skill name"):
        installer.offer(bundle, name)


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, installer: Installer, monkeypatch: pytest.MonkeyPatch):
    place = installer.install(installer.offer(read_bundle(source(tmp_path))))
    before = files(place.parent)
    offer = installer.offer(read_bundle(source(tmp_path, script="better\n")))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="Free some disk space"):
        installer.install(offer, replaces=True)

    assert files(place.parent) == before


def test_what_a_killed_install_left_goes_with_a_later_one(tmp_path: Path, installer: Installer):
    skills = tmp_path / "workspace" / "skills"
    for name, age in ((".new-old", 7200.0), (".new-fresh", 0.0)):
        (skills / name).mkdir(parents=True)
        (skills / name / "SKILL.md").write_text("half", encoding="utf-8")
        then = (skills / name).stat().st_mtime - age
        os.utime(skills / name, (then, then))

    installer.install(installer.offer(read_bundle(source(tmp_path))))

    assert sorted(path.name for path in skills.iterdir()) == [".new-fresh", "tea"]
    assert [skill.name for skill in SkillsLoader(tmp_path / "workspace", tmp_path / "none").skills()] == ["tea"]


KILLED = """
import sys
from pathlib import Path
from nanobot.agent.skills.bundle import read_bundle
from nanobot.agent.skills.install import Installer

installer = Installer(Path(sys.argv[1]), Path(sys.argv[2], "installing.lock"))
print("begun", flush=True)
while True:
    for source in sys.argv[3:]:
        installer.install(installer.offer(read_bundle(Path(source)), "tea"), replaces=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("round_", range(15))
def test_a_killed_install_leaves_one_whole_skill(tmp_path: Path, installer: Installer, round_: int):
    sources = [source(tmp_path, name, script=f"{name}\n" * 2_000) for name in ("one", "two")]
    wholes = [files(one) for one in sources]
    installer.install(installer.offer(read_bundle(sources[0]), "tea"))
    place = tmp_path / "workspace" / "skills" / "tea"
    command = [sys.executable, "-c", KILLED, str(place.parent), str(tmp_path / "state"), *map(str, sources)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(0.02 + 0.017 * round_)
        child.kill()

    assert files(place) in wholes
    assert [skill.name for skill in SkillsLoader(tmp_path / "workspace", tmp_path / "none").skills()] == ["tea"]
    installer.install(installer.offer(read_bundle(sources[1]), "tea"), replaces=True)
    assert files(place) == wholes[1]
