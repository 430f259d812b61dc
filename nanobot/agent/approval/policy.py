"""The call policy: determines which untrusted content is behind a call, asks the owner before a call does what they
did not ask for, and marks the files that are written from untrusted content.

Two kinds of access need approval: what the sandbox does not give by itself (`Access.needs_approval`), no matter who
asked; and every sensitive access of a call while untrusted content is in play, because it entered the turn, because
the call repeats some of an older turn, or because a command runs a file that contains some.
"""

import asyncio
import json
import logging
import re
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from typing import Any

from nanobot.agent.approval.pending import ApprovalRouter, PendingApproval, make_approval_id
from nanobot.agent.approval.taint import entered_rows, is_known_url, own_provenance, provenance_of, repeated_row
from nanobot.agent.events import Answer, ApprovalRefused
from nanobot.agent.tools.base import Access, AccessKind
from nanobot.agent.tools.hooks import PlannedCall, Verdict
from nanobot.errors import StorageError
from nanobot.messages.types import ChatMessage, Provenance, is_outside, least_trusted
from nanobot.providers.base import ToolCallRequest, parse_arguments
from nanobot.security.grants import Grants
from nanobot.security.provenance import ProvenanceStore
from nanobot.security.secrets import redact_named, redact_texts
from nanobot.utils.text import clip, clip_line

log = logging.getLogger(__name__)


_MAX_SHOWN = 3000
"""Characters of one argument that a question shows; of a longer one its head and its tail."""
_MAX_NAME = 160
_NOT_RUN = (
    "{name} was not run: {reason} Do not try it another way. Do what can be done without it, and say in your "
    "answer what you wanted to do, and why."
)
_ACTIONS = {
    AccessKind.COMMAND: "run a command",
    AccessKind.FOLDER: "write in {target}",
    AccessKind.SECRETS: "open {target}, where keys or nanobot's own state are kept",
    AccessKind.DEVICE: "use the device {target}",
    AccessKind.SERVICE: "talk with the service {target}",
    AccessKind.NETWORK: "use the network in a command",
    AccessKind.RECIPIENT: "write to {target}",
    AccessKind.HOST: "send data to {target}",
    AccessKind.JOB: "make or change a job that acts later",
    AccessKind.MEMORY: "write {target}, which every later turn reads",
    AccessKind.SKILL: "write {target}, which later turns follow",
    AccessKind.AUTORUN: "write {target}, which programs may run later, outside the sandbox",
    AccessKind.TOOL: "use the tool {target}",
}
_PROVENANCES = {
    Provenance.MCP: "a tool server",
    Provenance.PERSON: "somebody else",
    Provenance.MAIL: "a mail",
    Provenance.WEB: "the web",
}
_EMPTY_LINES = re.compile(r"\n(?:[^\S\n]*\n){4,}")
_SPACES = re.compile(r"[^\S\n]{40,}")
_BLANK = frozenset("\u034f\u115f\u1160\u2800\u3164\uffa0")
"""Letters that look like nothing."""
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_MAX_TURNS = 256
"""Turns whose answers are remembered; one that ran so long ago has ended."""
_WRITERS = {"write_file": True, "edit_file": False, "notebook_edit": False}
"""Tools that write the file named by `path`, and whether they replace it as a whole."""
_MAX_SOURCES = 3
"""Sources that a question names, the newest."""


def _question_text(call: ToolCallRequest, needed: Sequence[Access], source: str) -> str:
    """Return the whole question, in Markdown."""
    arguments = {_one_line(name): _shown(value) for name, value in call.arguments.items()}
    left_out = "{left_out} characters are not shown here"
    body = "\n".join([call.name, *(f"{name}: {clip(text, _MAX_SHOWN, left_out)}" for name, text in arguments.items())])
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", body)), default=0))
    lines = [f"**May I {_describe_actions(needed)}?**", fence, *body.split("\n"), fence]
    lines += dict.fromkeys(_one_line(access.detail) for access in needed if access.detail)
    if any(len(text) > _MAX_SHOWN for text in arguments.values()):
        lines.append("Not all of it is shown here; a yes allows all of it.")
    if source:
        lines.append(f"I ask because untrusted content is in play: {_one_line(source)}.")
    return "\n".join(lines)


def _one_line(text: str) -> str:
    """Return the text as one harmless line."""
    return clip_line(" ".join(_without_markup(redact_named(text)).split()), _MAX_NAME * 4)


def _describe_actions(needed: Sequence[Access]) -> str:
    return " and ".join(
        dict.fromkeys(_ACTIONS[access.kind].format(target=_one_line(access.target)) for access in needed)
    )


def _shown(value: Any) -> str:
    """Return all of an argument. Long runs of blank lines and spaces are counted: they would hide what follows."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = _EMPTY_LINES.sub(
        lambda match: f"\n({match[0].count(chr(10)) - 1} empty lines)\n", _without_markup(redact_named(text))
    )
    return _SPACES.sub(lambda match: f" ({len(match[0])} spaces) ", text)


def _without_markup(text: str) -> str:
    """Return the text with invisible, control and direction-changing characters spelled out (`\\u202e`)."""
    return "".join(
        f"\\u{ord(letter):04x}"
        if letter in _BLANK or (letter not in "\n\t" and unicodedata.category(letter) in _HIDDEN)
        else letter
        for letter in text.replace("\r\n", "\n")
    )


def _describe_provenance(provenance: Provenance) -> str:
    """Describe where untrusted content comes from, if no more than its provenance is known."""
    return _PROVENANCES.get(provenance, "somebody else")


def _format_source(row: ChatMessage, rows: Sequence[ChatMessage]) -> str:
    """Name the source of a row for a person: `web_fetch https://example.org`, `a mail`, `a message from ann`."""
    if row["role"] == "user":
        sender = row.get("sender_id")
        kind = _describe_provenance(least_trusted([own_provenance(row)]))
        return f"a message from {sender}" if sender and kind == "somebody else" else kind
    if row["role"] == "assistant":
        return "what was said after reading untrusted content"
    argument: object = ""
    for earlier in takewhile(lambda other: other is not row, rows):
        for call in earlier.get("tool_calls") or () if earlier.get("turn_id") == row.get("turn_id") else ():
            if call["id"] == row.get("tool_call_id"):  # the last one: some servers restart the ids in each step
                argument = next(iter(parse_arguments(call["function"]["arguments"])[0].values()), "")
    return clip_line(f"{row.get('name', 'a tool')} {argument}".strip(), _MAX_NAME)


class ApprovalMode(StrEnum):
    """What happens to a call that needs approval."""

    OFF = "off"
    """It runs without a question, unless it needs secrets."""
    ASK = "ask"
    DENY = "deny"
    """It is refused without a question."""


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

    def __init__(self, mode: ApprovalMode, grants: Grants, router: ApprovalRouter, files: ProvenanceStore) -> None:
        self._mode = mode
        self._grants = grants
        self._router = router
        self._files = files
        self._turn_grants: dict[str, frozenset[str]] = {}
        """By turn, the rules the owner allowed while no untrusted content was in play."""

    async def before_call(self, planned: PlannedCall) -> Verdict:
        """Judge the call; waits for the person to answer. Cancelling withdraws the question."""
        name, required = planned.call.name, planned.required_access
        if not required and name not in ("exec", "spawn", *_WRITERS):
            return Verdict()
        planned, taint = await asyncio.to_thread(self._find_taint, planned)  # up to 40 ms in a long window
        granted, refusal = _rules(required), None
        if self._mode is ApprovalMode.OFF:  # nobody is asked, and nobody gets secrets
            granted = _rules(a for a in required if not (a.needs_approval and a.kind is AccessKind.SECRETS))
        else:
            refusal = await self._refusal(planned, taint)
        if refusal is not None:
            return Verdict(refusal=_NOT_RUN.format(name=name, reason=refusal), entered=taint.provenance)
        verdict = Verdict(granted, entered=taint.provenance)
        try:
            return await asyncio.to_thread(self._mark_file, planned, taint, verdict) if name in _WRITERS else verdict
        except (StorageError, RuntimeError) as error:  # RuntimeError: the user of a `~user` path does not exist
            log.warning("Cannot record the provenance of a file: %s", error)
            refusal = f"{name} was not run: the provenance of what it writes cannot be recorded. {error}"
            return Verdict(refusal=refusal, entered=taint.provenance)

    def _find_taint(self, planned: PlannedCall) -> tuple[PlannedCall, Taint]:
        """Return the untrusted content behind the call, and the call with what it runs of it. Blocking."""
        arguments, context = planned.call.arguments, planned.context
        if planned.call.name == "exec":
            folder = context.workspace
            with suppress(RuntimeError):  # the user of a `~user` path does not exist
                folder /= Path(str(arguments.get("working_dir") or ".")).expanduser()
            executed = self._files.find_untrusted_source(str(arguments.get("command", "")), folder)
            if executed is not None:
                context = replace(context, entered=least_trusted([context.entered, executed[0]]))
                planned = replace(planned, context=context, source=f"the file {executed[1]}")
        rows = [*planned.untrusted_rows, *planned.rows]
        if is_outside(context.entered):
            sources = [_format_source(row, rows) for row in entered_rows(rows, context.turn_id)]
            sources += filter(None, [planned.source])
            named = ", ".join(dict.fromkeys(sources[-_MAX_SOURCES:]))
            return planned, Taint(context.entered, named or _describe_provenance(context.entered))
        row = repeated_row(arguments, rows, context.turn_id, context.session_key)
        if row is None:
            return planned, Taint()
        return planned, Taint(provenance_of(row, context.session_key), _format_source(row, rows))

    def _mark_file(self, planned: PlannedCall, taint: Taint, verdict: Verdict) -> Verdict:
        """Mark the file that the call writes, before it does: one mark too many costs a question, one too few would
        make a third party's words the owner's. Blocking.
        """
        file = planned.context.workspace / Path(str(planned.call.arguments.get("path") or ".")).expanduser()

        def clear() -> None:
            try:
                self._files.clear(file)
            except StorageError as error:
                log.warning("%s stays marked as untrusted although the owner's words replaced it: %s", file, error)

        if taint:
            self._files.mark(file, taint.provenance)
        elif _WRITERS[planned.call.name]:
            verdict = replace(verdict, on_success=[clear])
        return verdict if planned.required_access else replace(verdict, entered=Provenance.OWNER)

    async def _refusal(self, planned: PlannedCall, taint: Taint) -> str | None:
        """Return why the call may not run; None if it may, maybe since the owner allowed it just now."""
        needed = [access for access in planned.required_access if access.needs_approval or taint]
        # the same command does something else once the file it runs has other content
        changing = {AccessKind.COMMAND} if planned.source else set()
        name, turn_id = planned.call.name, planned.context.turn_id
        if needed and self._mode is ApprovalMode.ASK:
            granted = await asyncio.to_thread(self._grants.holds, _rules(needed), outside=bool(taint))
            granted -= _rules(access for access in needed if access.kind in changing)
            if not taint:
                granted |= self._turn_grants.get(turn_id, frozenset())
            needed = [access for access in needed if access.rule not in granted]
        if any(access.is_plain_url for access in needed):
            known = await asyncio.to_thread(lambda: {a for a in needed if a.is_plain_url and is_known_url(a, planned)})
            needed = [access for access in needed if access not in known]
        if not needed:
            return None

        fields: dict[str, Any] = {
            "call_id": planned.call.id,
            "name": name,
            "arguments": redact_texts(planned.call.arguments),
            "reaches": [_one_line(access.rule) for access in needed],
            "text": _question_text(planned.call, needed, taint.source),
            "source": taint.source or None,
        }
        why_not: str | None = "tools.approval is `deny`: nobody is asked."
        if self._mode is not ApprovalMode.DENY:
            why_not = await self._router.unavailable_reason(planned)
        if why_not is not None:
            planned.emit(ApprovalRefused(**fields, reason=why_not))
            in_play = f" while untrusted content is in play ({_one_line(taint.source)})" if taint.source else ""
            return f"it would {_describe_actions(needed)}{in_play}; that needs the owner's yes. {why_not}"

        may_always = not any(access.kind in {AccessKind.SECRETS, *changing} for access in needed)
        question = PendingApproval(make_approval_id(turn_id, planned.call), planned.context, name, may_always)
        answer = await self._router.questions.ask(question, planned.emit, **fields)
        if answer is Answer.EXPIRED:
            minutes = self._router.questions.expires_s / 60
            return f"the owner was asked and did not answer within {minutes:g} minutes."
        if answer not in (Answer.ONCE, Answer.ALWAYS):
            return "the owner was asked and said no. Do not ask for the same in other words."
        if answer is Answer.ALWAYS:
            try:
                await asyncio.to_thread(self._grants.add, sorted(_rules(needed)), outside=bool(taint))
            except StorageError as error:  # the call is allowed in any case
                log.warning("The answer `always` could not be saved: %s", error)
        if not taint:
            while len(self._turn_grants) >= _MAX_TURNS:
                del self._turn_grants[next(iter(self._turn_grants))]
            self._turn_grants[turn_id] = self._turn_grants.pop(turn_id, frozenset()) | _rules(needed)
        return None


def _rules(accesses: Iterable[Access]) -> frozenset[str]:
    return frozenset(access.rule for access in accesses)
