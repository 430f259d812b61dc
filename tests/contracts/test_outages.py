"""Five minutes without a network, and a laptop that wakes up, on a clock that jumps: within a minute each channel hears
again, and nothing is lost. (What else may happen to Telegram: tests/channels/telegram/test_outage.py. Who comes over
WebSocket comes back by themselves.)
"""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from nanobot.channels.slack import SlackChannel
from nanobot.channels.status import ChannelState
from nanobot.channels.telegram import TelegramChannel
from nanobot.testing.live_channel import LiveChannel, live
from nanobot.testing.platform import Platform
from tests.fakes.platform_discord import DiscordPlatform
from tests.fakes.platform_qq import QQPlatform
from tests.fakes.platform_slack import SlackPlatform
from tests.fakes.platform_telegram import TelegramPlatform
from tests.fakes.platform_weixin import WeixinPlatform
from tests.fakes.platforms import platform_class
from tests.support.clock import LoopClock, WarpLoop

OUTAGE_S = 300.0
SLEPT = timedelta(hours=8)
LONGEST_S = 60.0
LOADED = {
    "discord": ("discord", "nanobot.channels.discord"),
}
"""What a thread would load while time flies."""
SETTINGS: dict[str, dict[str, Any]] = {"email": {"poll_interval_seconds": 30}}
"""Where a platform of the suite is in more of a hurry than people."""


class WakingClock(LoopClock):
    """The clock of the loop; the one on the wall has gone on while nobody looked."""

    slept = timedelta()

    def now(self) -> datetime:
        return super().now() + self.slept


def real(name: str, folder: Path) -> Platform:
    """The platform, with the timings that people have."""
    platform = platform_class(name)(folder)
    if isinstance(platform, TelegramPlatform):
        quick = platform.channel
        platform.channel = lambda bus, **more: TelegramChannel(quick(bus, **more).config, bus)  # type: ignore[method-assign]
    if isinstance(platform, DiscordPlatform):
        platform.gateway.heartbeat_s = 20.0
    if isinstance(platform, QQPlatform):
        platform.server.beat_s = 41.0
    if isinstance(platform, WeixinPlatform):
        platform.server.hold_s = 35.0
    if isinstance(platform, SlackPlatform):
        platform.ping_s = SlackChannel.ping_s
    return platform


async def until(life: LiveChannel, there: Callable[[], bool]) -> float:
    """Wait for it, in small steps while it connects, so that threads have their time; how long that took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not there():
        assert loop.time() - began < OUTAGE_S, "it did not come"
        await asyncio.sleep(0.02 if life.channel.status.state is ChannelState.CONNECTING else 0.5)
    return loop.time() - began


async def heard(life: LiveChannel, words: str) -> float:
    """Wait until it is heard; how long that took."""
    return await until(life, lambda: any(words in one.content for one in life.heard))


async def through(name: str, folder: Path, *, asleep: bool) -> tuple[list[str], float]:
    """What is heard after all, and seconds until what was said meanwhile is."""
    clock = WakingClock()
    platform = real(name, folder)
    async with platform.open(), live(platform, folder, silent=True, clock=clock, **SETTINGS.get(name, {})) as life:
        await until(life, life.channel.status.connected.is_set)
        await platform.says("before")
        await heard(life, "before")
        if asleep:
            await platform.half_open()
            await platform.says("meanwhile")
            clock.slept = SLEPT
        else:
            await platform.gone(gone=True)
            await asyncio.sleep(OUTAGE_S / 2)
            await platform.says("meanwhile")
            await asyncio.sleep(OUTAGE_S / 2)
            await platform.gone(gone=False)
        back_s = await heard(life, "meanwhile")
        await platform.says("after")
        await heard(life, "after")
        return [one.content.split()[-1] for one in life.heard], back_s


@pytest.mark.parametrize("name", ["discord", "email", "feishu", "qq", "slack", "telegram", "weixin"])
@pytest.mark.parametrize("asleep", [False, True], ids=["no network", "asleep"])
def test_a_channel_hears_again_within_a_minute_and_all_of_it(tmp_path: Path, name: str, asleep: bool):
    for module in LOADED.get(name, ()):
        import_module(module)

    with asyncio.Runner(loop_factory=WarpLoop) as runner:
        said, back_s = runner.run(through(name, tmp_path, asleep=asleep))

    print(f"{back_s:.1f} s")
    assert said == ["before", "meanwhile", "after"]
    assert back_s <= LONGEST_S
