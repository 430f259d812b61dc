"""Dream: a background pass that tidies one memory, based on what is new in its log.

A model is shown the facts and the new log entries, and names edits of single facts (`dream_edits`); other facts stay
unchanged. Without news no model is called. Failures are retried with exponential backoff. The cursor moves only once
the checked result is on the disk.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from nanobot.agent.engine.spec import Model
from nanobot.agent.memory.consolidation import ModelSource
from nanobot.agent.memory.dream_log import AppliedEdit, DreamLog, DreamPass, DreamState, NewEntries, PassOutcome
from nanobot.agent.memory.dream_prompt import TIDY_MEMORY, DreamInput, review_answer
from nanobot.agent.memory.due import Due
from nanobot.agent.memory.edits import apply_edits
from nanobot.agent.memory.facts import Fact, fact_key, parse_facts
from nanobot.agent.memory.history import HistoryEntry
from nanobot.agent.memory.review import AcceptedEdit, EditAction, EditReview, KnownFact
from nanobot.agent.memory.revisions import (
    ChangedBy,
    ChangeSource,
    FactOrigin,
    encodable,
    is_initial_snapshot,
    is_lesson,
    is_like,
)
from nanobot.agent.memory.store import MemoryStore
from nanobot.errors import NanobotError, ProviderError, StorageError
from nanobot.messages.tokens import estimate_tokens
from nanobot.messages.types import Provenance, is_outside, least_trusted
from nanobot.providers.base import CallContext, LLMResponse, call_context_scope, error_from_response
from nanobot.security.provenance import IN_PART
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock, timestamp
from nanobot.utils.locks import ProcessLock
from nanobot.utils.storage_error import storage_error

log = logging.getLogger(__name__)

_REPLY_TOKENS = 4_096
_MIN_REPLY_TOKENS = 256
_SCHEMA_TOKENS = 400
_BACKOFF_S, _MAX_BACKOFF_S = 3600.0, 7 * 86_400.0
_MAX_FORGOTTEN = 200


@dataclass(frozen=True, slots=True)
class DreamPolicy:
    """Model and limits of a run."""

    model: str | None = None
    """Model or preset; None for the default one."""
    batch: int = 20
    """Log entries per call."""
    max_calls: int = 3
    max_tokens: int = 60_000
    """Tokens per run, input and output."""
    shows_ages: bool = True
    limit_s: float = 180.0


class DreamOutcome(StrEnum):
    DONE = "done"
    NOTHING = "nothing"
    """Nothing new, so no model was called."""
    RESTING = "resting"
    """Backing off after a failure, with nothing new since."""
    BUSY = "busy"
    """Another run is tidying this memory, perhaps in another process."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class DreamRun:
    """The passes of a run in order, and why there were no more."""

    outcome: DreamOutcome
    passes: Sequence[DreamPass] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _DreamPlan:
    """The input of a pass, and the cursor after it."""

    state: DreamState
    after: DreamState
    material: DreamInput


async def _nothing() -> None:
    pass


class Dream:
    """Tidies the memory of one scope."""

    def __init__(
        self,
        memory: MemoryStore,
        models: ModelSource,
        clock: Clock,
        policy: DreamPolicy | None = None,
        *,
        record_changes: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        """`record_changes` records revisions of changes made by others; awaited before each look at the memory."""
        self._memory = memory
        self._models = models
        self._clock = clock
        self.policy = policy or DreamPolicy()
        self._record_changes = record_changes
        self.log = DreamLog(memory)
        self._task: asyncio.Task[DreamRun] | None = None
        self._unsaved: tuple[DreamState, Due] | None = None
        """State that could not be written to the disk."""

    def state(self) -> tuple[DreamState, Due]:
        """Return the cursor, and the backoff after failures. Blocks; raises StorageError."""
        return self._unsaved or self.log.load()

    async def run(self, *, who: str = "", by_hand: bool = False) -> DreamRun:
        """Tidy from what is new, in as many calls as needed and allowed. `by_hand` ignores the backoff.

        Never raises for a model or the disk. Cancelling is safe: a pass is applied completely or not at all.
        """
        if self._task is not None:
            return DreamRun(DreamOutcome.BUSY)
        self._task = asyncio.create_task(self._run(who, by_hand), name="dream")
        task = self._task
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            await self.break_off()
            raise
        finally:
            self._task = None
        return DreamRun(DreamOutcome.NOTHING, reason="It was cancelled.") if task.cancelled() else task.result()

    async def break_off(self) -> None:
        """Cancel a run that waits for a model; a write in progress is finished."""
        if (task := self._task) is not None:
            task.cancel()
            await asyncio.wait([task])

    async def clear(self) -> None:
        """Treat everything in the log as read, after a reset of the memory. Raises StorageError."""
        await self.break_off()
        await asyncio.to_thread(self._skip)

    async def _run(self, who: str, by_hand: bool) -> DreamRun:
        lock = ProcessLock(self._memory.revisions.dream_lock_file())
        try:
            if not await asyncio.to_thread(self._try_lock, lock):
                return DreamRun(DreamOutcome.BUSY)
        except NanobotError as error:
            return DreamRun(DreamOutcome.FAILED, reason=str(error))
        try:
            return await self._passes(who, by_hand)
        finally:
            lock.release()

    def _try_lock(self, lock: ProcessLock) -> bool:
        with self._memory.revisions.lock():  # creates the folder
            try:
                return lock.try_acquire()
            except OSError as error:
                raise storage_error("Dream cannot begin", error) from error

    async def _passes(self, who: str, by_hand: bool) -> DreamRun:
        done: list[DreamPass] = []
        spent = 0
        while True:
            try:
                await self._record_changes()
                plan = await asyncio.to_thread(self._next_plan)
                if plan is None:
                    return DreamRun(DreamOutcome.DONE if done else DreamOutcome.NOTHING, done)
                if not by_hand and not done and await asyncio.to_thread(self._is_backing_off, plan.state):
                    return DreamRun(DreamOutcome.RESTING, done, plan.state.error)
                if len(done) >= self.policy.max_calls:
                    return DreamRun(DreamOutcome.DONE, done, "The rest of the log is left for the next run.")
                model = await self._models.get(self.policy.model)
                fitted, prompt, reply = await asyncio.to_thread(self._fit, plan, model)
                if done and spent + prompt + reply > self.policy.max_tokens:
                    return DreamRun(DreamOutcome.DONE, done, "The rest of the log is left for the next run.")
                dream_pass = await self._pass(fitted, model, reply, who)
            except (NanobotError, TimeoutError) as error:
                dream_pass = await asyncio.to_thread(self._record_failure, error, self._new_pass(who))
            if dream_pass.outcome is PassOutcome.FAILED:
                return DreamRun(DreamOutcome.FAILED, [*done, dream_pass], dream_pass.reason)
            spent += dream_pass.prompt_tokens + dream_pass.completion_tokens or prompt + reply
            done.append(dream_pass)

    def _fit(self, plan: _DreamPlan, model: Model) -> tuple[_DreamPlan, int, int]:
        """Shorten the plan to fit the model. Return it with the tokens of prompt and reply. Raises ProviderError."""
        window = model.limits.window_tokens
        reply = min(model.limits.max_tokens, _REPLY_TOKENS, window // 4)
        budget = min(window, self.policy.max_tokens) - reply
        prompt = _prompt_tokens(plan.material)
        while prompt > budget and len(plan.material.entries) > 1:
            shorter = self._shorten(plan)
            if shorter is None:  # somebody emptied the memory meanwhile
                break
            plan, prompt = shorter, _prompt_tokens(shorter.material)
        if prompt > budget or reply < _MIN_REPLY_TOKENS:
            raise ProviderError(
                f"Tidying this memory takes about {prompt:,} input tokens and {reply:,} output tokens; {model.name} or "
                "agents.defaults.dream.maxTokens allows less. Set dream.modelOverride to a larger model."
            )
        return plan, prompt, reply

    def _shorten(self, plan: _DreamPlan) -> _DreamPlan | None:
        """Keep the first half of the entries; None if there is nothing to do any more."""
        half = max(1, len(plan.material.entries) // 2)
        return self._plan_of(plan.state, self.log.news(plan.state, self.policy.batch), half)

    async def _pass(self, plan: _DreamPlan, model: Model, reply: int, who: str) -> DreamPass:
        chat = self._memory.scope.chat
        with call_context_scope(CallContext("dream", f"dream:{chat}" if chat else "dream")):
            async with asyncio.timeout(self.policy.limit_s):
                response = await self._ask(plan.material, model, reply)
        dream_pass = replace(
            self._new_pass(who),
            model=model.name,
            calls=1,
            prompt_tokens=response.usage.get("prompt_tokens", 0),
            completion_tokens=response.usage.get("completion_tokens", 0),
            usd=response.cost_usd,
            entries=len(plan.material.entries),
        )
        try:
            review = await asyncio.to_thread(review_answer, response, plan.material)
        except ProviderError as error:
            return await asyncio.to_thread(self._record_failure, error, dream_pass)
        await self._record_changes()
        return await finish(asyncio.to_thread(self._apply, plan, review, dream_pass))

    def _new_pass(self, who: str) -> DreamPass:
        return DreamPass(0, timestamp(self._clock), PassOutcome.UNCHANGED, who=who, calls=0)

    async def _ask(self, material: DreamInput, model: Model, reply: int) -> LLMResponse:
        try:
            response = await model.provider.chat(
                messages=material.request(), tools=[TIDY_MEMORY], model=model.name, max_tokens=reply, temperature=0.1
            )
        except NanobotError:
            raise
        except Exception as error:  # a custom provider may raise anything; nothing is lost
            raise ProviderError(f"The model call failed: {type(error).__name__}: {error}") from error
        if response.finish_reason == "error":
            raise error_from_response(response)
        return response

    def _next_plan(self) -> _DreamPlan | None:
        """Plan a pass; None if nothing is new. Raises StorageError."""
        state, _ = self.state()
        news = self.log.news(state, self.policy.batch)
        plan = self._plan_of(state, news, self.policy.batch)
        if plan is None and (not state.begun or (news.end, self.log.last_change()) != (state.offset, state.change)):
            with suppress(StorageError):  # `_unsaved` has it until the process ends
                self._save_cursor(self._state_at(state, news.end))
        return plan

    def _plan_of(self, state: DreamState, news: NewEntries, limit: int) -> _DreamPlan | None:
        usable = [at for at, entry in enumerate(news.entries) if self._is_for(entry)]
        if not usable and not self._agent_wrote(state):
            return None
        self._memory.record_changes()
        text = (self._memory.file_bytes(self._memory.memory_file) or b"").decode("utf-8", "surrogateescape")
        origins = self._memory.revisions.origins()
        facts = {
            fact.key: fact for fact in parse_facts(text.removeprefix("\ufeff")) if not is_lesson(origins.get(fact.key))
        }
        if not facts:
            return None
        chosen = usable[:limit]
        end = news.end if len(chosen) == len(usable) else news.ends[chosen[-1]]
        after = replace(state, begun=True, offset=end, change=self.log.last_change(), error="")
        name = self._memory.memory_file.name
        first_revision = next(
            (change.number for change in self._memory.revisions.changes() if change.file == name), None
        )
        forgotten = [fact_text for fact_text, _ in self._memory.revisions.forgotten()][-_MAX_FORGOTTEN:]
        material = DreamInput(
            text,
            [_known_fact(fact, origins.get(fact.key), first_revision) for fact in facts.values()],
            [news.entries[at] for at in chosen],
            f"{self._clock.now():%Y-%m-%d (%A)}",
            forgotten,
            self.policy.shows_ages,
        )
        return _DreamPlan(state, after, material)

    def _is_for(self, entry: HistoryEntry) -> bool:
        """Whether an entry may change this memory. The owner's is built from trusted entries only."""
        return not self._memory.scope.is_owners or not any(mark in entry.content for mark in IN_PART.values())

    def _agent_wrote(self, state: DreamState) -> bool:
        """Whether the agent's tools have added facts since the last pass."""
        name = self._memory.memory_file.name
        return any(
            change.number > state.change and change.by is ChangedBy.AGENT and change.file == name and change.added
            for change in self._memory.revisions.changes()
        )

    def _state_at(self, state: DreamState, offset: int) -> DreamState:
        return replace(state, begun=True, offset=offset, change=self.log.last_change())

    def _save_cursor(self, state: DreamState) -> None:
        """Store the cursor with its anchor, which ends a backoff. Raises StorageError."""
        self._save(replace(state, anchor=self.log.anchor_at(state.offset), error=""), Due())

    def _save(self, state: DreamState, due: Due) -> None:
        self._unsaved = (state, due)
        self.log.save(state, due)
        self._unsaved = None

    def _skip(self) -> None:
        end = self.log.news(DreamState(), 0).end
        self._save_cursor(self._state_at(self.state()[0], end))

    def _is_backing_off(self, state: DreamState) -> bool:
        """Whether to wait after a failure; something new in the log ends the backoff."""
        _, due = self.state()
        return due.failures > 0 and self._clock.now().timestamp() < due.at and self.log.size() == state.failed_size

    def _record_failure(self, error: Exception, dream_pass: DreamPass) -> DreamPass:
        """Record a failed pass, and back off."""
        reason = str(error) or f"The model gave no answer within {self.policy.limit_s:.0f} seconds."
        log.warning("Dream failed for the memory of %s: %s", self._memory.scope.chat or "the owner", reason)
        dream_pass = replace(dream_pass, outcome=PassOutcome.FAILED, reason=reason)
        with suppress(StorageError):  # `_unsaved` has the backoff until the process ends
            state, due = self.state()
            due = due.after_failure(self._clock.now().timestamp(), _BACKOFF_S, _MAX_BACKOFF_S)
            self._save(replace(state, failed_size=self.log.size(), error=reason), due)
            return self.log.add(dream_pass)
        return dream_pass

    def _apply(self, plan: _DreamPlan, review: EditReview, dream_pass: DreamPass) -> DreamPass:
        """Apply the edits, then move the cursor. Raises StorageError; the memory is then unchanged."""
        memory = self._memory
        with memory.revisions.lock():
            memory.record_changes()
            raw = memory.file_bytes(memory.memory_file) or b""
            before = raw.decode("utf-8", "surrogateescape")
            # also what was pinned since the model was asked
            pinned = {fact.key for fact in parse_facts(before) if fact.pinned}
            allowed = [
                edit.edit
                for edit in review.edits
                if pinned.isdisjoint(edit.edit.keys) and not self._is_forgotten_since(edit, plan.material)
            ]
            text, done = apply_edits(before, allowed)
            applied = [edit for edit in review.edits if edit.edit in done]
            late = [f"changed in the meantime: {edit.before[0]}" for edit in review.edits if edit.edit not in done]
            data = text.encode("utf-8", "surrogateescape")
            dream_pass = replace(
                dream_pass,
                bytes_before=len(raw),
                bytes_after=len(data),
                edits=[_describe_edit(edit) for edit in applied],
                refused=[*review.refused, *late],
            )
            if data != raw:
                dream_pass = self._change(replace(dream_pass, outcome=PassOutcome.CHANGED), data, applied)
            try:
                if data == raw:
                    dream_pass = self.log.add(dream_pass)
                self._save_cursor(replace(plan.after, change=max(plan.after.change, dream_pass.change or 0)))
            except StorageError as error:
                log.warning("%s", error)
        return dream_pass

    def _change(self, dream_pass: DreamPass, data: bytes, edits: Sequence[AcceptedEdit]) -> DreamPass:
        """Write MEMORY.md and what goes to the archive, with the revision and the pass. Raises StorageError."""
        memory, written = self._memory, [dream_pass]
        archived = [
            fact
            for edit in edits
            if edit.action is EditAction.ARCHIVE
            for text in edit.before
            for fact in parse_facts(f"- {text}")
        ]
        source = ChangeSource(who=dream_pass.who, origins=self._merged_origins(edits))
        memory.change(
            memory.memory_file,
            data,
            ChangedBy.DREAM,
            source,
            archived=archived,
            also=lambda db, change: written.append(self.log.write(db, replace(dream_pass, change=change.number))),
        )
        return written[-1]

    def _merged_origins(self, edits: Sequence[AcceptedEdit]) -> dict[str, dict[str, Any]]:
        """Return the origin of each merged fact, by key: that of the first source with a quote."""
        origins = self._memory.revisions.origins()
        merged: dict[str, dict[str, Any]] = {}
        for edit in edits:
            if edit.action is not EditAction.REPLACE:
                continue
            sources = [origins[key].details for key in edit.edit.keys if key in origins]
            origin = next((source for source in sources if source.get("quote")), sources[0] if sources else {})
            kept = {name: value for name, value in origin.items() if name not in ("key", "text", "provenance")}
            trust = {"provenance": edit.provenance.value} if is_outside(edit.provenance) else {}
            merged[fact_key(edit.edit.text)] = kept | trust
        return merged

    def _is_forgotten_since(self, edit: AcceptedEdit, material: DreamInput) -> bool:
        """Whether its text was forgotten while the model was thinking."""
        new_texts = {text for text, _ in self._memory.revisions.forgotten()}.difference(material.forgotten)
        return bool(edit.edit.text) and any(is_like(edit.edit.text, text) for text in new_texts)


def _describe_edit(edit: AcceptedEdit) -> AppliedEdit:
    text = edit.edit.text or edit.edit.under
    return AppliedEdit(edit.action.value, [encodable(text) for text in edit.before], encodable(text), edit.why)


def _known_fact(fact: Fact, origin: FactOrigin | None, first_revision: int | None) -> KnownFact:
    """Collect what the revisions know of a fact. `first_revision` has the initial snapshot."""
    if origin is None:
        return KnownFact(fact, is_old=True)
    details, is_initial = origin.details, is_initial_snapshot(origin.change) and origin.change.number == first_revision
    return KnownFact(
        fact,
        "" if is_initial else str(details.get("said_at") or origin.change.at)[:10],
        least_trusted([str(details.get("provenance", Provenance.OWNER))]),
        by_hand=origin.change.by is ChangedBy.HAND and not is_initial,
        is_old=is_initial,
    )


def _prompt_tokens(material: DreamInput) -> int:
    return estimate_tokens(material.request()) + _SCHEMA_TOKENS
