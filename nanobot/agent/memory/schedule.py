"""When sessions are consolidated: in the background, after turns.

A session is checked after each turn. It is due once enough messages are past its cursor, or when its window dropped
turns; consolidation then waits for a short pause in the conversation. Failed or ineffective consolidations are retried
with exponential backoff. Sessions archived by `/new` are queued until they are consolidated. Backoffs and queue are in
the database, so the next process goes on with them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.agent.memory.due import Due, DueTimes
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.types import ChatMessage
from nanobot.session.file_names import stem_of
from nanobot.session.manager import Session, SessionManager
from nanobot.utils.clock import Clock
from nanobot.utils.files import make_private_folder
from nanobot.utils.locks import ProcessLock

if TYPE_CHECKING:
    from nanobot.agent.memory.consolidation import Consolidator

log = logging.getLogger(__name__)

KEPT_TURNS = 6
"""Last turns of a session that are never moved."""
_MAX_CALLS = 8
"""Model calls per pass."""
_MAX_CONCURRENT = 4
_MIN_SHARE = 0.15
"""Share of the window a pass must free to be worth it."""
_BACKOFF_S, _MAX_BACKOFF_S = 600.0, 6 * 3600.0
_MAX_TRIES = 5
"""Failures after which an archived session is only mentioned in the log; its file stays in the archive."""

_FREES_NOTHING = (
    "The last messages of this conversation fill the context window: consolidating older ones frees little. From now "
    "on the oldest are dropped from what I see when room runs out. /new starts a new conversation."
)


class ConsolidationScheduler:
    """Consolidates all sessions in the background. `on_session_saved` and `on_session_archived` return at once."""

    def __init__(
        self,
        open_consolidator: "Callable[[], Awaitable[Consolidator]]",
        sessions: SessionManager,
        clock: Clock,
        *,
        memory_window: int,
        database: Path,
        pause_s: float = 1.0,
    ) -> None:
        """`open_consolidator` imports and creates it when first awaited. `database` has the due times. A
        consolidation waits until nobody has spoken for `pause_s`.
        """
        self._open_consolidator = open_consolidator
        self._sessions = sessions
        self._clock = clock
        self._window = memory_window
        self._queue = DueTimes(database, "archive")
        """Archived sessions by file stem; the state has how many messages are done."""
        self._archive_lock = database.parent / "memory" / "archive.lock"
        self.pause_s = pause_s
        self._waiting: dict[str, int] = {}
        """By session that waits for a pause, its number of messages after the last turn."""
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stored_backoffs = DueTimes(database, "session")
        self._backoffs: dict[str, Due] = {}
        """By session; the state has from how many messages on it is due in any case, and the ineffective passes."""
        self._notices: dict[str, list[str]] = {}
        self._current_stem = ""
        """Stem of the archived session being consolidated."""
        self._has_resumed = False
        self._has_backoffs = False
        self._closed = False

    def on_session_saved(self, session: Session) -> None:
        """Check a session after a turn. Neither blocks nor raises."""
        if session.key in self._waiting:
            self._waiting[session.key] = session.message_count
        elif self._is_due(session):
            self._begin(session.key, lambda: self._consolidate_in_pause(session.key, session.message_count))
        if not self._has_resumed:  # archived sessions queued by a previous process
            self.resume_archived()

    async def on_session_archived(self, session_key: str, file: Path) -> None:
        """Queue a session that was moved to this file of the archive. Never raises."""
        self.forget(session_key)
        try:
            await asyncio.to_thread(self._queue.put, file.stem, Due(self._now()))
        except NanobotError as error:
            log.warning("%s could not be queued for consolidation: %s", file, error)
        self._has_resumed = True
        self._begin("", self._consolidate_archive)

    def forget(self, session_key: str) -> None:
        """Cancel the consolidation of this session, and clear its backoff."""
        if (task := self._tasks.get(session_key)) is not None:
            task.cancel()
        self._backoffs.pop(session_key, None)
        self._notices.pop(session_key, None)

    async def forget_archived(self, session_key: str) -> int:
        """Drop this session's archived conversations from the queue, and cancel the one in progress. Return how many.
        The others stay queued until `resume_archived`. Raises StorageError.
        """
        own = f"{stem_of(session_key)}-"
        if self._current_stem.startswith(own) and (task := self._tasks.get("")) is not None:
            task.cancel()
            await asyncio.wait([task])
        waiting = await asyncio.to_thread(self._queue.all)
        for stem in (stems := [stem for stem in waiting if stem.startswith(own)]):
            await asyncio.to_thread(self._queue.delete, stem)
        return len(stems)

    def resume_archived(self) -> None:
        """Consolidate queued archived sessions, also those of a previous process. Neither blocks nor raises."""
        self._has_resumed = True
        self._begin("", self._consolidate_archive)

    def take_notices(self, session_key: str) -> Sequence[str]:
        """Return and clear the notices for the person in this session."""
        return self._notices.pop(session_key, ())

    def failure_count(self, session_key: str) -> int:
        """Return the number of consecutive failures of a session."""
        return self._backoffs.get(session_key, Due()).failures

    @property
    def is_busy(self) -> bool:
        """Whether a live session is being consolidated."""
        return any(key for key in self._tasks)

    async def wait_done(self, *, archived: bool = False) -> None:
        """Wait until no live session is being consolidated; with `archived`, no archived one either."""
        while tasks := [task for key, task in self._tasks.items() if key or archived]:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Cancel pending model calls, finish writes, and start no more."""
        self._closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _is_due(self, session: Session) -> bool:
        unconsolidated = session.message_count - session.last_consolidated
        if unconsolidated < self._window and _window_start(session) <= session.last_consolidated:
            return False
        if not self._has_backoffs:
            self._has_backoffs = True
            with suppress(StorageError):
                self._backoffs = self._stored_backoffs.all() | self._backoffs
        backoff = self._backoffs.get(session.key, Due())
        return self._now() >= backoff.at or session.message_count >= backoff.state.get("messages", 0)

    def _begin(self, key: str, work: Callable[[], Awaitable[None]]) -> None:
        if self._closed or key in self._tasks:
            return
        task = asyncio.create_task(self._run_safely(work), name=f"consolidation of {key or 'the archive'}")
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._tasks.pop(key, None))

    async def _run_safely(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception:  # must not keep other sessions from being consolidated
            log.exception("Old messages could not be moved into memory")

    async def _consolidate_in_pause(self, key: str, count: int) -> None:
        """Consolidate once nobody speaks, but after at most half a memory window of new messages."""
        self._waiting[key] = count
        try:
            previous = -1
            while previous != self._waiting[key] and self._waiting[key] < count + self._window // 2:
                previous = self._waiting[key]
                await asyncio.sleep(self.pause_s)
        finally:
            count = self._waiting.pop(key)
        async with self._slots:
            await self._consolidate(key, count)

    async def _consolidate(self, key: str, count: int) -> None:
        """Run one pass over a live session with `count` messages."""
        from nanobot.agent.memory.consolidation import ConsolidationOutcome  # not needed by most turns

        consolidator = await self._open_consolidator()
        moved, share = 0, 1.0
        for _ in range(_MAX_CALLS):
            result = await consolidator.move(key, self._rows_to_keep)
            if result.outcome is not ConsolidationOutcome.DONE:
                break
            share = result.share if not moved else share
            moved += result.moved
        before = self._backoffs.pop(key, Due())
        if result.outcome is ConsolidationOutcome.FAILED:
            due = before.after_failure(self._now(), _BACKOFF_S, _MAX_BACKOFF_S)
            due = replace(due, state={"messages": count + self._few_messages * 2 ** min(before.failures, 8)})
        elif not moved:  # the last turns stay, and there are no others yet; no model was asked
            due = Due(self._now() + _MAX_BACKOFF_S, state={"messages": count + min(self._few_messages, KEPT_TURNS)})
        else:
            due = self._due_after_pass(before, share, key, count)
        self._backoffs[key] = due
        try:
            if due.failures or due.state.get("ineffective"):
                await asyncio.to_thread(self._stored_backoffs.put, key, due)
            elif before.failures or before.state.get("ineffective"):
                await asyncio.to_thread(self._stored_backoffs.delete, key)
        except StorageError as error:
            log.warning("%s", error)

    def _now(self) -> float:
        return self._clock.now().timestamp()

    def _due_after_pass(self, before: Due, share: float, key: str, count: int) -> Due:
        """Return when it is due again. A second ineffective pass in a row waits longer and notifies the person."""
        times = before.state.get("ineffective", 0) + 1 if share < _MIN_SHARE else 0
        if times == 2:
            self._notices.setdefault(key, []).append(_FREES_NOTHING)
        wait = self._few_messages if times < 2 else max(self._window, self._few_messages)
        return Due(self._now() + _MAX_BACKOFF_S, state={"messages": count + wait, "ineffective": times})

    @property
    def _few_messages(self) -> int:
        return max(10, self._window // 10)

    def _rows_to_keep(self, session: Session) -> int:
        """Return how many of the last messages stay. Blocks if they have to be loaded."""
        keep, start = self._window // 2, _window_start(session)
        if start > session.last_consolidated:
            keep = min(keep, session.message_count - start)
        return max(keep, _messages_of_turns(session, KEPT_TURNS))

    async def _consolidate_archive(self) -> None:
        """Consolidate the queued archived sessions, one after another."""
        if not await asyncio.to_thread(self._queue.all):
            return
        await asyncio.sleep(self.pause_s)
        await asyncio.to_thread(make_private_folder, self._archive_lock.parent)
        lock = ProcessLock(self._archive_lock)
        if not lock.try_acquire():
            return  # another process does it
        try:
            tried: set[str] = set()
            while stem := await self._next_archived(tried):
                tried.add(stem)
                self._current_stem = stem
                await self._consolidate_archived(stem)
        finally:
            self._current_stem = ""
            lock.release()

    async def _next_archived(self, tried: set[str]) -> str:
        """Return the session that has been queued longest and was not tried; empty if there is none."""
        queue = await asyncio.to_thread(self._queue.all)
        return min(queue.keys() - tried, key=lambda stem: queue[stem].at, default="")

    async def _consolidate_archived(self, stem: str) -> None:
        from nanobot.agent.memory.consolidation import ConsolidationOutcome

        consolidator = await self._open_consolidator()
        path = self._sessions.archived_file(stem)
        session = await asyncio.to_thread(self._sessions.read, path) if path is not None else None
        if session is None:
            await asyncio.to_thread(self._queue.delete, stem)
            return
        due = await asyncio.to_thread(self._queue.get, stem)
        done = max(due.state.get("done", 0), session.last_consolidated)
        while True:
            result = await consolidator.move_archived(session, done)
            if result.outcome is not ConsolidationOutcome.DONE:
                break
            done += result.moved
            due = replace(due, state={"done": done})
            await asyncio.to_thread(self._queue.put, stem, due)
        if result.outcome is ConsolidationOutcome.FAILED:
            due = replace(due, failures=due.failures + 1)
            if due.failures < _MAX_TRIES:
                await asyncio.to_thread(self._queue.put, stem, due)
                return
            await consolidator.note_archived(session, done, stem)
        await asyncio.to_thread(self._queue.delete, stem)


def _window_start(session: Session) -> int:
    """Return the number of the first message in the window, if it dropped some."""
    window = session.metadata.get("window")
    start = window.get("start") if isinstance(window, dict) else None
    return start if isinstance(start, int) else 0


def _messages_of_turns(session: Session, turns: int) -> int:
    """Return how many messages past the cursor the last `turns` turns have."""
    from nanobot.agent.memory.consolidation import is_turn_start

    count, limit = session.message_count, 64
    while True:
        rows: list[ChatMessage] = session.since(count - limit)
        begins = [at for at in range(len(rows)) if at == 0 or is_turn_start(rows, at)]
        if len(begins) > turns:
            return len(rows) - begins[-turns]
        if count - limit <= session.last_consolidated:
            return len(rows)
        limit *= 4
