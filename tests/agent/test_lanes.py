"""Lanes: in order within a session, side by side across, a gate on how many."""

import asyncio

import pytest

from nanobot.agent.lanes import Lanes


async def test_who_comes_first_is_served_first():
    lanes: Lanes[str, None] = Lanes()
    order: list[int] = []

    async def turn(number: int) -> None:
        async with lanes.enter("a"):
            await asyncio.sleep(0)
            order.append(number)

    await asyncio.gather(*[turn(number) for number in range(10)])

    assert order == list(range(10))


@pytest.mark.parametrize(("gate", "expected"), [(2, 2), (0, 6), (-1, 6)])
async def test_the_gate_lets_so_many_through(gate: int, expected: int):
    lanes: Lanes[str, None] = Lanes(gate)
    inside = most = 0

    async def turn(key: str) -> None:
        nonlocal inside, most
        async with lanes.enter(key), lanes.slots.hold():
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.01)
            inside -= 1

    await asyncio.gather(*[turn(str(number)) for number in range(6)])

    assert most == expected


async def test_a_lane_is_gone_when_the_last_one_leaves():
    lanes: Lanes[str, None] = Lanes()

    async with lanes.enter("a"):
        assert len(lanes) == 1

    assert not lanes


async def test_what_waits_behind_work_of_ours_still_joins_the_turn():
    lanes: Lanes[str, None] = Lanes()
    turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    async with lanes.enter("a"):
        ours = asyncio.create_task(lanes.enter("a", yields_to_steering=True).__aenter__())
        await asyncio.sleep(0)
        message = asyncio.create_task(lanes.enter("a", "two").__aenter__())
        await asyncio.sleep(0)

        assert lanes.drain_waiting("a", 3, turn) == ["two"]
        assert (await message).joined_turn is turn
        assert not ours.done()
    await ours


async def test_who_gives_up_waiting_holds_up_nobody():
    lanes: Lanes[str, None] = Lanes()
    async with lanes.enter("a"):
        impatient = asyncio.create_task(lanes.enter("a").__aenter__())
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.wait([impatient])

    async with asyncio.timeout(1), lanes.enter("a"):
        pass
    assert not lanes
