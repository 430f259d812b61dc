"""Lanes: the turns of a session one after the other, sessions side by side, a gate on how many at once.

A lane is a queue of places, the first of which runs. Who waits with a message that may join is taken along by the
running turn when it comes to a boundary; everybody else waits until it is their turn. So order is kept, and nothing is
ever in two places. What is no word of a person's steps aside: a report that waits keeps nobody from steering.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Place(Generic[T, R]):
    """Somebody's place in a lane."""

    def __init__(self, what: T | None, steps_aside: bool) -> None:
        self.what = what
        """What may join the turn before; None where it must have a turn of its own."""
        self.steps_aside = steps_aside
        """Whether those behind it may be taken along before it."""
        self.taken_by: asyncio.Future[R] | None = None
        """The turn that took it along, if one did."""
        self.called = asyncio.Event()


class Lanes(Generic[T, R]):
    """A lane a session, made when somebody enters and gone when the last one leaves."""

    def __init__(self, most_at_once: int = 64) -> None:
        self.gate = asyncio.Semaphore(most_at_once) if most_at_once > 0 else nullcontext()
        """To be held while one works; zero or less means that everybody may."""
        self._lanes: dict[str, deque[Place[T, R]]] = {}

    @asynccontextmanager
    async def enter(
        self,
        session_key: str,
        what: T | None = None,
        on_wait: Callable[[], None] | None = None,
        *,
        steps_aside: bool = False,
    ) -> AsyncIterator[Place[T, R]]:
        """Wait for one's turn, or until the turn before takes `what` along: then `taken_by` is set.

        First come, first served; `on_wait` is called once if somebody is before. Cancelling gives the place up.
        """
        lane = self._lanes.setdefault(session_key, deque())
        place: Place[T, R] = Place(what, steps_aside)
        lane.append(place)
        try:
            if lane[0] is not place:
                if on_wait is not None:
                    on_wait()
                await place.called.wait()
            yield place
        finally:
            if place.taken_by is None:
                self._leave(session_key, lane, place)

    def take_along(
        self, session_key: str, most: int, turn: asyncio.Future[R], joins: Callable[[T], bool] = lambda what: True
    ) -> list[T]:
        """What waits behind the running turn and may join it, the longest waiting first; it waits no more.

        Who must have a turn of its own holds up all that wait behind it, unless it steps aside.
        """
        lane = self._lanes[session_key]
        taken: list[T] = []
        at = 1
        while len(taken) < most and at < len(lane):
            place = lane[at]
            if place.what is not None and joins(place.what):
                del lane[at]
                place.taken_by = turn
                place.called.set()
                taken.append(place.what)
            elif place.steps_aside:
                at += 1
            else:
                break
        return taken

    def _leave(self, session_key: str, lane: deque[Place[T, R]], place: Place[T, R]) -> None:
        was_first = lane[0] is place
        lane.remove(place)
        if not lane:
            del self._lanes[session_key]
        elif was_first:
            lane[0].called.set()

    def places(self, session_key: str) -> int:
        """How many places of the lane are taken, the running one's included."""
        return len(self._lanes.get(session_key, ()))

    def __len__(self) -> int:
        """How many lanes somebody is in."""
        return len(self._lanes)
