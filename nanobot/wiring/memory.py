"""Who keeps memory in order: what moves old messages into it, what writes down who changed it, what a chat may ask.

Nothing of it is imported before it is needed.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanobot.agent.desk import Asked, CommandEntry
from nanobot.agent.idle import IdleWatch
from nanobot.agent.memory import MemoryStore
from nanobot.agent.run.hooks import PlannedCall, Verdict
from nanobot.agent.run.outside import repeated_row
from nanobot.agent.scope import Scope
from nanobot.agent.tidying import Tidying
from nanobot.agent.vitals import Vitals
from nanobot.config.paths import Places
from nanobot.config.schema import Config
from nanobot.errors import NanobotError
from nanobot.messages.types import ChatMessage, Provenance, is_outside, least_trusted
from nanobot.pairing.store import PairingStore
from nanobot.session.manager import Session, SessionManager
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock
from nanobot.utils.refusals import refusal
from nanobot.utils.text import counted
from nanobot.wiring import people
from nanobot.wiring.dreams import Dreams
from nanobot.wiring.models import ConfiguredModels

if TYPE_CHECKING:
    from nanobot.agent.consolidation import Consolidator
    from nanobot.agent.lessons import Lessons


log = logging.getLogger(__name__)

_WRITERS = frozenset({"write_file", "edit_file", "exec", "notebook_edit"})
"""Tools that may change a file of memory."""
_MOST_SEEN = 256
_LONGEST_TURN = 400
"""Rows of a turn that are looked at for what went wrong in it."""


class Upkeep:
    """The upkeep of memory of one bot."""

    def __init__(
        self,
        config: Config,
        places: Places,
        memory: MemoryStore,
        sessions: SessionManager,
        models: ConfiguredModels,
        pairing: PairingStore,
        vitals: Vitals,
        clock: Clock,
    ) -> None:
        defaults = config.agents.defaults

        @cache
        def consolidator() -> "Consolidator":
            from nanobot.agent.consolidation import Consolidator  # most turns consolidate nothing

            return Consolidator(
                memory,
                sessions,
                models,
                vitals,
                clock,
                background_model=defaults.background_model,
                others_write=partial(people.others_write, config, pairing),
                scope_of=partial(people.scope_of_row, config, pairing),
            )

        self.tidying = Tidying(
            consolidator, sessions, clock, memory_window=defaults.memory_window, waiting=places.to_consolidate
        )

        @cache
        def lessons() -> "Lessons":
            from nanobot.agent.lessons import Lessons  # most turns teach nothing

            return Lessons(memory, places.lessons, clock, others_write=partial(people.others_write, config, pairing))

        self._lessons = lessons
        self._has_lessons = places.lessons.exists
        self._consolidator = consolidator
        self._memory = memory
        self._seen: dict[Scope, tuple[object, ...]] = {}
        """By scope, how its files stood when they were written down last."""
        self._stores: dict[Scope, MemoryStore] = {}
        self._by_agent: dict[Scope, tuple[str, Sequence[ChatMessage]]] = {}
        """Scopes that a tool call has changed since: of which session, and the rows of its turn."""
        self._notes: set[asyncio.Task[None]] = set()
        self.dreams = Dreams(
            config, places, memory, models, sessions, vitals, clock, memory_of=self._memory_of, noted=self._noted
        )
        self._idle_s = defaults.idle_compact_after_minutes * 60
        self._clock = clock

    def saved(self, session: Session, scope: Scope) -> None:
        """A turn has let go of this session: see what is due, and whether it changed its memory."""
        self.tidying.saved(session)
        self.look(session, scope)

    def look(self, session: Session, scope: Scope) -> None:
        """The same where nothing of the session goes into memory, as of a subagent's."""
        if scope.is_owners:
            self._learn(session)
        known = self._seen.get(scope)
        if known is not None and known != self._stamps(scope):
            last = session.last_message
            turn_id = last.get("turn_id") if last is not None else None
            rows = [row for row in session.get_history() if row.get("turn_id") == turn_id]
            self._in_background(self._note(scope, session.key, rows))

    def _learn(self, session: Session) -> None:
        """See whether a mistake keeps coming back. A turn without one is looked at only where some were made before."""
        rows, earlier = _last_turn(session)
        failed = any("failure" in row for row in rows)
        if not failed and not (any(row["role"] == "tool" for row in rows) and self._has_lessons()):
            return

        asked_in = str(session.metadata.get("subagent", {}).get("parent") or session.key)

        async def learn() -> None:
            try:
                await finish(asyncio.to_thread(lambda: self._lessons().learn(asked_in, rows, earlier)))
            except (NanobotError, OSError) as error:
                log.warning("What went wrong in a turn could not be kept: %s", error)

        self._in_background(learn())

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    async def before_call(self, planned: PlannedCall) -> Verdict:
        """A hook on tool calls: how the memory stands is kept before something may write to it, and whose words of it a
        call repeats is said. It forbids nothing.
        """
        scope = planned.context.scope
        if planned.call.name in _WRITERS and self._seen.get(scope) != self._stamps(scope):
            await self._note(scope)
        verdict = await asyncio.to_thread(self._words_of_others, planned) if planned.reaches else Verdict()
        if planned.call.name in _WRITERS:
            return replace(verdict, when_done=(partial(self._done, planned),))
        return verdict

    def _done(self, planned: PlannedCall) -> None:
        """A call that may write is over; turns beside it must not take its change for an editor's."""
        context = planned.context
        if self._seen.get(context.scope) != self._stamps(context.scope):
            rows = [row for row in planned.rows if row.get("turn_id") == context.turn_id]
            self._by_agent[context.scope] = (context.session_key, rows)

    def _words_of_others(self, planned: PlannedCall) -> Verdict:
        """Whether a call repeats what is remembered and was not the owner's own: it does not become theirs by that."""
        memory, scope = self._memory_of(planned.context.scope), planned.context.scope
        if scope.is_owners:
            text, provenance = others_facts(memory)
        else:
            text, provenance = memory.read_long_term(), Provenance.PERSON
        if not text.strip():
            return Verdict()
        remembered: ChatMessage = {"role": "tool", "name": "memory", "content": text, "provenance": provenance}
        rows = [remembered, *(row for row in planned.rows if row["role"] == "user")]
        found = repeated_row(planned.call.arguments, rows, planned.context.turn_id, planned.context.session_key)
        return Verdict() if found is not remembered else Verdict(entered=provenance, source="what is remembered here")

    async def _note(self, scope: Scope, session_key: str = "", rows: Sequence[ChatMessage] = ()) -> None:
        """Write down how the memory stands now; whose doing that is, these rows of a turn say."""
        stamps, known = self._stamps(scope), self._by_agent.pop(scope, None)
        by_agent = known is not None or any(map(_may_write_memory, rows))
        if known is not None and known[0] != session_key:
            session_key, rows = known

        def note() -> None:
            from nanobot.agent.memory_book import By, Source

            by = By.AGENT if by_agent else By.HAND
            self._memory_of(scope).note_changes(by, Source(session_key, rows=rows if by_agent else ()))

        try:
            await finish(asyncio.to_thread(note))
        except NanobotError as error:
            log.warning("How the memory stands could not be kept: %s", error)
        while len(self._seen) >= _MOST_SEEN:
            del self._seen[next(iter(self._seen))]
        self._seen[scope] = stamps

    async def _noted(self, scope: Scope) -> None:
        """Write down how the memory stands now, if a tool or an editor has been there since."""
        if self._seen.get(scope) != self._stamps(scope):
            await self._note(scope)

    def _stamps(self, scope: Scope) -> tuple[object, ...]:
        """Changes when the files of a memory do."""
        store = self._memory_of(scope)
        return tuple(_stamp(os.fspath(path)) for path in (store.memory_file, store.shared_file))

    async def archived(self, session_key: str, file: Path) -> None:
        """This session lies in the archive now; memory takes it in, in the background."""
        await self.tidying.archived(session_key, file)

    def state(self, session_key: str, scope: Scope) -> list[str]:
        """How full the memory is, and what went wrong with it."""
        from nanobot.agent.memory_editing import MemoryEditor  # only who asks waits for it

        failures = self.tidying.failures_of(session_key)
        wrong = f"; moving old messages into it failed {counted(failures, 'time')} in a row" if failures else ""
        lines = [f"Long-term memory: {MemoryEditor(self._memory_of(scope), self._clock).state()}{wrong}"]
        return [*lines, dream] if (dream := self.dreams.state(scope)) else lines

    async def clear(self, asked: Asked) -> tuple[list[str], Callable[[], Awaitable[object]] | None]:
        """Take what is remembered in this scope out of every prompt."""
        from nanobot.agent.memory_editing import MemoryEditor

        key = asked.session.key
        self.tidying.forget(key)
        editor = MemoryEditor(self._memory_of(asked.scope), self._clock, asked.message.sender_id or "terminal")
        try:
            await self.dreams.clear(asked.scope)
            waited = await self.tidying.forget_archived(key)
            cleared = await asyncio.to_thread(editor.clear)
        except OSError as error:
            raise refusal("What waits to be remembered cannot be forgotten", error) from error
        finally:
            self.tidying.go_on()
        restore = (lambda: asyncio.to_thread(editor.undo)) if cleared else None
        if waited:
            cleared.append(f"{counted(waited, 'earlier conversation')} that waited to be remembered; kept")
        return cleared, restore

    def commands(self) -> dict[str, CommandEntry]:
        """What a chat may ask of its memory."""

        async def memory(asked: Asked) -> str:
            from nanobot.agent.memory_words import MemoryWords

            return await MemoryWords(self._memory_of, self._clock).answer(asked)

        words = "[why|forget|undo|share|search|log] ..."
        return {"memory": CommandEntry(memory, "what is remembered here", words), **self.dreams.commands()}

    def _memory_of(self, scope: Scope) -> MemoryStore:
        if scope == self._memory.scope:
            return self._memory
        while len(self._stores) >= _MOST_SEEN:
            del self._stores[next(iter(self._stores))]
        if scope not in self._stores:
            self._stores[scope] = self._memory.of(scope)
        return self._stores[scope]

    async def close(self) -> None:
        """Leave what is half done to the next start."""
        await self.tidying.close()
        await self.dreams.close()
        while self._notes:
            await asyncio.wait(self._notes)

    def idle_watch(self, lane: Callable[[str], AbstractAsyncContextManager[object]]) -> IdleWatch | None:
        """Who does it for sessions in which nobody speaks any more; None where the config does not want it."""
        if not self._idle_s:
            return None
        return IdleWatch(lambda key: self._consolidator().compact(key, lane(key)), self._idle_s, self._clock)


def others_facts(memory: MemoryStore) -> tuple[str, Provenance]:
    """The facts of the owner's memory that came from words of others, and the least trusted of these."""
    outside = {
        key: str(origin.told["provenance"])
        for key, origin in memory.book.origins().items()
        if is_outside(str(origin.told.get("provenance", Provenance.OWNER)))
    }
    if not outside:
        return "", Provenance.OWNER
    from nanobot.agent.facts import facts_in

    found = [fact for fact in facts_in(memory.read_long_term()) if fact.key in outside]
    return "\n".join(fact.text for fact in found), least_trusted(outside[fact.key] for fact in found)


def _last_turn(session: Session) -> tuple[list[ChatMessage], list[ChatMessage]]:
    """The rows of the turn that this session had last, and those before it, as far as they are in memory."""
    last = session.last_message
    turn_id = last.get("turn_id") if last is not None else None
    if not turn_id:
        return [], []
    near = session.since(session.message_count - min(session.rows_in_memory, _LONGEST_TURN))
    begin = next((at for at, row in enumerate(near) if row.get("turn_id") == turn_id), len(near))
    return near[begin:], near[:begin]


def _may_write_memory(row: ChatMessage) -> bool:
    """Whether a call in this row names a file of memory."""
    return any("memory" in call["function"]["arguments"].lower() for call in row.get("tool_calls", ()))


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 a Path costs more than the look
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
