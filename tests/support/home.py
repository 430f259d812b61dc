"""A home of its own for each test, with two ways in: the commands as a person runs them, and the Python API."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nanobot.agent.events import Notice, TurnResult
from nanobot.bus.events import InboundMessage
from nanobot.config.loader import load_config
from nanobot.messages.types import Origin
from nanobot.providers.factory import AddMeter, ProviderChains, no_meter
from nanobot.runtime.build import Runtime, build_runtime
from nanobot.sdk import Nanobot
from nanobot.testing import RecordingSink
from nanobot.testing.model_server import FakeModels
from tests.support.clock import Waits
from tests.support.forkserver import started

NANOBOT = [sys.executable, "-m", "nanobot"]
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals, modes and shells are POSIX things here")
_KEPT = ("PATH", "PYTHONPATH", "SYSTEMROOT", "COVERAGE_PROCESS_START")
Environ = Mapping[str, str | None]
_NOTHING: Environ = {}
_NO_SUPERPOWERS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--"]


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    aside: str

    @property
    def complaint(self) -> str:
        """What it said on stderr, which has to be two lines at most and no traceback."""
        assert "Traceback" not in self.aside + self.out
        assert "bug in nanobot" not in self.aside
        assert len(self.aside.splitlines()) <= 2
        return self.aside


@dataclass(frozen=True)
class Told:
    """A turn as the person saw it: its result, what was said on the way, and how long all of it would have taken."""

    result: TurnResult
    notices: list[str]
    seconds: float


@dataclass(frozen=True)
class Hasty:
    """A bot whose waits between two tries take no time."""

    runtime: Runtime
    waits: Waits = field(default_factory=Waits)

    async def say(self, text: str, session: str = "cli:direct") -> Told:
        sink, began, waited = RecordingSink(), time.monotonic(), self.waits.monotonic()
        message = InboundMessage.from_owner("cli", "direct", text, session_key=session, origin=Origin.CLI)
        result = await self.runtime.loop.run_turn(message, sink)
        notices = [event.text for event in sink.events if isinstance(event, Notice)]
        return Told(result, notices, time.monotonic() - began + self.waits.monotonic() - waited)

    def consolidate_after(self, pause_s: float) -> None:
        self.runtime.memory.consolidation.pause_s = pause_s

    async def settled(self) -> None:
        """Until no live session is being consolidated."""
        await self.runtime.memory.consolidation.wait_done()


class Home:
    """A home of its own. With a server, that is its model; `config` is what its config file says."""

    def __init__(self, path: Path, server: FakeModels | None = None, **config: Any) -> None:
        self.path = path
        self.data = path / ".nanobot"
        self.config_path = self.data / "config.json"
        self.workspace = self.data / "workspace"
        self.sessions = self.workspace / "sessions"
        kept = {name: value for name, value in os.environ.items() if name in _KEPT}
        self.environ = {**kept, "HOME": str(path), "USERPROFILE": str(path)}
        if server is not None:
            config = _merged(using("custom", "stand-in", apiKey="k", apiBase=server.v1), config)
        if config:
            self.configure(**config)

    def configure(self, **config: Any) -> None:
        """Write the config anew."""
        self.data.mkdir(parents=True, exist_ok=True)
        workspace = {"agents": {"defaults": {"workspace": str(self.workspace)}}}
        self.config_path.write_text(json.dumps(_merged(workspace, config)), encoding="utf-8")

    def open(self) -> Nanobot:
        """The Python API, to be opened with `async with`."""
        return Nanobot.from_config(self.config_path)

    @asynccontextmanager
    async def hasty(self, add_meter: AddMeter = no_meter) -> AsyncIterator[Hasty]:
        """The bot, without the waits between two tries."""
        waits = Waits()
        chains = ProviderChains(
            {}, self.data / "state", add_meter=add_meter, sleep=waits.sleep, monotonic=waits.monotonic
        )
        async with build_runtime(
            load_config(self.config_path), data_dir=self.data, environ={}, chains=chains
        ) as runtime:
            yield Hasty(runtime, waits)

    def start(
        self,
        *words: str,
        before: Sequence[str] = (),
        stdin: int = subprocess.DEVNULL,
        environ: Environ = _NOTHING,
        cwd: Path | None = None,
    ) -> "subprocess.Popen[bytes]":
        """The command, running. `before` is a program that starts it; None in `environ` takes a variable away."""
        env = {name: value for name, value in {**self.environ, **environ}.items() if value is not None}
        command = [*before, *NANOBOT, *words]
        return started(command, env=env, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd)

    def run(
        self,
        *words: str,
        before: Sequence[str] = (),
        stdin: bytes | None = None,
        environ: Environ = _NOTHING,
        cwd: Path | None = None,
    ) -> Ended:
        """The command, to its end."""
        given = subprocess.DEVNULL if stdin is None else subprocess.PIPE
        return ended(self.start(*words, before=before, stdin=given, environ=environ, cwd=cwd), stdin)

    def ask(self, text: str, *words: str, environ: Environ = _NOTHING) -> Ended:
        """One message of the chat's session, unless the words name another."""
        here = () if {"-s", "--session", "--continue"} & {*words} else ("-s", "cli:direct")
        return self.run("agent", "-m", text, *here, *words, environ=environ)

    def remember(self, text: str) -> None:
        """Have an answered turn in the session of the terminal, without the price of one."""
        (self.sessions / ".locks").mkdir(parents=True, exist_ok=True)
        rows = [
            {"_type": "metadata", "key": "cli:direct", "created_at": "2026-01-02T03:04:05", "metadata": {}},
            {"role": "user", "content": text, "timestamp": "2026-01-02T03:04:05"},
            {"role": "assistant", "content": "noted", "timestamp": "2026-01-02T03:04:06"},
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (self.sessions / "cli_direct.jsonl").write_text(text, encoding="utf-8")

    def rows(self, stem: str = "cli_direct") -> list[dict[str, Any]]:
        """The lines of a session's file that are no metadata. Raises where one is not whole."""
        lines = (self.sessions / f"{stem}.jsonl").read_text(encoding="utf-8").splitlines()
        return [row for row in map(json.loads, lines) if row.get("_type") != "metadata"]

    def said(self, stem: str = "cli_direct") -> list[tuple[str, str]]:
        """Who said what in a session."""
        return [(row["role"], row["content"]) for row in self.rows(stem)]


def _merged(first: dict[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(first)
    for key, value in second.items():
        known = out.get(key)
        out[key] = _merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return out


def using(provider: str, model: str, **section: Any) -> dict[str, Any]:
    """A config that names its provider and model."""
    return {
        "agents": {"defaults": {"provider": provider, "model": model}},
        "providers": {provider: section},
    }


def ended(process: "subprocess.Popen[bytes]", stdin: bytes | None = None, *, patience: float | None = 50) -> Ended:
    """Wait for its end."""
    try:
        out, aside = process.communicate(stdin, timeout=patience)
    finally:
        process.kill()
    return Ended(process.returncode, out.decode(), aside.decode())


def start_program(*words: str, **streams: Any) -> "subprocess.Popen[Any]":
    """One of the programs of the tests, running: `python -m` these words."""
    env = {name: value for name, value in os.environ.items() if name in (*_KEPT, "HOME")}
    return started([sys.executable, "-m", *words], env=env, cwd=Path(__file__).parents[2], **streams)


def told(*words: str) -> str:
    """What one of the programs of the tests says, to its end."""
    child = start_program(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    end = ended(child, patience=None)  # pytest's own is enough
    assert end.code == 0, end.aside[-2000:]
    return end.out


def in_shell(redirections: str, *, first: str = ":") -> list[str]:
    """A program that starts another with its streams closed or elsewhere."""
    return ["sh", "-c", f'{first}; exec "$@" {redirections}', "sh"]


def bound_by_modes() -> list[str]:
    """A program that starts another so that file modes bind it, also where root runs the tests; or skips."""
    if os.name == "nt":
        pytest.skip("file modes are a POSIX thing")
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None or subprocess.run([*_NO_SUPERPOWERS, "true"], capture_output=True).returncode:
        pytest.skip("root reads everything, and there is no setpriv to make it like others")
    return _NO_SUPERPOWERS


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A disk of its own that is soon full. Skips where none may be mounted."""
    place.mkdir()
    mount = shutil.which("mount")
    if (
        mount is None
        or subprocess.run([mount, "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], capture_output=True).returncode
    ):
        pytest.skip("no right to mount a small disk here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def fill(disk: Path) -> Path:
    """Take all the room that is left, to the last byte of the last page; the file that holds it."""
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while file.write(b"\0" * 4096):
                pass
        except OSError:
            pass
    return filler
