"""A WhatsApp of one's own for each test: the bridge's protocol, and behind it, where Node.js is, the real bridge."""

import asyncio
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nanobot.channels.errors import ChannelSetupError
from nanobot.channels.whatsapp.bridge import SOURCE, find_node, install_bridge
from tests.fakes.whatsapp_server import World, link, run_world


@pytest.fixture(scope="session")
def bridge_folder() -> Path:
    """The real bridge, installed once from npm's cache: no test reaches the internet.

    Fill the cache with `npm ci --ignore-scripts --omit=peer` in a copy of nanobot/channels/whatsapp/bridge.
    """
    if (npm := shutil.which("npm")) is None:
        pytest.skip("there is no npm")
    cache = subprocess.run([npm, "config", "get", "cache"], capture_output=True, text=True, check=True).stdout.strip()
    version = hashlib.sha256((SOURCE / "bridge.mjs").read_bytes()).hexdigest()[:8]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("npm_config_cache", cache)
        patch.setenv("npm_config_offline", "true")
        patch.setenv("HOME", os.environ.get("HOME", "/"))
        try:
            asyncio.run(find_node())
            return asyncio.run(install_bridge(Path(tempfile.gettempdir()) / f"nanobot-whatsapp-{version}"))
        except ChannelSetupError as error:
            pytest.skip(f"the bridge cannot be installed from npm's cache: {error}")


@pytest.fixture
async def world(bridge_folder: Path, tmp_path: Path) -> AsyncIterator[World]:
    """WhatsApp, with no device linked."""
    async with run_world(bridge_folder, tmp_path / "keys") as world:
        yield world


@pytest.fixture(scope="session")
def linked_device(bridge_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of a bridge whose device is linked, with the keys that WhatsApp has of it."""
    folder = tmp_path_factory.mktemp("linked")

    async def link_first() -> None:
        async with run_world(bridge_folder, folder / "keys") as world:
            await link(world, folder)

    asyncio.run(link_first())
    return folder


@pytest.fixture
def linked(linked_device: Path, tmp_path: Path) -> Path:
    """The state of a bridge whose device is linked, for one test."""
    return shutil.copytree(linked_device, tmp_path / "state")


@pytest.fixture
async def linked_world(bridge_folder: Path, linked: Path) -> AsyncIterator[World]:
    """The WhatsApp in which this device is linked."""
    async with run_world(bridge_folder, linked / "keys") as world:
        yield world
