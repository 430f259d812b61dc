"""What a login needs of the place where a person sits, and how it waits for one of several answers."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from nanobot.providers.oauth.errors import LoginFailedError


class Screen(Protocol):
    """A person, a browser perhaps, and a line to type in."""

    def say(self, text: str) -> None:
        """Show a line."""
        ...

    def show(self, before: str, what: str, after: str = "") -> None:
        """Show what is to be opened or typed, with a line before it and a hint behind it."""
        ...

    def open(self, url: str) -> None:
        """Open a page in the person's browser, if there is one. Returns at once, never raises."""
        ...

    async def pasted(self) -> str:
        """The next line somebody types; waits for ever where nobody can."""
        ...


async def first_of(ways: Sequence[Callable[[], Awaitable[str]]], patience_s: float) -> str:
    """The answer that comes first, by whichever way. Raises what it raised, or LoginFailedError when time is up."""
    tasks = [asyncio.ensure_future(way()) for way in ways]
    try:
        done, _ = await asyncio.wait(tasks, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if not done:
        raise LoginFailedError(f"Nobody logged in within {round(patience_s / 60) or 1} minutes. Run it again.")
    return next(task for task in tasks if task in done).result()
