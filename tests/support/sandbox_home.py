"""A home with keys in it, a bot that lives there, and a shell behind its wall."""

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import pytest

from nanobot.security.files.paths import PathPolicy, key_places
from nanobot.security.sandbox.sandbox import Sandbox
from nanobot.security.sandbox.view import ViewGrants

CANARY = "canary-7f3a"
Shell = Callable[..., subprocess.CompletedProcess[str]]


@dataclass
class SandboxHome:
    """What lies in it, and how commands see it."""

    path: Path
    paths: PathPolicy
    network: bool = True
    env: dict[str, str] = field(default_factory=lambda: {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin"})

    @property
    def workspace(self) -> Path:
        return self.paths.workspace

    @property
    def data(self) -> Path:
        return self.path / ".nanobot"

    @cached_property
    def walls(self) -> Sandbox:
        return Sandbox(self.paths, "bwrap", network=self.network, tmp=self.data / "tmp")

    def sh(
        self,
        script: str,
        *,
        folder: Path | None = None,
        grants: ViewGrants | None = None,
        env: dict[str, str] | None = None,
        patience: float = 20,
    ) -> subprocess.CompletedProcess[str]:
        behind = self.walls.wrap(["/bin/bash", "-c", script], folder or self.workspace, grants)
        argv = list(behind.argv(2) if callable(behind.argv) else behind.argv)
        return subprocess.run(
            [word for at, word in enumerate(argv) if not _is_telling(argv, at)],
            env={**self.env, "HOME": str(self.path), **(env or {})},
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=patience,
        )

    def restricted(self) -> "SandboxHome":
        return replace(self, paths=replace(self.paths, restrict=True))


def _is_telling(argv: list[str], at: int) -> bool:
    return "--info-fd" in argv[max(at - 1, 0) : at + 1]


def make_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SandboxHome:
    if shutil.which("bwrap") is None:
        pytest.skip("bwrap is not installed")
    place = tmp_path / "home"
    data = place / ".nanobot"
    workspace = data / "workspace"
    for name in (".ssh/id_ed25519", ".aws/credentials", ".netrc", ".nanobot/config.json", ".nanobot/state/journal.db"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(CANARY, encoding="utf-8")
    (data / "pairing.json").write_text(CANARY, encoding="utf-8")
    (place / "notes.txt").write_text("plain notes", encoding="utf-8")
    for name in ("memory", "memory/chats", "cron", "sessions"):
        (workspace / name).mkdir(parents=True, exist_ok=True)
    (workspace / "memory/HISTORY.md").write_text("history", encoding="utf-8")
    (workspace / "sessions/cli_direct.jsonl").write_text("{}\n", encoding="utf-8")
    monkeypatch.setenv("HOME", str(place))
    unreadable = (data / "config.json", data / "pairing.json", data / "state", *key_places(place))
    return SandboxHome(place, PathPolicy(workspace, unreadable=unreadable, data_folder=data))
