"""Consolidation: move the older messages of a session into memory, one checked `save_memory` call at a time.

The order sees to it that nothing is lost: the end is fixed, the model asked, its answer checked; then HISTORY.md is
written, then MEMORY.md, and only when both are on the disk the session's cursor moves. A kill in between costs a second
entry in the log, never a message. What was said where others read goes into the memory of that chat, whoever said it.
Reading order: tidying (when) -> consolidation (how) -> save_memory (the call) -> memory (the files).
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import accumulate
from typing import Protocol
from weakref import WeakValueDictionary

from nanobot.agent.handover import HANDOVER, OLD_SUMMARY, handover_of, kept, trust_of
from nanobot.agent.memory import MemoryStore
from nanobot.agent.memory_book import Source
from nanobot.agent.save_memory import Saved, Transcript, ask_for_both, lines_of, own_transcript, transcript_of
from nanobot.agent.scope import Scope
from nanobot.agent.vitals import Vitals
from nanobot.errors import NanobotError, ProviderError
from nanobot.messages.tokens import estimate_tokens
from nanobot.messages.types import ChatMessage, is_our_word, least_trusted
from nanobot.providers.base import CallContext, LLMProvider, calling_for
from nanobot.session.manager import Session
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock
from nanobot.utils.text import counted

log = logging.getLogger(__name__)

IDLE_KEEP = 8
"""Messages that an idle session keeps, and the rest of the turn they begin in."""

_MOST_PARTS = 8
"""Moved in one idle time: of a session that never was consolidated the rest waits for the next."""
_MOST_TOKENS = 32_000
"""Of conversation in one call; more at once makes for a worse account."""
_LEAST_TOKENS = 500
_ROWS_AT_ONCE = 500
_PROMPT_TOKENS = 1_500
"""Our own words, the schema, and what an estimate may be wrong by."""
_ENTRY_TOKENS = 700
"""Of the reply, for the entry and the call around both texts."""
_TRY_AGAIN_S = 3600.0


class ModelLimits(Protocol):
    """How much a model takes and gives, in tokens."""

    @property
    def window_tokens(self) -> int:
        """The whole of a request and its answer."""
        ...

    @property
    def max_tokens(self) -> int:
        """The answer."""
        ...


class AskedModel(Protocol):
    """A model ready to be asked."""

    @property
    def provider(self) -> LLMProvider:
        """The way to it."""
        ...

    @property
    def name(self) -> str:
        """Its name there."""
        ...

    @property
    def limits(self) -> ModelLimits:
        """How far it goes."""
        ...


class Models(Protocol):
    """Where models come from."""

    async def get(self, wanted: str | None) -> AskedModel:
        """The model of that name or preset, the configured one for None. Raises NanobotError."""
        ...


class Sessions(Protocol):
    """Where sessions are: a SessionManager."""

    def hold(self, key: str) -> AbstractAsyncContextManager[Session]:
        """Hold a session; nobody else works in it meanwhile."""
        ...

    def unconsolidated(self, session: Session, most: int) -> list[ChatMessage]:
        """The oldest messages past the cursor. Raises StorageError."""
        ...

    async def move_cursor(self, session: Session, count: int) -> None:
        """So many more messages are in memory; durable when it returns. Raises StorageError."""
        ...


class ConsolidationOutcome(StrEnum):
    """How a consolidation ended."""

    DONE = "done"
    NOTHING = "nothing"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ConsolidationResult:
    """DONE and how many messages moved (and why no more did), NOTHING to do, or FAILED and why: all is as it was."""

    outcome: ConsolidationOutcome
    reason: str = ""
    moved: int = 0
    share: float = field(default=1.0, compare=False)
    """Of what stood in the window, how much could go."""


_NOTHING = ConsolidationResult(ConsolidationOutcome.NOTHING)


@dataclass(frozen=True, slots=True)
class _Part:
    """The messages that go: so many from the cursor on."""

    rows: Sequence[ChatMessage]
    transcript: Transcript

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class _Failure:
    """What failed, when, and how the session stood."""

    stood: tuple[int, int]
    at: float
    result: ConsolidationResult


class Consolidator:
    """Moves messages into the memories of one workspace."""

    def __init__(
        self,
        memory: MemoryStore,
        sessions: Sessions,
        models: Models,
        vitals: Vitals,
        clock: Clock,
        *,
        background_model: str | None = None,
        limit_s: float = 180.0,
        others_write: Callable[[str], bool] = lambda session_key: False,
        scope_of: Callable[[str, ChatMessage], Scope] = lambda session_key, row: Scope(row.get("scope", "")),
    ) -> None:
        """`others_write` says of a session whether others than the owner may write there: then what they say is told in
        the log alone, and changes no memory that every prompt of the owner's begins with. So is what tool servers say,
        everywhere. `scope_of` says in whose memory a message of a session belongs.
        """
        self._memory = memory
        self._sessions = sessions
        self._models = models
        self._vitals = vitals
        self._clock = clock
        self._background_model = background_model
        self._limit_s = limit_s
        self._others_write = others_write
        self._scope_of = scope_of
        self._one_at_a_time: WeakValueDictionary[Scope, asyncio.Lock] = WeakValueDictionary()
        self._failures: dict[str, _Failure] = {}
        self._moving: set[str] = set()
        """Sessions that are moved while nobody holds them: who holds one of them must not wait for that."""

    async def compact(self, session_key: str, lane: AbstractAsyncContextManager[object]) -> ConsolidationResult:
        """Move all but the last messages of an idle session into memory, in as many parts as that takes, eight at most.

        Cancelling is safe: what was checked by then is kept, the rest is as it was. Raises StorageError where the
        session cannot be held.
        """
        moved = 0
        async with lane, self._sessions.hold(session_key) as session:
            for _ in range(_MOST_PARTS):
                result = await self.consolidate(session, keep=IDLE_KEEP)
                if result.outcome is not ConsolidationOutcome.DONE:
                    break
                moved += result.moved
        return ConsolidationResult(ConsolidationOutcome.DONE, result.reason, moved) if moved else result

    async def consolidate(self, session: Session, *, keep: int) -> ConsolidationResult:
        """Move the oldest messages into memory, as many as one call takes, but never of the last `keep` nor of the turn
        these begin in. The session is held by the caller.

        Never raises for a model or the disk. What failed is not tried again before something new was said or an hour
        went by. Cancelling is safe: all is kept or nothing.
        """
        if session.key in self._moving:
            return _NOTHING
        stood = (session.last_consolidated, session.message_count)
        failure = self._failures.get(session.key)
        if failure is not None and failure.stood == stood and self._clock.monotonic() - failure.at < _TRY_AGAIN_S:
            return failure.result
        try:
            plan = await asyncio.to_thread(self._plan, session, keep)
            if plan is None:
                self._failures.pop(session.key, None)
                return _NOTHING
            async with self._lock_of(plan.scope):
                asked = await self._ask(plan)
                await finish(self._keep(session, asked))
        except (NanobotError, TimeoutError) as error:
            result = self._failed(session.key, error)
            self._failures[session.key] = _Failure(stood, self._clock.monotonic(), result)
            return result
        self._failures.pop(session.key, None)
        return ConsolidationResult(ConsolidationOutcome.DONE, moved=asked.part.count)

    async def move(self, session_key: str, keep: Callable[[Session], int]) -> ConsolidationResult:
        """The same of a session that others work in meanwhile: no model is waited for while it is held. `keep` says how
        many of its last messages stay.

        Where the session was begun afresh meanwhile, nothing was done. Never raises for a model or the disk.
        """
        try:
            async with self._sessions.hold(session_key) as session:
                plan = await asyncio.to_thread(lambda: self._plan(session, keep(session)))
                if plan is None:
                    return _NOTHING
                self._moving.add(session_key)
            async with self._lock_of(plan.scope):
                asked = await self._ask(plan)
                return await self._keep_where_it_stood(session_key, asked)
        except (NanobotError, TimeoutError) as error:
            return self._failed(session_key, error)
        finally:
            self._moving.discard(session_key)

    async def move_archived(self, session: Session, done: int) -> ConsolidationResult:
        """The same of a session that lies in the archive, from message number `done` on: its file stays as it is."""
        try:
            plan = await asyncio.to_thread(self._plan_of, session, session.messages[done:], 0)
            if plan is None:
                return _NOTHING
            async with self._lock_of(plan.scope):
                asked = await self._ask(plan)
                await finish(asyncio.to_thread(self._write, asked))
        except (NanobotError, TimeoutError) as error:
            return self._failed(session.key, error)
        self._note_done(asked)
        return ConsolidationResult(ConsolidationOutcome.DONE, moved=asked.part.count, share=plan.share)

    async def note_archived(self, session: Session, done: int, stem: str) -> None:
        """Say in the log that it could not be summed up, and where it lies. Raises StorageError."""
        rows = session.messages[done:]
        people = [row for row in rows if row.get("role") == "user" and not is_our_word(row)]
        scopes = {self._scope_of(session.key, row) for row in people}
        scope = next((one for one in scopes if not one.is_owners), next(iter(scopes), self._memory.scope))
        said = (
            f"{counted(len(rows), 'message')} of {session.key} could not be summed up. They are kept: session {stem}."
        )
        await asyncio.to_thread(self._memory_of(scope).append_history, said)

    def _plan(self, session: Session, keep: int) -> "_Plan | None":
        """Which messages go, from the cursor on: more are read only where so many hold nothing that could go."""
        if session.message_count - session.last_consolidated <= keep:
            return None
        most = _ROWS_AT_ONCE
        while True:
            asked = most + max(keep, 1)
            rows = self._sessions.unconsolidated(session, asked)
            is_all = len(rows) < asked
            plan = self._plan_of(session, rows, keep if is_all else len(rows) - most)
            if plan is not None or is_all:
                return plan
            most *= 4

    def _plan_of(self, session: Session, rows: Sequence[ChatMessage], keep: int) -> "_Plan | None":
        if len(rows) <= keep:
            return None
        spans = list(_by_scope(rows, lambda row: self._scope_of(session.key, row)))
        scope, end = spans[0]
        lines = lines_of(rows)
        while len(spans) > 1 and not any(lines[:end]):  # nothing there that memory may take: it goes with what follows
            del spans[0]
            scope, end = spans[0]
        weights = list(accumulate(estimate_tokens(line) for line in lines))
        most = min(len(rows) - keep, end)
        cut = _Cut(rows, lines, weights, most)
        if not cut.ends:
            return None
        share = weights[cut.ends[-1] - 1] / max(weights[-1], 1)
        return _Plan(session.key, session.created_at, session.last_consolidated, scope, cut, share,
                     str(session.metadata.get("model") or ""), handover_of(session.metadata))  # fmt: skip

    async def _ask(self, plan: "_Plan") -> "_Asked":
        memory = self._memory_of(plan.scope)
        model = await self._models.get(self._background_model or plan.model or None)
        text = await asyncio.to_thread(memory.read_to_rewrite)
        reply, room = _room(model, text)
        part = plan.cut.part(room)
        own = part.transcript  # a chat's memory is of all that was said there
        if plan.scope.is_owners:
            own = own_transcript(part.rows, room, person_is_owner=not self._others_write(plan.session_key))
        with calling_for(CallContext("consolidation", plan.session_key)):
            async with asyncio.timeout(self._limit_s):
                saved = await ask_for_both(
                    model.provider, model.name, text, part.transcript, own, max_tokens=reply, handover=plan.handover
                )
        return _Asked(plan, part, own, saved, text)

    async def _keep_where_it_stood(self, session_key: str, asked: "_Asked") -> ConsolidationResult:
        async with self._sessions.hold(session_key) as session:
            if (session.created_at, session.last_consolidated) != (asked.plan.created_at, asked.plan.cursor):
                return _NOTHING  # begun afresh, or somebody else was quicker
            await finish(self._keep(session, asked))
        return ConsolidationResult(ConsolidationOutcome.DONE, moved=asked.part.count, share=asked.plan.share)

    async def _keep(self, session: Session, asked: "_Asked") -> None:
        """First the words, then the cursor."""
        await asyncio.to_thread(self._write, asked)
        before = session.metadata.get(HANDOVER)
        if asked.saved.handover:
            trust = least_trusted([trust_of(session.metadata, session.key), asked.own.provenance])
            session.metadata[HANDOVER] = kept(asked.saved.handover, trust)
        else:
            session.metadata.pop(HANDOVER, None)  # what it said of this part is over
        session.metadata.pop(OLD_SUMMARY, None)
        try:
            await self._sessions.move_cursor(session, asked.part.count)
        except NanobotError:
            if before is not None:
                session.metadata[HANDOVER] = before
            raise
        self._note_done(asked)

    def _write(self, asked: "_Asked") -> None:
        saved, memory = asked.saved, self._memory_of(asked.plan.scope)
        source = Source(asked.plan.session_key, rows=asked.part.rows, provenance=asked.own.provenance)
        memory.take_in(saved.history_entry, saved.memory_update, instead_of=asked.memory, source=source)

    def _note_done(self, asked: "_Asked") -> None:
        self._vitals.memory_note = f"{counted(asked.part.count, 'message')} moved into memory at {self._now()}"

    def _failed(self, session_key: str, error: Exception) -> ConsolidationResult:
        reason = str(error) or f"The model gave no answer within {self._limit_s:.0f} seconds."
        self._vitals.memory_note = f"not tidied at {self._now()}: {reason}"
        log.warning("Session %s could not be consolidated: %s", session_key, reason)
        return ConsolidationResult(ConsolidationOutcome.FAILED, reason)

    def _memory_of(self, scope: Scope) -> MemoryStore:
        return self._memory if scope == self._memory.scope else self._memory.of(scope)

    def _lock_of(self, scope: Scope) -> asyncio.Lock:
        """Held from the look at a memory to its change: two sessions must not write over each other."""
        lock = self._one_at_a_time.get(scope)
        if lock is None:
            lock = self._one_at_a_time[scope] = asyncio.Lock()
        return lock

    def _now(self) -> str:
        return f"{self._clock.now():%Y-%m-%d %H:%M}"


def _room(model: AskedModel, memory: str) -> tuple[int, int]:
    """Tokens for the reply, and for the conversation it is asked about. Raises ProviderError where there are none."""
    window = model.limits.window_tokens
    reply = min(model.limits.max_tokens, window // 4)
    if reply < _ENTRY_TOKENS or window - reply - _PROMPT_TOKENS < _LEAST_TOKENS:
        raise ProviderError(
            f"{model.name} has too small a window ({window:,} tokens) or reply ({reply:,}) to consolidate with. "
            "Set agents.defaults.backgroundModel to a larger one."
        )
    weight = estimate_tokens(memory)
    room = min(_MOST_TOKENS, window - reply - weight - _PROMPT_TOKENS)
    if weight + _ENTRY_TOKENS > reply or room < _LEAST_TOKENS:
        raise ProviderError(
            f"MEMORY.md has about {weight:,} tokens; {model.name} cannot write it again in a reply of {reply:,}. "
            "Shorten it, or raise maxTokens."
        )
    return reply, room


class _Cut:
    """Where messages may be parted: `most` of these rows may go, whole turns only."""

    def __init__(self, rows: Sequence[ChatMessage], lines: Sequence[str], weights: Sequence[int], most: int) -> None:
        self._rows = rows
        self._weights = weights
        words = list(accumulate(bool(line) for line in lines))
        self.ends = [at for at in range(1, most + 1) if words[at - 1] and (at == len(rows) or begins_turn(rows, at))]
        """How many may go; none where nothing in them may be kept."""

    def part(self, room: int) -> _Part:
        """The most whole turns that fit the room, and one at least."""
        end = max((at for at in self.ends if self._weights[at - 1] <= room), default=self.ends[0])
        return _Part(self._rows[:end], transcript_of(self._rows[:end], room))


@dataclass(frozen=True, slots=True)
class _Plan:
    """Which messages of which session are to go into which memory, and how the session stood."""

    session_key: str
    created_at: datetime
    cursor: int
    scope: Scope
    cut: _Cut
    share: float
    model: str
    handover: str


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a model made of a part, and the memory it was shown."""

    plan: _Plan
    part: _Part
    own: Transcript
    """What the memory is made of; the log is of all of the part."""
    saved: Saved
    memory: str


def _by_scope(rows: Sequence[ChatMessage], scope_of: Callable[[ChatMessage], Scope]) -> Iterator[tuple[Scope, int]]:
    """The scopes of these rows in their order, each with where its stretch of whole turns ends.

    A turn into which somebody's word came that belongs to a chat belongs to that chat.
    """
    begins = [at for at in range(len(rows)) if at == 0 or begins_turn(rows, at)]
    turns: list[tuple[Scope, int]] = []
    for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True):
        said = [scope_of(row) for row in rows[begin:end] if row.get("role") == "user" and not is_our_word(row)]
        scope = next((one for one in said if not one.is_owners), said[0] if said else None)
        if turns and scope in (None, turns[-1][0]):
            turns[-1] = (turns[-1][0], end)
        else:
            turns.append((scope or scope_of(rows[begin]), end))
    yield from turns


def begins_turn(rows: Sequence[ChatMessage], at: int) -> bool:
    """Whether a person's message stands here that did not join the turn before it."""
    row, turn_id = rows[at], rows[at].get("turn_id")
    if row.get("role") != "user" or is_our_word(row) or row.get("_command"):
        return False
    return turn_id is None or turn_id != rows[at - 1].get("turn_id")
