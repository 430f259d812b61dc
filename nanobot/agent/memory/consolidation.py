"""Consolidation: move the older messages of a session into memory, by checked calls of `save_memory`.

The order prevents loss: fix the range, ask the model, check its answer, write HISTORY.md, write MEMORY.md, and only
then move the session's cursor. A kill in between costs a duplicate log entry, never a message. What was said in a chat
with other people goes into that chat's memory, also what the owner said there.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate
from typing import Protocol

from nanobot.agent.engine.spec import Model
from nanobot.agent.memory.revisions import ChangeSource
from nanobot.agent.memory.save_memory import (
    SaveMemoryAnswer,
    add_provenance,
    build_transcript,
    read_for_model,
    request_consolidation,
    store_edits,
    transcript_lines,
)
from nanobot.agent.memory.store import MemoryStore
from nanobot.agent.scope import Scope
from nanobot.agent.session_summary import (
    OLD_SUMMARY,
    SUMMARY_KEY,
    session_summary,
    summary_metadata,
    summary_provenance,
)
from nanobot.agent.status import AgentStatus
from nanobot.errors import NanobotError, ProviderError
from nanobot.messages.tokens import estimate_tokens
from nanobot.messages.types import ChatMessage, Provenance, is_synthetic, least_trusted
from nanobot.providers.base import CallContext, call_context_scope
from nanobot.session.manager import Session, SessionManager
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock
from nanobot.utils.text import count_noun

log = logging.getLogger(__name__)

_MAX_TOKENS = 32_000
"""Conversation per call; larger parts make for worse summaries."""
_MIN_TOKENS = 500
_ROWS_AT_ONCE = 500
_PROMPT_TOKENS = 1_500
"""Our instructions, the schema, and the error of the estimate."""
_LIMIT_S = 180.0
_MIN_REPLY_TOKENS = 700
"""For the log entry and a few edits."""


class ModelSource(Protocol):
    async def get(self, name: str | None) -> Model:
        """Return the model of that name or preset, the configured one for None. Raises NanobotError."""
        ...


@dataclass(frozen=True, slots=True)
class ConsolidationResult:
    """How many messages moved, and why the others did not; these are as before."""

    moved: int = 0
    reason: str = ""
    failed: bool = False


@dataclass(frozen=True, slots=True)
class _Plan:
    """Which messages of a session go into which memory, and where the session stood when planned."""

    session: Session
    created_at: datetime
    cursor: int
    scope: Scope
    rows: Sequence[ChatMessage]
    ends: Mapping[int, int]
    """How many rows make whole turns, and the tokens of each such part."""


@dataclass(eq=False)
class Consolidator:
    """Moves messages into the memories of one workspace."""

    memory: MemoryStore
    sessions: SessionManager
    models: ModelSource
    status: AgentStatus
    clock: Clock
    background_model: Callable[[], str | None] = lambda: None
    others_write: Callable[[str], bool] = lambda session_key: False
    """Whether people other than the owner may write in a session. Their messages, and results of MCP servers anywhere,
    are summarised in the log only and never change the owner's MEMORY.md.
    """
    scope_of: Callable[[str, ChatMessage], Scope] = lambda session_key, row: Scope(row.get("scope", ""))
    """Returns the memory a message belongs to."""
    _moving: set[str] = field(default_factory=set)

    async def consolidate(
        self,
        name: str,
        keep: Callable[[Session], int],
        *,
        held: Session | None = None,
        is_archived: bool = False,
        max_calls: int = 8,
    ) -> ConsolidationResult:
        """Move the oldest messages of a session, as many a call as fit, but none of the last `keep(session)` or of the
        turn these start in.

        `name` is the session's key, or the file stem of an archived session, whose file stays unchanged. `held` is the
        session if the caller holds it. Otherwise it is held to plan and to apply only, so that its turns go on during a
        model call. Does nothing if the session is reset meanwhile. Never raises for a model or the disk. Cancelling is
        safe: a part is kept completely or not at all. After `max_calls`, a long session continues the next time.
        """
        if name in self._moving:
            return ConsolidationResult(reason="Older messages are being moved into memory already.")

        def hold() -> AbstractAsyncContextManager[Session]:
            return self.sessions.hold(name) if held is None else nullcontext(held)

        def make_plan(session: Session) -> _Plan | None:
            if is_archived:
                return self._plan_of(session, session.messages[session.last_consolidated :], 0)
            return self._plan(session, keep(session))

        self._moving.add(name)
        moved = 0
        try:
            for _ in range(max_calls):
                async with hold() as session:
                    plan = await asyncio.to_thread(make_plan, session)
                if plan is None:
                    break
                source, saved = await self._ask(plan)
                async with hold() as session:
                    if (session.created_at, session.last_consolidated) != (plan.created_at, plan.cursor):
                        break  # reset, or consolidated by another process
                    await finish(self._store(session, plan.scope, source, saved, is_archived=is_archived))
                moved += len(source.rows)
        except (NanobotError, TimeoutError) as error:
            reason = str(error) or f"The model gave no answer within {_LIMIT_S:.0f} seconds."
            self.status.memory_note = f"consolidation failed at {self._now()}: {reason}"
            log.warning("Session %s could not be consolidated: %s", name, reason)
            return ConsolidationResult(moved, reason, failed=True)
        finally:
            self._moving.discard(name)
        return ConsolidationResult(moved)

    async def note_archived(self, session: Session, stem: str) -> None:
        """Log that an archived session could not be summarised, and where it is. Raises StorageError."""
        rows = session.messages[session.last_consolidated :]
        scopes = [scope for scope, _ in _by_scope(rows, lambda row: self.scope_of(session.key, row))]
        scope = next((scope for scope in scopes if not scope.is_owners), next(iter(scopes), self.memory.scope))
        count = count_noun(len(rows), "message")
        entry = f"{count} of {session.key} could not be summarised. They are kept in session {stem}."
        await asyncio.to_thread(self.memory.of(scope).append_history, entry)

    def _plan(self, session: Session, keep: int) -> _Plan | None:
        """Choose the messages to move, from the cursor on. Reads further only if a batch has nothing worth moving."""
        if session.message_count - session.last_consolidated <= keep:
            return None
        batch = _ROWS_AT_ONCE
        while True:
            limit = batch + max(keep, 1)
            rows = self.sessions.read_unconsolidated(session, limit)
            is_all = len(rows) < limit
            plan = self._plan_of(session, rows, keep if is_all else len(rows) - batch)
            if plan is not None or is_all:
                return plan
            batch *= 4

    def _plan_of(self, session: Session, rows: Sequence[ChatMessage], keep: int) -> _Plan | None:
        if len(rows) <= keep:
            return None
        rows = add_provenance(rows, session.key if self.others_write(session.key) else "")
        spans = list(_by_scope(rows, lambda row: self.scope_of(session.key, row)))
        lines = transcript_lines(rows)
        while len(spans) > 1 and not any(lines[: spans[0][1]]):  # nothing memorable: moves together with the next span
            del spans[0]
        scope, end = spans[0]
        sizes = list(accumulate(estimate_tokens(line) for line in lines))
        filled = list(accumulate(map(bool, lines)))
        ends = {
            at: sizes[at - 1]
            for at in range(1, min(len(rows) - keep, end) + 1)
            if filled[at - 1] and (at == len(rows) or is_turn_start(rows, at))
        }
        return _Plan(session, session.created_at, session.last_consolidated, scope, rows, ends) if ends else None

    async def _ask(self, plan: _Plan) -> tuple[ChangeSource, SaveMemoryAnswer]:
        """Return the checked answer for the first rows of a plan, and what it was made of."""
        memory, key, metadata = self.memory.of(plan.scope), plan.session.key, plan.session.metadata
        handover, trust = session_summary(metadata), summary_provenance(metadata, key)
        model = await self.models.get(self.background_model() or str(metadata.get("model") or "") or None)
        text = await asyncio.to_thread(read_for_model, memory.revisions)
        reply, room = _room(model, text)
        rows = plan.rows[: max((end for end, tokens in plan.ends.items() if tokens <= room), default=min(plan.ends))]
        everything = build_transcript(rows, room)
        own, handover_trust = everything, Provenance.OWNER  # the memory of a chat covers everything said there
        if plan.scope.is_owners:
            person_is_owner = not self.others_write(key)
            own = build_transcript(rows, room, is_trusted_only=True, person_is_owner=person_is_owner)
            if not (person_is_owner and trust is Provenance.PERSON):
                handover_trust = trust
        with call_context_scope(CallContext("consolidation", key)):
            async with asyncio.timeout(_LIMIT_S):
                saved = await request_consolidation(
                    model.provider,
                    model.name,
                    text,
                    everything,
                    own,
                    max_tokens=reply,
                    handover=handover,
                    handover_trust=handover_trust,
                )
        return ChangeSource(key, rows=rows, provenance=own.provenance), saved

    async def _store(
        self, session: Session, scope: Scope, source: ChangeSource, saved: SaveMemoryAnswer, *, is_archived: bool
    ) -> None:
        """Write the memory first, then move the cursor."""
        memory, count = self.memory.of(scope), len(source.rows)
        await asyncio.to_thread(store_edits, memory.revisions, saved.history_entry, saved.edits, source)
        self.status.memory_note = f"{count_noun(count, 'message')} moved into memory at {self._now()}"
        if is_archived:
            session.last_consolidated += count
            return
        before = session.metadata.get(SUMMARY_KEY)
        if saved.handover:
            trust = least_trusted([summary_provenance(session.metadata, session.key), source.provenance])
            session.metadata[SUMMARY_KEY] = summary_metadata(saved.handover, trust)
        else:
            session.metadata.pop(SUMMARY_KEY, None)  # it described messages that are now in memory
        session.metadata.pop(OLD_SUMMARY, None)
        try:
            await self.sessions.move_cursor(session, count)
        except NanobotError:
            if before is not None:
                session.metadata[SUMMARY_KEY] = before
            raise

    def _now(self) -> str:
        return f"{self.clock.now():%Y-%m-%d %H:%M}"


def _room(model: Model, memory: str) -> tuple[int, int]:
    """Return the token budgets for reply and transcript. Raises ProviderError if the model is too small."""
    window, weight = model.limits.window_tokens, estimate_tokens(memory)
    reply = min(model.limits.max_tokens, window // 4)
    room = min(_MAX_TOKENS, window - reply - weight - _PROMPT_TOKENS)
    if reply < _MIN_REPLY_TOKENS or room < _MIN_TOKENS:
        raise ProviderError(
            f"The window of {model.name} ({window:,} tokens, {reply:,} of them for its reply) has no room for a "
            f"conversation beside MEMORY.md (about {weight:,}). Shorten MEMORY.md, or set "
            "agents.defaults.backgroundModel to a larger model."
        )
    return reply, room


def _by_scope(rows: Sequence[ChatMessage], scope_of: Callable[[ChatMessage], Scope]) -> Iterator[tuple[Scope, int]]:
    """Yield scope and end of each stretch of whole turns with one scope.

    A turn belongs to a chat if any user message in it does.
    """
    begins = [at for at in range(len(rows)) if at == 0 or is_turn_start(rows, at)]
    turns: list[tuple[Scope, int]] = []
    for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True):
        scopes = [scope_of(row) for row in rows[begin:end] if row.get("role") == "user" and not is_synthetic(row)]
        scope = next((scope for scope in scopes if not scope.is_owners), scopes[0] if scopes else None)
        if turns and scope in (None, turns[-1][0]):
            turns[-1] = (turns[-1][0], end)
        else:
            turns.append((scope or scope_of(rows[begin]), end))
    yield from turns


def is_turn_start(rows: Sequence[ChatMessage], at: int) -> bool:
    """Whether a user message that did not join the previous turn is at this position."""
    row, turn_id = rows[at], rows[at].get("turn_id")
    if row.get("role") != "user" or is_synthetic(row) or row.get("_command"):
        return False
    return turn_id is None or turn_id != rows[at - 1].get("turn_id")
