"""A gateway that runs inside the test."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nanobot.config.loader import load_config
from nanobot.gateway.service import Gateway, Options, open_gateway
from nanobot.providers.base import LLMProvider
from nanobot.testing import ScriptedProvider
from tests.support.toy_gateway import Toy, free_port, install_toys, written

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

    def pair(self, **owners: list[str]) -> None:
        """Make these people owners, by channel."""
        written(self.home / "pairing.json", {"owners": owners, "approved": owners})

    def change(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the config file, in one step."""
        file = self.home / "config.json"
        config = json.loads(file.read_text(encoding="utf-8"))
        change(config)
        written(file, config)


OpenGateway = Callable[..., AbstractAsyncContextManager[Running]]


def gateway_opener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenGateway:
    """Opens a gateway whose config has two toys; `config` is put over it. With `uses_config` the models are its own;
    `provider` takes the place of the scripted one.
    """
    monkeypatch.syspath_prepend(install_toys(tmp_path / "site"))
    toys = {name: Toy(tmp_path / name) for name in TOYS}

    @asynccontextmanager
    async def opened(
        *script: Any,
        home: Path = tmp_path / "h",  # short: a socket is in it
        options: Options | None = None,
        uses_config: bool = False,
        provider: LLMProvider | None = None,
        **config: Any,
    ) -> AsyncIterator[Running]:
        home.mkdir(exist_ok=True)
        channels = {
            name: {"enabled": True, "folder": str(toy.folder), "allowFrom": ["7"]} for name, toy in toys.items()
        }
        written(home / "config.json", {"channels": channels, "gateway": {"port": free_port()}, **config})
        model = ScriptedProvider(*script)
        async with open_gateway(
            load_config(home / "config.json"),
            data_dir=home,
            workspace=home / "workspace",
            options=options or Options(poll_s=0.02, turns_s=0.2),
            provider=None if uses_config else provider or model,
            environ={},
        ) as gateway:
            yield Running(gateway, home, model, toys)

    return opened
