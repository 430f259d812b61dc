"""Lanes: the turns of a session run in order, sessions run concurrently, up to a limit of turns at a time.

A lane is a queue of entries; the first one runs. A waiting user message may be merged into the running turn at a tool
boundary. Background messages never merge and never block a merge.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext

from nanobot.agent.pipeline.turn import Turn


class LaneEntry:
    """One entry in a lane's queue."""

    def __init__(self, turn: Turn | None, yields_to_steering: bool) -> None:
        self.turn = turn
        """What may join the running turn; None if this entry needs a turn of its own."""
        self.yields_to_steering = yields_to_steering
        """Whether entries behind this one may join the running turn."""
        self.joined: Turn | None = None
        """The turn that took it, if one did."""
        self.ready = asyncio.Event()


class Slots:
    """How much may run at a time; 0 or less for no limit. A quarter is reserved for what people have asked for."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._all = asyncio.Semaphore(max(limit, 1))
        self._background = asyncio.Semaphore(max(limit * 3 // 4, 1))

    @asynccontextmanager
    async def hold(self, *, background: bool = False) -> AsyncIterator[None]:
        """Wait for a slot and hold it, first come, first served. `background`: no person asked for it just now."""
        if self._limit <= 0:
            yield
            return
        async with self._background if background else nullcontext(), self._all:
            yield


class Lanes:
    """One lane per session, created by the first entry and removed with the last."""

    def __init__(self) -> None:
        self._lanes: dict[str, deque[LaneEntry]] = {}

    @asynccontextmanager
    async def enter(
        self,
        session_key: str,
        turn: Turn | None = None,
        on_wait: Callable[[], None] = lambda: None,
        *,
        yields_to_steering: bool = False,
    ) -> AsyncIterator[LaneEntry]:
        """Wait for the head of the lane, or until the running turn takes `turn`: then `joined` is set.

        First in, first out. `on_wait` is called once if the lane is busy. Cancelling removes the entry.
        """
        lane = self._lanes.setdefault(session_key, deque())
        entry = LaneEntry(turn, yields_to_steering)
        lane.append(entry)
        try:
            if lane[0] is not entry:
                on_wait()
                await entry.ready.wait()
            yield entry
        finally:
            if entry.joined is None:
                lane.remove(entry)
                if lane:
                    lane[0].ready.set()
                else:
                    del self._lanes[session_key]

    def join_waiting(self, turn: Turn, limit: int) -> list[Turn]:
        """Remove and return up to `limit` turns that wait behind the running `turn` and may join it, oldest first.

        Only messages of the same chat join. An entry that needs a turn of its own blocks those behind it, unless it
        yields to steering.
        """
        lane = self._lanes[turn.message.session_key]
        joined: list[Turn] = []
        for entry in [*lane][1:]:
            if len(joined) == limit:
                break
            if entry.turn is not None and entry.turn.message.address == turn.message.address:
                lane.remove(entry)
                entry.joined = turn
                entry.ready.set()
                joined.append(entry.turn)
            elif not entry.yields_to_steering:
                break
        return joined
