"""What is installed is what was looked at: hashes, no addresses, no code that runs by itself at start-up."""

import re
import runpy
import site
import sys
import tomllib
from pathlib import Path

import pytest

from tests.house.repo import ROOT

LOCKS = ("requirements.lock", "requirements-dev.lock")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(?P<version>\S+)(?P<marker> *;[^\\]*)?", re.MULTILINE)

EXPECTED_PTH = {
    "_editable_impl_nanobot.pth",  # this checkout
    "_virtualenv.pth",  # virtualenv's and uv's own
    "a1_coverage.pth",  # coverage: measures child processes when asked to
    "distutils-precedence.pth",  # setuptools, where venv brings it
    "pywin32.pth",  # mcp's, on Windows
}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(lock: str) -> dict[str, str]:
    return {normal(pin["name"]): pin["version"] for pin in _PIN.finditer((ROOT / lock).read_text(encoding="utf-8"))}


def named(requirements: list[str]) -> set[str]:
    return {normal(re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0]) for requirement in requirements}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_has_a_hash(lock):
    entries = re.split(r"\n(?=[A-Za-z0-9])", (ROOT / lock).read_text(encoding="utf-8").strip())

    bare = [entry.splitlines()[0] for entry in entries if "--hash=sha256:" not in entry]

    assert len(entries) > 50
    assert bare == []


@pytest.mark.parametrize("lock", LOCKS)
def test_no_address_and_no_host_is_in_a_lock(lock):
    text = (ROOT / lock).read_text(encoding="utf-8")

    assert "://" not in text
    assert " @ " not in text
    assert re.findall(r"^\s*-(?!-hash=sha256:[0-9a-f]{64}\b).*", text, re.MULTILINE) == []


def test_the_lock_holds_every_dependency_and_the_dev_lock_every_tool():
    core = named(PROJECT["project"]["dependencies"])
    dev = named(PROJECT["dependency-groups"]["dev"])

    assert core - pins("requirements.lock").keys() == set()
    assert (core | dev) - pins("requirements-dev.lock").keys() == set()


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_that_is_made_anew_without_a_change_stays_as_it_is(lock):
    text, relock = (ROOT / lock).read_text(encoding="utf-8"), runpy.run_path(str(ROOT / ".ci" / "relock"))

    entries = relock["entries"](text)

    assert "".join(f"{pin} \\\n{hashes}\n" for pin, hashes in entries.items()) == text
    assert relock["problems"](lock, entries) == []


@pytest.mark.parametrize(
    "entry",
    [
        "httpx==1.0",
        "httpx @ https://host.example/httpx.whl \\\n    --hash=sha256:" + "0" * 64,
        "httpx==1.0 \\\n    --find-links=/wheels",
        "--index-url https://host.example",
    ],
)
def test_a_lock_with_an_address_or_without_a_hash_is_not_written(entry):
    relock = runpy.run_path(str(ROOT / ".ci" / "relock"))

    assert relock["problems"]("a.lock", relock["entries"](f"{entry}\n")) != []


def test_both_locks_agree():
    core, dev = (pins(lock) for lock in LOCKS)

    assert {name: version for name, version in core.items() if dev.get(name) != version} == {}


def test_no_backdoored_release_is_locked():
    assert pins("requirements.lock")["litellm"] not in {"1.82.7", "1.82.8"}


def test_no_dependency_runs_code_by_itself_at_start_up():
    folders = {Path(folder) for folder in (*site.getsitepackages(), *sys.path) if folder.endswith("site-packages")}

    found = {path.name for folder in folders if folder.is_dir() for path in folder.glob("*.pth")}

    assert found - EXPECTED_PTH == set()
