"""The pace: of many at once, each pass of the loop lets through as many as it has time for, and nobody is forgotten."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.net.pace import Pace


class Passes:
    """Counts the passes of the running loop while it is open."""

    def __init__(self) -> None:
        self.now = 0
        self._open = True

    def _count(self) -> None:
        if self._open:
            self.now += 1
            asyncio.get_running_loop().call_soon(self._count)

    async def __aenter__(self) -> Self:
        self._count()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._open = False


class Toil:
    """A clock that goes on only while somebody works."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def work(self, seconds: float) -> None:
        self.seconds += seconds


def worker(pace: Pace, log: list[int], work: Callable[[], None]) -> Callable[[int], Awaitable[None]]:
    async def worker(number: int) -> None:
        await pace.step()
        work()
        log.append(number)

    return worker


async def test_who_comes_alone_goes_through_without_a_wait():
    coming = Pace(0.005, Toil()).step()

    with pytest.raises(StopIteration):
        coming.send(None)


async def test_those_who_fit_into_a_pass_go_through_at_once():
    toil, log = Toil(), list[int]()
    one = worker(Pace(0.005, toil), log, lambda: toil.work(0.0001))

    async with Passes() as passes:
        await asyncio.gather(*[one(number) for number in range(40)])

    assert log == [*range(40)]
    assert passes.now <= 4


async def test_a_burst_is_spread_over_as_many_passes_as_it_needs():
    toil, log, begun = Toil(), list[int](), Counter[int]()
    async with Passes() as passes:

        def work() -> None:
            begun[passes.now] += 1
            toil.work(1)

        await asyncio.gather(*map(worker(Pace(5, toil), log, work), range(200)))

    assert log == [*range(200)]  # first come, first served
    assert max(begun.values()) <= 5
    assert passes.now <= 60, "the passes are used"


async def test_one_goes_through_however_old_the_pass_is():
    toil, log = Toil(), list[int]()
    pace = Pace(0.005, toil)
    others = asyncio.create_task(_keeps_busy(toil))

    await asyncio.gather(*map(worker(pace, log, lambda: toil.work(1)), range(20)))

    others.cancel()
    assert log == [*range(20)]


async def _keeps_busy(toil: Toil) -> None:
    while True:
        toil.work(1)
        await asyncio.sleep(0)


async def test_who_is_cancelled_gives_the_place_up():
    toil, log = Toil(), list[int]()
    one = worker(Pace(0.005, toil), log, lambda: toil.work(1))
    tasks = [asyncio.ensure_future(one(number)) for number in range(10)]
    await asyncio.sleep(0)

    for number in (1, 4, 5, 9):
        tasks[number].cancel()
    await asyncio.wait(tasks)

    assert log == [0, 2, 3, 6, 7, 8]


async def test_all_are_cancelled_and_the_next_one_goes_through():
    toil, log = Toil(), list[int]()
    one = worker(Pace(0.005, toil), log, lambda: toil.work(1))
    tasks = [asyncio.ensure_future(one(number)) for number in range(10)]
    await asyncio.sleep(0)

    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await one(10)

    assert log == [0, 10]


def test_it_goes_on_in_another_loop():
    toil, log = Toil(), list[int]()
    one = worker(Pace(0.005, toil), log, lambda: toil.work(1))

    async def cut_off() -> None:
        for number in range(10):
            asyncio.ensure_future(one(number))  # noqa: RUF006 they end with their loop
        await asyncio.sleep(0)

    async def all_of_them() -> None:
        await asyncio.gather(*map(one, range(10, 20)))

    asyncio.run(cut_off())
    asyncio.run(all_of_them())

    assert log == [0, *range(10, 20)]


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0, 0.02), st.booleans()), max_size=40))
def test_whatever_comes_everybody_gets_through_once(arrivals: list[tuple[int, float, bool]]):
    toil, through = Toil(), list[int]()
    pace = Pace(0.005, toil)

    async def one(number: int, work: float) -> None:
        await pace.step()
        through.append(number)
        toil.work(work)

    async def all_of_them() -> set[int]:
        tasks = []
        for number, (passes, work, gives_up) in enumerate(arrivals):
            tasks.append(asyncio.ensure_future(one(number, work)))
            for _ in range(passes):
                await asyncio.sleep(0)
            if gives_up:
                tasks[-1].cancel()
        async with asyncio.timeout(5):
            await asyncio.gather(*tasks, return_exceptions=True)
        return {number for number, task in enumerate(tasks) if not task.cancelled()}

    stayed = asyncio.run(all_of_them())

    assert sorted(through) == sorted(stayed)
