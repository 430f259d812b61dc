"""When background work of the memory is due, and the scheduler that consolidates sessions after turns.

`DueTimes` are times with exponential backoff in the database, so that the next process goes on with them.

A session is checked after each turn. It is due once enough messages are past its cursor, or when its window dropped
turns; consolidation then waits for a short pause in the conversation. After it comes a cooldown of some time or some
messages, which is kept in the metadata of the session. Where that is configured, it is also due once it was idle for
some time; what was missed while nanobot was not running is done before its next prompt is built. Sessions archived by
`/new` wait in a queue that one process at a time works on.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from nanobot.agent.memory.files import SCHEMA, try_lock
from nanobot.errors import StorageError
from nanobot.messages.types import ChatMessage
from nanobot.session.file_format import parse_time, stem_of
from nanobot.session.manager import Session, SessionManager
from nanobot.utils import codec
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock
from nanobot.utils.database import reading, writing

if TYPE_CHECKING:
    from nanobot.agent.memory.consolidation import ConsolidationResult, Consolidator

log = logging.getLogger(__name__)

_COOLDOWN_KEY = "consolidation"
"""Metadata of a session: when it is due again, and from how many messages on it is due in any case."""
_MAX_FAILURES = 30
_KEPT_TURNS = 6
"""Last turns of a session that are never moved."""
_IDLE_KEEP = 8
"""Messages an idle session keeps, plus the rest of the turn they start in."""
_BACKOFF_S, _MAX_BACKOFF_S = 600.0, 6 * 3600.0
_MAX_TRIES = 5
"""Failures after which an archived session is only mentioned in the log; its file stays in the archive."""
_OTHER_PROCESS_S = 300.0
"""When to look again at a queue that another process works on."""
_COMPACT_NOW_S = 100.0
"""Time limit of `/compact`, below that of a command."""
_ARCHIVE = ""
"""The name of the work on archived sessions; other work has the key of its session."""


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
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """Work that runs or is about to, by session key."""
    _timers: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """Work that begins later."""
    _is_resumed: bool = False
    _is_closed: bool = False

    def __post_init__(self) -> None:
        self._few_messages = max(10, self.memory_window // 10)
        self._archived = DueTimes(self.database, "archive")
        """Archived sessions by file stem; the state has how many messages are done."""

    def on_session_saved(self, session: Session) -> None:
        """Check a session after a turn. Neither blocks nor raises."""
        key, run = session.key, partial(self._run, session.key, session.message_count)
        if key not in self._tasks and self._is_due(session):
            self._start(key, partial(run, self._rows_to_keep), self.pause_s)
        if self.idle_s:
            self._start_later(key, partial(run, self._rows_to_keep_idle), self.idle_s)
        if not self._is_resumed:
            self.resume_archived()

    async def on_session_archived(self, session_key: str, file: Path) -> None:
        """Queue a session that was moved to this file of the archive. Never raises."""
        self.forget(session_key)
        try:
            await asyncio.to_thread(self._archived.put, file.stem, Due(self._now()))
        except StorageError as error:
            log.warning("%s could not be queued for consolidation: %s", file, error)
        self.resume_archived()

    def forget(self, session_key: str) -> None:
        """Cancel the consolidation of this session."""
        for task in (self._tasks.get(session_key), self._timers.pop(session_key, None)):
            if task is not None:
                task.cancel()

    async def forget_archived(self, session_key: str) -> int:
        """Drop this session's archived conversations from the queue, also the one in progress. Return how many.
        Raises StorageError.
        """
        stems = await asyncio.to_thread(self._archived.all)
        own = [stem for stem in stems if stem.startswith(f"{stem_of(session_key)}-")]
        for stem in own:  # first: the work that follows the cancelled one looks there
            await asyncio.to_thread(self._archived.delete, stem)
        if own and (task := self._tasks.get(_ARCHIVE)) is not None:
            task.cancel()
            await asyncio.wait([task])
            self.resume_archived()
        return len(own)

    def pending_archived(self) -> Collection[str]:
        """Return the stems of archived sessions that are not consolidated yet. Blocks; raises StorageError."""
        return self._archived.all()

    def resume_archived(self) -> None:
        """Consolidate the archived sessions in the queue, also those of a previous process. Neither blocks nor
        raises.
        """
        self._is_resumed = True
        self._start(_ARCHIVE, partial(self._consolidate_archived, self.pause_s))

    def failure_count(self, session: Session) -> int:
        return _cooldown_of(session).failures

    @property
    def is_busy(self) -> bool:
        """Whether a live session is being consolidated, or will be after a pause."""
        return bool(self._tasks.keys() - {_ARCHIVE})

    async def wait_done(self, *, archived: bool = False) -> None:
        """Wait until no live session is being consolidated; with `archived`, no archived one either."""
        while tasks := [task for key, task in self._tasks.items() if archived or key != _ARCHIVE]:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Cancel pending model calls, finish writes, and start no more."""
        self._is_closed = True
        if tasks := [*self._tasks.values(), *self._timers.values()]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def compact(self, session: Session) -> None:
        """Compact a held session that was idle before its next prompt is built, by one call. Cancelling is safe; never
        raises for a model or the disk.
        """
        if self._is_idle(session) and (not _cooldown_of(session).failures or self._is_cooldown_over(session)):
            await self._run(session.key, session.message_count, self._rows_to_keep_idle, held=session, max_calls=1)

    async def compact_now(self, session: Session) -> str:
        """Move all but the last messages of a held session into memory. Return why fewer moved; empty if all did."""
        try:
            async with asyncio.timeout(_COMPACT_NOW_S):
                result = await self._run(session.key, session.message_count, lambda session: _IDLE_KEEP, held=session)
        except TimeoutError:
            return f"It took more than {_COMPACT_NOW_S:g} s and was stopped; /compact goes on."
        return result.reason

    def _start(self, key: str, work: Callable[[], Awaitable[object]], pause_s: float = 0) -> None:
        """Do this work after a pause, and after other work with this key."""
        if self._is_closed:
            return
        if key in self._tasks:
            self._tasks[key].add_done_callback(lambda task: self._start(key, work, pause_s))
            return

        async def run() -> None:
            try:
                if pause_s:
                    await self.sleep(pause_s)
                await work()
            except Exception:  # must not keep other sessions from being consolidated
                log.exception("Old messages could not be moved into memory")

        self._tasks[key] = task = asyncio.create_task(run(), name="consolidation")
        task.add_done_callback(lambda task: self._tasks.pop(key))

    def _start_later(self, key: str, work: Callable[[], Awaitable[object]], seconds: float) -> None:
        """Start this work after some time by the clock, instead of other work with this key that waits."""
        at = self._now() + seconds

        async def wait() -> None:
            while (left := at - self._now()) > 0:
                await self.sleep(left)
            del self._timers[key]
            self._start(key, work)

        if key in self._timers:
            self._timers[key].cancel()
        self._timers[key] = asyncio.create_task(wait(), name="consolidation timer")

    def _is_due(self, session: Session) -> bool:
        unconsolidated = session.message_count - session.last_consolidated
        if unconsolidated < self.memory_window and _window_start(session) <= session.last_consolidated:
            return False
        return self._is_cooldown_over(session)

    def _is_cooldown_over(self, session: Session) -> bool:
        """Whether enough time or enough messages passed since the last consolidation."""
        cooldown = _cooldown_of(session)
        messages = cooldown.state.get("messages")
        return self._now() >= cooldown.at or not isinstance(messages, int) or session.message_count >= messages

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
        try:
            async with self.sessions.hold(key) if held is None else nullcontext(held) as session:
                before = _cooldown_of(session)
                if result.failed:
                    wait = self._few_messages * 2 ** min(before.failures, 8)
                    cooldown = before.after_failure(self._now(), _BACKOFF_S, _MAX_BACKOFF_S)
                elif result.moved or not before.failures:
                    cooldown, wait = Due(self._now() + _MAX_BACKOFF_S), self._few_messages
                else:
                    return result
                if session.message_count >= count:  # else it was reset
                    session.metadata[_COOLDOWN_KEY] = asdict(replace(cooldown, state={"messages": count + wait}))
                    await self.sessions.append(session)
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

    async def _consolidate_archived(self, pause_s: float = 0) -> None:
        """Consolidate the archived sessions in the queue after a pause, unless another process does."""
        lock = try_lock(self.database.parent / "memory" / "archive.lock", "The queue of archived sessions is not read")
        if lock is None:
            self._start_later(_ARCHIVE, self._consolidate_archived, _OTHER_PROCESS_S)
            return
        try:
            while queue := await asyncio.to_thread(self._archived.all):
                stem, due = min(queue.items(), key=lambda item: item[1].at)
                if (left := due.at - self._now()) > 0:
                    self._start_later(_ARCHIVE, self._consolidate_archived, left)
                    return
                if pause_s:
                    await self.sleep(pause_s)
                    pause_s = 0
                    continue  # the queue may have changed
                try:
                    after = await self._consolidate_stem(stem, due)
                except Exception:  # its file cannot be read, perhaps
                    log.exception("%s could not be moved into memory", stem)
                    after = due.after_failure(self._now(), _BACKOFF_S, _MAX_BACKOFF_S)
                if after is None:
                    await finish(asyncio.to_thread(self._archived.delete, stem))
                else:
                    await finish(asyncio.to_thread(self._archived.update, stem, after))
        finally:
            lock.release()

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
            due = replace(due, state={"done": session.last_consolidated})
            await finish(asyncio.to_thread(self._archived.update, stem, due))
        if result.failed:
            due = due.after_failure(self._now(), _BACKOFF_S, _MAX_BACKOFF_S)
            if due.failures < _MAX_TRIES:
                return due
            await consolidator.note_archived(session, stem)
        return None


def _cooldown_of(session: Session) -> Due:
    """Return when a session is due again, and how often it failed in a row."""
    if _COOLDOWN_KEY not in session.metadata:
        return Due()
    try:
        cooldown: Due = codec.adapter(Due).validate_python(session.metadata[_COOLDOWN_KEY])
    except ValueError:  # changed by hand
        return Due()
    return cooldown


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
