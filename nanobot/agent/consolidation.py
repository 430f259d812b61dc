"""Consolidation: move the older messages of a session into memory, one checked `save_memory` call at a time.

The order sees to it that nothing is lost: the end is fixed, the model asked, its answer checked; then HISTORY.md is
written, then MEMORY.md, and only when both are on the disk the session's cursor moves. A kill in between costs a second
entry in the log, never a message. Reading order: consolidation -> save_memory (the call) -> memory (the files).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Protocol

from nanobot.agent.memory import MemoryStore
from nanobot.agent.save_memory import Saved, Transcript, ask_for_both, lines_of, own_transcript, transcript_of
from nanobot.agent.vitals import Vitals
from nanobot.errors import NanobotError, ProviderError
from nanobot.messages.tokens import estimate_tokens
from nanobot.messages.types import ChatMessage, is_our_word
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


_NOTHING = ConsolidationResult(ConsolidationOutcome.NOTHING)


@dataclass(frozen=True, slots=True)
class _Part:
    """The messages that go: so many from the cursor on."""

    count: int
    transcript: Transcript
    own: Transcript
    """The owner's part of it."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """What failed, when, and how the session stood."""

    stood: tuple[int, int]
    at: float
    result: ConsolidationResult


class Consolidator:
    """Moves messages into one workspace's memory, one session at a time."""

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
    ) -> None:
        """`others_write` says of a session whether others than the owner may write there: then what they say is told in
        the log alone, and changes no memory that every prompt begins with. So is what tool servers say, everywhere.
        """
        self._memory = memory
        self._sessions = sessions
        self._models = models
        self._vitals = vitals
        self._clock = clock
        self._background_model = background_model
        self._limit_s = limit_s
        self._others_write = others_write
        self._one_at_a_time = asyncio.Lock()
        self._failures: dict[str, _Failure] = {}

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
        async with self._one_at_a_time:
            stood = (session.last_consolidated, session.message_count)
            failure = self._failures.get(session.key)
            if failure is not None and failure.stood == stood and self._clock.monotonic() - failure.at < _TRY_AGAIN_S:
                return failure.result
            try:
                moved = await self._move(session, keep)
            except (NanobotError, TimeoutError) as error:
                reason = str(error) or f"The model gave no answer within {self._limit_s:.0f} seconds."
                result = ConsolidationResult(ConsolidationOutcome.FAILED, reason)
                self._failures[session.key] = _Failure(stood, self._clock.monotonic(), result)
                self._vitals.memory_note = f"not tidied at {self._now()}: {reason}"
                log.warning("Session %s could not be consolidated: %s", session.key, reason)
                return result
            self._failures.pop(session.key, None)
            return ConsolidationResult(ConsolidationOutcome.DONE, moved=moved) if moved else _NOTHING

    async def _move(self, session: Session, keep: int) -> int:
        if session.message_count - session.last_consolidated <= keep:
            return 0
        model = await self._models.get(self._background_model or session.metadata.get("model"))
        memory = await asyncio.to_thread(self._memory.read_to_rewrite)
        reply, room = _room(model, memory)
        alone = not self._others_write(session.key)
        part = await asyncio.to_thread(self._pick, session, keep, room, person_is_owner=alone)
        if part is None:
            return 0
        with calling_for(CallContext("consolidation", session.key)):
            async with asyncio.timeout(self._limit_s):
                saved = await ask_for_both(
                    model.provider, model.name, memory, part.transcript, part.own, max_tokens=reply
                )
        await finish(self._keep(session, part, saved, memory))
        return part.count

    def _pick(self, session: Session, keep: int, room: int, *, person_is_owner: bool) -> _Part | None:
        """Which messages go, from the cursor on: more are read only where so many hold nothing that could go."""
        most = _ROWS_AT_ONCE
        while True:
            asked = most + max(keep, 1)
            rows = self._sessions.unconsolidated(session, asked)
            is_all = len(rows) < asked
            part = _part_of(rows, len(rows) - keep if is_all else most, room, person_is_owner=person_is_owner)
            if part is not None or is_all:
                return part
            most *= 4

    async def _keep(self, session: Session, part: _Part, saved: Saved, memory: str) -> None:
        """First the words, then the cursor."""
        await asyncio.to_thread(self._memory.take_in, saved.history_entry, saved.memory_update, instead_of=memory)
        await self._sessions.move_cursor(session, part.count)
        self._vitals.memory_note = f"{counted(part.count, 'message')} moved into memory at {self._now()}"

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


def _part_of(rows: Sequence[ChatMessage], most: int, room: int, *, person_is_owner: bool) -> _Part | None:
    """The most whole turns that fit the room, and one at least; None where none may go or nothing in them may be kept.

    `most` is how many of the rows may go.
    """
    lines = lines_of(rows)
    weights = list(accumulate(estimate_tokens(line) for line in lines))
    words = list(accumulate(bool(line) for line in lines))
    ends = [at for at in range(1, most + 1) if words[at - 1] and (at == len(rows) or _begins_turn(rows, at))]
    if not ends:
        return None
    end = max((at for at in ends if weights[at - 1] <= room), default=ends[0])
    gone = rows[:end]
    return _Part(end, transcript_of(gone, room), own_transcript(gone, room, person_is_owner=person_is_owner))


def _begins_turn(rows: Sequence[ChatMessage], at: int) -> bool:
    """Whether a person's message stands here that did not join the turn before it."""
    row, turn_id = rows[at], rows[at].get("turn_id")
    if row.get("role") != "user" or is_our_word(row) or row.get("_command"):
        return False
    return turn_id is None or turn_id != rows[at - 1].get("turn_id")
