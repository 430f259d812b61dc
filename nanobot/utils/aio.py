"""Small asyncio pieces: work that ends once begun, however often it is cancelled; side by side; of others, held in."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def finish(work: Awaitable[T]) -> T:
    """Wait for work that must end once begun (a write, a goodbye), however often the caller is cancelled meanwhile.

    The cancel is raised after the work has ended.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
    if cancelled is not None:
        task.exception()  # it was waited for; what it raised gives way to the cancel
        raise cancelled
    return task.result()


async def contained(work: Awaitable[T]) -> T:
    """Work of somebody else's code: what it raises that would end a loop and all in it (an exit, whatever is no
    Exception) is a RuntimeError. A cancel goes through.
    """
    try:
        return await work
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise RuntimeError(f"it raised {type(error).__name__}: {error}") from error


async def all_or_first_error(work: list[Coroutine[Any, Any, T]]) -> list[T]:
    """Run side by side, results in order. The first error stops the others and is raised as itself."""
    if len(work) == 1:
        return [await work[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
