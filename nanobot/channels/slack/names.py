"""Looks up user names in Slack (docs.slack.dev/reference/methods/users.info) and caches them for a day.

A message waits a moment for unknown names. A name that does not arrive in time stays an id, and is used in the next
message.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from nanobot.channels.errors import SendError, UndeliverableError
from nanobot.utils.bounded_dict import put_bounded
from nanobot.utils.clock import Clock

WAIT_S = 1.0
"""How long a message waits for names. Slack expects an acknowledgement within three seconds."""
KEPT_S = 86_400.0
MOST = 1_000
_MOST_A_MESSAGE = 10
_LONGEST = 80


class UserNames:
    """Names by user id. Close it after use."""

    def __init__(self, fetch: Callable[[str], Awaitable[str]], clock: Clock) -> None:
        """`fetch` gets the name of one user from Slack. Raises SendError."""
        self._fetch = fetch
        self._clock = clock
        self._cache: dict[str, tuple[float, str]] = {}
        self._lookups: dict[str, asyncio.Task[None]] = {}

    async def look_up(self, mentioned: Iterable[str]) -> dict[str, str]:
        """The names that are cached or arrive within a moment, by user id. Never raises."""
        user_ids = [*dict.fromkeys(mentioned)][:_MOST_A_MESSAGE]
        now = self._clock.monotonic()
        if missing := [user_id for user_id in user_ids if self._cache.get(user_id, (now, ""))[0] <= now]:
            await asyncio.wait([self._task(user_id) for user_id in missing], timeout=WAIT_S)
        return {user_id: name for user_id in user_ids if (name := self._cache.get(user_id, (0.0, ""))[1])}

    async def close(self) -> None:
        """Cancel all lookups."""
        lookups = [*self._lookups.values()]
        for task in lookups:
            task.cancel()
        if lookups:
            await asyncio.wait(lookups)

    def _task(self, user_id: str) -> "asyncio.Task[None]":
        if user_id not in self._lookups:
            task = self._lookups[user_id] = asyncio.create_task(self._look_up(user_id), name="slack name")
            task.add_done_callback(lambda _: self._lookups.pop(user_id, None))
        return self._lookups[user_id]

    async def _look_up(self, user_id: str) -> None:
        try:
            name = _clean(await self._fetch(user_id))
        except UndeliverableError:  # no such user, or a missing scope: retried after a day
            name = ""
        except SendError:  # not now
            return
        put_bounded(self._cache, user_id, (self._clock.monotonic() + KEPT_S, name), MOST)


def _clean(name: str) -> str:
    """A user-chosen name in one line, without control characters."""
    return " ".join("".join(char if char.isprintable() else " " for char in name).split())[:_LONGEST]
