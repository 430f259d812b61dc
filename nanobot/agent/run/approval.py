"""Approval: the hook that asks the owner before a call does what they did not ask for.

Two things are asked about. What the walls do not give by themselves (`Reach.beyond`), whoever's words the turn answers;
and every sensitive reach of a call once words from outside are in play: they have entered the turn, or the call repeats
some that an older turn brought. Nothing is asked where all came from the owner and the walls give it.

Reading order: approval -> outside (whose words are in play) -> addresses (which of them say nothing) -> questions (who
waits for an answer) -> wording.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from nanobot.agent.run.addresses import Addresses
from nanobot.agent.run.hooks import PlannedCall, Verdict
from nanobot.agent.run.outside import entered_rows, provenance_of, repeated_row
from nanobot.agent.run.questions import Question, Questions, question_id
from nanobot.agent.run.wording import Wording, kind_of, shown_source
from nanobot.agent.tools.reach import Reach, ReachKind
from nanobot.agent.turn import Answer, ApprovalAnswered, ApprovalAsked, ApprovalRefused
from nanobot.errors import StorageError
from nanobot.messages.types import Provenance, is_outside
from nanobot.security.grants import Grants

log = logging.getLogger(__name__)

_NEVER_ALWAYS = frozenset({ReachKind.SECRETS})
"""Asked about each time anew."""
_NOTHING = Verdict()


class ApprovalMode(StrEnum):
    """What becomes of a call that needs a yes."""

    OFF = "off"
    """It is done, but for secrets: the owner wants no questions."""
    ASK = "ask"
    DENY = "deny"
    """It is refused: the owner wants no questions."""


class Answerers(Protocol):
    """Who knows whether anybody can answer."""

    async def why_not(self, planned: PlannedCall) -> str | None:
        """Why nobody may answer a question in this turn, and what would help; None where somebody may."""
        ...


@dataclass(frozen=True, slots=True)
class InPlay:
    """The words from outside on which a call may rest; where there are none, `provenance` is the owner's."""

    provenance: Provenance = Provenance.OWNER
    source: str = ""
    """Which they are, for a person: a page, a sender, a server."""

    def __bool__(self) -> bool:
        return is_outside(self.provenance)


class Approval:
    """The hook."""

    def __init__(
        self,
        mode: ApprovalMode,
        grants: Grants,
        questions: Questions,
        answerers: Answerers,
        mask: Callable[[str], str] = str,
    ) -> None:
        """`mask` takes secrets out of what is shown."""
        self._mode = mode
        self._grants = grants
        self._questions = questions
        self._answerers = answerers
        self._wording = Wording(mask)
        self._addresses = Addresses()
        self._given: dict[str, frozenset[str]] = {}
        """By turn, the rules that the owner said yes to while no words from outside were in play."""

    async def before_call(self, planned: PlannedCall) -> Verdict:
        """Judge it. It takes as long as a person takes to answer; cancelling takes the question back."""
        reaches = planned.reaches
        if not reaches:
            return _NOTHING
        if self._mode is ApprovalMode.OFF:
            return Verdict(_rules(one for one in reaches if not (one.beyond and one.kind is ReachKind.SECRETS)))
        in_play = await asyncio.to_thread(_in_play, planned)  # up to 40 ms in a long window
        asked = [one for one in reaches if one.beyond or in_play]
        asked = await self._not_given(asked, planned, outside=bool(in_play))
        if any(one.plain for one in asked):
            asked = await asyncio.to_thread(self._without_free, asked, planned)
        if not asked:
            return Verdict(_rules(reaches), entered=in_play.provenance)
        refusal = await self._refusal(planned, asked, in_play)
        return Verdict(frozenset() if refusal else _rules(reaches), refusal, in_play.provenance)

    def _without_free(self, asked: Sequence[Reach], planned: PlannedCall) -> list[Reach]:
        return [one for one in asked if not (one.plain and self._addresses.is_free(one, planned))]

    async def _not_given(self, reaches: list[Reach], planned: PlannedCall, *, outside: bool) -> list[Reach]:
        """Those that the owner has not said yes to before."""
        if not reaches or self._mode is ApprovalMode.DENY:
            return reaches
        given = await asyncio.to_thread(self._grants.holds, _rules(reaches), outside=outside)
        if planned.source:  # the same command does something else once the file says something else
            given -= _rules(one for one in reaches if one.kind is ReachKind.COMMAND)
        if not outside:
            given |= self._given.get(planned.context.turn_id, frozenset())
        return [one for one in reaches if one.rule not in given]

    async def _refusal(self, planned: PlannedCall, asked: Sequence[Reach], in_play: InPlay) -> str | None:
        """Ask; None where the owner says yes, else what the model is told."""
        words, name, source = self._wording, planned.call.name, in_play.source
        if self._mode is ApprovalMode.DENY:
            self._tell_refused(planned, asked, in_play, "tools.approval is deny: nobody is asked.")
            return words.denied(name, asked, source)
        if (why_not := await self._answerers.why_not(planned)) is not None:
            self._tell_refused(planned, asked, in_play, why_not)
            return words.nobody_there(name, asked, source, why_not)
        never = _NEVER_ALWAYS | {ReachKind.COMMAND} if planned.source else _NEVER_ALWAYS
        may_always = not any(one.kind in never for one in asked)
        answer = await self._ask(planned, asked, in_play, may_always=may_always)
        if answer is Answer.ALWAYS and (problem := await self._remember(asked, outside=bool(in_play))):
            log.warning("A yes for always could not be kept: %s", problem)
        if answer in (Answer.ONCE, Answer.ALWAYS):
            if not in_play:
                self._keep_for_the_turn(planned.context.turn_id, _rules(asked))
            return None
        return words.unanswered(name, self._questions.expires_s) if answer is Answer.EXPIRED else words.refused(name)

    def _tell_refused(self, planned: PlannedCall, asked: Sequence[Reach], in_play: InPlay, reason: str) -> None:
        """For those who watch the turn: nobody is asked."""
        call, words = planned.call, self._wording
        planned.emit(
            ApprovalRefused(
                call_id=call.id,
                name=call.name,
                arguments=words.masked(call.arguments),
                reaches=[words.line(one.rule) for one in asked],
                text=words.question(call, asked, in_play.source),
                reason=reason,
                source=in_play.source or None,
            )
        )

    async def _ask(self, planned: PlannedCall, asked: Sequence[Reach], in_play: InPlay, *, may_always: bool) -> Answer:
        call, emit = planned.call, planned.emit
        name = question_id(planned.context.turn_id, call)
        emit(
            ApprovalAsked(
                question=name,
                call_id=call.id,
                name=call.name,
                arguments=self._wording.masked(call.arguments),
                reaches=[self._wording.line(one.rule) for one in asked],
                text=self._wording.question(call, asked, in_play.source),
                source=in_play.source or None,
                may_always=may_always,
                expires_s=self._questions.expires_s,
            )
        )
        answer = Answer.STOPPED
        try:
            answer = await self._questions.answer_to(Question(name, planned.context, call.name, may_always))
        finally:
            emit(ApprovalAnswered(question=name, answer=answer))
        return answer

    async def _remember(self, reaches: Sequence[Reach], *, outside: bool) -> str:
        """Keep the rules; why that failed. The yes to this very call stands all the same."""
        try:
            await asyncio.to_thread(self._grants.add, sorted(_rules(reaches)), outside=outside)
        except StorageError as error:
            return str(error)
        return ""

    def _keep_for_the_turn(self, turn_id: str, rules: frozenset[str]) -> None:
        while len(self._given) >= _MOST_TURNS:
            del self._given[next(iter(self._given))]
        self._given[turn_id] = self._given.pop(turn_id, frozenset()) | rules


_MOST_TURNS = 256
"""Turns whose answers are remembered; one that ran so long ago has ended."""


def _rules(reaches: Iterable[Reach]) -> frozenset[str]:
    return frozenset(one.rule for one in reaches)


def _in_play(planned: PlannedCall) -> InPlay:
    """The words from outside on which this call may rest."""
    context, rows = planned.context, [*planned.told, *planned.rows]
    if is_outside(context.entered):
        brought = entered_rows(rows, context.turn_id)
        named = [*(shown_source(row, rows) for row in brought), *filter(None, [planned.source])]
        return InPlay(context.entered, ", ".join(dict.fromkeys(named[-_MOST_NAMED:])) or kind_of(context.entered))
    row = repeated_row(planned.call.arguments, rows, context.turn_id, context.session_key)
    if row is None:
        return InPlay()
    return InPlay(provenance_of(row, context.session_key), shown_source(row, rows))


_MOST_NAMED = 3
"""Sources that a question names, the newest."""
