"""The call policy: determines which untrusted content is behind a call, asks the owner before a call does what they
did not ask for, and marks the files that are written from untrusted content.

Two kinds of access need approval: what the sandbox does not give by itself (`Access.needs_approval`), no matter who
asked; and every sensitive access of a call while untrusted content is in play, because it entered the turn, because
the call repeats some of an older turn, or because a command runs a file that contains some.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from nanobot.agent.approval.known_urls import is_known_url
from nanobot.agent.approval.pending import PendingApproval, PendingApprovals, make_approval_id
from nanobot.agent.approval.texts import ApprovalTexts, describe_provenance, format_source
from nanobot.agent.events import Answer, ApprovalAnswered, ApprovalAsked, ApprovalRefused
from nanobot.agent.taint import entered_rows, provenance_of, repeated_row
from nanobot.agent.tools.access import Access, AccessKind
from nanobot.agent.tools.hooks import PlannedCall, Verdict
from nanobot.errors import StorageError
from nanobot.messages.types import Provenance, is_outside, least_trusted
from nanobot.security.grants import Grants
from nanobot.security.provenance import ProvenanceStore

log = logging.getLogger(__name__)

_NEVER_ALWAYS = frozenset({AccessKind.SECRETS})
"""Kinds of access for which the answer "always" is not offered."""
_MAX_TURNS = 256
"""Turns whose answers are remembered; one that ran so long ago has ended."""
_WRITERS = {"write_file": True, "edit_file": False, "notebook_edit": False}
"""Tools that write the file named by `path`, and whether they replace it as a whole."""
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
class Taint:
    """The untrusted content that a call may derive from. False if there is none."""

    provenance: Provenance = Provenance.OWNER
    source: str = ""
    """Where it comes from, for a person: a page, a sender, a server."""

    def __bool__(self) -> bool:
        return is_outside(self.provenance)


class CallPolicy:
    """The tool policy that refuses, asks, allows and marks."""

    def __init__(
        self,
        mode: ApprovalMode,
        grants: Grants,
        questions: PendingApprovals,
        audience: ApprovalAudience,
        files: ProvenanceStore,
        redact: Callable[[str], str] = str,
    ) -> None:
        """`redact` removes secrets from what is shown."""
        self._mode = mode
        self._grants = grants
        self._questions = questions
        self._audience = audience
        self._files = files
        self._texts = ApprovalTexts(redact)
        self._turn_grants: dict[str, frozenset[str]] = {}
        """By turn, the rules the owner allowed while no untrusted content was in play."""

    async def before_call(self, planned: PlannedCall) -> Verdict:
        """Judge the call; waits for the person to answer. Cancelling withdraws the question."""
        name = planned.call.name
        if not planned.required_access and name not in ("exec", "spawn", *_WRITERS):
            return Verdict()
        planned, taint = await asyncio.to_thread(self._find_taint, planned)  # up to 40 ms in a long window
        if (refusal := await self._refusal(planned, taint)) is not None:
            return Verdict(refusal=refusal, entered=taint.provenance)
        verdict = Verdict(self._granted(planned), entered=taint.provenance)
        if name != "exec" and name not in _WRITERS:
            return verdict
        try:
            return await asyncio.to_thread(self._mark_files, planned, taint, verdict)
        except (StorageError, RuntimeError) as error:  # RuntimeError: the user of a `~user` path does not exist
            log.warning("Cannot record the provenance of a file: %s", error)
            refusal = f"{name} was not run: the provenance of what it writes cannot be recorded. {error}"
            return Verdict(refusal=refusal, entered=taint.provenance)

    def _find_taint(self, planned: PlannedCall) -> tuple[PlannedCall, Taint]:
        """Return the untrusted content behind the call, and the call with what it runs of it. Blocking."""
        if planned.call.name == "exec":
            executed = self._files.find_untrusted_source(*_parse_command(planned))
            if executed is not None:
                context = planned.context
                context = replace(context, entered=least_trusted([context.entered, executed[0]]))
                planned = replace(planned, context=context, source=f"the file {executed[1]}")
        return planned, _active_taint(planned)

    def _granted(self, planned: PlannedCall) -> frozenset[str]:
        """Return the rules that an allowed call gets: without a question, it gets no secrets."""
        is_off = self._mode is ApprovalMode.OFF
        return _rules(
            access
            for access in planned.required_access
            if not (is_off and access.needs_approval and access.kind is AccessKind.SECRETS)
        )

    def _mark_files(self, planned: PlannedCall, taint: Taint, verdict: Verdict) -> Verdict:
        """Mark the file that the call writes, before it does: one mark too many costs a question, one too few would
        make a third party's words the owner's. Blocking.
        """
        name = planned.call.name
        if name == "exec":  # which marks what the command writes itself, once it is sure to run
            named = self._files.named_in(*_parse_command(planned)) or Provenance.OWNER
            return replace(verdict, entered=least_trusted([taint.provenance, named]))
        file = planned.context.workspace / Path(str(planned.call.arguments.get("path") or ".")).expanduser()
        if taint:
            self._files.mark(file, taint.provenance)
        elif _WRITERS[name]:
            verdict = replace(verdict, on_success=[lambda: self._clear_mark(file)])
        return verdict if planned.required_access else replace(verdict, entered=Provenance.OWNER)

    def _clear_mark(self, file: Path) -> None:
        try:
            self._files.clear(file)
        except StorageError as error:
            log.warning("%s stays marked as untrusted although the owner's words replaced it: %s", file, error)

    async def _refusal(self, planned: PlannedCall, taint: Taint) -> str | None:
        """Return why the call may not run; None if it may, maybe since the owner allowed it just now."""
        if self._mode is ApprovalMode.OFF:
            return None
        needed = [access for access in planned.required_access if access.needs_approval or taint]
        needed = await self._drop_granted(needed, planned, tainted=bool(taint))
        if any(access.is_plain_url for access in needed):
            needed = await asyncio.to_thread(_drop_known_urls, needed, planned)
        return await self._request_approval(planned, needed, taint) if needed else None

    async def _drop_granted(self, needed: list[Access], planned: PlannedCall, *, tainted: bool) -> list[Access]:
        if not needed or self._mode is ApprovalMode.DENY:
            return needed
        granted = await asyncio.to_thread(self._grants.holds, _rules(needed), outside=tainted)
        if planned.source:  # the same command does something else once the file it runs has other content
            granted -= _rules(access for access in needed if access.kind is AccessKind.COMMAND)
        if not tainted:
            granted |= self._turn_grants.get(planned.context.turn_id, frozenset())
        return [access for access in needed if access.rule not in granted]

    async def _request_approval(self, planned: PlannedCall, needed: Sequence[Access], taint: Taint) -> str | None:
        """Ask the owner. Return None if they allow it, else the refusal for the model."""
        texts, name, source = self._texts, planned.call.name, taint.source
        if self._mode is ApprovalMode.DENY:
            self._emit_refused(planned, needed, taint, "tools.approval is deny: nobody is asked.")
            return texts.denial(name, needed, source)
        if (why_not := await self._audience.unavailable_reason(planned)) is not None:
            self._emit_refused(planned, needed, taint, why_not)
            return texts.nobody_available(name, needed, source, why_not)
        never = _NEVER_ALWAYS | {AccessKind.COMMAND} if planned.source else _NEVER_ALWAYS
        may_always = not any(access.kind in never for access in needed)
        answer = await self._ask(planned, needed, taint, may_always=may_always)
        if answer is Answer.ALWAYS and (problem := await self._save_grants(needed, tainted=bool(taint))):
            log.warning("The answer `always` could not be saved: %s", problem)
        if answer in (Answer.ONCE, Answer.ALWAYS):
            if not taint:
                self._grant_for_turn(planned.context.turn_id, _rules(needed))
            return None
        return texts.no_answer(name, self._questions.expires_s) if answer is Answer.EXPIRED else texts.refusal(name)

    def _emit_refused(self, planned: PlannedCall, needed: Sequence[Access], taint: Taint, reason: str) -> None:
        planned.emit(ApprovalRefused(**self._event_fields(planned, needed, taint), reason=reason))

    async def _ask(self, planned: PlannedCall, needed: Sequence[Access], taint: Taint, *, may_always: bool) -> Answer:
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

    def _event_fields(self, planned: PlannedCall, needed: Sequence[Access], taint: Taint) -> dict[str, Any]:
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


def _drop_known_urls(needed: Sequence[Access], planned: PlannedCall) -> list[Access]:
    return [access for access in needed if not (access.is_plain_url and is_known_url(access, planned))]


def _parse_command(planned: PlannedCall) -> tuple[str, Path]:
    """Return command and working folder."""
    arguments = planned.call.arguments
    folder = planned.context.workspace
    with suppress(RuntimeError):  # the user of a `~user` path does not exist
        folder /= Path(str(arguments.get("working_dir") or ".")).expanduser()
    return str(arguments.get("command", "")), folder


def _rules(accesses: Iterable[Access]) -> frozenset[str]:
    return frozenset(access.rule for access in accesses)


def _active_taint(planned: PlannedCall) -> Taint:
    context, rows = planned.context, [*planned.untrusted_rows, *planned.rows]
    if is_outside(context.entered):
        sources = [format_source(row, rows) for row in entered_rows(rows, context.turn_id)]
        sources += filter(None, [planned.source])
        named = ", ".join(dict.fromkeys(sources[-_MAX_SOURCES:]))
        return Taint(context.entered, named or describe_provenance(context.entered))
    row = repeated_row(planned.call.arguments, rows, context.turn_id, context.session_key)
    if row is None:
        return Taint()
    return Taint(provenance_of(row, context.session_key), format_source(row, rows))
