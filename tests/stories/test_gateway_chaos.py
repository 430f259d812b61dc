"""A gateway of real sockets with all channels, and what may happen to it: it is killed, cut off, put to sleep;
platforms refuse, are slow, do not confirm; the disk is full. Every message has one answer, in its own chat.

All platforms live in the loop of the test: while it blocks, they are slow.
"""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from nanobot.testing.model_server import FakeModels, Fitting
from tests.fakes.people import (
    ALL,
    Lives,
    Mouths,
    OnPlatform,
    elsewhere,
    everybody,
    heard,
    judged,
    unanswered,
    unsettled,
)
from tests.support.home import POSIX, fill, small_disk
from tests.support.toy_gateway import GatewayHome

pytestmark = POSIX

NO_SPACE = "No space left on device"


class Ground:
    """The gateway, and the platforms around it."""

    def __init__(self, home: GatewayHome, mouths: dict[str, Mouths]) -> None:
        self.home, self.mouths = home, mouths
        self.platforms = [one.platform for one in mouths.values() if isinstance(one, OnPlatform)]
        self.lives = Lives(home)
        self.chance = Random(5)
        self.said: list[tuple[str, int, str]] = []
        self.kills = 0
        self.to_full_disk: set[str] = set()
        """What had no answer yet as the disk was full: the answer may be a word about that."""

    async def at_peace(self) -> None:
        return

    async def killed(self) -> None:
        await self.lives.ready()
        await asyncio.sleep(self.chance.uniform(0, 0.4))
        self.lives.kill()
        self.kills += 1

    async def cut(self) -> None:
        for platform in self.platforms:
            await platform.drop()

    async def without_network(self) -> None:
        for platform in self.platforms:
            await platform.gone(gone=True)
        await asyncio.sleep(3)
        for platform in self.platforms:
            await platform.gone(gone=False)

    async def asleep(self) -> None:
        self.lives.process.send_signal(signal.SIGSTOP)
        await self.cut()
        await asyncio.sleep(2)
        self.lives.process.send_signal(signal.SIGCONT)

    async def late(self) -> None:
        time.sleep(2)

    async def silent(self) -> None:
        time.sleep(12)

    async def limited(self) -> None:
        for platform in self.platforms:
            if platform.rate_limits:
                platform.refuse(2, status=429, retry_after_s=0.3)

    async def failing(self) -> None:
        for platform in self.platforms:
            if platform.refuses:
                platform.refuse(1)
        await asyncio.sleep(1)

    async def unconfirmed(self) -> None:
        for platform in self.platforms:
            if platform.loses_answers:
                platform.lose_answers(1)

    async def on_full_disk(self) -> None:
        self.to_full_disk |= {token for _, _, token in unanswered(self.mouths, self.said)}
        full = fill(self.home.data)
        await asyncio.sleep(1)
        full.unlink()
        await self.cut()  # what was refused comes again then; Slack's own way is to send it after a minute
        for platform in self.platforms:
            if platform.acknowledges:
                await platform.repeat_last()

    async def round(self, fault: Callable[["Ground"], Awaitable[None]]) -> None:
        """One on each channel says something, and that happens meanwhile."""
        chat = self.chance.randrange(2)
        said = [(name, chat, f"q{len(self.said) + number}") for number, name in enumerate(self.mouths)]
        self.said += said
        saying = asyncio.gather(*[self.mouths[name].say(chat, f"here is {token}") for name, chat, token in said])
        await asyncio.sleep(self.chance.uniform(0, 0.4))
        await fault(self)
        await saying

    async def answered(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(40 + len(self.said) / 5):
                left = self.said
                while left := [one for one in unanswered(self.mouths, left) if self.is_owed(*one)]:
                    await asyncio.sleep(0.1)
        self.said = [one for one in self.said if not self.is_lost(*one)]

    def is_owed(self, name: str, chat: int, token: str) -> bool:
        return not (self.is_told_why_not(name, chat, token) or self.is_lost(name, chat, token))

    def is_lost(self, name: str, chat: int, token: str) -> bool:
        return self.mouths[name].is_lost(self.home, f"here is {token}")

    def is_told_why_not(self, name: str, chat: int, token: str) -> bool:
        return token in self.to_full_disk and any(NO_SPACE in text for text in self.mouths[name].shown(chat))

    def problems(self) -> list[str]:
        found = [
            problem
            for one in self.said
            if not self.is_told_why_not(*one)
            for problem in judged(one[0], self.mouths[one[0]], *one[1:])
        ]
        found += elsewhere(self.mouths, self.said)
        return found + unsettled(self.home.data, len(self.said), failed=self.kills + len(self.to_full_disk))


FAULTS: dict[str, Callable[[Ground], Awaitable[None]]] = {
    "killed": Ground.killed,
    "cut": Ground.cut,
    "without network": Ground.without_network,
    "asleep": Ground.asleep,
    "late": Ground.late,
    "silent": Ground.silent,
    "limited": Ground.limited,
    "failing": Ground.failing,
    "unconfirmed": Ground.unconfirmed,
    "on a full disk": Ground.on_full_disk,
}


async def chaos(home: GatewayHome, faults: Sequence[str]) -> list[str]:
    """A message on each channel for each of these; what went wrong."""
    async with everybody(home, ALL) as mouths:
        ground = Ground(home, mouths)
        try:
            await ground.round(
                Ground.at_peace
            )  # a Matrix bot that never was there hears nothing of what was said before
            await ground.answered()
            for fault in faults:
                await ground.round(FAULTS[fault])
            await ground.answered()
            code = await ground.lives.end()
        finally:
            ground.lives.process.kill()
        problems = ground.problems() + ([f"it ended with {code}"] if code else [])
    print(*problems, sep="\n")
    return problems


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_messages_over_fifteen_channels_through_a_kill_and_a_cut(tmp_path: Path):
    with FakeModels(default=Fitting(heard), strict=False) as server:
        problems = await chaos(GatewayHome(tmp_path, server), ["killed", "cut"])

    assert not problems


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", FAULTS)
async def test_each_message_on_each_channel_is_answered_once_when_the_gateway_is(tmp_path: Path, fault: str):
    (tmp_path / "home").mkdir()
    with small_disk(tmp_path / "home" / ".nanobot", "64m"), FakeModels(default=Fitting(heard), strict=False) as server:
        problems = await chaos(GatewayHome(tmp_path / "home", server), [fault] * 4)

    assert not problems


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_hundred_messages_a_channel_through_all_of_it(tmp_path: Path):
    (tmp_path / "home").mkdir()
    faults = [fault for fault in FAULTS if fault != "silent"] * 11
    Random(5).shuffle(faults)
    with small_disk(tmp_path / "home" / ".nanobot", "64m"), FakeModels(default=Fitting(heard), strict=False) as server:
        problems = await chaos(GatewayHome(tmp_path / "home", server), faults)

    assert not problems
