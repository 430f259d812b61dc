"""Work that must end ends, whoever is cancelled meanwhile."""

import asyncio

import pytest

from nanobot.utils.aio import finish


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
