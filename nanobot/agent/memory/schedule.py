"""When background work of the memory is due, and the scheduler that consolidates sessions after turns.

`DueTimes` are times with exponential backoff in the database, so that the next process goes on with them.

A session is checked after each turn. It is due once enough messages are past its cursor, or when its window dropped
turns; consolidation then waits for a short pause in the conversation. Where that is configured, it is also due once it
was idle for some time; what was missed while nanobot was not running is done before its next prompt is built. Sessions
archived by `/new` wait in a queue.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from nanobot.agent.memory.files import SCHEMA
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.types import ChatMessage
from nanobot.session.file_format import parse_time, stem_of
from nanobot.session.manager import Session, SessionManager
from nanobot.utils.clock import Clock
from nanobot.utils.database import reading, writing

if TYPE_CHECKING:
    from nanobot.agent.memory.consolidation import ConsolidationResult, Consolidator

log = logging.getLogger(__name__)

_MAX_FAILURES = 30
_KEPT_TURNS = 6
"""Last turns of a session that are never moved."""
_IDLE_KEEP = 8
"""Messages an idle session keeps, plus the rest of the turn they start in."""
_BACKOFF_S, _MAX_BACKOFF_S = 600.0, 6 * 3600.0
_MAX_TRIES = 5
"""Failures after which an archived session is only mentioned in the log; its file stays in the archive."""
_CLAIM_S = 300.0
"""How long an archived session is left to the process that works on it; longer than a model call may take."""
_COMPACT_NOW_S = 100.0
"""Time limit of `/compact`, below that of a command."""
_FULL, _IDLE, _ARCHIVE = "full", "idle", "archive"
"""Kinds of jobs: a session with many messages, one that may be idle, one in the archive."""

Job = tuple[str, str]
"""Kind, and the key of a session or the file stem of an archived one."""


@dataclass(frozen=True, slots=True)
class Due:
    """When a piece of work is due (wall clock, seconds), how often it failed in a row, and its own state."""

    at: float = 0.0
    failures: int = 0
    state: dict[str, Any] = field(default_factory=dict)

    def after_failure(self, now: float, first_s: float, longest_s: float) -> "Due":
        """The next time: `first_s` after the first failure, twice as long after each further one."""
        wait = min(first_s * 2**self.failures, longest_s)
        return replace(self, at=now + wait, failures=min(self.failures + 1, _MAX_FAILURES))


class DueTimes:
    """The due times of one kind of work, by key. All methods raise StorageError."""

    def __init__(self, database: Path, kind: str) -> None:
        self._database = database
        self._kind = kind

    def get(self, key: str) -> Due:
        """Return a due time; the initial one if there is none."""
        return self.all(key).get(key, Due())

    def all(self, key: str | None = None) -> dict[str, Due]:
        """Return all due times in the order of their keys, or that of one key."""
        with reading(self._database, SCHEMA) as db:
            query = "SELECT key, due_at, failures, state FROM memory_due WHERE kind = ?1 AND (?2 IS NULL OR key = ?2)"
            rows = db.execute(f"{query} ORDER BY key", (self._kind, key))
            return {key: Due(at, failures, json.loads(state)) for key, at, failures, state in rows}

    def claim(self, key: str, now: float, seconds: float) -> Due | None:
        """Return a due time, None if there is none. If it has come, other processes see it `seconds` later."""
        due = self.all(key).get(key)
        if due is None or due.at > now:
            return due
        with writing(self._database, SCHEMA) as db:
            values = (now + seconds, self._kind, key, due.at)
            row = db.execute("UPDATE memory_due SET due_at = ? WHERE kind = ? AND key = ? AND due_at = ?", values)
        return due if row.rowcount else replace(due, at=now + seconds)

    def put(self, key: str, due: Due) -> None:
        with writing(self._database, SCHEMA) as db:
            row = (self._kind, key, due.at, due.failures, json.dumps(due.state))
            db.execute("INSERT OR REPLACE INTO memory_due VALUES (?, ?, ?, ?, ?)", row)

    def update(self, key: str, due: Due) -> None:
        """Replace a due time. What was deleted meanwhile stays deleted."""
        with writing(self._database, SCHEMA) as db:
            row = (due.at, due.failures, json.dumps(due.state), self._kind, key)
            db.execute("UPDATE memory_due SET due_at = ?, failures = ?, state = ? WHERE kind = ? AND key = ?", row)

    def delete(self, key: str) -> None:
        with writing(self._database, SCHEMA) as db:
            db.execute("DELETE FROM memory_due WHERE kind = ? AND key = ?", (self._kind, key))


@dataclass(eq=False)
class ConsolidationScheduler:
    """Consolidates all sessions in the background. `on_session_saved` and `on_session_archived` return at once."""

    sleep: ClassVar = staticmethod(asyncio.sleep)
    """How it waits for a time; tests replace it."""

    open_consolidator: "Callable[[], Awaitable[Consolidator]]"
    """Imports and creates it when first awaited."""
    sessions: SessionManager
    clock: Clock
    memory_window: int
    database: Path
    idle_s: float = 0
    """Time without a message after which all but the last messages of a session move; 0: never."""
    pause_s: float = 1.0
    """Time between a turn and a consolidation."""
    _archive_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Archived sessions are consolidated one after another."""
    _jobs: dict[Job, tuple[float, asyncio.Task[object]]] = field(default_factory=dict)
    """When each job begins, 0 once it runs."""
    _is_resumed: bool = False
    _is_closed: bool = False

    def __post_init__(self) -> None:
        self._few_messages = max(10, self.memory_window // 10)
        self._stored_backoffs = DueTimes(self.database, "session")
        self._archived = DueTimes(self.database, "archive")
        """Archived sessions by file stem; the state has how many messages are done."""

    @cached_property
    def _backoffs(self) -> dict[str, Due]:
        """When each session is due again; the state has from how many messages on it is due in any case."""
        with suppress(StorageError):
            return self._stored_backoffs.all()
        return {}

    def on_session_saved(self, session: Session) -> None:
        """Check a session after a turn. Neither blocks nor raises."""
        key, count, now = session.key, session.message_count, self._now()
        if (_FULL, key) not in self._jobs and self._is_due(session):
            self._schedule((_FULL, key), now + self.pause_s, partial(self._run, key, count, self._rows_to_keep))
        if self.idle_s:
            self._schedule((_IDLE, key), now + self.idle_s, partial(self._run, key, count, self._rows_to_keep_idle))
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
        for job in ((_FULL, session_key), (_IDLE, session_key)):
            if job in self._jobs:
                self._jobs[job][1].cancel()
        self._backoffs.pop(session_key, None)

    async def forget_archived(self, session_key: str) -> int:
        """Drop this session's archived conversations from the queue, and cancel the one in progress. Return how many.
        Raises StorageError.
        """
        own = [
            stem for stem in await asyncio.to_thread(self._archived.all) if stem.startswith(f"{stem_of(session_key)}-")
        ]
        for stem in own:
            # first from the queue: a job that is cancelled may be followed by another one, which looks there
            await asyncio.to_thread(self._archived.delete, stem)
            if (job := (_ARCHIVE, stem)) in self._jobs:
                self._jobs[job][1].cancel()
                await asyncio.wait([self._jobs[job][1]])
        return len(own)

    def pending_archived(self) -> Collection[str]:
        """Return the stems of archived sessions that are not consolidated yet. Blocks; raises StorageError."""
        return self._archived.all()

    def resume_archived(self) -> None:
        """Consolidate the archived sessions in the queue, also those of a previous process. Neither blocks nor
        raises.
        """
        self._is_resumed = True
        self._schedule((_ARCHIVE, ""), self._now(), self._schedule_archived)

    def failure_count(self, session_key: str) -> int:
        if "_backoffs" not in vars(self):  # not worth a look into the database in each turn
            return 0
        return self._backoffs.get(session_key, Due()).failures

    @property
    def is_busy(self) -> bool:
        """Whether a live session is being consolidated, or will be after a pause."""
        return bool(self._begun())

    async def wait_done(self, *, archived: bool = False) -> None:
        """Wait until no live session is being consolidated; with `archived`, no archived one either."""
        while tasks := self._begun(archived=archived):
            await asyncio.wait(tasks)

    def _begun(self, *, archived: bool = False) -> list[asyncio.Task[object]]:
        soon = self._now() + self.pause_s
        return [task for (kind, _), (at, task) in self._jobs.items() if at <= soon and (archived or kind != _ARCHIVE)]

    async def close(self) -> None:
        """Cancel pending model calls, finish writes, and start no more."""
        self._is_closed = True
        if tasks := [task for _, task in self._jobs.values()]:
            for task in tasks:
                task.cancel()
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

    def _schedule(self, job: Job, at: float, work: Callable[[], Awaitable[object]]) -> None:
        """Do this job at a time by the clock, and again when `work` returns another one, a float. If it waits already,
        only the new time counts; if it runs, it is done once more after that.
        """
        if self._is_closed:
            return
        if job in self._jobs:
            known_at, known = self._jobs[job]
            if not known_at:
                known.add_done_callback(lambda task: self._schedule(job, at, work))
                return
            known.cancel()

        async def run() -> object:
            try:
                while (left := at - self._now()) > 0:
                    await self.sleep(left)
                    if left <= self.pause_s:  # no need to look at the clock again
                        break
                self._jobs[job] = (0.0, task)
                return await work()
            except Exception:  # must not keep other sessions from being consolidated
                log.exception("Old messages could not be moved into memory")
                return None

        def end(task: asyncio.Task[object]) -> None:
            if self._jobs.get(job, (0.0, None))[1] is task:
                del self._jobs[job]
                if not task.cancelled() and isinstance(next_at := task.result(), float):
                    self._schedule(job, next_at, work)

        task = asyncio.create_task(run(), name=f"consolidation ({job[0]})")
        self._jobs[job] = (at, task)
        task.add_done_callback(end)

    def _is_due(self, session: Session) -> bool:
        unconsolidated = session.message_count - session.last_consolidated
        if unconsolidated < self.memory_window and _window_start(session) <= session.last_consolidated:
            return False
        return self._is_backoff_over(session)

    def _is_backoff_over(self, session: Session) -> bool:
        due = self._backoffs.get(session.key, Due())
        return self._now() >= due.at or session.message_count >= due.state.get("messages", 0)

    def _is_idle(self, session: Session) -> bool:
        """Whether the session's last message is older than the configured idle time."""
        last = session.last_message
        last_time = parse_time(last.get("timestamp")) if last is not None and self.idle_s else None
        now = self.clock.now().replace(tzinfo=None)
        return last_time is not None and (now - last_time).total_seconds() >= self.idle_s

    async def _run(
        self, key: str, count: int, keep: Callable[[Session], int], *, held: Session | None = None, max_calls: int = 8
    ) -> "ConsolidationResult":
        """Consolidate a session with `count` messages. It is due again after a few more, or after some time."""
        consolidator = await self.open_consolidator()
        result = await consolidator.consolidate(key, keep, held=held, max_calls=max_calls)
        before = self._backoffs.get(key, Due())
        if result.failed:
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
        keep, start = self.memory_window // 2, _window_start(session)
        if start > session.last_consolidated:
            keep = min(keep, session.message_count - start)
        return max(keep, _messages_of_turns(session, _KEPT_TURNS))

    def _rows_to_keep_idle(self, session: Session) -> int:
        return _IDLE_KEEP if self._is_idle(session) else session.message_count

    def _now(self) -> float:
        return self.clock.now().timestamp()

    async def _schedule_archived(self) -> None:
        for stem, due in (await asyncio.to_thread(self._archived.all)).items():
            at = max(due.at, self._now() + self.pause_s)
            self._schedule((_ARCHIVE, stem), at, partial(self._consolidate_archived, stem))

    async def _consolidate_archived(self, stem: str) -> float | None:
        """Consolidate an archived session, unless another process does. Return when to try again, if necessary."""
        async with self._archive_lock:
            due = await asyncio.to_thread(self._archived.claim, stem, self._now(), _CLAIM_S)
            if due is None or due.at > self._now():
                return None if due is None else due.at
            after: Due | None
            try:
                after = await self._consolidate_stem(stem, due)
            except asyncio.CancelledError:  # for the next process; parts of it may be done
                self._archived.update(stem, replace(self._archived.get(stem), at=due.at))
                raise
            except Exception:  # its file cannot be read, perhaps
                log.exception("%s could not be moved into memory", stem)
                after = due.after_failure(self._now(), _BACKOFF_S, _MAX_BACKOFF_S)
            if after is None:
                await asyncio.to_thread(self._archived.delete, stem)
                return None
            await asyncio.to_thread(self._archived.update, stem, after)
            return after.at

    async def _consolidate_stem(self, stem: str, due: Due) -> Due | None:
        """Consolidate a session of the archive. Return when to try again; None if nothing is left to do."""
        path = self.sessions.archived_file(stem)
        session = await asyncio.to_thread(self.sessions.read, path) if path is not None else None
        if session is None:
            return None
        consolidator = await self.open_consolidator()
        session.last_consolidated = max(due.state.get("done", 0), session.last_consolidated)
        while True:
            result = await consolidator.consolidate(
                stem, lambda session: 0, held=session, is_archived=True, max_calls=1
            )
            if result.failed or not result.moved:
                break
            due = replace(due, at=self._now() + _CLAIM_S, state={"done": session.last_consolidated})
            await asyncio.to_thread(self._archived.update, stem, due)
        if result.failed:
            due = due.after_failure(self._now(), _BACKOFF_S, _MAX_BACKOFF_S)
            if due.failures < _MAX_TRIES:
                return due
            await consolidator.note_archived(session, stem)
        return None


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
