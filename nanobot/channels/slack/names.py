"""What people are called in Slack: asked once (docs.slack.dev/reference/methods/users.info), and remembered for a day.

A message waits a moment for a name that is not known yet. What Slack does not say in time, or not to this app, stays an
id; the answer that comes later is there for the next message.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from nanobot.channels.errors import SendError, UndeliverableError
from nanobot.utils.bounded_dict import put_bounded
from nanobot.utils.clock import Clock

WAIT_S = 1.0
"""How long a message waits for names. Slack gives three seconds until it wants to hear that the message came."""
KEPT_S = 86_400.0
MOST = 1_000
_MOST_A_MESSAGE = 10
_LONGEST = 80


class UserNames:
    """Names by the ids of people. To be closed."""

    def __init__(self, ask: Callable[[str], Awaitable[str]], clock: Clock) -> None:
        """`ask` is Slack: the name of one person. Raises SendError."""
        self._ask = ask
        self._clock = clock
        self._known: dict[str, tuple[float, str]] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def of(self, people: Iterable[str]) -> dict[str, str]:
        """The names of those who have one that is known, or is said within a moment. Never raises."""
        wanted = [*dict.fromkeys(people)][:_MOST_A_MESSAGE]
        now = self._clock.monotonic()
        if missing := [one for one in wanted if self._known.get(one, (now, ""))[0] <= now]:
            await asyncio.wait([self._task(one) for one in missing], timeout=WAIT_S)
        return {one: name for one in wanted if (name := self._known.get(one, (0.0, ""))[1])}

    async def close(self) -> None:
        """Ask no more."""
        asking = [*self._asking.values()]
        for task in asking:
            task.cancel()
        if asking:
            await asyncio.wait(asking)

    def _task(self, person: str) -> "asyncio.Task[None]":
        if person not in self._asking:
            task = self._asking[person] = asyncio.create_task(self._learn(person), name="slack name")
            task.add_done_callback(lambda _: self._asking.pop(person, None))
        return self._asking[person]

    async def _learn(self, person: str) -> None:
        try:
            name = _clean(await self._ask(person))
        except UndeliverableError:  # nobody, or the app lacks the scope: asked again tomorrow
            name = ""
        except SendError:  # not now
            return
        put_bounded(self._known, person, (self._clock.monotonic() + KEPT_S, name), MOST)


def _clean(name: str) -> str:
    """In one line, whatever somebody calls themselves."""
    return " ".join("".join(one if one.isprintable() else " " for one in name).split())[:_LONGEST]
