"""What was said in one chat, numbered, for listeners that come and go: each reads on from where it was.

Bounded: what only showed how the work went is forgotten first, then the oldest that somebody has; what nobody has yet
stays. Who comes back too late hears that there is a gap.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

MOST_FRAMES = 500
MOST_CHARACTERS = 2_000_000


@dataclass(eq=False, slots=True)
class StoredFrame:
    """Something that was said. `text` is what goes over the wire."""

    seq: int
    text: str
    id: str | None = None
    """What it is known by, also in the next life of the gateway; None for what only shows how the work goes."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a listener has it."""

    @property
    def is_owed(self) -> bool:
        """Whether it must reach somebody, and has not."""
        return self.id is not None and not self.arrived.is_set()


class FrameBacklog:
    """The frames of one chat. Numbers grow by one a frame, from 1, and are never given twice."""

    def __init__(self, most_frames: int | None = None, most_characters: int | None = None) -> None:
        self._most_frames = most_frames or MOST_FRAMES
        self._most_characters = most_characters or MOST_CHARACTERS
        self._frames: deque[StoredFrame] = deque()
        self._characters = 0
        self._last = 0
        self._lost = 0
        self._changed = asyncio.Event()
        self._heard = asyncio.Event()
        self._waiting = 0
        self.listeners = 0
        """Connections that read along: those that came and have not left."""

    def came(self) -> None:
        """A connection reads along."""
        self.listeners += 1
        self._heard.set()

    def left(self) -> None:
        """A connection reads along no more."""
        self.listeners -= 1
        if not self.listeners:
            self._heard.clear()

    async def somebody_listens(self) -> None:
        """Return as soon as a connection reads along. Safe to cancel."""
        self._waiting += 1
        try:
            await self._heard.wait()
        finally:
            self._waiting -= 1

    @property
    def last(self) -> int:
        """The number of the newest frame; 0 before the first."""
        return self._last

    @property
    def is_idle(self) -> bool:
        """Whether nobody listens or is waited for, and nothing is owed: then it may be forgotten."""
        return not (self.listeners or self._waiting) and not any(frame.is_owed for frame in self._frames)

    def find(self, frame_id: str) -> StoredFrame | None:
        """The frame that is known by this id, while it is kept."""
        return next((frame for frame in self._frames if frame.id == frame_id), None)

    def add(self, text: str, frame_id: str | None = None) -> StoredFrame:
        """Say one thing more; who listens hears it soon. The text is complete but for its number: see
        `number_frames`.
        """
        self._last += 1
        frame = StoredFrame(self._last, number_frames(text, self._last), frame_id)
        self._frames.append(frame)
        self._characters += len(frame.text)
        self._forget()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        return frame

    def drop(self, frame: StoredFrame) -> None:
        """It is owed to nobody any more."""
        if frame in self._frames:
            self._frames.remove(frame)
            self._characters -= len(frame.text)

    def owed_after(self) -> int:
        """The number behind which everything lies that must reach somebody: where a new listener begins."""
        return next((frame.seq for frame in self._frames if frame.is_owed), self._last + 1) - 1

    def after(self, seq: int) -> Sequence[StoredFrame]:
        """What was said since that number, as far as it is kept."""
        return [frame for frame in self._frames if frame.seq > seq]

    def has_gap(self, seq: int) -> bool:
        """Whether something that mattered came after that number and is forgotten."""
        return seq < self._lost

    def arrived(self, seq: int) -> None:
        """A listener has everything up to that number."""
        for frame in self._frames:
            if frame.seq <= seq:
                frame.arrived.set()
        self._forget()  # what was owed may go now

    async def wait_after(self, seq: int) -> None:
        """Return as soon as there is more than that number. Safe to cancel."""
        while self._last <= seq:
            await self._changed.wait()

    def _forget(self) -> None:
        while len(self._frames) > self._most_frames or self._characters > self._most_characters:
            older = list(self._frames)[:-1]
            victim = next((frame for frame in older if frame.id is None), None)
            victim = victim or next((frame for frame in older if not frame.is_owed), None)
            if victim is None:
                return
            if victim.id is not None:
                self._lost = max(self._lost, victim.seq)
            self.drop(victim)


def number_frames(text: str, seq: int) -> str:
    """A JSON object with its number in front."""
    return f'{{"seq":{seq},{text[1:]}'
