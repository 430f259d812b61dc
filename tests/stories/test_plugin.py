"""The plugin of the guide as somebody else uses it: built, installed beside nanobot, talked to over its channel."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nanobot.testing.model_server import Calls, FakeModels, Say
from tests.house.repo import ROOT
from tests.support.eventually import wait_until
from tests.support.plugin_package import HOOK, install
from tests.support.toy_gateway import free_port

EXAMPLES = ROOT / "docs" / "examples"
pytestmark = pytest.mark.timeout(120)


@dataclass(frozen=True)
class Place:
    """An environment of its own, with nothing of the tests in it."""

    python: Path
    site: Path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """An environment with the postcards."""
    return bare_environment(tmp_path_factory.mktemp("bare"), "nanobot-postcards")


def bare_environment(folder: Path, example: str) -> Place:
    """A bare environment: nanobot and what it needs are lent by ours, the plugin is installed from its wheel."""
    venv.create(folder / "env", symlinks=os.name == "posix")
    names = {"base": str(folder / "env"), "platbase": str(folder / "env")}
    scheme = sysconfig.get_preferred_scheme("prefix") if os.name == "posix" else "nt"
    site = Path(sysconfig.get_path("purelib", "venv" if "venv" in sysconfig.get_scheme_names() else scheme, names))
    lent = [str(ROOT), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    (site / "lent.pth").write_text("\n".join(dict.fromkeys(lent)) + "\n", encoding="utf-8")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")]
    subprocess.run(build, cwd=EXAMPLES / example, check=True, capture_output=True)
    (wheel,) = (folder / "dist").glob("*-1.0-*.whl")
    zipfile.ZipFile(wheel).extractall(site)  # all that installing a wheel of pure Python is
    python = folder / "env" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    return Place(python, site)


class Owner:
    """Somebody who has it installed."""

    def __init__(self, home: Path, place: Place, server: FakeModels, **plugins: Any) -> None:
        self.box = home / "letterbox"
        self._place = place
        kept = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT", "TEMP", "TMP") if name in os.environ}
        self._environ = {**kept, "HOME": str(home), "USERPROFILE": str(home), "PYTHONUTF8": "1"}
        self.data = home / ".nanobot"
        self.data.mkdir(mode=0o700)
        settings = {"room": 60, "prices": {"italy": 140}}
        config = {
            "agents": {"defaults": {"model": "stand-in", "provider": "custom"}},
            "providers": {"custom": {"apiKey": "k", "apiBase": server.v1}},
            "gateway": {"port": free_port()},
            "channels": {
                "postcards": {"enabled": True, "folder": str(self.box), "allowFrom": ["anna"], "everyS": 0.02}
            },
            "plugins": {"enabled": ["nanobot-postcards"], "nanobot-postcards": settings, **plugins},
        }
        (self.data / "config.json").write_text(json.dumps(config), encoding="utf-8")

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """A command, to its end."""
        return subprocess.run(
            self._command(*words), env=self._environ, capture_output=True, text=True, encoding="utf-8", check=False
        )

    @contextmanager
    def gateway(self) -> Iterator[None]:
        """A gateway, ready."""
        with open(self.data / "out.txt", "wb") as out:
            process = subprocess.Popen(self._command("gateway"), env=self._environ, stdout=out, stderr=out)
            try:
                wait_until(lambda: "ready in" in self.log or process.poll() is not None, 30)
                yield
            finally:
                process.terminate()
                process.wait(20)

    @property
    def log(self) -> str:
        """What the gateway says."""
        return (self.data / "out.txt").read_text(encoding="utf-8", errors="replace")

    def write(self, number: int, text: str) -> None:
        """Put a card into the letterbox."""
        wait_until((self.box / "in").is_dir)
        (card := self.box / "in" / f"anna.{number}.new").write_text(text, encoding="utf-8")
        card.rename(card.with_suffix(".txt"))

    def got(self, count: int) -> list[str]:
        """The cards that came, once there are so many."""
        wait_until(lambda: len([*(self.box / "out").glob("anna.*.txt")]) >= count, 30)
        cards = sorted((self.box / "out").glob("anna.*.txt"), key=lambda card: card.stat().st_mtime_ns)
        return [card.read_text(encoding="utf-8") for card in cards]

    def _command(self, *words: str) -> list[str]:
        return [str(self._place.python), "-P", "-m", "nanobot", *words]


@pytest.mark.parametrize(
    "name", ["postcards", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mattermost", "signal"))]
)
def test_an_example_passes_the_shipped_checks_without_a_checkout_of_nanobot(name: str, tmp_path: Path):
    place = bare_environment(tmp_path / "bare", f"nanobot-{name}")
    shutil.copy(EXAMPLES / f"nanobot-{name}" / f"test_{name}.py", tmp_path)
    (tmp_path / "tests.py").write_text("raise ImportError('a plugin has no checkout of nanobot')", encoding="utf-8")
    kept = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT", "TEMP", "TMP") if name in os.environ}

    done = subprocess.run(
        [place.python, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", f"test_{name}.py"],
        cwd=tmp_path,
        env={**kept, "HOME": str(tmp_path), "USERPROFILE": str(tmp_path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        encoding="utf-8",
    )

    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d\d passed, \d+ skipped", done.stdout, re.MULTILINE)


def test_the_example_serves_a_bare_environment_beside_one_that_breaks_and_one_that_hangs_which_doctor_names(
    place: Place, tmp_path: Path
):
    install(place.site, "broken-pack", "raise RuntimeError('boom')", {"hooks": {"h": "H"}})
    install(place.site, "hanging-pack", HOOK, {"hooks": {"hangs": "Hangs"}})
    with FakeModels() as server:
        server.script(Calls(("postage", {"country": "Italy"})), Say("It is 1.40."))
        enabled = ["broken-pack", "hanging-pack", "nanobot-postcards"]
        owner = Owner(tmp_path, place, server, enabled=enabled, hookTimeoutS=0.3)

        with owner.gateway():
            owner.write(1, "What is the postage to Italy?")
            first = owner.got(1)
            owner.write(2, "Dear nanobot, " + "I have so much to tell you. " * 4)
            both = owner.got(2)
            while_it_runs = owner.run("doctor", "plugins")
            status = owner.run("status")

        assert first == ["It is 1.40."]
        assert both[1] == "A postcard has room for 60 characters, and yours has 125."
        assert server.chats[1].json["messages"][-1]["content"] == "1.40"
        assert len(server.chats) == 2
        words = " ".join(while_it_runs.stdout.split())
        assert while_it_runs.returncode == 1
        assert "broken-pack: its hook h was skipped: RuntimeError: boom" in words
        assert "hangs of hanging-pack: before_tool took more than 0.3 s" in words
        assert "nanobot-postcards 1.0" not in words  # there is nothing wrong with it
        assert "hangs of hanging-pack: before_tool took more than 0.3 s" in " ".join(status.stdout.split())
