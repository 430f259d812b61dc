"""Messages wait outside of their lane where many do, in their order, and none is left there."""

import asyncio
import random

import pytest

from nanobot.agent.lanes import Backlog
from tests.support.bus_messages import message


@pytest.mark.parametrize("seed", range(5))
async def test_order_is_kept_and_nobody_is_left_behind(seed: int):
    chance, seen, inside, most_inside = random.Random(seed), [], 0, 0

    async def tell(one: object) -> None:
        nonlocal inside, most_inside
        seen.append(one)
        inside += 1
        most_inside = max(most_inside, inside)
        await asyncio.sleep(chance.choice([0, 0, 0.001]))
        inside -= 1

    backlog = Backlog(tell, max_in_lane=3)
    sent = [message(str(number)) for number in range(50)]
    async with asyncio.TaskGroup() as turns:
        for one in sent:
            if backlog.admit(one):
                turns.create_task(backlog.serve(one))
            await asyncio.sleep(chance.choice([0, 0, 0.001]))

    assert seen == sent
    assert most_inside == 3


async def test_one_chat_holds_up_no_other():
    over, seen = asyncio.Event(), []

    async def tell(one: object) -> None:
        seen.append(one)
        await over.wait()

    backlog = Backlog(tell, max_in_lane=1)
    here, there = message("here", "1"), message("there", "2")
    async with asyncio.TaskGroup() as turns:
        for one in (here, message("behind", "1"), there):
            if backlog.admit(one):
                turns.create_task(backlog.serve(one))
        await asyncio.sleep(0)
        began = [*seen]
        over.set()

    assert began == [here, there]
    assert len(seen) == 3
