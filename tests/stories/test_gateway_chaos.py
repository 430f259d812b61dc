"""A gateway of real sockets that is killed, cut off and kept waiting: every message one answer, in its own chat."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nanobot.testing.model_server import FakeModels, Fitting
from tests.fakes.people import ALL, Lives, elsewhere, everybody, heard, judged, unanswered, unsettled
from tests.support.home import POSIX
from tests.support.toy_gateway import GatewayHome

pytestmark = POSIX


async def chaos(home: GatewayHome, each: int, kills: int, cuts: int, on: Mapping[str, Any] = ALL) -> list[str]:
    """`each` messages a channel, with so many kills and cuts between them; what went wrong."""
    chance = Random(5)
    async with everybody(home, on) as mouths:
        said = [
            (name, chat % 2, f"q{number}")
            for number, (name, chat) in enumerate((name, chat) for chat in range(each) for name in mouths)
        ]
        lives = Lives(home)
        moments = chance.sample(range(len(said)), kills + cuts)
        try:
            for number, (name, chat, token) in enumerate(said):
                await mouths[name].say(chat, f"here is {token}")
                await asyncio.sleep(chance.uniform(0, 0.05))
                if number in moments[:kills]:
                    await lives.ready()
                    await asyncio.sleep(chance.uniform(0, 0.4))
                    lives.kill()
                elif number in moments:
                    await asyncio.gather(*[one.cut() for one in mouths.values()])
            with suppress(TimeoutError):
                async with asyncio.timeout(20 + len(said) / 5):
                    left = said
                    while left := unanswered(mouths, left):
                        await asyncio.sleep(0.1)
            code = await lives.end()
        finally:
            lives.process.kill()
        problems = [f"it ended with {code}"] if code else []
        for name, chat, token in said:
            problems += judged(name, mouths[name], chat, token)
        problems += elsewhere(mouths, said)
    problems += unsettled(home.data, len(said), failed=kills)
    print(*problems, sep="\n")
    return problems


@pytest.mark.timeout(120)
async def test_thirty_messages_over_fifteen_channels_through_kills_and_cuts(tmp_path: Path):
    with FakeModels(default=Fitting(heard), strict=False) as server:
        problems = await chaos(GatewayHome(tmp_path, server), each=2, kills=1, cuts=1)

    assert not problems


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_thousand_messages_a_channel_through_kills_and_cuts(tmp_path: Path):
    with FakeModels(default=Fitting(heard), strict=False) as server:
        problems = await chaos(GatewayHome(tmp_path, server), each=1_000, kills=25, cuts=25)

    assert not problems
