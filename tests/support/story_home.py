"""A machine of one's own for a story: a home with a config, and two ways in, the real command and the Python face."""

import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from nanobot.agent.events import Notice, TurnResult
from nanobot.bus.events import InboundMessage
from nanobot.config.loader import load_config
from nanobot.messages.types import Origin
from nanobot.providers.resilience.chain import AddMeter, ProviderChains, no_meter
from nanobot.runtime.build import Runtime, build_runtime
from nanobot.sdk import Nanobot
from nanobot.testing import RecordingSink
from nanobot.testing.model_server import FakeModels, Request
from tests.support.fake_sleep import Waits
from tests.support.forkserver import started

NANOBOT = [sys.executable, "-m", "nanobot"]


@dataclass(frozen=True)
class Done:
    """What a command did."""

    code: int
    out: str
    aside: str
    seconds: float

    @property
    def line(self) -> str:
        """The one line on stderr."""
        lines = self.aside.splitlines()
        assert len(lines) == 1, self.aside
        return lines[0]


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


class Home:
    """A fresh home. Nothing of the machine around it is seen."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.folder = folder
        self.data = folder / ".nanobot"
        self.config_path = self.data / "config.json"
        if config:
            self.configure(**config)

    @property
    def workspace(self) -> Path:
        return self.data / "workspace"

    def configure(self, **config: Any) -> None:
        """Write the config anew."""
        self.data.mkdir(parents=True, exist_ok=True)
        workspace = {"agents": {"defaults": {"workspace": str(self.workspace)}}}
        self.config_path.write_text(json.dumps(_merged(workspace, config)), encoding="utf-8")

    def open(self) -> Nanobot:
        """The Python face, to be opened with `async with`."""
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

    def command(self, *words: str, environ: Mapping[str, str] | None = None) -> Done:
        """Run `nanobot` as a child process."""
        kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "SYSTEMROOT") if name in os.environ}
        own = {"HOME": str(self.folder), "USERPROFILE": str(self.folder), "PYTHONIOENCODING": "utf-8"}
        began = time.monotonic()
        child = started(
            [*NANOBOT, *words],
            env={**kept, **own, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, aside = child.communicate(timeout=50)
        return Done(child.returncode, out.decode(), aside.decode(), time.monotonic() - began)

    def say(self, text: str, *words: str, environ: Mapping[str, str] | None = None) -> Done:
        """Run `nanobot agent -m`."""
        return self.command("agent", "-m", text, *words, environ=environ)


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


def asked(request: Request) -> str:
    """What stands last in a request, as text."""
    content = request.json["messages"][-1]["content"]
    return content if isinstance(content, str) else json.dumps(content)


def results(request: Request) -> list[str]:
    """The texts of the tool results in a request of either format, in their order."""
    found: list[str] = []
    for row in request.json["messages"]:
        if row["role"] == "tool":
            found.append(str(row["content"]))
        elif isinstance(row["content"], list):
            found += [json.dumps(block["content"]) for block in row["content"] if block["type"] == "tool_result"]
    return found


def heads_of_each_other(server: FakeModels) -> bool:
    """Whether each request is, byte for byte up to its closing brackets, the head of the next."""
    bodies = [request.body for request in server.chats]
    return all(later.startswith(earlier[:-2]) for earlier, later in pairwise(bodies))


def same_head(server: FakeModels) -> bool:
    """The same for the Anthropic format, whose cache markers wander: system, tools and all earlier rows stay."""
    bodies = [_without_markers(request.json) for request in server.chats]
    return all(
        (earlier["system"], earlier["tools"]) == (later["system"], later["tools"])
        and later["messages"][: len(earlier["messages"])] == earlier["messages"]
        for earlier, later in pairwise(bodies)
    )


def _without_markers(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_markers(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_markers(item) for key, item in value.items() if key != "cache_control"}
    return value
