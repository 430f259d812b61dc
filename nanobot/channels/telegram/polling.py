"""Receives updates: in order within each chat, chats in parallel, confirmed once they are journaled.

Telegram deletes confirmed updates and sends others again (core.telegram.org/bots/api#getupdates), so an update is
confirmed only when it and all before it are journaled. While one chat is slow, short polls every `busy_s` replace the
long poll, which would return at once with the unconfirmed updates.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nanobot.channels.errors import ChannelSetupError, NotConnectedError, RateLimitedError, SendError
from nanobot.channels.status import ChannelState, ChannelStatus
from nanobot.channels.telegram.state import TelegramState
from nanobot.errors import StorageError

log = logging.getLogger(__name__)

Raw = dict[str, Any]
"""An unparsed update."""
RENUMBERED_S = 6 * 86400.0
"""After a week without updates their numbers restart at random; an offset of that age would hide new ones."""
_LONGEST_PAUSE_S = 30.0
_READ_TRIES = 3


class ConflictError(SendError):
    """Another program polls with this token. The text says how to find it."""


@dataclass(frozen=True, slots=True)
class PollTimeouts:
    """Timeouts and intervals in seconds."""

    poll_s: float = 30.0
    """How long Telegram holds a poll open without updates."""
    busy_s: float = 1.0
    """Interval of short polls while updates are being processed."""
    album_s: float = 0.8
    """How long to wait for the other parts of an album."""
    pause_s: float = 2.0
    """First pause before a retry; it grows."""


class OffsetTracker:
    """Received but unconfirmed updates: those that are journaled, and those that are being processed."""

    def __init__(self, offset: int | None = None) -> None:
        self.offset = offset
        """The first unconfirmed update; None if unknown."""
        self._journaled: dict[int, bool] = {}

    @property
    def is_empty(self) -> bool:
        """Whether everything received is journaled."""
        return not self._journaled

    def take(self, number: int) -> bool:
        """Record a received update. Return False if it was received before."""
        if number in self._journaled or (self.offset is not None and number < self.offset):
            return False
        self._journaled[number] = False
        return True

    def done(self, number: int) -> None:
        """Record that an update is journaled, and advance the offset over all that are."""
        if number in self._journaled:
            self._journaled[number] = True
        for received in sorted(self._journaled):
            if not self._journaled[received]:
                return
            del self._journaled[received]
            self.offset = received + 1


@dataclass(slots=True)
class _ChatQueue:
    """The waiting updates of one chat, in order."""

    waiting: deque[Raw] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)


class Poller:
    """Receives the updates of one bot until it is cancelled or the connection ends."""

    def __init__(
        self,
        fetch: Callable[[int | None, float], Awaitable[list[Raw]]],
        handle: Callable[[Sequence[Raw]], Awaitable[None]],
        state: TelegramState,
        status: ChannelStatus,
        mark_up: Callable[[], None],
        timeouts: PollTimeouts,
        give_up: Callable[[Raw], Awaitable[None]],
    ) -> None:
        """`fetch` polls. `handle` processes an update (or an album), and raises StorageError if it cannot be journaled.

        `give_up` gets the first update of a batch that `handle` cannot process.
        """
        self._fetch = fetch
        self._handle = handle
        self._state = state
        self._status = status
        self._mark_up = mark_up
        self._timeouts = timeouts
        self._give_up = give_up
        self._queues: dict[str, _ChatQueue] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._journaled = asyncio.Event()
        self._conflicts = 0

    async def run(self) -> None:
        """Receive updates. Raises NotConnectedError if Telegram is unreachable, ChannelSetupError for a bad token.

        After a cancellation, updates that were not fully processed arrive again.
        """
        is_stale = time.time() - self._state.heard_at > RENUMBERED_S
        self._offsets = OffsetTracker(None if is_stale else self._state.offset)
        try:
            await self._poll()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _poll(self) -> None:
        wait_s, is_connected = 0.0, False  # the first poll returns at once and shows whether we are connected
        while True:
            started_at = time.monotonic()
            try:
                updates = await self._fetch(self._offset(), wait_s)
            except ConflictError as error:
                await self._wait_for_other_poller(error)
                wait_s = 0.0
                continue
            except RateLimitedError as error:
                self._status.touch()
                await asyncio.sleep(min(max(error.retry_after_s, self._timeouts.busy_s), _LONGEST_PAUSE_S))
                continue
            except (NotConnectedError, ChannelSetupError):  # servers are known to reject a good token for a moment
                if not is_connected:
                    raise
                wait_s, is_connected = 0.0, False  # one failure is tolerated, a second in a row is not
                await self._pause_after(started_at)
                continue
            is_connected = True
            self._record_connected(after_waiting=wait_s > 0)
            new_count = sum(self._put(raw) for raw in updates)
            if wait_s > 0 and not new_count:
                await self._pause_after(started_at)
            await self._wait_until_journaled()
            await self._state.save_offset(self._offsets.offset)
            wait_s = self._timeouts.poll_s if self._offsets.is_empty else 0.0

    def _offset(self) -> int | None:
        if self._offsets.is_empty and time.time() - self._state.heard_at > RENUMBERED_S:
            self._offsets = OffsetTracker()
        return self._offsets.offset

    def _record_connected(self, *, after_waiting: bool) -> None:
        self._status.touch()
        if not self._conflicts:
            self._mark_up()
            return
        self._status.set_state(ChannelState.UP)  # not logged: two programs taking turns would fill the log
        if after_waiting:
            self._conflicts = 0
            log.info("telegram: no other program polls this bot any more; receiving again")

    async def _wait_for_other_poller(self, error: ConflictError) -> None:
        if not self._conflicts:
            log.error("telegram: %s", error)
        self._conflicts += 1
        self._status.set_state(ChannelState.DOWN, str(error))
        await asyncio.sleep(min(self._timeouts.pause_s * self._conflicts, _LONGEST_PAUSE_S))

    async def _wait_until_journaled(self) -> None:
        """Wait until everything received is journaled, at most `busy_s`."""
        try:
            async with asyncio.timeout(self._timeouts.busy_s):
                while not self._offsets.is_empty:
                    self._journaled.clear()
                    await self._journaled.wait()
        except TimeoutError:
            pass

    async def _pause_after(self, started_at: float) -> None:
        """Throttle polls that return at once without new updates."""
        if time.monotonic() - started_at < self._timeouts.busy_s:
            await asyncio.sleep(self._timeouts.busy_s)

    def _put(self, raw: Raw) -> bool:
        """Queue an update for its chat. Return False if it is not new."""
        if not self._offsets.take(raw["update_id"]):
            return False
        key = _chat_of(raw)
        queue = self._queues.get(key)
        if queue is not None:
            queue.waiting.append(raw)
            queue.arrived.set()
            return True
        self._queues[key] = queue = _ChatQueue(deque([raw]))
        task = asyncio.create_task(self._serve(key, queue), name="telegram chat")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _serve(self, key: str, queue: _ChatQueue) -> None:
        while queue.waiting:
            batch = await self._next(queue)
            await self._handle_with_retries(batch)
            for raw in batch:
                self._offsets.done(raw["update_id"])
            self._journaled.set()
        del self._queues[key]

    async def _next(self, queue: _ChatQueue) -> list[Raw]:
        """The next update, or all parts of an album, which arrive as separate messages."""
        batch = [queue.waiting.popleft()]
        album = _album_of(batch[0])
        if album is None:
            return batch
        try:
            async with asyncio.timeout(self._timeouts.album_s):
                while not queue.waiting or _album_of(queue.waiting[-1]) == album:
                    queue.arrived.clear()
                    await queue.arrived.wait()
        except TimeoutError:
            pass
        while queue.waiting and _album_of(queue.waiting[0]) == album:
            batch.append(queue.waiting.popleft())
        return batch

    async def _handle_with_retries(self, batch: Sequence[Raw]) -> None:
        """Retry until it is journaled. After a few failures to read an update, its sender is told."""
        refusals = failures = 0
        while True:
            try:
                await self._handle(batch)
                return
            except (StorageError, SendError) as error:
                if not refusals:
                    log.error("telegram: a message could not be journaled and waits at Telegram: %s", error)  # noqa: TRY400
                refusals += 1
                await asyncio.sleep(min(self._timeouts.pause_s * refusals, _LONGEST_PAUSE_S))
            except Exception:  # one unreadable update must not stop the others
                failures += 1
                if failures < _READ_TRIES:
                    await asyncio.sleep(self._timeouts.pause_s)
                    continue
                log.exception("telegram: the update %s could not be read", batch[0]["update_id"])
                await self._give_up(batch[0])
                return


def _chat_of(raw: Raw) -> str:
    """The key of the chat within which an update must stay in order."""
    message = raw.get("message") or _part(raw.get("callback_query"), "message")
    return str(_part(_part(message, "chat"), "id"))


def _album_of(raw: Raw) -> object:
    return _part(raw.get("message"), "media_group_id")


def _part(payload: object, name: str) -> object:
    """A field of an unparsed object; None if missing."""
    return payload.get(name) if isinstance(payload, dict) else None
