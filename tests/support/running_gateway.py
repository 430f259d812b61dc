"""A gateway that runs inside the test."""

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanobot.gateway.service import Gateway
from nanobot.testing import ScriptedProvider
from tests.support.toy_gateway import Toy, written

TOYS = ("toy", "plush")


@dataclass
class Running:
    """A gateway that runs, with its toys."""

    gateway: Gateway
    home: Path
    model: ScriptedProvider
    toys: dict[str, Toy]

    @property
    def toy(self) -> Toy:
        """The first of them."""
        return self.toys[TOYS[0]]

    def change(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the config file, in one step."""
        file = self.home / "config.json"
        config = json.loads(file.read_text(encoding="utf-8"))
        change(config)
        written(file, config)


OpenGateway = Callable[..., AbstractAsyncContextManager[Running]]
