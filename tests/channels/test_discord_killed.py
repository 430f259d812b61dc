"""A whole gateway on Discord that is killed again and again: every message is answered once."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from tests.fakes.discord import world as there
from tests.fakes.platform_discord import DiscordPlatform
from tests.support.eventually import eventually
from tests.support.toy_gateway import free_port

CHILD = """
import sys
from discord.http import Route
Route.BASE = sys.argv.pop()
from nanobot.__main__ import main
main()
"""


async def gateway(home: Path, api: str) -> asyncio.subprocess.Process:
    environment = {
        "HOME": str(home),
        "USERPROFILE": str(home),
        "PYTHONUTF8": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-W", "ignore", "-c", CHILD, "gateway", api]
    quiet = asyncio.subprocess.DEVNULL
    return await asyncio.create_subprocess_exec(*command, env=environment, stdout=quiet, stderr=quiet)


@pytest.mark.slow
async def test_a_gateway_that_is_killed_in_the_middle_answers_every_message_once(tmp_path: Path):
    async with DiscordPlatform(tmp_path).open() as discord:
        (tmp_path / ".nanobot").mkdir()
        section = {
            "enabled": True,
            "streaming": False,  # a growing answer that a kill cuts off stays where it stands, and is not the reply
            "token": there.TOKEN,
            "allowFrom": [there.PERSON],
            "gatewayUrl": discord.gateway.url,
        }
        config = {
            "channels": {"discord": section},
            "gateway": {"port": free_port()},
            "agents": {"defaults": {"steering": "queue"}},
        }
        (tmp_path / ".nanobot" / "config.json").write_text(json.dumps(config), encoding="utf-8")
        said: list[str] = []

        async def say() -> None:
            chat = (there.GROUP, there.PRIVATE)[len(said) % 2]
            said.append(await discord.says(f"word{len(said)}", chat=chat, mention=True))

        process = await gateway(tmp_path, f"{discord.url}/api/v10")
        try:
            await asyncio.wait_for(discord.gateway.identified.wait(), 30)
            for _ in range(4):
                for _ in range(15):
                    await say()
                    await asyncio.sleep(0.05)
                process.kill()
                await process.wait()
                await say()
                process = await gateway(tmp_path, f"{discord.url}/api/v10")
            await eventually(lambda: len(replies(discord)) >= len(said), within_s=40)
            await asyncio.sleep(1)  # what would come twice has its time
        finally:
            process.kill()
            await process.wait()

        assert sorted(replies(discord)) == sorted(said)


def replies(discord: DiscordPlatform) -> list[str]:
    """The messages of people that an answer quotes, once for each answer."""
    return [str(one.reply_to) for chat in (there.PRIVATE, there.GROUP) for one in discord.shown(chat)]
