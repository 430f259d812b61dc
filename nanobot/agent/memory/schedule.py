"""When sessions are consolidated: in the background, after turns.

A session is checked after each turn. It is due once enough messages are past its cursor, or when its window dropped
turns; consolidation then waits for a short pause in the conversation. Where that is configured, it is also due once it
was idle for some time; what was missed while nanobot was not running is done before its next prompt is built. Sessions
archived by `/new` are queued until they are consolidated. Failed or ineffective consolidations are retried with
exponential backoff. Backoffs and queue are in the database, so the next process goes on with them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
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
_MIN_SHARE = 0.15
"""Share of the window a pass must free to be worth it."""
_BACKOFF_S, _MAX_BACKOFF_S = 600.0, 6 * 3600.0
_MAX_TRIES = 5
"""Failures after which an archived session is only mentioned in the log; its file stays in the archive."""
_ARCHIVE = "archive/"
"""Begins the keys of archived sessions among those of tasks; the rest is the stem of the file."""
_COMPACT_NOW_S = 100.0
"""Time limit of `/compact`, below that of a command."""

_FREES_NOTHING = (
    "The last messages of this conversation fill the context window: consolidating older ones frees little. From now "
    "on the oldest are dropped from what I see when room runs out. /new starts a new conversation."
)


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
        self._archive_lock = database.parent / "memory" / "archive.lock"
        self._archive_turn = asyncio.Lock()
        self._is_resumed = False
        self._stored_backoffs = DueTimes(database, "session")
        self._waits: dict[str, asyncio.Task[None]] = {}
        """By session, what waits for it to be idle or due."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._notices: dict[str, list[str]] = {}
        self._closed = False

    @cached_property
    def _backoffs(self) -> dict[str, Due]:
        """By session; the state has from how many messages on it is due in any case, and the ineffective passes."""
        with suppress(StorageError):
            return self._stored_backoffs.all()
        return {}

    def on_session_saved(self, session: Session) -> None:
        """Check a session after a turn. Neither blocks nor raises."""
        key, count = session.key, session.message_count
        if key not in self._tasks and self._is_due(session):
            self._begin(key, partial(self._consolidate, key, count))
        if self._idle_s:
            consolidate = partial(self._run, key, count, self._rows_to_keep_idle)
            self._begin_after(self._idle_s, key, consolidate)
        if not self._is_resumed:
            self.resume_archived()

    async def on_session_archived(self, session_key: str, file: Path) -> None:
        """Queue a session that was moved to this file of the archive. Never raises."""
        self.forget(session_key)
        due = Due(self._now())
        try:
            await asyncio.to_thread(self._archived.put, file.stem, due)
            self._begin_archived(file.stem, due)
        except NanobotError as error:
            log.warning("%s could not be queued for consolidation: %s", file, error)

    def forget(self, session_key: str) -> None:
        """Cancel the consolidation of this session, and clear its backoff."""
        for task in (self._tasks.get(session_key), self._waits.pop(session_key, None)):
            if task is not None:
                task.cancel()
        self._backoffs.pop(session_key, None)
        self._notices.pop(session_key, None)

    async def forget_archived(self, session_key: str) -> int:
        """Drop this session's archived conversations from the queue, and cancel the one in progress. Return how many.
        Raises StorageError.
        """
        own = f"{stem_of(session_key)}-"
        for key in [key for key in self._waits if key.startswith(_ARCHIVE + own)]:
            self._waits.pop(key).cancel()
        if tasks := [task for key, task in self._tasks.items() if key.startswith(_ARCHIVE + own)]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        stems = [stem for stem in await asyncio.to_thread(self._archived.all) if stem.startswith(own)]
        for stem in stems:
            await asyncio.to_thread(self._archived.delete, stem)
        return len(stems)

    def pending_archived(self) -> Collection[str]:
        """Return the stems of archived sessions that are not consolidated yet. Blocks; raises StorageError."""
        return self._archived.all()

    def resume_archived(self) -> None:
        """Consolidate the archived sessions in the queue, also those of a previous process. Neither blocks nor
        raises.
        """
        self._is_resumed = True

        async def begin_all() -> None:
            for stem, due in (await asyncio.to_thread(self._archived.all)).items():
                self._begin_archived(stem, due)

        self._begin(_ARCHIVE, begin_all)

    def take_notices(self, session_key: str) -> Sequence[str]:
        """Return and clear the notices for the person in this session."""
        return self._notices.pop(session_key, ())

    def failure_count(self, session_key: str) -> int:
        """Return the number of consecutive failures of a session."""
        if "_backoffs" not in vars(self):  # not worth a look into the database in each turn
            return 0
        return self._backoffs.get(session_key, Due()).failures

    @property
    def is_busy(self) -> bool:
        """Whether a live session is being consolidated."""
        return any(not key.startswith(_ARCHIVE) for key in self._tasks)

    async def wait_done(self, *, archived: bool = False) -> None:
        """Wait until no live session is being consolidated; with `archived`, no archived one either."""
        while tasks := [task for key, task in self._tasks.items() if archived or not key.startswith(_ARCHIVE)]:
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
        if self._closed or key in self._tasks:
            return

        async def run_safely() -> None:
            try:
                await work()
            except Exception:  # must not keep other sessions from being consolidated
                log.exception("Old messages could not be moved into memory")

        task = asyncio.create_task(run_safely(), name=f"consolidation of {key}")
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._tasks.pop(key, None))

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

    async def _consolidate(self, key: str, count: int) -> None:
        await self.sleep(self.pause_s)
        result = await self._run(key, count, self._rows_to_keep)
        if not result.reason:
            await self._set_backoff(key, self._due_after_pass(result, key, count))

    async def _run(
        self, key: str, count: int, keep: Callable[[Session], int], held: Session | None = None, **options: int
    ) -> "ConsolidationResult":
        """Consolidate a session with `count` messages, and set or clear its backoff."""
        from nanobot.agent.memory.consolidation import ConsolidationOutcome  # not needed by most turns

        consolidator = await self._open_consolidator()
        result = await consolidator.consolidate(key, keep, held=held, **options)
        before = self._backoffs.get(key, Due())
        if result.outcome is ConsolidationOutcome.FAILED:
            due = before.after_failure(self._now(), _BACKOFF_S, _MAX_BACKOFF_S)
            messages = count + self._few_messages * 2 ** min(before.failures, 8)
            await self._set_backoff(key, replace(due, state={"messages": messages}))
        elif result.moved and before.failures:
            await self._set_backoff(key, Due())
        return result

    async def _set_backoff(self, key: str, due: Due) -> None:
        self._backoffs[key] = due
        try:
            await asyncio.to_thread(self._stored_backoffs.put, key, due)
        except StorageError as error:
            log.warning("%s", error)

    def _due_after_pass(self, result: "ConsolidationResult", key: str, count: int) -> Due:
        """Return when it is due again. A second ineffective pass in a row waits longer and notifies the person."""
        at = self._now() + _MAX_BACKOFF_S
        if not result.moved:  # the last turns stay, and there are no others yet; no model was asked
            return Due(at, state={"messages": count + min(self._few_messages, KEPT_TURNS)})
        before = self._backoffs.get(key, Due())
        times = before.state.get("ineffective", 0) + 1 if result.share < _MIN_SHARE else 0
        if times == 2:
            self._notices.setdefault(key, []).append(_FREES_NOTHING)
        wait = self._few_messages if times < 2 else max(self._window, self._few_messages)
        return Due(at, state={"messages": count + wait, "ineffective": times})

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

    def _begin_archived(self, stem: str, due: Due) -> None:
        """Consolidate an archived session once it is due."""
        work = partial(self._consolidate_archived, stem)
        if due.at > self._now():
            self._begin_after(due.at - self._now(), _ARCHIVE + stem, work)
        else:
            self._begin(_ARCHIVE + stem, work)

    async def _consolidate_archived(self, stem: str) -> None:
        await self.sleep(self.pause_s)
        await asyncio.to_thread(make_private_folder, self._archive_lock.parent)
        lock = ProcessLock(self._archive_lock)
        async with self._archive_turn:
            await lock.acquire()
            try:
                await self._consolidate_stem(stem)
            finally:
                lock.release()

    async def _consolidate_stem(self, stem: str) -> None:
        from nanobot.agent.memory.consolidation import ConsolidationOutcome

        due = (await asyncio.to_thread(self._archived.all)).get(stem)
        path = self._sessions.archived_file(stem)
        session = await asyncio.to_thread(self._sessions.read, path) if path is not None else None
        if due is None:
            return  # another process did it
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
                    self._begin_archived(stem, due)
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
