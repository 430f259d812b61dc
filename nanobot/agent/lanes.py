"""Lanes: the turns of a session run in order, sessions run concurrently, up to a limit of turns at a time.

A lane is a queue of entries; the first one runs. A waiting user message may be merged into the running turn at a tool
boundary. Background messages never merge and never block a merge.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Generic, TypeVar

from nanobot.bus.events import InboundMessage

T = TypeVar("T")
R = TypeVar("R")

MAX_IN_LANE = 20


class LaneEntry(Generic[T, R]):
    """One entry in a lane's queue."""

    def __init__(self, item: T | None, yields_to_steering: bool) -> None:
        self.item = item
        """What may join the running turn; None if this entry needs a turn of its own."""
        self.yields_to_steering = yields_to_steering
        """Whether entries behind this one may join the running turn."""
        self.joined_turn: asyncio.Future[R] | None = None
        """The turn that took the item, if one did."""
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


class Lanes(Generic[T, R]):
    """One lane per session, created by the first entry and removed with the last."""

    def __init__(self, max_concurrent: int = 64) -> None:
        self.slots = Slots(max_concurrent)
        self._lanes: dict[str, deque[LaneEntry[T, R]]] = {}

    @asynccontextmanager
    async def enter(
        self,
        session_key: str,
        item: T | None = None,
        on_wait: Callable[[], None] | None = None,
        *,
        yields_to_steering: bool = False,
    ) -> AsyncIterator[LaneEntry[T, R]]:
        """Wait for the head of the lane, or until the running turn takes `item`: then `joined_turn` is set.

        First in, first out. `on_wait` is called once if the lane is busy. Cancelling removes the entry.
        """
        lane = self._lanes.setdefault(session_key, deque())
        entry: LaneEntry[T, R] = LaneEntry(item, yields_to_steering)
        lane.append(entry)
        try:
            if lane[0] is not entry:
                if on_wait is not None:
                    on_wait()
                await entry.ready.wait()
            yield entry
        finally:
            if entry.joined_turn is None:
                self._leave(session_key, lane, entry)

    def drain_waiting(
        self, session_key: str, limit: int, turn: asyncio.Future[R], may_join: Callable[[T], bool] = lambda item: True
    ) -> list[T]:
        """Remove and return up to `limit` items that wait behind the running turn and may join it, oldest first.

        An entry that needs a turn of its own blocks those behind it, unless it yields to steering.
        """
        lane = self._lanes[session_key]
        items: list[T] = []
        index = 1
        while len(items) < limit and index < len(lane):
            entry = lane[index]
            if entry.item is not None and may_join(entry.item):
                del lane[index]
                entry.joined_turn = turn
                entry.ready.set()
                items.append(entry.item)
            elif entry.yields_to_steering:
                index += 1
            else:
                break
        return items

    def _leave(self, session_key: str, lane: deque[LaneEntry[T, R]], entry: LaneEntry[T, R]) -> None:
        was_first = lane[0] is entry
        lane.remove(entry)
        if not lane:
            del self._lanes[session_key]
        elif was_first:
            lane[0].ready.set()

    def __len__(self) -> int:
        """The number of sessions with a turn that runs or waits."""
        return len(self._lanes)


class Backlog:
    """Holds messages of a session beyond `max_in_lane` until its lane has room, in order. Refuses none.

    A waiting turn is about fifty objects: with ten thousand in the lanes, a full garbage collection would block the
    event loop. A message in the backlog is one object.
    """

    def __init__(self, handle: Callable[[InboundMessage], Awaitable[object]], max_in_lane: int = MAX_IN_LANE) -> None:
        self._handle = handle
        self._max_in_lane = max_in_lane
        self._in_lane: Counter[str] = Counter()
        self._waiting: dict[str, deque[InboundMessage]] = {}

    def admit(self, message: InboundMessage) -> bool:
        """Return True if the message may enter its lane: the caller must then call `serve`. Else keep it."""
        key = message.session_key
        if self._in_lane[key] < self._max_in_lane:
            self._in_lane[key] += 1
            return True
        self._waiting.setdefault(key, deque()).append(message)
        return False

    async def serve(self, message: InboundMessage) -> None:
        """Handle an admitted message, then waiting messages of its session until none is left."""
        key = message.session_key
        await self._handle(message)
        while waiting := self._waiting.get(key):
            following = waiting.popleft()
            if not waiting:
                del self._waiting[key]
            await self._handle(following)
        self._in_lane[key] -= 1
        if not self._in_lane[key]:
            del self._in_lane[key]
