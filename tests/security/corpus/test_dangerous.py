"""Dangerous commands, run for their effect behind the wall alone: no guard spares them.

`dangerous.txt` has a command a line. After each, nothing outside the workspace has changed, no key was shown, nobody
outside was touched, and nobody on this machine was called.
"""

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.sandbox_home import CANARY, SandboxHome

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bwrap is not installed")
COMMANDS = [
    line
    for line in Path(__file__).with_name("dangerous.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
_GUARDED = tuple(f".nanobot/workspace/{name}" for name in ("sessions", "cron", "memory/HISTORY.md"))
FAST = 17
"""Every so many run with the suite."""


class Scene:
    """A home with keys, somebody else's files and process, a service on loopback, and what became of them."""

    def __init__(self, home: SandboxHome, port: int, pid: int, abstract: str) -> None:
        self.home = replace(home, network=False)
        self.outside = home.path / "outside"
        self.env = {"OUT": str(self.outside), "PORT": str(port), "PID": str(pid), "ABSTRACT": abstract}
        self.pid = pid
        self.calls: list[str] = []
        for name in (
            ".config/gh/hosts.yml",
            ".bash_history",
            "outside/keep.txt",
            ".nanobot/workspace/sessions/a.jsonl",
        ):
            place = home.path / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(
                CANARY if name.startswith(".config") or name == ".bash_history" else "keep", encoding="utf-8"
            )
        self.before = self.state()

    def state(self) -> dict[str, tuple[int, str]]:
        """Everything that no command may change."""
        seen = {}
        for place in sorted(self.home.path.rglob("*")):
            name = place.relative_to(self.home.path).as_posix()
            ours = name.startswith(
                (".nanobot/workspace/sessions", ".nanobot/workspace/cron", ".nanobot/workspace/memory/H")
            )
            if name.startswith((".nanobot/workspace/", ".nanobot/tmp")) and not ours:
                continue
            about = place.lstat()
            seen[name] = (about.st_mode, place.read_text(encoding="utf-8") if place.is_file() else "")
        return seen

    def harm_of(self, command: str) -> list[str]:
        """What the command did that it should not have been able to do."""
        try:
            ran = self.home.sh(command.replace("\\n", "\n"), env=self.env, patience=5)
            said = ran.stdout + ran.stderr
        except subprocess.TimeoutExpired:
            said = ""
        harm = ["a key was shown"] if CANARY in said else []
        harm += (
            ["somebody outside was ended"] if Path(f"/proc/{self.pid}/stat").read_text().split()[2] not in "SR" else []
        )
        harm += ["a service was called"] if self.calls else []
        now = self.state()
        harm += [
            f"{name} changed" for name in self.before.keys() | now.keys() if self.before.get(name) != now.get(name)
        ]
        copies = [place for place in self.home.workspace.rglob("*") if place.is_file() and not place.is_symlink()]
        harm += [f"{place.name} holds a key" for place in copies if CANARY.encode() in place.read_bytes()]
        self._tidy()
        return harm

    def _tidy(self) -> None:
        for place in self.home.workspace.iterdir():
            if place.name not in ("memory", "cron", "sessions"):
                _remove(place)


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        subprocess.run(["chmod", "-R", "u+rwX", str(place)], check=False)
        shutil.rmtree(place)
    else:
        place.unlink()


@pytest.fixture
def scene(home: SandboxHome) -> Iterator[Scene]:
    service = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0nanobot-test-{os.getpid()}")
    abstract.listen()
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    scene = Scene(home, service.getsockname()[1], other.pid, f"nanobot-test-{os.getpid()}")

    def listen(to: socket.socket) -> None:
        try:
            while True:
                to.accept()[0].close()
                scene.calls.append("called")
        except OSError:
            return

    for to in (service, abstract):
        threading.Thread(target=listen, args=(to,), daemon=True).start()
    yield scene
    other.kill()
    other.wait()
    for to in (service, abstract):
        to.shutdown(socket.SHUT_RDWR)
        to.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the wall stands on Linux")
@pytest.mark.parametrize("share", range(2))
def test_no_dangerous_command_has_an_effect_outside(scene: Scene, share: int):
    harm = {command: harm for command in COMMANDS[::FAST][share::2] if (harm := scene.harm_of(command))}

    assert harm == {}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("share", range(8))
def test_none_of_them_all_has_an_effect_outside(scene: Scene, share: int):
    harm = {command: harm for command in COMMANDS[share::8] if (harm := scene.harm_of(command))}

    assert harm == {}
