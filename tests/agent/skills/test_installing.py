"""A skill comes in whole or not at all, and never over another without keeping that one."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nanobot.agent.skills.loader import SkillsLoader
from nanobot.agent.skills.package import install_skill, read_bundle
from nanobot.errors import StorageError


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "workspace" / "skills" / "tea"


def source(tmp_path: Path, name: str = "tea", script: str = "boil\n") -> Path:
    folder = tmp_path / "from" / name
    (folder / "scripts").mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text(f"---\nname: {name}\ndescription: Make good tea.\n---\nBoil.\n", encoding="utf-8")
    (folder / "scripts" / "boil.sh").write_text(f"#!/bin/sh\n{script}", encoding="utf-8")
    return folder


def files(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_what_was_read_is_what_is_installed_also_after_an_install_that_was_killed(tmp_path: Path, place: Path):
    bundle, before = read_bundle(source(tmp_path)), files(source(tmp_path))
    (tmp_path / "from" / "tea" / "scripts" / "boil.sh").write_text("rm -rf ~\n", encoding="utf-8")
    half = place.with_name(".new-tea")
    half.mkdir(parents=True)
    (half / "SKILL.md").write_text("half", encoding="utf-8")

    install_skill(place, bundle)

    assert files(place) == before
    assert [path.name for path in place.parent.iterdir()] == ["tea"]


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch):
    install_skill(place, read_bundle(source(tmp_path)))
    before = files(place.parent)
    bundle = read_bundle(source(tmp_path, script="better\n"))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="Free some disk space"):
        install_skill(place, bundle)

    assert files(place.parent) == before


KILLED = """
import sys
from pathlib import Path
from nanobot.agent.skills.package import install_skill, read_bundle

print("begun", flush=True)
while True:
    for source in sys.argv[2:]:
        install_skill(Path(sys.argv[1]), read_bundle(Path(source)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("round_", range(15))
def test_a_killed_install_leaves_one_whole_skill(tmp_path: Path, place: Path, round_: int):
    sources = [source(tmp_path, name, script=f"{name}\n" * 2_000) for name in ("one", "two")]
    wholes = [files(one) for one in sources]
    install_skill(place, read_bundle(sources[0]))
    with subprocess.Popen([sys.executable, "-c", KILLED, place, *sources], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(0.02 + 0.017 * round_)
        child.kill()

    assert files(place) in wholes
    assert [skill.name for skill in SkillsLoader(tmp_path / "workspace", tmp_path / "none").skills()] == ["tea"]
    install_skill(place, read_bundle(sources[1]))
    assert files(place) == wholes[1]
