"""Small asyncio helpers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


async def finish(work: Awaitable[T]) -> T:
    """Wait for work that must complete once started, such as a write, even if the caller is cancelled repeatedly.

    The cancellation is raised after the work has ended.
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
        task.exception()  # retrieved; its error gives way to the cancellation
        raise cancelled
    return task.result()


async def contain_errors(work: Awaitable[T]) -> T:
    """Await foreign code. An exception that is no Exception, such as SystemExit, becomes a RuntimeError; cancelling
    passes.
    """
    try:
        return await work
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise RuntimeError(f"it raised {type(error).__name__}: {error}") from error


async def gather_or_raise(work: list[Coroutine[Any, Any, T]]) -> list[T]:
    """Run concurrently and return the results in order. The first error cancels the others and is raised itself."""
    if len(work) == 1:
        return [await work[0]]
    async with task_group() as group:
        tasks = [group.create_task(coroutine) for coroutine in work]
    return [task.result() for task in tasks]


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """A TaskGroup that raises the first error itself."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
