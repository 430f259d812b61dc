"""The approval policy: asks the owner before a call does what they did not ask for.

Two kinds of access need approval: what the sandbox does not give by itself (`Access.needs_approval`), whoever's words
the turn answers; and every sensitive access of a call while untrusted content is in play, because it entered the turn
or because the call repeats some of an older turn.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from nanobot.agent.approval.known_urls import KnownUrls
from nanobot.agent.approval.pending import PendingApproval, PendingApprovals, make_approval_id
from nanobot.agent.approval.texts import ApprovalTexts, describe_provenance, format_source
from nanobot.agent.events import Answer, ApprovalAnswered, ApprovalAsked, ApprovalRefused
from nanobot.agent.taint import entered_rows, provenance_of, repeated_row
from nanobot.agent.tools.access import Access, AccessKind
from nanobot.agent.tools.hooks import PlannedCall, Verdict
from nanobot.errors import StorageError
from nanobot.messages.types import Provenance, is_outside
from nanobot.security.grants import Grants

log = logging.getLogger(__name__)

_NEVER_ALWAYS = frozenset({AccessKind.SECRETS})
"""Asked about each time anew."""
_MAX_TURNS = 256
"""Turns whose answers are remembered; one that ran so long ago has ended."""
_MAX_SOURCES = 3
"""Sources that a question names, the newest."""


class ApprovalMode(StrEnum):
    """What happens to a call that needs approval."""

    OFF = "off"
    """It runs without a question, unless it needs secrets."""
    ASK = "ask"
    DENY = "deny"
    """It is refused without a question."""


class ApprovalAudience(Protocol):
    async def unavailable_reason(self, planned: PlannedCall) -> str | None:
        """Return why nobody may answer a question in this turn and what would help; None if somebody may."""
        ...


@dataclass(frozen=True, slots=True)
class ActiveTaint:
    """The untrusted content that a call may derive from. False if there is none."""

    provenance: Provenance = Provenance.OWNER
    source: str = ""
    """Where it comes from, for a person: a page, a sender, a server."""

    def __bool__(self) -> bool:
        return is_outside(self.provenance)


class ApprovalPolicy:
    """The tool policy that asks the owner."""

    def __init__(
        self,
        mode: ApprovalMode,
        grants: Grants,
        questions: PendingApprovals,
        audience: ApprovalAudience,
        redact: Callable[[str], str] = str,
    ) -> None:
        """`redact` removes secrets from what is shown."""
        self._mode = mode
        self._grants = grants
        self._questions = questions
        self._audience = audience
        self._texts = ApprovalTexts(redact)
        self._known_urls = KnownUrls()
        self._turn_grants: dict[str, frozenset[str]] = {}
        """By turn, the rules the owner allowed while no untrusted content was in play."""

    async def before_call(self, planned: PlannedCall) -> Verdict:
        """Judge the call; waits for the person to answer. Cancelling withdraws the question."""
        accesses = planned.required_access
        if not accesses:
            return Verdict()
        if self._mode is ApprovalMode.OFF:
            return Verdict(
                _rules(one for one in accesses if not (one.needs_approval and one.kind is AccessKind.SECRETS))
            )
        taint = await asyncio.to_thread(_active_taint, planned)  # up to 40 ms in a long window
        needed = [access for access in accesses if access.needs_approval or taint]
        needed = await self._drop_granted(needed, planned, tainted=bool(taint))
        if any(access.is_plain_url for access in needed):
            needed = await asyncio.to_thread(self._drop_free_urls, needed, planned)
        if not needed:
            return Verdict(_rules(accesses), entered=taint.provenance)
        refusal = await self._request_approval(planned, needed, taint)
        return Verdict(frozenset() if refusal else _rules(accesses), refusal, taint.provenance)

    def _drop_free_urls(self, needed: Sequence[Access], planned: PlannedCall) -> list[Access]:
        return [access for access in needed if not (access.is_plain_url and self._known_urls.is_free(access, planned))]

    async def _drop_granted(self, needed: list[Access], planned: PlannedCall, *, tainted: bool) -> list[Access]:
        if not needed or self._mode is ApprovalMode.DENY:
            return needed
        granted = await asyncio.to_thread(self._grants.holds, _rules(needed), outside=tainted)
        if planned.source:  # the same command does something else once the file it runs has other content
            granted -= _rules(access for access in needed if access.kind is AccessKind.COMMAND)
        if not tainted:
            granted |= self._turn_grants.get(planned.context.turn_id, frozenset())
        return [access for access in needed if access.rule not in granted]

    async def _request_approval(self, planned: PlannedCall, needed: Sequence[Access], taint: ActiveTaint) -> str | None:
        """Ask the owner. Return None if they allow it, else the refusal for the model."""
        texts, name, source = self._texts, planned.call.name, taint.source
        if self._mode is ApprovalMode.DENY:
            self._emit_refused(planned, needed, taint, "tools.approval is deny: nobody is asked.")
            return texts.denied(name, needed, source)
        if (why_not := await self._audience.unavailable_reason(planned)) is not None:
            self._emit_refused(planned, needed, taint, why_not)
            return texts.nobody_there(name, needed, source, why_not)
        never = _NEVER_ALWAYS | {AccessKind.COMMAND} if planned.source else _NEVER_ALWAYS
        may_always = not any(access.kind in never for access in needed)
        answer = await self._ask(planned, needed, taint, may_always=may_always)
        if answer is Answer.ALWAYS and (problem := await self._save_grants(needed, tainted=bool(taint))):
            log.warning("The answer `always` could not be saved: %s", problem)
        if answer in (Answer.ONCE, Answer.ALWAYS):
            if not taint:
                self._grant_for_turn(planned.context.turn_id, _rules(needed))
            return None
        return texts.unanswered(name, self._questions.expires_s) if answer is Answer.EXPIRED else texts.refused(name)

    def _emit_refused(self, planned: PlannedCall, needed: Sequence[Access], taint: ActiveTaint, reason: str) -> None:
        planned.emit(ApprovalRefused(**self._event_fields(planned, needed, taint), reason=reason))

    async def _ask(
        self, planned: PlannedCall, needed: Sequence[Access], taint: ActiveTaint, *, may_always: bool
    ) -> Answer:
        approval_id = make_approval_id(planned.context.turn_id, planned.call)
        planned.emit(
            ApprovalAsked(
                **self._event_fields(planned, needed, taint),
                question=approval_id,
                may_always=may_always,
                expires_s=self._questions.expires_s,
            )
        )
        answer = Answer.STOPPED
        try:
            pending = PendingApproval(approval_id, planned.context, planned.call.name, may_always)
            answer = await self._questions.wait_for_answer(pending)
        finally:
            planned.emit(ApprovalAnswered(question=approval_id, answer=answer))
        return answer

    def _event_fields(self, planned: PlannedCall, needed: Sequence[Access], taint: ActiveTaint) -> dict[str, Any]:
        call, texts = planned.call, self._texts
        return {
            "call_id": call.id,
            "name": call.name,
            "arguments": texts.redact_arguments(call.arguments),
            "reaches": [texts.line(access.rule) for access in needed],
            "text": texts.question(call, needed, taint.source),
            "source": taint.source or None,
        }

    async def _save_grants(self, accesses: Sequence[Access], *, tainted: bool) -> str:
        """Return why saving failed, empty if it worked. The call is allowed in any case."""
        try:
            await asyncio.to_thread(self._grants.add, sorted(_rules(accesses)), outside=tainted)
        except StorageError as error:
            return str(error)
        return ""

    def _grant_for_turn(self, turn_id: str, rules: frozenset[str]) -> None:
        while len(self._turn_grants) >= _MAX_TURNS:
            del self._turn_grants[next(iter(self._turn_grants))]
        self._turn_grants[turn_id] = self._turn_grants.pop(turn_id, frozenset()) | rules


def _rules(accesses: Iterable[Access]) -> frozenset[str]:
    return frozenset(access.rule for access in accesses)


def _active_taint(planned: PlannedCall) -> ActiveTaint:
    context, rows = planned.context, [*planned.untrusted_rows, *planned.rows]
    if is_outside(context.entered):
        sources = [format_source(row, rows) for row in entered_rows(rows, context.turn_id)]
        sources += filter(None, [planned.source])
        named = ", ".join(dict.fromkeys(sources[-_MAX_SOURCES:]))
        return ActiveTaint(context.entered, named or describe_provenance(context.entered))
    row = repeated_row(planned.call.arguments, rows, context.turn_id, context.session_key)
    if row is None:
        return ActiveTaint()
    return ActiveTaint(provenance_of(row, context.session_key), format_source(row, rows))
