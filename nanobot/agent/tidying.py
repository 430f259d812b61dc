"""When old messages are moved into memory: in the background, while nobody waits for it.

A session is looked at each time a turn has let go of it. It is due when so many messages stand past its cursor, or when
its window had to leave old turns out; then it waits for a lull in the talk, which is never long. What failed rests for
longer and longer, and so does what would free nothing. What `/new` puts into the archive waits in a list on the disk
until it was taken in, through any crash.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nanobot.messages.types import ChatMessage
from nanobot.session.manager import Session, SessionManager
from nanobot.session.stems import stem_of
from nanobot.utils.clock import Clock
from nanobot.utils.files import make_private_folder, write_atomic
from nanobot.utils.locks import ProcessLock, locked

if TYPE_CHECKING:
    from nanobot.agent.consolidation import ConsolidationResult

log = logging.getLogger(__name__)

KEPT_TURNS = 6
"""Turns that stay in any case."""
_MOST_CALLS = 8
"""Model calls for one pass."""
_AT_ONCE = 4
_LEAST_SHARE = 0.15
"""Of the window that a pass must free, or it is worth nothing."""
_REST_S, _LONGEST_REST_S = 600.0, 6 * 3600.0
_MOST_TRIES = 5
"""Failures after which an archived conversation is only noted in the log: it lies in the archive all the same."""

_MOST_RESTS = 200

_FREES_NOTHING = (
    "The last messages of this conversation fill the window: moving older ones into memory frees little. From now on "
    "the oldest are left out of what I see as room runs out. /new begins afresh."
)


class Mover(Protocol):
    """Who moves messages into memory: a Consolidator."""

    async def move(self, session_key: str, keep: Callable[[Session], int]) -> "ConsolidationResult":
        """Move the oldest messages, as many as one call takes. Never raises for a model or the disk."""
        ...

    async def move_archived(self, session: Session, done: int) -> "ConsolidationResult":
        """The same of a session in the archive, from message number `done` on."""
        ...

    async def note_archived(self, session: Session, done: int, stem: str) -> None:
        """Say in the log that it could not be summed up, and where it lies. Raises StorageError."""
        ...


@dataclass(frozen=True, slots=True)
class _Rest:
    """A session that is left alone until then, or until it has so many messages."""

    until: float
    messages: int
    failures: int = 0
    ineffective: int = 0


_NO_REST = _Rest(0, 0)


class Tidying:
    """The watch over all sessions. `saved` and `archived` return at once; `close` ends what is at work."""

    def __init__(
        self,
        open_mover: Callable[[], Mover],
        sessions: SessionManager,
        clock: Clock,
        *,
        memory_window: int,
        waiting: Path,
        pause_s: float = 1.0,
    ) -> None:
        """`open_mover` is asked when something is to be moved first. `waiting` is the file that lists archived sessions
        that are not in memory yet. For `pause_s` nobody must have spoken: who goes on at once is served first.
        """
        self._open_mover = open_mover
        self._mover: Mover | None = None
        self._sessions = sessions
        self._clock = clock
        self._window = memory_window
        self._archive = _Waiting(waiting)
        self.pause_s = pause_s
        self._talk: dict[str, int] = {}
        """By session that waits for a lull, how many messages it had when somebody spoke last."""
        self._few = asyncio.Semaphore(_AT_ONCE)
        self._at_work: dict[str, asyncio.Task[None]] = {}
        self._rests: dict[str, _Rest] = {}
        self._kept_rests = waiting.with_name("tidying.json")
        self._news: dict[str, list[str]] = {}
        self._taken_in = ""
        """The archived session that is being taken in."""
        self._looked = False
        self._knows_rests = False
        self._closed = False

    def saved(self, session: Session) -> None:
        """A turn has let go of this session. Neither blocks nor raises."""
        if session.key in self._talk:
            self._talk[session.key] = session.message_count
        elif self._is_due(session):
            self._begin(session.key, lambda: self._tidy_in_a_lull(session.key, session.message_count))
        if not self._looked:  # what an earlier life left
            self.go_on()

    async def archived(self, session_key: str, file: Path) -> None:
        """This session went into this file of the archive, and begins afresh. Never raises."""
        self.forget(session_key)
        try:
            await asyncio.to_thread(self._archive.add, file.stem)
        except OSError as error:
            log.warning("%s is not noted for memory: %s", file, error)
        self._looked = True
        self._begin("", self._take_in_archive)

    def forget(self, session_key: str) -> None:
        """What is being made of this session is wanted no more."""
        if (task := self._at_work.get(session_key)) is not None:
            task.cancel()
        self._rests.pop(session_key, None)
        self._news.pop(session_key, None)

    async def forget_archived(self, session_key: str) -> int:
        """What waits in the archive of this session, or is just being taken in, is not to come into memory; how many
        conversations that were. The others wait for `go_on`. Raises OSError.
        """
        own = f"{stem_of(session_key)}-"
        if self._taken_in.startswith(own) and (task := self._at_work.get("")) is not None:
            task.cancel()
            await asyncio.wait([task])
        waiting = await asyncio.to_thread(self._archive.read)
        for stem in (found := [stem for stem in waiting if stem.startswith(own)]):
            await asyncio.to_thread(self._archive.change, stem, None)
        return len(found)

    def go_on(self) -> None:
        """Take in what waits in the archive, an earlier life's too. Neither blocks nor raises."""
        self._looked = True
        if self._archive.path.exists():
            self._begin("", self._take_in_archive)

    def news_of(self, session_key: str) -> Sequence[str]:
        """What the person in this session should know, once."""
        return self._news.pop(session_key, ())

    def failures_of(self, session_key: str) -> int:
        """How often in a row it has failed there."""
        return self._rests.get(session_key, _NO_REST).failures

    @property
    def is_asking(self) -> bool:
        """Whether a live session is being moved just now."""
        return any(key for key in self._at_work)

    async def settled(self) -> None:
        """Wait until no live session is at work any more."""
        while tasks := [task for key, task in self._at_work.items() if key]:
            await asyncio.wait(tasks)

    async def at_rest(self) -> None:
        """Wait until nothing at all is at work, the archive neither."""
        while self._at_work:
            await asyncio.wait(list(self._at_work.values()))

    async def close(self) -> None:
        """Break off what waits for a model, finish what is being written, and begin no more."""
        self._closed = True
        tasks = list(self._at_work.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _is_due(self, session: Session) -> bool:
        past = session.message_count - session.last_consolidated
        if past < self._window and _window_start(session) <= session.last_consolidated:
            return False
        if not self._knows_rests:
            self._knows_rests = True
            self._rests = _read_rests(self._kept_rests) | self._rests
        rest = self._rests.get(session.key, _NO_REST)
        return self._now() >= rest.until or session.message_count >= rest.messages

    def _begin(self, key: str, work: Callable[[], Awaitable[None]]) -> None:
        if self._closed or key in self._at_work:
            return
        task = asyncio.create_task(self._guarded(work), name=f"tidying {key or 'the archive'}")
        self._at_work[key] = task
        task.add_done_callback(lambda done: self._at_work.pop(key, None))

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception:  # nobody waits for it, and the other sessions still have their turn
            log.exception("Old messages could not be moved into memory")

    def _movers(self) -> Mover:
        if self._mover is None:
            self._mover = self._open_mover()
        return self._mover

    async def _tidy_in_a_lull(self, key: str, count: int) -> None:
        """Wait until nobody speaks, but not for more than half a memory window of messages."""
        self._talk[key] = count
        try:
            said = -1
            while said != self._talk[key] and self._talk[key] < count + self._window // 2:
                said = self._talk[key]
                await asyncio.sleep(self.pause_s)
        finally:
            count = self._talk.pop(key)
        async with self._few:
            await self._tidy(key, count)

    async def _tidy(self, key: str, count: int) -> None:
        """One pass over a live session that has so many messages."""
        from nanobot.agent.consolidation import ConsolidationOutcome  # most turns consolidate nothing

        mover = await asyncio.to_thread(self._movers)
        moved, share = 0, 1.0
        for _ in range(_MOST_CALLS):
            result = await mover.move(key, self._keep)
            if result.outcome is not ConsolidationOutcome.DONE:
                break
            share = result.share if not moved else share
            moved += result.moved
        rest = self._rests.pop(key, _NO_REST)
        if result.outcome is ConsolidationOutcome.FAILED:
            self._rests[key] = self._longer(rest, count)
        elif not moved:
            self._rests[key] = _Rest(self._now() + _LONGEST_REST_S, count + self._few_messages)
        else:
            self._rests[key] = self._after(rest, share, key, count)
        if rest.failures or rest.ineffective or self._rests[key].failures or self._rests[key].ineffective:
            await asyncio.to_thread(self._keep_rests)

    def _keep_rests(self) -> None:
        """So that the next process does not try at once what failed in this one; most of them live for a question."""
        kept = {key: rest for key, rest in self._rests.items() if rest.failures or rest.ineffective}
        told = {key: [one.until, one.messages, one.failures, one.ineffective] for key, one in kept.items()}
        try:
            make_private_folder(self._kept_rests.parent)
            write_atomic(self._kept_rests, json.dumps(dict(list(told.items())[-_MOST_RESTS:])) + "\n")
        except OSError as error:
            log.warning("%s cannot be kept: %s", self._kept_rests, error)

    def _now(self) -> float:
        return self._clock.now().timestamp()

    def _after(self, rest: _Rest, share: float, key: str, count: int) -> _Rest:
        """A pass was made: the next one waits for some messages. Where it freed next to nothing a second time in a row,
        it waits for long, and the person is told.
        """
        times = rest.ineffective + 1 if share < _LEAST_SHARE else 0
        if times == 2:
            self._news.setdefault(key, []).append(_FREES_NOTHING)
        wait = self._few_messages if times < 2 else max(self._window, self._few_messages)
        return _Rest(self._now() + _LONGEST_REST_S, count + wait, ineffective=times)

    def _longer(self, rest: _Rest, count: int) -> _Rest:
        times = 2 ** min(rest.failures, 8)
        until = self._now() + min(_REST_S * times, _LONGEST_REST_S)
        return replace(rest, until=until, messages=count + self._few_messages * times, failures=rest.failures + 1)

    @property
    def _few_messages(self) -> int:
        return max(10, self._window // 10)

    def _keep(self, session: Session) -> int:
        """How many of the last messages stay. Blocks on the disk where they are not in memory."""
        keep, start = self._window // 2, _window_start(session)
        if start > session.last_consolidated:
            keep = min(keep, session.message_count - start)
        return max(keep, _messages_of_turns(session, KEPT_TURNS))

    async def _take_in_archive(self) -> None:
        """Everything that `/new` has put away, one conversation after the other."""
        await asyncio.sleep(self.pause_s)
        lock = ProcessLock(self._archive.path.with_suffix(".lock"))
        if not self._archive.path.exists() or not lock.try_acquire():
            return  # another process is at it
        try:
            tried: set[str] = set()
            while (found := next((one for one in self._archive.read() if one not in tried), None)) is not None:
                tried.add(found)
                self._taken_in = found
                await self._take_in(found)
        finally:
            self._taken_in = ""
            lock.release()

    async def _take_in(self, stem: str) -> None:
        from nanobot.agent.consolidation import ConsolidationOutcome

        mover = await asyncio.to_thread(self._movers)
        path = self._sessions.archived_file(stem)
        session = await asyncio.to_thread(self._sessions.read, path) if path is not None else None
        if session is None:
            self._archive.change(stem, None)
            return
        kept = self._archive.read().get(stem, {})
        done = max(kept.get("done", 0), session.last_consolidated)
        while True:
            result = await mover.move_archived(session, done)
            if result.outcome is not ConsolidationOutcome.DONE:
                break
            done += result.moved
            self._archive.change(stem, {"done": done})
        if result.outcome is ConsolidationOutcome.NOTHING:
            self._archive.change(stem, None)
            return
        tries = kept.get("tries", 0) + 1
        if tries < _MOST_TRIES:
            self._archive.change(stem, {"done": done, "tries": tries})
        else:
            await mover.note_archived(session, done, stem)
            self._archive.change(stem, None)


def _read_rests(path: Path) -> dict[str, _Rest]:
    """What an earlier process kept; nothing where it cannot be read."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        return {str(key): _Rest(float(one[0]), *map(int, one[1:4])) for key, one in found.items()}
    return {}


class _Waiting:
    """The list of archived sessions that are not in memory yet: by stem, how far they are. Shared between processes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, dict[str, int]]:
        """What waits, the oldest first; nothing where it cannot be read."""
        with suppress(OSError, ValueError):
            found: Any = json.loads(self.path.read_text(encoding="utf-8"))
            if isinstance(found, dict):
                return {
                    str(stem): {name: value for name, value in one.items() if isinstance(value, int)}
                    for stem, one in found.items()
                    if isinstance(one, dict)
                }
        return {}

    def add(self, stem: str) -> None:
        """This one waits. Raises OSError."""
        self.change(stem, {"done": 0})

    def change(self, stem: str, state: dict[str, int] | None) -> None:
        """So far it is; None where it need not wait any more. Raises OSError."""
        make_private_folder(self.path.parent)
        with locked(self.path.with_suffix(".write.lock")):
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
    """The first message that the window shows, as far as it has left some out."""
    window = session.metadata.get("window")
    start = window.get("start") if isinstance(window, dict) else None
    return start if isinstance(start, int) else 0


def _messages_of_turns(session: Session, turns: int) -> int:
    """How many messages the last turns have, of those past the cursor."""
    from nanobot.agent.consolidation import begins_turn

    count, asked = session.message_count, 64
    while True:
        rows: list[ChatMessage] = session.since(count - asked)
        begins = [at for at in range(len(rows)) if at == 0 or begins_turn(rows, at)]
        if len(begins) > turns:
            return len(rows) - begins[-turns]
        if count - asked <= session.last_consolidated:
            return len(rows)
        asked *= 4
