"""Wait until something is so. The time limit is generous, for a busy machine; it is not what a test is about."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
LIMIT_S = 15.0


async def eventually(condition: Callable[[], T | None], within_s: float = LIMIT_S) -> T:
    """Return the first true result of `condition`. Raises AssertionError where none comes in time."""
    try:
        async with asyncio.timeout(within_s):
            while not (result := condition()):
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not within {within_s:g} s; it is {result!r}") from None
    return result


def wait_until(condition: Callable[[], T | None], within_s: float = LIMIT_S) -> T:
    """The same without an event loop."""
    deadline = time.monotonic() + within_s
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s; it is {result!r}"
        time.sleep(0.005)
    return result


async def longest_pause_until(task: asyncio.Task[Any]) -> float:
    """Wait for a task, and return the longest time in which nobody else came to work."""
    longest = 0.0
    while not task.done():
        before = time.monotonic()
        await asyncio.sleep(0.01)
        longest = max(longest, time.monotonic() - before)
    return longest
