"""Five minutes without a network, and a laptop that wakes up, on a clock that jumps: within a minute each channel says
that it is away, and hears again, and nothing is lost that the platform keeps. Telegram stands for servers that are
there and answer nonsense. (WebSocket and Teams call the gateway, and come back by themselves.)
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from nanobot.bus.queue import MessageBus
from nanobot.channels.base import BaseChannel
from nanobot.channels.registry import CHANNELS
from nanobot.channels.status import ChannelState
from nanobot.config.channels import MochatConfig
from nanobot.testing.live_channel import LiveChannel, live
from nanobot.testing.platform import Platform
from tests.fakes.mochat import MochatPlatform
from tests.fakes.platform_discord import DiscordPlatform
from tests.fakes.platform_telegram import TelegramPlatform
from tests.fakes.platforms import platform_class
from tests.fakes.qq import QQPlatform
from tests.fakes.telegram import BAD_GATEWAY, CONFLICT, CUT
from tests.fakes.weixin import WeixinPlatform
from tests.support.clock import LoopClock, WarpLoop

OUTAGE_S = 300.0
SLEPT = timedelta(hours=8)
LONGEST_S = 60.0
LOADED = {"discord": ("discord",), "slack": ("slack_sdk",), "matrix": ("nio",), "mochat": ("socketio",)}
"""What a thread would load while time flies."""
SETTINGS: dict[str, dict[str, Any]] = {
    "email": {"poll_interval_seconds": 30},
    "mochat": {name: value for name, value in MochatConfig() if name.startswith(("socket_", "watch_", "refresh_"))},
}
"""Where a platform of the suite is in more of a hurry than people."""


class WakingClock(LoopClock):
    """The clock of the loop; the one on the wall has gone on while nobody looked."""

    slept = timedelta()

    def now(self) -> datetime:
        return super().now() + self.slept


def real(name: str, folder: Path) -> Platform:
    """The platform, with the timings that people have."""
    platform = platform_class(name)(folder)
    quick = platform.channel

    def channel(bus: MessageBus, **settings: Any) -> BaseChannel:
        hurried = quick(bus, **SETTINGS.get(name, {}) | settings)
        return type(hurried)(hurried.config, bus)

    platform.channel = channel  # type: ignore[method-assign]
    if isinstance(platform, DiscordPlatform):
        platform.gateway.heartbeat_s = 20.0
    if isinstance(platform, QQPlatform):
        platform.server.beat_s = 41.0
    if isinstance(platform, WeixinPlatform):
        platform.server.hold_s = 35.0
    if isinstance(platform, MochatPlatform):
        platform.server.io.eio.ping_interval = 25.0
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


Change = Callable[[Platform], Awaitable[None]]


async def gone(platform: Platform) -> None:
    await platform.gone(gone=True)


async def back(platform: Platform) -> None:
    await platform.gone(gone=False)


def telegram(**changes: Any) -> Change:
    """Change the server, and end what is open where that does not keep it."""

    async def change(platform: Platform) -> None:
        assert isinstance(platform, TelegramPlatform)
        for name, value in changes.items():
            setattr(platform.server, name, value)
        if changes.get("storm") in (CUT, BAD_GATEWAY):
            await platform.server.cut()
        if changes.get("silent") is False:
            platform.server.deafen()  # what was open stays dead

    return change


OUTAGES: dict[str, tuple[Change, Change]] = {
    "no network": (gone, back),
    "silent": (telegram(silent=True), telegram(silent=False)),
    "cuts": (telegram(storm=CUT), telegram(storm=None)),
    "bad gateways": (telegram(storm=BAD_GATEWAY), telegram(storm=None)),
    "another program with the token": (telegram(storm=CONFLICT), telegram(storm=None)),
}
ASLEEP = "asleep"


async def through(name: str, folder: Path, outage: str) -> tuple[list[str], float, float]:
    """What is heard after all, seconds until it is known to be away, and until what was said meanwhile is heard."""
    clock, noticed_s = WakingClock(), 0.0
    platform = real(name, folder)
    async with platform.open(), live(platform, folder, silent=True, clock=clock) as life:
        await until(life, life.channel.status.connected.is_set)
        await platform.says("before")
        await heard(life, "before")
        if outage == ASLEEP:
            await platform.half_open()
            clock.slept = SLEPT
        else:
            begin, end = OUTAGES[outage]
            await begin(platform)
            noticed_s = await until(life, lambda: not life.channel.is_running)
            await asyncio.sleep(OUTAGE_S)
        if platform.queues_messages:
            await platform.says("meanwhile")
        if outage != ASLEEP:
            await end(platform)
        kept = platform.queues_messages
        back_s = await (heard(life, "meanwhile") if kept else until(life, lambda: life.channel.is_running))
        await platform.says("after")
        back_s += 0.0 if kept else await heard(life, "after")
        await heard(life, "after")
        return [one.content.split()[-1] for one in life.heard], noticed_s, back_s


NAMES = [spec.name for spec in CHANNELS if spec.name not in ("msteams", "websocket")]
ROWS = [(outage, name) for outage in ("no network", ASLEEP) for name in NAMES]
ROWS += [(outage, "telegram") for outage in OUTAGES if outage != "no network"]
QUICK = {("no network", name) for name in NAMES} | {(ASLEEP, "discord"), ("silent", "telegram")}


@pytest.mark.parametrize(
    ("outage", "name"),
    [pytest.param(*row, id="-".join(row), marks=[] if row in QUICK else [pytest.mark.slow]) for row in ROWS],
)
def test_a_channel_hears_again_within_a_minute_and_all_of_it(tmp_path: Path, name: str, outage: str):
    for module in LOADED.get(name, ()):
        import_module(module)

    with asyncio.Runner(loop_factory=WarpLoop) as runner:
        said, noticed_s, back_s = runner.run(through(name, tmp_path, outage))

    print(f"noticed after {noticed_s:.1f} s, back after {back_s:.1f} s")
    assert said == ["before", *["meanwhile"] * platform_class(name).queues_messages, "after"]
    assert max(noticed_s, back_s) <= LONGEST_S
