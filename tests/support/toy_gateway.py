"""A toy platform: messages in are files of a folder, messages out are lines of another file; and a home that has it.

It is installed as plugins are: a package on the path with an entry point. What is delivered to nanobot is deleted from
the folder, as a platform forgets what was acknowledged.
"""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from nanobot.testing.model_server import FakeModels
from tests.support.eventually import wait_until
from tests.support.home import Home

TOYS = Path(__file__).parents[1] / "programs" / "toys.py"


def install_toys(place: Path) -> Path:
    """A folder to put on the path; in it a package that brings the toys as plugins."""
    info = place / "toys-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    shutil.copy(TOYS, place)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n", encoding="utf-8")
    points = ["[nanobot.channels]", "toy = toys:ToyChannel", "plush = toys:PlushChannel", "broken = toys:BrokenChannel"]
    (info / "entry_points.txt").write_text("\n".join(points) + "\n", encoding="utf-8")
    return place


class Toy:
    """One toy platform, from outside."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, text: str, *, chat: str = "7", sender: str = "7", message_id: str, in_group: bool = False) -> None:
        """Somebody writes to the bot."""
        temp = self.folder / f"{message_id}.tmp"
        message = {"from": sender, "chat": chat, "text": text, "group": in_group}
        temp.write_text(json.dumps(message), encoding="utf-8")
        temp.rename(self.folder / f"{message_id}.json")

    @property
    def waiting(self) -> int:
        """Messages that nanobot has not accepted yet."""
        return len([*self.folder.glob("*.json")])

    def got(self, chat: str | None = None) -> list[str]:
        """What the bot wrote."""
        out = self.folder / "sent.jsonl"
        lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
        told: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [one["text"] for one in told if chat in (None, one["chat"])]


class GatewayHome(Home):
    """A home whose gateway has toys, health on a free port, and a model of the test."""

    def __init__(self, path: Path, server: FakeModels | None = None, *, toys: tuple[str, ...] = ("toy",)) -> None:
        path.mkdir(exist_ok=True)
        super().__init__(path, server)
        self.data.mkdir(exist_ok=True)
        self.toys = {name: Toy(path / name) for name in toys}
        self.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(install_toys(path / "site")), self.environ.get("PYTHONPATH")])
        )
        self.change(
            channels={
                name: {"enabled": True, "folder": str(toy.folder), "allowFrom": ["7"]}
                for name, toy in self.toys.items()
            },
            gateway={"port": free_port()},
        )

    @property
    def toy(self) -> Toy:
        """The first of them."""
        return next(iter(self.toys.values()))

    @property
    def config(self) -> dict[str, Any]:
        """What the config says."""
        file = self.data / "config.json"
        config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        return config

    def change(self, **sections: Any) -> None:
        """Write sections of the config anew, at once."""
        written(self.data / "config.json", {**self.config, **sections})

    @property
    def log(self) -> str:
        """What the gateway logged."""
        file = self.data / "logs" / "gateway.log"
        return file.read_text(encoding="utf-8") if file.exists() else ""

    @contextmanager
    def gateway(self, *words: str, before: Sequence[str] = ()) -> Iterator["subprocess.Popen[bytes]"]:
        """A gateway of this home, ready; killed at the end if it still runs."""
        begun = self.log.count("ready in")
        process = self.start("gateway", *words, before=before)
        try:
            wait_until(lambda: self.log.count("ready in") > begun or process.poll() is not None)
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=10)


_PORTS = count(10_000 + os.getpid() * 997 % 20_000)
"""Below the ports that a system hands out by itself: nobody takes one between the look at it and its use."""


def free_port() -> int:
    """A port that nobody listens on."""
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port := next(_PORTS)))
            return port


def written(file: Path, told: Any) -> None:
    """A JSON file, there in one step."""
    temp = file.with_suffix(".new")
    temp.write_text(json.dumps(told), encoding="utf-8")
    temp.rename(file)
