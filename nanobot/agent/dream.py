"""Dream: a pass that tidies one memory from what is new, in the background, outside every lane.

What was said since the last pass is told to a model beside the facts as they stand; it names the facts that are to be
merged, corrected, dropped or archived (see tidy_memory), and nothing else is touched. Without something new no model
is asked. What has failed rests for longer and longer. The cursor moves only when the result was checked and is on the
disk; a pass that was killed has changed MEMORY.md or not, and its log says which.
Reading order: wiring/dreams (when) -> Dream.run -> tidy_memory (the call) -> memory_merge (the edits) -> dream_changes
(on the disk).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum

from nanobot.agent.consolidation import AskedModel, Models
from nanobot.agent.dream_changes import DreamChanges
from nanobot.agent.dream_log import DreamState, EditDone, News, Pass, PassOutcome
from nanobot.agent.facts import Fact, facts_in, key_of
from nanobot.agent.memory import HistoryEntry, MemoryStore
from nanobot.agent.memory_book import By, Origin, is_first_look, is_lesson, is_like
from nanobot.agent.memory_merge import edited
from nanobot.agent.tidy_memory import TIDY_MEMORY, Action, Judged, KnownFact, Material, Tidied, judged
from nanobot.errors import NanobotError, ProviderError, StorageError
from nanobot.messages.tokens import estimate_tokens
from nanobot.messages.types import Provenance, is_outside, least_trusted
from nanobot.providers.base import CallContext, LLMResponse, calling_for
from nanobot.providers.errors import error_from_response
from nanobot.security.provenance import IN_PART
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock, timestamp
from nanobot.utils.locks import ProcessLock
from nanobot.utils.refusals import refusal

log = logging.getLogger(__name__)

_REPLY_TOKENS = 4_096
_LEAST_REPLY = 256
_SCHEMA_TOKENS = 400
_FIRST_REST_S, _LONGEST_REST_S = 3600.0, 7 * 86_400.0
_MOST_FORGOTTEN = 200


@dataclass(frozen=True, slots=True)
class DreamPolicy:
    """How it is done."""

    model: str | None = None
    """The model or preset that is asked; None for the usual one."""
    batch: int = 20
    """Entries of the log in one call."""
    most_calls: int = 3
    most_tokens: int = 60_000
    """In one run, both ways."""
    ages: bool = True
    limit_s: float = 180.0


class DreamOutcome(StrEnum):
    """How a run ended."""

    DONE = "done"
    NOTHING = "nothing"
    """There was nothing new: no model was asked."""
    RESTING = "resting"
    """It failed a while ago, and nothing has happened since."""
    BUSY = "busy"
    """A pass over this memory is under way, maybe in another process."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class DreamRun:
    """What a run did: its passes, the first first; why there are no more."""

    outcome: DreamOutcome
    passes: Sequence[Pass] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a pass is about, and where the cursor stands after it."""

    state: DreamState
    after: DreamState
    material: Material


async def _nobody() -> None:
    pass


class Dream:
    """Tidies the memory of one scope."""

    def __init__(
        self,
        memory: MemoryStore,
        models: Models,
        clock: Clock,
        policy: DreamPolicy | None = None,
        *,
        noted: Callable[[], Awaitable[None]] = _nobody,
    ) -> None:
        """`noted` writes down who changed the memory since the last look, before this does."""
        self._memory = memory
        self._models = models
        self._clock = clock
        self._policy = policy or DreamPolicy()
        self._noted = noted
        self.changes = DreamChanges(memory, clock)
        self.log = self.changes.log
        self._at_work: asyncio.Task[DreamRun] | None = None
        self._unkept: DreamState | None = None
        """How it stands where the disk did not take it."""

    def state(self) -> DreamState:
        """How far it is. Blocks."""
        return self._unkept or self.log.state()

    async def run(self, *, who: str = "", by_hand: bool = False) -> DreamRun:
        """Tidy from what is new, in as many calls as that takes and the policy allows. What failed is tried again
        before its time only `by_hand`.

        Never raises for a model or the disk. Cancelling is safe: a pass is kept or was none.
        """
        if self._at_work is not None:
            return DreamRun(DreamOutcome.BUSY)
        self._at_work = asyncio.create_task(self._run(who, by_hand), name="dream")
        task = self._at_work
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            await self.break_off()
            raise
        finally:
            self._at_work = None
        return DreamRun(DreamOutcome.NOTHING, reason="It was broken off.") if task.cancelled() else task.result()

    async def break_off(self) -> None:
        """End a run that waits for a model; what is being written is finished."""
        if (task := self._at_work) is not None:
            task.cancel()
            await asyncio.wait([task])

    async def clear(self) -> None:
        """What is in the log by now is not new any more: this memory begins afresh. Raises StorageError."""
        await self.break_off()
        await asyncio.to_thread(self._skip)

    async def _run(self, who: str, by_hand: bool) -> DreamRun:
        lock = ProcessLock(self._memory.book.folder / "dream.lock")
        try:
            if not await asyncio.to_thread(self._taken, lock):
                return DreamRun(DreamOutcome.BUSY)
        except NanobotError as error:
            return DreamRun(DreamOutcome.FAILED, reason=str(error))
        try:
            return await self._passes(who, by_hand)
        finally:
            lock.release()

    def _taken(self, lock: ProcessLock) -> bool:
        with self._memory.book.at_work():  # which makes the folder
            try:
                return lock.try_acquire()
            except OSError as error:
                raise refusal("Dream cannot begin", error) from error

    async def _passes(self, who: str, by_hand: bool) -> DreamRun:
        done: list[Pass] = []
        spent = 0
        while True:
            try:
                await self._noted()
                plan = await asyncio.to_thread(self._look)
                if plan is None:
                    return DreamRun(DreamOutcome.DONE if done else DreamOutcome.NOTHING, done)
                if not by_hand and not done and self._rests(plan.state):
                    return DreamRun(DreamOutcome.RESTING, done, plan.state.error)
                if len(done) >= self._policy.most_calls:
                    return DreamRun(DreamOutcome.DONE, done, "The rest of the log waits for the next time.")
                model = await self._models.get(self._policy.model)
                fitted, prompt, reply = await asyncio.to_thread(self._fitted, plan, model)
                if done and spent + prompt + reply > self._policy.most_tokens:
                    return DreamRun(DreamOutcome.DONE, done, "The rest of the log waits for the next time.")
                one = await self._pass(fitted, model, reply, who)
            except (NanobotError, TimeoutError) as error:
                one = await asyncio.to_thread(self._failed, error, self._begun(who))
            if one.outcome is PassOutcome.FAILED:
                return DreamRun(DreamOutcome.FAILED, [*done, one], one.reason)
            spent += one.prompt_tokens + one.completion_tokens or prompt + reply
            done.append(one)

    def _fitted(self, plan: _Plan, model: AskedModel) -> tuple[_Plan, int, int]:
        """The plan as far as the model takes it, and the tokens of prompt and reply. Raises ProviderError."""
        window = model.limits.window_tokens
        reply = min(model.limits.max_tokens, _REPLY_TOKENS, window // 4)
        most = min(window, self._policy.most_tokens) - reply
        prompt = _weight(plan.material)
        while prompt > most and len(plan.material.entries) > 1:
            plan = self._shorter(plan)
            prompt = _weight(plan.material)
        if prompt > most or reply < _LEAST_REPLY:
            raise ProviderError(
                f"Tidying this memory takes about {prompt:,} tokens and {reply:,} for the answer; {model.name} and "
                "agents.defaults.dream.maxTokens allow less. dream.modelOverride may name a larger model."
            )
        return plan, prompt, reply

    def _shorter(self, plan: _Plan) -> _Plan:
        """Half of the entries; the others wait."""
        half = max(1, len(plan.material.entries) // 2)
        return self._plan_of(plan.state, self.log.news(plan.state, self._policy.batch), half) or plan

    async def _pass(self, plan: _Plan, model: AskedModel, reply: int, who: str) -> Pass:
        chat = self._memory.scope.chat
        with calling_for(CallContext("dream", f"dream:{chat}" if chat else "dream")):
            async with asyncio.timeout(self._policy.limit_s):
                response = await self._asked(plan.material, model, reply)
        one = replace(
            self._begun(who),
            model=model.name,
            calls=1,
            prompt_tokens=response.usage.get("prompt_tokens", 0),
            completion_tokens=response.usage.get("completion_tokens", 0),
            usd=response.cost_usd,
            entries=len(plan.material.entries),
        )
        try:
            verdict = await asyncio.to_thread(judged, response, plan.material)
        except ProviderError as error:
            return await asyncio.to_thread(self._failed, error, one)
        await self._noted()
        return await finish(asyncio.to_thread(self._keep, plan, verdict, one))

    def _begun(self, who: str) -> Pass:
        return Pass(0, timestamp(self._clock), PassOutcome.UNCHANGED, who=who, calls=0)

    async def _asked(self, material: Material, model: AskedModel, reply: int) -> LLMResponse:
        try:
            response = await model.provider.chat(
                messages=material.request(), tools=[TIDY_MEMORY], model=model.name, max_tokens=reply, temperature=0.1
            )
        except NanobotError:
            raise
        except Exception as error:  # somebody's own provider may raise anything; nobody waits here, and nothing is lost
            raise ProviderError(f"The model broke off: {type(error).__name__}: {error}") from error
        if response.finish_reason == "error":
            raise error_from_response(response)
        return response

    def _look(self) -> _Plan | None:
        """What a pass would be about; None where nothing is new. Raises StorageError."""
        self.changes.mend()
        state = self.state()
        news = self.log.news(state, self._policy.batch)
        plan = self._plan_of(state, news, self._policy.batch)
        if plan is None and (not state.begun or (news.end, self._last_change()) != (state.offset, state.change)):
            with suppress(StorageError):  # without the disk it is known as long as this process lives
                self._moved(self._behind(state, news.end))
        return plan

    def _plan_of(self, state: DreamState, news: News, most: int) -> _Plan | None:
        fit = [at for at, entry in enumerate(news.entries) if self._is_for(entry)]
        if not fit and not self._agent_wrote(state):
            return None
        self._memory.note_changes()
        text = (self._memory.bytes_of(self._memory.memory_file) or b"").decode("utf-8", "surrogateescape")
        origins = self._memory.book.origins()
        facts = {
            fact.key: fact for fact in facts_in(text.removeprefix("\ufeff")) if not is_lesson(origins.get(fact.key))
        }
        if not facts:
            return None
        chosen = fit[:most]
        end = news.end if len(chosen) == len(fit) else news.ends[chosen[-1]]
        after = replace(
            state, begun=True, offset=end, change=self._last_change(), failures=0, rests_until=0.0, error=""
        )
        name = self._memory.memory_file.name
        first = next((change.number for change in self._memory.book.changes() if change.file == name), None)
        ours = {one.change for one in self.log.passes()}
        forgotten = [words for words, _ in self._memory.book.forgotten()][-_MOST_FORGOTTEN:]
        material = Material(
            text,
            [_known(fact, origins.get(fact.key), first, ours) for fact in facts.values()],
            [news.entries[at] for at in chosen],
            f"{self._clock.now():%Y-%m-%d (%A)}",
            forgotten,
            self._policy.ages,
        )
        return _Plan(state, after, material)

    def _is_for(self, entry: HistoryEntry) -> bool:
        """Whether an entry may change this memory: the owner's is made of the owner's own words."""
        return not self._memory.scope.is_owners or not any(mark in entry.content for mark in IN_PART.values())

    def _agent_wrote(self, state: DreamState) -> bool:
        """Whether turns have written facts down since."""
        name = self._memory.memory_file.name
        return any(
            change.number > state.change and change.by is By.AGENT and change.file == name and change.added
            for change in self._memory.book.changes()
        )

    def _last_change(self) -> int:
        changes = self._memory.book.changes()
        return changes[-1].number if changes else 0

    def _behind(self, state: DreamState, offset: int) -> DreamState:
        return replace(state, begun=True, offset=offset, change=self._last_change())

    def _moved(self, state: DreamState) -> None:
        """The cursor, with the place by which it is known again. Raises StorageError."""
        state = replace(state, anchor=self.log.anchor_at(state.offset))
        self._unkept = state
        self.log.keep(state)
        self._unkept = None

    def _skip(self) -> None:
        state = self.state()
        end = self.log.news(DreamState(), 0).end
        self._moved(replace(self._behind(state, end), failures=0, rests_until=0.0, error=""))

    def _rests(self, state: DreamState) -> bool:
        """Whether it failed and nothing is new since; what rests for long is tried at something new."""
        if not state.failures or self._clock.now().timestamp() >= state.rests_until:
            return False
        return self.log.size() == state.failed_size

    def _failed(self, error: Exception, one: Pass) -> Pass:
        """The pass, failed: it is written down, and rests."""
        reason = str(error) or f"The model gave no answer within {self._policy.limit_s:.0f} seconds."
        log.warning("The memory of %s was not tidied: %s", self._memory.scope.chat or "the owner", reason)
        state, now = self.state(), self._clock.now().timestamp()
        rest = min(_FIRST_REST_S * 2**state.failures, _LONGEST_REST_S)
        state = replace(
            state,
            failures=min(state.failures + 1, 30),
            rests_until=now + rest,
            failed_size=self.log.size(),
            error=reason,
        )
        one = replace(one, number=self.log.next_number(), outcome=PassOutcome.FAILED, reason=reason)
        self._unkept = state
        with suppress(StorageError):
            self.log.keep(state)
            self._unkept = None
            self.log.add(one)
        return one

    def _keep(self, plan: _Plan, verdict: Judged, one: Pass) -> Pass:
        """First the change, then the cursor. Raises StorageError, and then the memory is as it was."""
        memory = self._memory
        with memory.book.at_work():
            memory.note_changes()
            raw = memory.bytes_of(memory.memory_file) or b""
            wished = [wanted.edit for wanted in verdict.edits if not self._is_forgotten_since(wanted, plan.material)]
            text, done = edited(raw.decode("utf-8", "surrogateescape"), wished)
            made = [wanted for wanted in verdict.edits if wanted.edit in done]
            late = [f"changed meanwhile: {wanted.before[0]}" for wanted in verdict.edits if wanted.edit not in done]
            data = text.encode("utf-8", "surrogateescape")
            one = replace(
                one,
                number=self.log.next_number(),
                bytes_before=len(raw),
                bytes_after=len(data),
                edits=[self._done(wanted) for wanted in made],
                refused=[*verdict.refused, *late],
            )
            if data != raw:
                one = self.changes.make(one, raw, data, made)
            try:
                self.log.add(one)
                self._moved(plan.after)
            except StorageError as error:  # it is done; the next look finds that out
                log.warning("%s", error)
        return one

    def _is_forgotten_since(self, wanted: Tidied, material: Material) -> bool:
        """Whether what it would write was to be forgotten while the model thought."""
        fresh = {words for words, _ in self._memory.book.forgotten()}.difference(material.forgotten)
        return bool(wanted.edit.text) and any(is_like(wanted.edit.text, words) for words in fresh)

    def _done(self, wanted: Tidied) -> EditDone:
        text = wanted.edit.text or wanted.edit.under
        trust = wanted.provenance.value if is_outside(wanted.provenance) else ""
        key = key_of(text) if wanted.action is Action.REPLACE else ""
        return EditDone(wanted.action.value, list(wanted.before), text, wanted.why, key, trust)


def _known(fact: Fact, origin: Origin | None, first: int | None, ours: Collection[int | None]) -> KnownFact:
    """What the book says of a fact. `first` is the change with which it began; what a killed pass changed may stand
    there as an editor's, and is one of `ours`.
    """
    if origin is None:
        return KnownFact(fact, is_old=True)
    told, old = origin.told, is_first_look(origin.change) and origin.change.number == first
    return KnownFact(
        fact,
        "" if old else str(told.get("said_at") or origin.change.at)[:10],
        least_trusted([str(told.get("provenance", Provenance.OWNER))]),
        by_hand=origin.change.by is By.HAND and not old and origin.change.number not in ours,
        is_old=old,
    )


def _weight(material: Material) -> int:
    return estimate_tokens(material.request()) + _SCHEMA_TOKENS
