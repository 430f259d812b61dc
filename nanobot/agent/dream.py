"""Dream: a pass that tidies one memory from what is new, in the background, outside every lane.

What was said since the last pass is told to a model beside the facts as they stand; it names the facts that are to be
merged, corrected, dropped or archived (see tidy_memory), and nothing else is touched. Without something new no model
is asked. What has failed rests for longer and longer. The cursor moves only when the result was checked and is on the
disk; a pass that was killed has changed MEMORY.md or not, and its log says which.
Reading order: wiring/dreams (when) -> Dream.run -> tidy_memory (the call) -> memory_merge (the edits) -> dream_log.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from nanobot.agent.consolidation import AskedModel, Models
from nanobot.agent.dream_log import DreamLog, DreamState, EditDone, News, Pass, PassOutcome, hash_of
from nanobot.agent.facts import Fact, facts_in, key_of
from nanobot.agent.memory import HistoryEntry, MemoryStore
from nanobot.agent.memory_book import By, Change, Origin, Source, is_first_look, is_like
from nanobot.agent.memory_merge import carried_over, edited
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


@dataclass(frozen=True, slots=True)
class _MadeOf(Source):
    """Where facts come from that were made of others: what those had said of it, the least trusted counts."""

    told: Mapping[str, Mapping[str, Any]] | None = None

    def of(self, fact: Fact) -> dict[str, Any]:
        """What is kept of its origin."""
        return dict((self.told or {}).get(fact.key, {}))


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
        self.log = DreamLog(memory)
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
                failed = await asyncio.to_thread(self._failed, error, who)
                return DreamRun(DreamOutcome.FAILED, [*done, failed], failed.reason)
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
        verdict = await asyncio.to_thread(judged, response, plan.material)
        one = Pass(
            0,
            timestamp(self._clock),
            PassOutcome.UNCHANGED,
            who=who,
            model=model.name,
            prompt_tokens=response.usage.get("prompt_tokens", 0),
            completion_tokens=response.usage.get("completion_tokens", 0),
            usd=response.cost_usd,
            entries=len(plan.material.entries),
        )
        await self._noted()
        return await finish(asyncio.to_thread(self._keep, plan, verdict, one))

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
        self.mend()
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
        facts = {fact.key: fact for fact in facts_in(text.removeprefix("\ufeff"))}
        if not facts:
            return None
        chosen = fit[:most]
        end = news.end if len(chosen) == len(fit) else news.ends[chosen[-1]]
        after = replace(
            state, begun=True, offset=end, change=self._last_change(), failures=0, rests_until=0.0, error=""
        )
        origins = self._memory.book.origins()
        forgotten = [words for words, _ in self._memory.book.forgotten()][-_MOST_FORGOTTEN:]
        material = Material(
            text,
            [_known(fact, origins.get(fact.key)) for fact in facts.values()],
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
        now = self._clock.now().timestamp()
        state = replace(state, anchor=self.log.anchor_at(state.offset), tried_at=now)
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

    def _failed(self, error: Exception, who: str) -> Pass:
        reason = str(error) or f"The model gave no answer within {self._policy.limit_s:.0f} seconds."
        log.warning("The memory of %s was not tidied: %s", self._memory.scope.chat or "the owner", reason)
        state, now = self.state(), self._clock.now().timestamp()
        rest = min(_FIRST_REST_S * 2**state.failures, _LONGEST_REST_S)
        state = replace(
            state,
            failures=min(state.failures + 1, 30),
            rests_until=now + rest,
            tried_at=now,
            failed_size=self.log.size(),
            error=reason,
        )
        one = Pass(self.log.next_number(), timestamp(self._clock), PassOutcome.FAILED, reason, who)
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
            text, done = edited(raw.decode("utf-8", "surrogateescape"), [wanted.edit for wanted in verdict.edits])
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
                one = self._written(one, raw, data, made)
            try:
                self.log.add(one)
                self._moved(replace(plan.after, change=self._last_change()))
            except StorageError as error:  # it is done; the next look finds that out
                log.warning("%s", error)
        return one

    def _written(self, one: Pass, raw: bytes, data: bytes, made: Sequence[Tidied]) -> Pass:
        """The change, on the disk. Its log said so before: after a kill one knows. Raises StorageError."""
        memory = self._memory
        old = memory.bytes_of(memory.archive_file)
        block = self._for_archive(old or b"", made)
        one = replace(
            one,
            outcome=PassOutcome.CHANGED,
            before=hash_of(raw),
            after=hash_of(data),
            archived=block.decode("utf-8", "surrogateescape"),
        )
        told = {name: dict(found) for name, found in self._told(made).items()}
        self.log.add(one, begun=True)
        try:
            group = None
            if block:
                change = memory.change(memory.archive_file, (old or b"") + block, By.DREAM)
                group = change.number if change is not None else None
            change = memory.change(memory.memory_file, data, By.DREAM, _MadeOf(told=told), group=group)
        except NanobotError as error:
            if not self._is_taken_back(raw, data):
                log.warning("%s", error)  # it is done, and cannot be undone: the next look writes that down
                return one
            with suppress(NanobotError):
                if block and memory.bytes_of(memory.archive_file) == (old or b"") + block:
                    memory.change(memory.archive_file, old, By.RESTORE)
            raise
        return replace(one, change=change.number if change is not None else None)

    def _is_taken_back(self, raw: bytes, data: bytes) -> bool:
        """Whether MEMORY.md is as it was, after a change that could not be written down."""
        with suppress(NanobotError):
            if self._memory.bytes_of(self._memory.memory_file) != data:
                return True
            self._memory.put(self._memory.memory_file, raw)
            return True
        return False

    def _for_archive(self, old: bytes, made: Sequence[Tidied]) -> bytes:
        """What is added to the archive: what is not there yet."""
        there = {fact.key for fact in facts_in(old.decode("utf-8", "replace"))}
        gone = [
            text
            for wanted in made
            if wanted.action is Action.ARCHIVE
            for text in wanted.before
            if key_of(text) not in there
        ]
        if not gone:
            return b""
        end = b"" if not old or old.endswith(b"\n\n") else b"\n" if old.endswith(b"\n") else b"\n\n"
        lines = "\n".join(f"- {text}" for text in gone)
        return end + f"## {self._clock.now():%Y-%m-%d}\n\n{lines}\n".encode("utf-8", "surrogateescape")

    def _done(self, wanted: Tidied) -> EditDone:
        text = wanted.edit.text or wanted.edit.under
        trust = wanted.provenance.value if is_outside(wanted.provenance) else ""
        key = key_of(text) if wanted.action is Action.REPLACE else ""
        return EditDone(wanted.action.value, list(wanted.before), text, wanted.why, key, trust)

    def _told(self, made: Sequence[Tidied]) -> dict[str, dict[str, Any]]:
        """By key of what was made, where it came from: of what it is made of, the first that somebody said."""
        origins = self._memory.book.origins()
        found: dict[str, dict[str, Any]] = {}
        for wanted in made:
            if wanted.action is not Action.REPLACE:
                continue
            known = [origins[key].told for key in wanted.edit.keys if key in origins]
            told = next((one for one in known if one.get("quote")), known[0] if known else {})
            kept = {name: value for name, value in told.items() if name not in ("key", "text", "provenance")}
            trust = {"provenance": wanted.provenance.value} if is_outside(wanted.provenance) else {}
            found[key_of(wanted.edit.text)] = kept | trust
        return found

    def mend(self) -> None:
        """Write down how a pass ended that a kill cut off. Raises StorageError."""
        one = self.log.open_pass()
        if one is None:
            return
        memory = self._memory
        with memory.book.at_work():
            raw = memory.bytes_of(memory.memory_file)
            if hash_of(raw) == one.after:
                told = {edit.key: _trust_of(edit) for edit in one.edits if edit.key}
                memory.book.note(memory.memory_file.name, raw, By.DREAM, _MadeOf(told=told))
            change = next((known for known in reversed(memory.book.changes()) if _leads_to(known, one)), None)
            if change is not None:
                self.log.add(replace(one, change=change.number))
                return
            archive, block = memory.bytes_of(memory.archive_file), one.archived.encode("utf-8", "surrogateescape")
            if block and archive is not None and archive.endswith(block):
                memory.change(memory.archive_file, archive[: -len(block)] or None, By.RESTORE)
            self.log.add(replace(one, outcome=PassOutcome.BROKEN_OFF, edits=(), archived=""))

    def standing(self) -> list[Pass]:
        """The passes that changed something and were not taken back, the newest first."""
        undone = {change.undoes for change in self._memory.book.changes() if change.undoes is not None}
        return [
            one
            for one in self.log.passes()
            if one.outcome is PassOutcome.CHANGED
            and one.change not in undone
            and (one.restored is None or one.restored in undone)
        ]

    def restore(
        self, number: int | None = None, *, who: str = "", may: Callable[[Pass], bool] = lambda one: True
    ) -> Pass:
        """Take the memory back to before a pass, the last one for None, and later passes with it; which it was.

        What others changed after it stays changed. Where that cannot be parted from what a pass wrote, nothing is done.
        Raises NanobotError, whose text says what would be right.
        """
        memory = self._memory
        with memory.book.at_work():
            self.mend()
            memory.note_changes()
            standing = self.standing()
            one = next((one for one in standing if number in (None, one.number)), None)
            if one is None:
                raise NanobotError(_nothing_to_restore(number, standing))
            back = [later for later in standing if later.number >= one.number]
            if not all(map(may, back)):
                raise NanobotError("Somebody else asked for that pass; an owner may take it back.")
            data = self._without(one, back)
            change = memory.change(memory.memory_file, data, By.RESTORE, Source(who=who))
            for later in back:
                self._unarchived(later, who, change.number if change is not None else None)
                self.log.add(replace(later, restored=change.number if change is not None else None))
            return one

    def _without(self, one: Pass, back: Sequence[Pass]) -> bytes:
        """MEMORY.md as it stood before this pass, with what others changed since."""
        memory, name = self._memory, self._memory.memory_file.name
        changes = [change for change in memory.book.changes() if change.file == name]
        first = next((change for change in changes if change.number == one.change), None)
        if first is None:
            raise NanobotError("That version is not kept any more.")
        data = memory.book.text(first.before) or b""
        ours = {number for known in self.log.passes() for number in (known.change, known.restored)}
        for change in changes:
            if change.number <= first.number or change.by in (By.DREAM, By.RESTORE):
                continue
            if change.undoes is not None and change.undoes in ours:
                continue
            if change.after is None:
                raise NanobotError("The memory was cleared after that pass. /memory undo brings it back.")
            data = _carried(memory.book.text(change.before) or b"", memory.book.text(change.after) or b"", data)
            if change.forgot:
                data = _forgetting(data, [*change.forgot, *_made_of(change.forgot, back)])
        return data

    def _unarchived(self, one: Pass, who: str, group: int | None) -> None:
        """Take out of the archive what this pass put there, where it stands as it was put."""
        block, archive = (
            one.archived.encode("utf-8", "surrogateescape"),
            self._memory.bytes_of(self._memory.archive_file),
        )
        if block and archive is not None and archive.count(block) == 1:
            rest = archive.replace(block, b"")
            self._memory.change(self._memory.archive_file, rest or None, By.RESTORE, Source(who=who), group=group)


def _known(fact: Fact, origin: Origin | None) -> KnownFact:
    if origin is None:
        return KnownFact(fact, is_old=True)
    told, old = origin.told, is_first_look(origin.change)
    return KnownFact(
        fact,
        "" if old else str(told.get("said_at") or origin.change.at)[:10],
        least_trusted([str(told.get("provenance", Provenance.OWNER))]),
        by_hand=origin.change.by in (By.HAND, By.SHARE) and not old,
        is_old=old,
    )


def _weight(material: Material) -> int:
    return estimate_tokens(material.request()) + _SCHEMA_TOKENS


def _trust_of(edit: EditDone) -> dict[str, Any]:
    return {"provenance": edit.provenance} if edit.provenance else {}


def _leads_to(change: Change, one: Pass) -> bool:
    """Whether a change in the book is that of the pass: its texts have longer hashes of the same kind."""
    before, after = change.before or "", change.after or ""
    return before.startswith(one.before) and after.startswith(one.after)


def _carried(before: bytes, after: bytes, data: bytes) -> bytes:
    """What one change did, done to other bytes. Raises NanobotError where it has no place there."""
    if before == data:
        return after
    base, update, current = (one.decode("utf-8", "surrogateescape") for one in (before, after, data))
    text, homeless = carried_over(base, update, current)
    if homeless:
        lines = "\n".join(homeless[:5])
        raise NanobotError(
            f"This was written later, over what that pass wrote, and would be lost:\n{lines}\nTake it back first "
            "(/memory undo, or in an editor), then try again."
        )
    return text.encode("utf-8", "surrogateescape")


def _forgetting(data: bytes, forgot: Sequence[str]) -> bytes:
    """Without what was to be forgotten since: a fact that was merged then is not to come back by itself."""
    from nanobot.agent.facts import without

    text = data.decode("utf-8", "surrogateescape")
    gone = [fact for fact in facts_in(text) if any(is_like(fact.text, words) for words in forgot)]
    return without(text, gone).encode("utf-8", "surrogateescape")


def _made_of(forgot: Sequence[str], passes: Sequence[Pass]) -> Iterator[str]:
    """What these passes made the forgotten facts of."""
    for edit in (edit for one in passes for edit in one.edits if edit.after):
        if any(is_like(edit.after, words) for words in forgot):
            yield from edit.before


def _nothing_to_restore(number: int | None, standing: Sequence[Pass]) -> str:
    if number is None or not standing:
        return "There is no pass of Dream to take back."
    known = ", ".join(str(one.number) for one in standing[:10])
    return f"No pass {number} of Dream stands there to be taken back. These do: {known}."
