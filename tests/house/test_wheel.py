"""The wheel is the whole product: built without isolation, unpacked alone into a folder, it answers."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.house.repo import ROOT

pytestmark = [pytest.mark.xdist_group("wheel"), pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, text=True)
    (wheel,) = (folder / "dist").glob("nanobot-*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "alone")
    return folder / "alone"


def run(unpacked: Path, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with only the wheel and the dependencies to import from; `-P` keeps the checkout off the path."""
    kept = ("PATH", "SYSTEMROOT", "TEMP", "TMP", "LANG", "VIRTUAL_ENV")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= {"PYTHONPATH": str(unpacked), "HOME": str(home), "USERPROFILE": str(home), "PYTHONUTF8": "1"}
    command = [sys.executable, "-P", *arguments]
    return subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, encoding="utf-8")


def test_the_wheel_carries_code_templates_skills_and_nothing_else(unpacked):
    top = {path.name.partition("-")[0] for path in unpacked.iterdir()}

    assert top == {"nanobot"}
    for name in ("templates", "skills"):
        ours = {path.relative_to(ROOT / name) for path in (ROOT / name).rglob("*") if path.is_file()}
        packed = {path.relative_to(unpacked / "nanobot" / name) for path in (unpacked / "nanobot" / name).rglob("*.*")}
        assert packed == ours


def test_the_wheel_runs_its_own_code(unpacked, tmp_path):
    code = "import nanobot; from nanobot.utils.installation import skills_dir; print(nanobot.__file__, skills_dir())"

    done = run(unpacked, tmp_path, "-c", code)

    assert done.stdout.split() == [str(unpacked / "nanobot" / "__init__.py"), str(unpacked / "nanobot" / "skills")]


def test_the_unpacked_wheel_answers_with_an_empty_home(unpacked, tmp_path):
    done = run(unpacked, tmp_path, "-m", "nanobot", "agent", "-m", "What is in my workspace?")

    assert done.returncode == 0, done.stderr
    assert "AGENTS.md" in done.stdout
    assert (tmp_path / ".nanobot" / "workspace" / "memory" / "MEMORY.md").is_file()
