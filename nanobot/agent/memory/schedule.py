"""When sessions are consolidated: in the background, after turns.

A session is checked after each turn. It is due once enough messages are past its cursor, or when its window dropped
turns; consolidation then waits for a short pause in the conversation. Failed or ineffective consolidations are retried
with exponential backoff. Sessions archived by `/new` are queued in a file until they are consolidated.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanobot.messages.types import ChatMessage
from nanobot.session.file_names import stem_of
from nanobot.session.manager import Session, SessionManager
from nanobot.utils.clock import Clock
from nanobot.utils.files import make_private_folder, write_atomic
from nanobot.utils.locks import ProcessLock, file_lock

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

_MAX_BACKOFFS = 200

_FREES_NOTHING = (
    "The last messages of this conversation fill the context window: consolidating older ones frees little. From now "
    "on the oldest are dropped from what I see when room runs out. /new starts a new conversation."
)


@dataclass(frozen=True, slots=True)
class _Backoff:
    """No consolidation before this time, or before the session has this many messages."""

    until: float
    messages: int
    failures: int = 0
    ineffective: int = 0


_NO_BACKOFF = _Backoff(0, 0)


class ConsolidationScheduler:
    """Consolidates all sessions in the background. `on_session_saved` and `on_session_archived` return at once."""

    def __init__(
        self,
        open_consolidator: "Callable[[], Awaitable[Consolidator]]",
        sessions: SessionManager,
        clock: Clock,
        *,
        memory_window: int,
        waiting: Path,
        pause_s: float = 1.0,
    ) -> None:
        """`open_consolidator` imports and creates it when first awaited. `waiting` is the file that queues archived
        sessions. A consolidation waits until nobody has spoken for `pause_s`.
        """
        self._open_consolidator = open_consolidator
        self._sessions = sessions
        self._clock = clock
        self._window = memory_window
        self._queue = _ArchiveQueue(waiting)
        self.pause_s = pause_s
        self._waiting: dict[str, int] = {}
        """By session that waits for a pause, its number of messages after the last turn."""
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._backoffs: dict[str, _Backoff] = {}
        self._backoff_file = waiting.with_name("tidying.json")
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
            await asyncio.to_thread(self._queue.add, file.stem)
        except OSError as error:
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
        The others stay queued until `resume_archived`. Raises OSError.
        """
        own = f"{stem_of(session_key)}-"
        if self._current_stem.startswith(own) and (task := self._tasks.get("")) is not None:
            task.cancel()
            await asyncio.wait([task])
        waiting = await asyncio.to_thread(self._queue.read)
        for stem in (stems := [stem for stem in waiting if stem.startswith(own)]):
            await asyncio.to_thread(self._queue.change, stem, None)
        return len(stems)

    def resume_archived(self) -> None:
        """Consolidate queued archived sessions, also those of a previous process. Neither blocks nor raises."""
        self._has_resumed = True
        if self._queue.path.exists():
            self._begin("", self._consolidate_archive)

    def take_notices(self, session_key: str) -> Sequence[str]:
        """Return and clear the notices for the person in this session."""
        return self._notices.pop(session_key, ())

    def failure_count(self, session_key: str) -> int:
        """Return the number of consecutive failures of a session."""
        return self._backoffs.get(session_key, _NO_BACKOFF).failures

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
            self._backoffs = _load_backoffs(self._backoff_file) | self._backoffs
        backoff = self._backoffs.get(session.key, _NO_BACKOFF)
        return self._now() >= backoff.until or session.message_count >= backoff.messages

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
        backoff = self._backoffs.pop(key, _NO_BACKOFF)
        if result.outcome is ConsolidationOutcome.FAILED:
            self._backoffs[key] = self._failure_backoff(backoff, count)
        elif not moved:  # the last turns stay, and there are no others yet; no model was asked
            self._backoffs[key] = _Backoff(self._now() + _MAX_BACKOFF_S, count + min(self._few_messages, KEPT_TURNS))
        else:
            self._backoffs[key] = self._next_backoff(backoff, share, key, count)
        if backoff.failures or backoff.ineffective or self._backoffs[key].failures or self._backoffs[key].ineffective:
            await asyncio.to_thread(self._save_backoffs)

    def _save_backoffs(self) -> None:
        """Store the backoffs, so that the next process does not retry at once."""
        backoffs = {key: backoff for key, backoff in self._backoffs.items() if backoff.failures or backoff.ineffective}
        data = {
            key: [backoff.until, backoff.messages, backoff.failures, backoff.ineffective]
            for key, backoff in backoffs.items()
        }
        try:
            make_private_folder(self._backoff_file.parent)
            write_atomic(self._backoff_file, json.dumps(dict(list(data.items())[-_MAX_BACKOFFS:])) + "\n")
        except OSError as error:
            log.warning("Cannot write %s: %s", self._backoff_file, error)

    def _now(self) -> float:
        return self._clock.now().timestamp()

    def _next_backoff(self, backoff: _Backoff, share: float, key: str, count: int) -> _Backoff:
        """Return the backoff after a pass. A second ineffective pass in a row waits longer and notifies the person."""
        times = backoff.ineffective + 1 if share < _MIN_SHARE else 0
        if times == 2:
            self._notices.setdefault(key, []).append(_FREES_NOTHING)
        wait = self._few_messages if times < 2 else max(self._window, self._few_messages)
        return _Backoff(self._now() + _MAX_BACKOFF_S, count + wait, ineffective=times)

    def _failure_backoff(self, backoff: _Backoff, count: int) -> _Backoff:
        times = 2 ** min(backoff.failures, 8)
        until = self._now() + min(_BACKOFF_S * times, _MAX_BACKOFF_S)
        return replace(backoff, until=until, messages=count + self._few_messages * times, failures=backoff.failures + 1)

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
        await asyncio.sleep(self.pause_s)
        lock = ProcessLock(self._queue.path.with_suffix(".lock"))
        if not self._queue.path.exists() or not lock.try_acquire():
            return  # another process does it
        try:
            tried: set[str] = set()
            while (stem := next((stem for stem in self._queue.read() if stem not in tried), None)) is not None:
                tried.add(stem)
                self._current_stem = stem
                await self._consolidate_archived(stem)
        finally:
            self._current_stem = ""
            lock.release()

    async def _consolidate_archived(self, stem: str) -> None:
        from nanobot.agent.memory.consolidation import ConsolidationOutcome

        consolidator = await self._open_consolidator()
        path = self._sessions.archived_file(stem)
        session = await asyncio.to_thread(self._sessions.read, path) if path is not None else None
        if session is None:
            self._queue.change(stem, None)
            return
        progress = self._queue.read().get(stem, {})
        done = max(progress.get("done", 0), session.last_consolidated)
        while True:
            result = await consolidator.move_archived(session, done)
            if result.outcome is not ConsolidationOutcome.DONE:
                break
            done += result.moved
            self._queue.change(stem, {"done": done})
        if result.outcome is ConsolidationOutcome.NOTHING:
            self._queue.change(stem, None)
            return
        tries = progress.get("tries", 0) + 1
        if tries < _MAX_TRIES:
            self._queue.change(stem, {"done": done, "tries": tries})
        else:
            await consolidator.note_archived(session, done, stem)
            self._queue.change(stem, None)


def _load_backoffs(path: Path) -> dict[str, _Backoff]:
    """Load the stored backoffs; empty if the file cannot be read."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        return {str(key): _Backoff(float(values[0]), *map(int, values[1:4])) for key, values in data.items()}
    return {}


class _ArchiveQueue:
    """The queue of archived sessions, shared between processes: by file stem, the progress of each."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, dict[str, int]]:
        """Return the queue, oldest first; empty if it cannot be read."""
        with suppress(OSError, ValueError):
            data: Any = json.loads(self.path.read_text(encoding="utf-8"))
            if isinstance(data, dict):
                return {
                    str(stem): {name: value for name, value in state.items() if isinstance(value, int)}
                    for stem, state in data.items()
                    if isinstance(state, dict)
                }
        return {}

    def add(self, stem: str) -> None:
        """Append a session. Raises OSError."""
        self.change(stem, {"done": 0})

    def change(self, stem: str, state: dict[str, int] | None) -> None:
        """Store the progress of a session; None removes it. Raises OSError."""
        make_private_folder(self.path.parent)
        with file_lock(self.path.with_suffix(".write.lock")):
            waiting = self.read()
            if state is None:
                waiting.pop(stem, None)
            else:
                waiting[stem] = state
            if waiting:
                write_atomic(self.path, json.dumps(waiting, ensure_ascii=False) + "\n")
            else:
                self.path.unlink(missing_ok=True)


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
