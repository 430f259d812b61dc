"""A gateway with all channels in its config and one of them on pays for that one only."""

import asyncio
import re
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from nanobot.bus.queue import MessageBus
from nanobot.channels.registry import CHANNELS
from nanobot.testing.model_server import FakeModels
from tests.fakes.platform_discord import DiscordPlatform
from tests.fakes.platforms import platform_class
from tests.support.eventually import eventually
from tests.support.forkserver import started
from tests.support.toy_gateway import GatewayHome

SDKS = {"telegram": {"telegram"}} | {spec.name: {*spec.packages} for spec in CHANNELS if spec.packages}
"""What each channel imports besides its own package."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(spec.name, marks=[] if spec.name == "websocket" else pytest.mark.slow) for spec in CHANNELS],
)
async def test_of_all_channels_only_the_one_that_is_on_is_imported(tmp_path: Path, name: str):
    with FakeModels() as server:
        home = GatewayHome(tmp_path / "home", server)
        async with AsyncExitStack() as there:
            sections = {}
            for spec in CHANNELS:
                (folder := tmp_path / spec.name).mkdir()
                platform = await there.enter_async_context(platform_class(spec.name)(folder).open())
                config = platform.channel(MessageBus()).config
                section = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
                sections[spec.name] = section | {"enabled": spec.name == name}
                if isinstance(platform, DiscordPlatform):
                    home.environ["DISCORD_API"] = f"{platform.url}/api/v10"
            home.change(channels=sections)
            program = ["tests.crash.stepped_gateway"] if name == "discord" else ["nanobot", "gateway"]
            command = [sys.executable, "-X", "importtime", "-m", *program]
            with open(tmp_path / "imports", "wb") as imports:
                process = started(command, env=home.environ, stdout=subprocess.DEVNULL, stderr=imports)
            try:
                await eventually(lambda: f"{name}: connected" in home.log, 30)
                memory = Path(f"/proc/{process.pid}/status")
                print(name, re.findall(r"VmRSS:.*", memory.read_text()) if memory.exists() else "", home.log[-100:])
                process.terminate()
                code = await asyncio.to_thread(process.wait, 30)
            finally:
                process.kill()
                process.wait()

    lines = (tmp_path / "imports").read_text(encoding="utf-8").splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    others = {spec.name for spec in CHANNELS if spec.name != name}
    own = SDKS.get(name, set())
    own |= {"aiohttp", "yarl"} if own & {"aiohttp", "yarl"} else set()  # one is imported with the other
    sdks = {sdk for spec in CHANNELS for sdk in SDKS.get(spec.name, ())} - own
    assert code == 0
    assert not {one for one in imported if one.startswith(tuple(f"nanobot.channels.{other}" for other in others))}
    assert not imported & sdks
