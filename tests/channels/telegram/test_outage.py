"""Five minutes without Telegram, on a clock that jumps: with its real timings it is back within a minute, whatever it
was, says within a minute that it is away, and nothing is lost.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nanobot.bus.queue import MessageBus
from nanobot.channels.base import ChannelServices
from nanobot.channels.telegram import TelegramChannel
from nanobot.testing.live_channel import LiveChannel, live
from tests.fakes.platform_telegram import TelegramPlatform
from tests.fakes.telegram import BAD_GATEWAY, CONFLICT, CUT, FakeTelegram, RefusedError
from tests.support.clock import LoopClock, WarpLoop

OUTAGE_S = 300.0
Change = Callable[[FakeTelegram], Awaitable[None]]


class Punctual(TelegramChannel):
    """By the clock of the loop, and otherwise as it is."""

    def attach(self, services: ChannelServices) -> None:
        super().attach(replace(services, clock=LoopClock()))


class Real(TelegramPlatform):
    """With the timings that people have."""

    def channel(self, bus: MessageBus, **settings: Any) -> TelegramChannel:
        return Punctual(super().channel(bus, **settings).config, bus)


async def refused(server: FakeTelegram) -> None:
    await server.hang_up()


async def back(server: FakeTelegram) -> None:
    await server.listen()


async def silent(server: FakeTelegram) -> None:
    server.silent = True


async def speaking(server: FakeTelegram) -> None:
    server.deafen()  # what was open stays dead
    server.silent = False


def storm(of: RefusedError) -> tuple[Change, Change]:
    async def rise(server: FakeTelegram) -> None:
        server.storm = of
        if of is not CONFLICT:
            await server.cut()

    async def calm(server: FakeTelegram) -> None:
        server.storm = None

    return rise, calm


OUTAGES = {
    "no network": (refused, back),
    "a line that is dead and does not say so": (silent, speaking),
    "every connection breaks": storm(CUT),
    "bad gateways": storm(BAD_GATEWAY),
    "another program with the token": storm(CONFLICT),
}


async def until_it_runs(life: LiveChannel, *, runs: bool) -> None:
    while life.channel.is_running is not runs:
        await asyncio.sleep(1)


async def through(folder: Path, begin: Change, end: Change) -> tuple[list[str], float, float]:
    """What is heard after all; seconds until it is known that Telegram is away, and until it is heard again."""
    loop = asyncio.get_running_loop()
    async with Real(folder).open() as telegram, live(telegram, folder, silent=True) as life:
        await until_it_runs(life, runs=True)
        await telegram.says("before")
        await asyncio.sleep(1)
        began = loop.time()
        await begin(telegram.server)
        await until_it_runs(life, runs=False)
        noticed_s = loop.time() - began
        await asyncio.sleep(OUTAGE_S / 2)
        await telegram.says("meanwhile")
        await telegram.says("and more")
        await asyncio.sleep(OUTAGE_S / 2)
        ended = loop.time()
        await end(telegram.server)
        while len(life.heard) < 3 and loop.time() - ended < 2 * OUTAGE_S:
            await asyncio.sleep(1)
        back_s = loop.time() - ended
        await telegram.says("after")
        await asyncio.sleep(5)
        return [one.content for one in life.heard], noticed_s, back_s


@pytest.mark.parametrize("kind", OUTAGES)
def test_five_minutes_without_telegram_cost_a_minute_at_most_and_no_message(tmp_path, kind):
    with asyncio.Runner(loop_factory=WarpLoop) as runner:
        heard, noticed_s, back_s = runner.run(through(tmp_path, *OUTAGES[kind]))

    assert heard == ["before", "meanwhile", "and more", "after"]
    assert noticed_s <= 60
    assert back_s <= 60
