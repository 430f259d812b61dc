"""The numbered frames of one chat, for connections that come and go: each continues where it stopped.

Bounded: transient frames (progress) are dropped first, then the oldest delivered ones; undelivered frames stay. A
connection that continues too late is told that there is a gap.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

MOST_FRAMES = 500
MOST_CHARACTERS = 2_000_000


@dataclass(eq=False, slots=True)
class StoredFrame:
    """A frame. `text` is its JSON as sent."""

    seq: int
    text: str
    id: str | None = None
    """Its id, the same after a restart of the gateway; None for a transient frame."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a connection has it."""

    @property
    def is_undelivered(self) -> bool:
        """Whether it must be delivered and is not yet."""
        return self.id is not None and not self.arrived.is_set()


class FrameBacklog:
    """The frames of one chat, numbered from 1 without repeats."""

    def __init__(self, max_frames: int | None = None, max_characters: int | None = None) -> None:
        self._max_frames = max_frames or MOST_FRAMES
        self._max_characters = max_characters or MOST_CHARACTERS
        self._frames: deque[StoredFrame] = deque()
        self._characters = 0
        self._last = 0
        self._last_dropped = 0
        self._changed = asyncio.Event()
        self._has_connection = asyncio.Event()
        self._waiters = 0
        self.connections = 0
        """The number of open connections."""

    def connection_opened(self) -> None:
        self.connections += 1
        self._has_connection.set()

    def connection_closed(self) -> None:
        self.connections -= 1
        if not self.connections:
            self._has_connection.clear()

    async def wait_for_connection(self) -> None:
        """Wait until a connection is open. Safe to cancel."""
        self._waiters += 1
        try:
            await self._has_connection.wait()
        finally:
            self._waiters -= 1

    @property
    def last(self) -> int:
        """The number of the newest frame; 0 before the first."""
        return self._last

    @property
    def is_idle(self) -> bool:
        """Whether it may be dropped: no connection, no waiter, and no undelivered frame."""
        return not (self.connections or self._waiters) and not any(frame.is_undelivered for frame in self._frames)

    def find(self, frame_id: str) -> StoredFrame | None:
        """The frame with this id, if it is kept."""
        return next((frame for frame in self._frames if frame.id == frame_id), None)

    def add(self, text: str, frame_id: str | None = None) -> StoredFrame:
        """Add a frame, which wakes the connections. The text is complete except for its number: see `with_number`."""
        self._last += 1
        frame = StoredFrame(self._last, with_number(text, self._last), frame_id)
        self._frames.append(frame)
        self._characters += len(frame.text)
        self._drop_excess()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        return frame

    def drop(self, frame: StoredFrame) -> None:
        """Remove a frame that need not be delivered any more."""
        if frame in self._frames:
            self._frames.remove(frame)
            self._characters -= len(frame.text)

    def before_undelivered(self) -> int:
        """The number before the first undelivered frame: where a new connection starts."""
        return next((frame.seq for frame in self._frames if frame.is_undelivered), self._last + 1) - 1

    def after(self, seq: int) -> Sequence[StoredFrame]:
        """The kept frames after this number."""
        return [frame for frame in self._frames if frame.seq > seq]

    def has_gap(self, seq: int) -> bool:
        """Whether a frame with an id after this number was dropped."""
        return seq < self._last_dropped

    def arrived(self, seq: int) -> None:
        """Record that a connection has everything up to this number."""
        for frame in self._frames:
            if frame.seq <= seq:
                frame.arrived.set()
        self._drop_excess()  # delivered frames may be dropped now

    async def wait_after(self, seq: int) -> None:
        """Wait until there is a frame after this number. Safe to cancel."""
        while self._last <= seq:
            await self._changed.wait()

    def _drop_excess(self) -> None:
        while len(self._frames) > self._max_frames or self._characters > self._max_characters:
            older = list(self._frames)[:-1]
            dropped = next((frame for frame in older if frame.id is None), None)
            dropped = dropped or next((frame for frame in older if not frame.is_undelivered), None)
            if dropped is None:
                return
            if dropped.id is not None:
                self._last_dropped = max(self._last_dropped, dropped.seq)
            self.drop(dropped)


def with_number(text: str, seq: int) -> str:
    """Insert the number at the front of a JSON object."""
    return f'{{"seq":{seq},{text[1:]}'
