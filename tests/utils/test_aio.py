"""Work that must end once begun ends, however often its caller is cancelled; the first of many errors is the error."""

import asyncio

import pytest

from nanobot.utils.aio import finish, gather_or_raise


async def test_work_is_finished_though_its_caller_is_cancelled_twice():
    gate, done = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await gate.wait()
        done.set()

    caller = asyncio.create_task(finish(work()))
    for _ in range(2):
        await asyncio.sleep(0)
        caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    gate.set()

    with pytest.raises(asyncio.CancelledError):
        await caller
    assert done.is_set()


async def test_what_finished_work_returns_or_raises_comes_through():
    async def answer(value: int) -> int:
        return 1 // value

    assert await finish(answer(1)) == 1
    with pytest.raises(ZeroDivisionError):
        await finish(answer(0))


async def test_results_come_in_the_order_of_the_work():
    async def after(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    assert await gather_or_raise([after(3), after(1), after(2)]) == [3, 1, 2]


async def test_the_first_error_stops_the_others_and_is_raised_as_itself():
    stopped = asyncio.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async def fails() -> None:
        raise KeyError("the reason")

    with pytest.raises(KeyError, match="the reason"):
        await gather_or_raise([waits(), fails()])
    assert stopped.is_set()
