"""The terminal as a login uses it, and waiting for the first of several answers."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from nanobot.providers.accounts.errors import LoginFailedError


class LoginScreen(Protocol):
    """A person's terminal, with a browser if there is one."""

    def say(self, text: str) -> None: ...

    def show(self, intro: str, value: str, outro: str = "") -> None:
        """Show a URL or code, with a line before it and a hint after it."""
        ...

    def open(self, url: str) -> None:
        """Open a page in the user's browser, if there is one. Returns at once, never raises."""
        ...

    async def read_line(self) -> str:
        """The next line the user types; waits forever if there is no terminal."""
        ...


async def first_result(sources: Sequence[Callable[[], Awaitable[str]]], timeout_s: float) -> str:
    """The result of the first source to finish. Raises its error, or LoginFailedError on timeout."""
    tasks = [asyncio.ensure_future(source()) for source in sources]
    try:
        done, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if not done:
        raise LoginFailedError(f"No login within {round(timeout_s / 60) or 1} minutes. Run the command again.")
    return next(task for task in tasks if task in done).result()
