"""How updates are taken: each chat in its order, none waiting for another, and confirmed when they are safe.

Telegram forgets what is confirmed, and gives out again what is not (core.telegram.org/bots/api#getupdates). So nothing
is confirmed before all up to it is in the journal. While a download of one chat is slow, the others are looked for
every `busy_s` instead of waited for: a long poll would return at once with what is not confirmed yet.
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
"""An update as it came."""
RENUMBERED_S = 6 * 86400.0
"""Behind a week without updates their numbers begin anew anywhere; an offset of that age would hide what comes."""
_LONGEST_PAUSE_S = 30.0
_READ_TRIES = 3


class ConflictError(SendError):
    """Another program takes this bot's updates. Says how to find it."""


@dataclass(frozen=True, slots=True)
class PollTimeouts:
    """How long is waited for what."""

    poll_s: float = 30.0
    """How long Telegram holds a poll open where nothing comes."""
    busy_s: float = 1.0
    """How often new updates are looked for while some are still being taken in."""
    album_s: float = 0.8
    """How long the further pictures of an album are waited for."""
    pause_s: float = 2.0
    """Before what failed is tried again; it grows."""


class OffsetTracker:
    """Updates that came and are not confirmed: those that are safe, and those that are being taken in."""

    def __init__(self, offset: int | None = None) -> None:
        self.offset = offset
        """The first update that is not confirmed; None where nobody knows."""
        self._safe: dict[int, bool] = {}

    @property
    def is_empty(self) -> bool:
        """Whether all that came is safe."""
        return not self._safe

    def take(self, number: int) -> bool:
        """It came; whether for the first time."""
        if number in self._safe or (self.offset is not None and number < self.offset):
            return False
        self._safe[number] = False
        return True

    def done(self, number: int) -> None:
        """It is safe; and if all before it are, so is the way up to it."""
        if number in self._safe:
            self._safe[number] = True
        for one in sorted(self._safe):
            if not self._safe[one]:
                return
            del self._safe[one]
            self.offset = one + 1


@dataclass(slots=True)
class _ChatQueue:
    """One chat's updates, in their order."""

    waiting: deque[Raw] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)


class Poller:
    """Takes the updates of one bot until it is cancelled or the connection ends."""

    def __init__(
        self,
        fetch: Callable[[int | None, float], Awaitable[list[Raw]]],
        handle: Callable[[Sequence[Raw]], Awaitable[None]],
        state: TelegramState,
        status: ChannelStatus,
        up: Callable[[], None],
        pace: PollTimeouts,
        give_up: Callable[[Raw], Awaitable[None]],
    ) -> None:
        """`fetch` polls, `handle` takes in an update (or an album) and raises StorageError where the disk refuses.

        `give_up` is handed the first of those that `handle` could not take in.
        """
        self._fetch = fetch
        self._handle = handle
        self._state = state
        self._status = status
        self._up = up
        self._pace = pace
        self._give_up = give_up
        self._lanes: dict[str, _ChatQueue] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._safe = asyncio.Event()
        self._conflicts = 0

    async def run(self) -> None:
        """Take updates. Raises NotConnectedError when Telegram is out of reach, ChannelSetupError for a bad token.

        Cancelled, what was not taken in whole comes again.
        """
        is_stale = time.time() - self._state.heard_at > RENUMBERED_S
        self._tray = OffsetTracker(None if is_stale else self._state.offset)
        try:
            await self._poll()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _poll(self) -> None:
        wait_s, is_sound = 0.0, False  # the first look returns at once, and shows whether we are connected
        while True:
            asked_at = time.monotonic()
            try:
                updates = await self._fetch(self._offset(), wait_s)
            except ConflictError as error:
                await self._yield_to(error)
                wait_s = 0.0
                continue
            except RateLimitedError as error:
                self._status.touch()
                await asyncio.sleep(min(max(error.retry_after_s, self._pace.busy_s), _LONGEST_PAUSE_S))
                continue
            except (NotConnectedError, ChannelSetupError):  # servers are known to refuse a good token for a moment
                if not is_sound:
                    raise
                wait_s, is_sound = 0.0, False  # a line may break now and then; a second time in a row it is gone
                await self._pause_after(asked_at)
                continue
            is_sound = True
            self._connected(after_waiting=wait_s > 0)
            news = sum(self._put(raw) for raw in updates)
            if wait_s > 0 and not news:
                await self._pause_after(asked_at)
            await self._until_safe()
            await self._state.confirmed(self._tray.offset)
            wait_s = self._pace.poll_s if self._tray.is_empty else 0.0

    def _offset(self) -> int | None:
        if self._tray.is_empty and time.time() - self._state.heard_at > RENUMBERED_S:
            self._tray = OffsetTracker()
        return self._tray.offset

    def _connected(self, *, after_waiting: bool) -> None:
        self._status.touch()
        if not self._conflicts:
            self._up()
            return
        self._status.set_state(ChannelState.UP)  # not said each time: two programs that take turns would fill the log
        if after_waiting:
            self._conflicts = 0
            log.info("telegram: no other program polls this bot any more; receiving again")

    async def _yield_to(self, error: ConflictError) -> None:
        if not self._conflicts:
            log.error("telegram: %s", error)
        self._conflicts += 1
        self._status.set_state(ChannelState.DOWN, str(error))
        await asyncio.sleep(min(self._pace.pause_s * self._conflicts, _LONGEST_PAUSE_S))

    async def _until_safe(self) -> None:
        """Until all that came is safe; not much longer than `busy_s`, for who is not slow."""
        try:
            async with asyncio.timeout(self._pace.busy_s):
                while not self._tray.is_empty:
                    self._safe.clear()
                    await self._safe.wait()
        except TimeoutError:
            pass

    async def _pause_after(self, asked_at: float) -> None:
        """Telegram holds a poll open. Who answers at once and brings nothing new is not asked without end."""
        if time.monotonic() - asked_at < self._pace.busy_s:
            await asyncio.sleep(self._pace.busy_s)

    def _put(self, raw: Raw) -> bool:
        """Put it behind what came in its chat; whether it is new."""
        if not self._tray.take(raw["update_id"]):
            return False
        key = _chat_of(raw)
        lane = self._lanes.get(key)
        if lane is not None:
            lane.waiting.append(raw)
            lane.arrived.set()
            return True
        self._lanes[key] = lane = _ChatQueue(deque([raw]))
        task = asyncio.create_task(self._serve(key, lane), name="telegram chat")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _serve(self, key: str, lane: _ChatQueue) -> None:
        while lane.waiting:
            together = await self._next(lane)
            await self._take_in(together)
            for raw in together:
                self._tray.done(raw["update_id"])
            self._safe.set()
        del self._lanes[key]

    async def _next(self, lane: _ChatQueue) -> list[Raw]:
        """The next update, or all pictures of an album: they come as messages of their own, within a moment."""
        together = [lane.waiting.popleft()]
        album = _album_of(together[0])
        if album is None:
            return together
        try:
            async with asyncio.timeout(self._pace.album_s):
                while not lane.waiting or _album_of(lane.waiting[-1]) == album:
                    lane.arrived.clear()
                    await lane.arrived.wait()
        except TimeoutError:
            pass
        while lane.waiting and _album_of(lane.waiting[0]) == album:
            together.append(lane.waiting.popleft())
        return together

    async def _take_in(self, together: Sequence[Raw]) -> None:
        """Try until the disk takes it. An update that cannot be read is tried a few times, and its person is told."""
        refusals = failures = 0
        while True:
            try:
                await self._handle(together)
                return
            except (StorageError, SendError) as error:
                if not refusals:
                    log.error("telegram: a message could not be journaled and waits at Telegram: %s", error)  # noqa: TRY400
                refusals += 1
                await asyncio.sleep(min(self._pace.pause_s * refusals, _LONGEST_PAUSE_S))
            except Exception:  # one odd update must not make the bot deaf
                failures += 1
                if failures < _READ_TRIES:
                    await asyncio.sleep(self._pace.pause_s)
                    continue
                log.exception("telegram: the update %s could not be read", together[0]["update_id"])
                await self._give_up(together[0])
                return


def _chat_of(raw: Raw) -> str:
    """The chat an update belongs to, as far as its order matters."""
    message = raw.get("message") or _part(raw.get("callback_query"), "message")
    return str(_part(_part(message, "chat"), "id"))


def _album_of(raw: Raw) -> object:
    return _part(raw.get("message"), "media_group_id")


def _part(told: object, name: str) -> object:
    """What stands there, if anything does: nobody has read the update yet."""
    return told.get(name) if isinstance(told, dict) else None
