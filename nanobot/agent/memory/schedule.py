"""When sessions are consolidated: in the background, after turns.

A session is checked after each turn. It is due once enough messages are past its cursor, or when its window dropped
turns; consolidation then waits for a short pause in the conversation. Where that is configured, it is also due once it
was idle for some time; what was missed while nanobot was not running is done before its next prompt is built. Sessions
archived by `/new` are consolidated one after another. Failures are retried with exponential backoff. Due times and
queue are in the database, so the next process goes on with them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.agent.memory.due import Due, DueTimes
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.types import ChatMessage
from nanobot.session.file_names import stem_of
from nanobot.session.lines import parse_time
from nanobot.session.manager import Session, SessionManager
from nanobot.utils.clock import Clock
from nanobot.utils.files import make_private_folder
from nanobot.utils.locks import ProcessLock

if TYPE_CHECKING:
    from nanobot.agent.memory.consolidation import ConsolidationResult, Consolidator

log = logging.getLogger(__name__)

KEPT_TURNS = 6
"""Last turns of a session that are never moved."""
_IDLE_KEEP = 8
"""Messages an idle session keeps, plus the rest of the turn they start in."""
_BACKOFF_S, _MAX_BACKOFF_S = 600.0, 6 * 3600.0
_MAX_TRIES = 5
"""Failures after which an archived session is only mentioned in the log; its file stays in the archive."""
_ARCHIVE = "archive/"
"""Name of the task for archived sessions; the others are named after their session."""
_COMPACT_NOW_S = 100.0
"""Time limit of `/compact`, below that of a command."""


class ConsolidationScheduler:
    """Consolidates all sessions in the background. `on_session_saved` and `on_session_archived` return at once."""

    sleep = staticmethod(asyncio.sleep)
    """How it waits for a pause; tests replace it."""

    def __init__(
        self,
        open_consolidator: "Callable[[], Awaitable[Consolidator]]",
        sessions: SessionManager,
        clock: Clock,
        *,
        memory_window: int,
        database: Path,
        idle_s: float = 0,
        pause_s: float = 1.0,
    ) -> None:
        """`open_consolidator` imports and creates it when first awaited. `database` has the due times. A
        consolidation begins `pause_s` after a turn; after `idle_s`, all but the last messages move (0: never).
        """
        self._open_consolidator = open_consolidator
        self._sessions = sessions
        self._clock = clock
        self._window = memory_window
        self._few_messages = max(10, memory_window // 10)
        self._idle_s = idle_s
        self.pause_s = pause_s
        self._archived = DueTimes(database, "archive")
        """Archived sessions by file stem; the state has how many messages are done."""
        self._archive_lock = ProcessLock(database.parent / "memory" / "archive.lock")
        self._archive_lock_folder = database.parent / "memory"
        self._is_archive_changed = False
        """Whether a session was archived since the queue was last read."""
        self._is_resumed = False
        self._stored_backoffs = DueTimes(database, "session")
        self._waits: dict[str, asyncio.Task[None]] = {}
        """What waits for a session to be idle, or for an archived one to be due."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    @cached_property
    def _backoffs(self) -> dict[str, Due]:
        """When each session is due again; the state has from how many messages on it is due in any case."""
        with suppress(StorageError):
            return self._stored_backoffs.all()
        return {}

    def on_session_saved(self, session: Session) -> None:
        """Check a session after a turn. Neither blocks nor raises."""
        key, count = session.key, session.message_count
        if key not in self._tasks and self._is_due(session):
            self._begin(key, partial(self._run, key, count, self._rows_to_keep, after_s=self.pause_s))
        if self._idle_s:
            self._begin_after(self._idle_s, key, partial(self._run, key, count, self._rows_to_keep_idle))
        if not self._is_resumed:
            self.resume_archived()

    async def on_session_archived(self, session_key: str, file: Path) -> None:
        """Queue a session that was moved to this file of the archive. Never raises."""
        self.forget(session_key)
        try:
            await asyncio.to_thread(self._archived.put, file.stem, Due(self._now()))
        except NanobotError as error:
            log.warning("%s could not be queued for consolidation: %s", file, error)
        self.resume_archived()

    def forget(self, session_key: str) -> None:
        """Cancel the consolidation of this session, and clear its backoff."""
        for task in (self._tasks.get(session_key), self._waits.pop(session_key, None)):
            if task is not None:
                task.cancel()
        self._backoffs.pop(session_key, None)

    async def forget_archived(self, session_key: str) -> int:
        """Drop this session's archived conversations from the queue, and cancel the one in progress. Return how many.
        Raises StorageError.
        """
        if (task := self._tasks.get(_ARCHIVE)) is not None:
            task.cancel()
            await asyncio.wait([task])
        own = [
            stem for stem in await asyncio.to_thread(self._archived.all) if stem.startswith(f"{stem_of(session_key)}-")
        ]
        for stem in own:
            await asyncio.to_thread(self._archived.delete, stem)
        self.resume_archived()
        return len(own)

    def pending_archived(self) -> Collection[str]:
        """Return the stems of archived sessions that are not consolidated yet. Blocks; raises StorageError."""
        return self._archived.all()

    def resume_archived(self) -> None:
        """Consolidate the archived sessions in the queue, also those of a previous process. Neither blocks nor
        raises.
        """
        self._is_resumed = self._is_archive_changed = True
        self._begin(_ARCHIVE, self._consolidate_archived)

    def failure_count(self, session_key: str) -> int:
        """Return the number of consecutive failures of a session."""
        if "_backoffs" not in vars(self):  # not worth a look into the database in each turn
            return 0
        return self._backoffs.get(session_key, Due()).failures

    @property
    def is_busy(self) -> bool:
        """Whether a live session is being consolidated."""
        return any(key != _ARCHIVE for key in self._tasks)

    async def wait_done(self, *, archived: bool = False) -> None:
        """Wait until no live session is being consolidated; with `archived`, no archived one either."""
        while tasks := [task for key, task in self._tasks.items() if archived or key != _ARCHIVE]:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Cancel pending model calls, finish writes, and start no more."""
        self._closed = True
        tasks = [*self._tasks.values(), *self._waits.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def compact(self, session: Session) -> None:
        """Compact a held session that was idle before its next prompt is built, by one call. Cancelling is safe; never
        raises for a model or the disk.
        """
        if not self._is_idle(session):
            return
        if not self._backoffs.get(session.key, Due()).failures or self._is_backoff_over(session):
            await self._run(session.key, session.message_count, self._rows_to_keep_idle, held=session, max_calls=1)

    async def compact_now(self, session: Session) -> str:
        """Move all but the last messages of a held session into memory. Return why fewer moved; empty if all did."""
        try:
            async with asyncio.timeout(_COMPACT_NOW_S):
                result = await self._run(session.key, session.message_count, lambda session: _IDLE_KEEP, held=session)
        except TimeoutError:
            return f"It took more than {_COMPACT_NOW_S:g} s and was stopped; /compact goes on."
        return result.reason

    def _begin(self, key: str, work: Callable[[], Awaitable[object]]) -> None:
        """Do this in the background, unless the work of this key goes on."""
        if self._closed or (key in self._tasks and not self._tasks[key].done()):
            return

        async def run_safely() -> None:
            try:
                await work()
            except Exception:  # must not keep other sessions from being consolidated
                log.exception("Old messages could not be moved into memory")

        def end(task: asyncio.Task[None]) -> None:
            if self._tasks.get(key) is task:
                del self._tasks[key]

        self._tasks[key] = asyncio.create_task(run_safely(), name=f"consolidation of {key}")
        self._tasks[key].add_done_callback(end)

    def _begin_after(self, seconds: float, key: str, work: Callable[[], Awaitable[object]]) -> None:
        """Begin work after some time by the clock; an earlier wait for the same key ends."""
        due = self._now() + seconds

        async def wait() -> None:
            while (left := due - self._now()) > 0:
                await self.sleep(left)
            del self._waits[key]  # from here on, another turn does not cancel it
            self._begin(key, work)

        if (waiting := self._waits.pop(key, None)) is not None:
            waiting.cancel()
        if not self._closed:
            self._waits[key] = asyncio.create_task(wait(), name="wait for a consolidation")

    def _is_due(self, session: Session) -> bool:
        unconsolidated = session.message_count - session.last_consolidated
        if unconsolidated < self._window and _window_start(session) <= session.last_consolidated:
            return False
        return self._is_backoff_over(session)

    def _is_backoff_over(self, session: Session) -> bool:
        due = self._backoffs.get(session.key, Due())
        return self._now() >= due.at or session.message_count >= due.state.get("messages", 0)

    def _is_idle(self, session: Session) -> bool:
        """Whether the session's last message is older than the configured idle time."""
        last = session.last_message
        last_time = parse_time(last.get("timestamp")) if last is not None and self._idle_s else None
        now = self._clock.now().replace(tzinfo=None)
        return last_time is not None and (now - last_time).total_seconds() >= self._idle_s

    async def _run(
        self,
        key: str,
        count: int,
        keep: Callable[[Session], int],
        *,
        after_s: float = 0,
        held: Session | None = None,
        **options: int,
    ) -> "ConsolidationResult":
        """Consolidate a session with `count` messages. It is due again after a few more, or after some time."""
        from nanobot.agent.memory.consolidation import ConsolidationOutcome  # not needed by most turns

        if after_s:
            await self.sleep(after_s)
        consolidator = await self._open_consolidator()
        result = await consolidator.consolidate(key, keep, held=held, **options)
        before = self._backoffs.get(key, Due())
        if result.outcome is ConsolidationOutcome.FAILED:
            wait = self._few_messages * 2 ** min(before.failures, 8)
            due = before.after_failure(self._now(), _BACKOFF_S, _MAX_BACKOFF_S)
        elif result.moved or not before.failures:
            due, wait = Due(self._now() + _MAX_BACKOFF_S), self._few_messages
        else:
            return result
        self._backoffs[key] = due = replace(due, state={"messages": count + wait})
        try:
            await asyncio.to_thread(self._stored_backoffs.put, key, due)
        except StorageError as error:
            log.warning("%s", error)
        return result

    def _rows_to_keep(self, session: Session) -> int:
        """Return how many of the last messages stay. Blocks if they have to be loaded."""
        keep, start = self._window // 2, _window_start(session)
        if start > session.last_consolidated:
            keep = min(keep, session.message_count - start)
        return max(keep, _messages_of_turns(session, KEPT_TURNS))

    def _rows_to_keep_idle(self, session: Session) -> int:
        return _IDLE_KEEP if self._is_idle(session) else session.message_count

    def _now(self) -> float:
        return self._clock.now().timestamp()

    async def _consolidate_archived(self) -> None:
        """Consolidate the archived sessions that are due, one after another, then wait for the next."""
        self._is_archive_changed = False
        while not await asyncio.to_thread(self._archived.all):
            if not self._is_archive_changed:
                return
            self._is_archive_changed = False
        await self.sleep(self.pause_s)
        await asyncio.to_thread(make_private_folder, self._archive_lock_folder)
        await self._archive_lock.acquire()
        try:
            while True:
                self._is_archive_changed = False
                queue = await asyncio.to_thread(self._archived.all)
                stem, due = min(queue.items(), key=lambda item: item[1].at, default=("", Due()))
                if stem and due.at <= self._now():
                    try:
                        await self._consolidate_stem(stem, due)
                    except Exception:  # must not keep other sessions from being consolidated
                        log.exception("%s could not be moved into memory", stem)
                        later = due.after_failure(self._now(), _BACKOFF_S, _MAX_BACKOFF_S)
                        await asyncio.to_thread(self._archived.put, stem, later)
                elif not self._is_archive_changed:
                    break
        finally:
            self._archive_lock.release()
        if stem:
            self._begin_after(due.at - self._now(), _ARCHIVE, self._consolidate_archived)

    async def _consolidate_stem(self, stem: str, due: Due) -> None:
        from nanobot.agent.memory.consolidation import ConsolidationOutcome

        path = self._sessions.archived_file(stem)
        session = await asyncio.to_thread(self._sessions.read, path) if path is not None else None
        if session is not None:
            consolidator = await self._open_consolidator()
            session.last_consolidated = max(due.state.get("done", 0), session.last_consolidated)
            while (result := await consolidator.consolidate_archived(session)).outcome is ConsolidationOutcome.DONE:
                due = replace(due, state={"done": session.last_consolidated})
                await asyncio.to_thread(self._archived.put, stem, due)
            if result.outcome is ConsolidationOutcome.FAILED:
                due = due.after_failure(self._now(), _BACKOFF_S, _MAX_BACKOFF_S)
                if due.failures < _MAX_TRIES:
                    await asyncio.to_thread(self._archived.put, stem, due)
                    return
                await consolidator.note_archived(session, stem)
        await asyncio.to_thread(self._archived.delete, stem)


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
