"""Each channel's gateway is killed at each of its writes: to the disk, the journal and the platform. Every message that
was accepted is answered once; where the platform takes a repeated message for a new one, a repeat says what it is.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random

import pytest

from nanobot.channels.registry import CHANNELS
from nanobot.testing.model_server import FakeModels, Fitting
from tests.crash.deadly_gateway import KILLS
from tests.fakes.people import ALL, Lives, Mouths, elsewhere, everybody, heard, judged, unanswered
from tests.support.home import POSIX
from tests.support.toy_gateway import GatewayHome

pytestmark = POSIX


class Sweep:
    """One channel with two people, and what they said."""

    def __init__(self, home: GatewayHome, name: str, mouths: Mouths) -> None:
        self.home, self.name, self.mouths = home, name, mouths
        self.said: list[tuple[str, int, str]] = []
        self._tokens = count()

    async def say(self) -> None:
        """Both say something."""
        for chat in (0, 1):
            token = f"q{next(self._tokens)}"
            self.said.append((self.name, chat, token))
            await self.mouths.say(chat, f"here is {token}")

    def waits(self) -> bool:
        return bool(unanswered({self.name: self.mouths}, self.said))

    async def life(self, point: int, mode: str) -> bool:
        """A life that ends at this write, and a peaceful one, until all is answered; whether it ended there."""
        lives = Lives(self.home, str(point), mode, program="deadly_gateway")
        saying = asyncio.create_task(self.say())
        await self._until(lambda: lives.process.poll() is not None or (saying.done() and not self.waits()))
        await self._until(lambda: lives.process.poll() is not None, 0.5)  # what it writes behind the answers
        was_killed = lives.process.poll() is not None
        lives.close()
        self.said = [one for one in self.said if not self.mouths.is_lost(self.home, f"here is {one[2]}")]
        await self.peace(saying)
        return was_killed

    async def peace(self, saying: Awaitable[None]) -> None:
        """A life until all of it is answered."""
        lives = Lives(self.home)
        await saying
        await self._until(lambda: not self.waits())
        await lives.end()

    async def _until(self, there: Callable[[], bool], within_s: float = 20) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not there():
                    await asyncio.sleep(0.02)

    def problems(self) -> list[str]:
        found = [problem for one in self.said for problem in judged(self.name, self.mouths, *one[1:])]
        found += elsewhere({self.name: self.mouths}, self.said)
        return found + [line for line in self.home.log.splitlines() if " ERROR " in line or "Traceback" in line]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [spec.name for spec in CHANNELS])
async def test_each_message_is_answered_once_whichever_write_the_gateway_is_killed_at(tmp_path: Path, name: str):
    chance = Random(3)
    with FakeModels(default=Fitting(heard), strict=False) as server:
        home = GatewayHome(tmp_path, server)
        async with everybody(home, {name: ALL[name]}) as mouths:
            sweep = Sweep(home, name, mouths[name])
            await sweep.peace(sweep.say())
            point = 0
            while await sweep.life(point, chance.choice(KILLS)):
                point += 1
            problems = sweep.problems()

    print(f"{name}: killed at {point} writes, {len(sweep.said)} messages")
    assert point > 40
    assert not problems
