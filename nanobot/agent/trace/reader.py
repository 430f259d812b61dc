"""Reconstructs recorded turns from the rows of a session and the traces of its turns.

Texts come from the session; times, costs and prompts from the trace. Either may be missing: for turns older than
tracing, deleted rows, or turns that were killed.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from nanobot.agent import events
from nanobot.agent.claims import is_claim_feedback
from nanobot.agent.engine.spec import RunLimits
from nanobot.agent.engine.transcript import FINISH_RESUMED
from nanobot.agent.trace.store import Facts, TraceStore
from nanobot.errors import NanobotError
from nanobot.messages.types import (
    INTERRUPTED,
    ChatMessage,
    Content,
    Provenance,
    ToolSchema,
    is_synthetic,
    shown_text,
    text_of,
)
from nanobot.providers.base import parse_arguments
from nanobot.session.manager import SessionManager
from nanobot.usage.types import add_tokens
from nanobot.utils.text import nearest

_OUTCOMES = {None: "answered", "stopped": "stopped", INTERRUPTED: None}
"""Outcome by the `error` of a turn's last row; any other value is a failure."""


@dataclass(slots=True)
class RecordedCall:
    """A tool call. `content` is the result as the model read it, None if it was not stored."""

    id: str
    name: str
    arguments: dict[str, Any]
    content: Content = None
    provenance: str | None = None
    seconds: float | None = None
    ok: bool | None = None
    failure: str | None = None
    """The kind of failure stored in its row."""
    asked: dict[str, Any] | None = None
    """The arguments given by the model, if a hook changed them."""

    @property
    def requested(self) -> dict[str, Any]:
        """The arguments given by the model."""
        return self.arguments if self.asked is None else self.asked

    @property
    def summary(self) -> str:
        """For example `read_file {"path": "a.txt"}`."""
        return f"{self.name} {json.dumps(self.arguments, ensure_ascii=False, default=str)}"


@dataclass(slots=True)
class RecordedStep:
    """One model call and its tool calls. `joined` are messages that joined before it."""

    text: str = ""
    reasoning: str = ""
    calls: list[RecordedCall] = field(default_factory=list)
    joined: list[ChatMessage] = field(default_factory=list)
    seconds: float | None = None
    first_s: float | None = None
    finish: str = ""
    usage: dict[str, int] = field(default_factory=dict)
    cost_usd: float | None = None


@dataclass(slots=True)
class RecordedTurn:
    """A turn. Unknown values are None or empty. Without an `outcome` it still runs or was killed."""

    turn_id: str
    session: str
    at: str = ""
    origin: str = ""
    message: str = ""
    model: str = ""
    provider: str = ""
    outcome: str | None = None
    error: str | None = None
    text: str = ""
    seconds: float | None = None
    phases: dict[str, float] = field(default_factory=dict)
    usage: dict[str, int] = field(default_factory=dict)
    cost_usd: float | None = None
    steps: list[RecordedStep] = field(default_factory=list)
    notices: list[Facts] = field(default_factory=list)
    traced: Facts | None = None
    """What the trace has of the prompt; None without a trace."""

    def to_json(self) -> dict[str, Any]:
        """The turn for programs."""
        shown = asdict(self)
        del shown["traced"]
        for step, shown_step in zip(self.steps, shown["steps"], strict=True):
            shown_step["heard"] = [shown_text(row) for row in step.joined]
        return shown


@dataclass(frozen=True, slots=True)
class RecordedPrompt:
    """The parts of a turn's first request."""

    system: str
    tools: list[ToolSchema]
    limits: RunLimits
    history: list[ChatMessage]


class Recording:
    """The turns of one session, oldest first."""

    def __init__(self, key: str, conversations: Sequence[list[ChatMessage]], traces: Mapping[str, list[Facts]]) -> None:
        """`conversations` are the rows of each file that holds turns of this session, `traces` the events by turn."""
        self.key = key
        self._rows_by_turn: dict[str, list[ChatMessage]] = {}
        turns = {turn_id: RecordedTurn(turn_id, key) for turn_id in traces}
        for rows in conversations:
            for turn_id, turn_rows in _group_by_turn(rows).items():
                self._rows_by_turn[turn_id] = rows
                turns[turn_id] = _turn_from_rows(turn_id, key, turn_rows)
        for turn_id, traced in traces.items():
            _apply_trace(turns[turn_id], traced)
        self.turns = sorted(turns.values(), key=lambda turn: turn.at)

    def find(self, turn_ref: str | None = None) -> RecordedTurn:
        """Return a turn by id, by the start of its id, or counted from the end (-1); the last one for None.

        Raises NanobotError with similar ids if there is none.
        """
        turn_ref = turn_ref or "-1"
        ids = [turn.turn_id for turn in self.turns]
        if turn_ref.startswith("-") and turn_ref[1:].isdecimal():
            if 0 < int(turn_ref[1:]) <= len(ids):
                return self.turns[-int(turn_ref[1:])]
            raise NanobotError(f"There is no turn {turn_ref}: session {self.key!r} has {len(ids)}.")
        matches = [turn_ref] if turn_ref in ids else [turn_id for turn_id in ids if turn_id.startswith(turn_ref)]
        if len(matches) == 1:
            return self.turns[ids.index(matches[0])]
        similar = matches or nearest(turn_ref, ids, cutoff=0.3)
        problem = "matches several turns" if matches else "is not a turn of this session"
        hint = f" Did you mean {' or '.join(similar[:3])}?" if similar else ""
        raise NanobotError(f"{turn_ref!r} {problem}.{hint} See `nanobot replay {self.key} --list`.")

    def prompt(self, turn: RecordedTurn, traces: TraceStore) -> RecordedPrompt:
        """Return the turn's first request. Raises NanobotError if it is no longer known."""
        if not turn.traced:
            raise NanobotError(f"Turn {turn.turn_id} called no model or was not traced, so its prompt is unknown.")
        system, tools = (traces.blob(turn.traced.get(name)) for name in ("system", "tools"))
        if system is None or tools is None:
            raise NanobotError(f"The prompt of turn {turn.turn_id} was deleted with old traces.")
        rows = [row for row in self._rows_by_turn.get(turn.turn_id, ()) if not row.get("_command")]
        until = turn.traced.get("until")
        end = next((at for at in range(len(rows), 0, -1) if rows[at - 1].get("timestamp") == until), 0)
        begin = max(0, end - int(turn.traced.get("history", 0)))
        # a resumed turn had to settle its calls before it called a model: those rows of its own were sent, too
        while 0 < end < len(rows) and rows[end].get("turn_id") == turn.turn_id and rows[end].get("role") != "assistant":
            end += 1
        if begin == end:
            raise NanobotError(f"The messages of turn {turn.turn_id} are no longer in the session.")
        known = {item.name for item in fields(RunLimits)}
        limits = {name: value for name, value in turn.traced["limits"].items() if name in known}
        return RecordedPrompt(system, json.loads(tools), RunLimits(**limits), rows[begin:end])


def read_recording(name: str, sessions: SessionManager, traces: TraceStore) -> Recording | None:
    """Return the turns of a live session by key, or of an archived one by file name; None if nothing is known.

    For a live session this includes turns of its archived conversations. Raises StorageError.
    """
    path = sessions.find(name)
    session = sessions.read(path) if path is not None else None
    key = session.key if session is not None else name
    conversations = [session.messages] if session is not None else []
    workspace = str(sessions.folder.parent)  # another one may have a session with this name
    traced = {
        turn_id: facts
        for turn_id, facts in traces.turns(key).items()
        if next((entry["workspace"] for entry in facts if "workspace" in entry), workspace) == workspace
    }
    if not conversations and not traced:
        return None
    archived = {Path(row["path"]): str(row["key"]) for row in sessions.list_sessions() if row["archived"]}
    known_ids = {str(row["turn_id"]) for rows in conversations for row in rows if row.get("turn_id")}
    if path in archived:
        traced = {turn_id: facts for turn_id, facts in traced.items() if turn_id in known_ids}
    elif traced.keys() - known_ids:
        older = [sessions.read(file) for file, owner in archived.items() if owner == key]
        conversations += [archive.messages for archive in older if archive is not None]
    return Recording(key, conversations, traced)


def merge_turn(like: RecordedTurn, rows: list[ChatMessage], traced: Sequence[Facts]) -> RecordedTurn:
    """Build a turn from the rows and events of a replay of `like`."""
    turn = RecordedTurn(like.turn_id, like.session)
    turn.steps, turn.text = _read_steps([{"role": "user", "content": like.message}, *rows])
    _apply_trace(turn, traced)
    return turn


# --- from the rows of the session


def _group_by_turn(rows: Iterable[ChatMessage]) -> dict[str, list[ChatMessage]]:
    """Group rows by turn. Rows without a turn id start one at each user message, named after its position."""
    turns: dict[str, list[ChatMessage]] = {}
    current = ""
    for at, row in enumerate(rows):
        if row.get("_command"):
            continue
        if row.get("turn_id"):
            current = str(row["turn_id"])
        elif not current or (row.get("role") == "user" and not is_synthetic(row)):
            current = f"row-{at}"
        turns.setdefault(current, []).append(row)
    return turns


def _turn_from_rows(turn_id: str, key: str, rows: list[ChatMessage]) -> RecordedTurn:
    """Build a turn from the session alone."""
    first, last = rows[0], rows[-1]
    message = next((shown_text(row) for row in rows if row.get("role") == "user" and not is_synthetic(row)), "")
    turn = RecordedTurn(turn_id, key, str(first.get("timestamp", "")), str(first.get("origin", "")), message)
    turn.steps, reply = _read_steps(rows)
    if last.get("role") == "assistant" and not last.get("tool_calls"):
        turn.text, turn.error = reply, last.get("error")
        turn.outcome = _OUTCOMES.get(turn.error, "failed")
    if turn.outcome:
        with suppress(ValueError, TypeError):
            end = datetime.fromisoformat(str(last.get("timestamp")))
            turn.seconds = round((end - datetime.fromisoformat(turn.at)).total_seconds(), 4)
    return turn


def _read_steps(rows: Iterable[ChatMessage]) -> tuple[list[RecordedStep], str]:
    """Return the steps of a turn's rows, whose first message is left out, and its reply: the text after the last call,
    which may span several rows if a limit cut it. A text whose claim was rejected is no part of it.
    """
    steps: list[RecordedStep] = []
    calls: dict[str, RecordedCall] = {}
    joined: list[ChatMessage] = []
    reply, has_started = "", False
    for row in rows:
        role = row.get("role")
        if is_claim_feedback(row):
            reply = ""
        if role == "user" and not is_synthetic(row):
            joined += [row] if has_started else []
            has_started = True
        elif role == "assistant" and not _is_placeholder(row):
            step_calls = list(filter(None, map(_parse_call, row.get("tool_calls") or ())))
            calls |= {call.id: call for call in step_calls}
            reply = "" if row.get("tool_calls") else reply + shown_text(row)
            text = text_of(row["content"]) if row.get("sent_back") else shown_text(row)
            steps.append(RecordedStep(text, row.get("reasoning_content") or "", step_calls, joined))
            joined = []
        elif role == "tool" and (call := calls.get(str(row.get("tool_call_id")))) is not None:
            content: object = row.get("content")
            parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else ""
            call.content = content if isinstance(content, str) else parts
            call.provenance, call.failure = row.get("provenance"), row.get("failure")
    return steps, reply


def _parse_call(raw: object) -> RecordedCall | None:
    """Return a call as it is stored in a session; None if it is damaged."""
    function = raw.get("function") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or not isinstance(function, dict):
        return None
    arguments, problem = parse_arguments(str(function.get("arguments") or ""))
    return RecordedCall(
        str(raw.get("id")), str(function.get("name")), {"": function["arguments"]} if problem else arguments
    )


def _is_placeholder(row: ChatMessage) -> bool:
    """Whether the row was inserted by nanobot because the model gave no answer."""
    return row.get("provenance") == Provenance.SYSTEM and row.get("error") not in (None, INTERRUPTED)


# --- from the trace


def _apply_trace(turn: RecordedTurn, traced: Sequence[Facts]) -> None:
    """Add what the trace knows, which overrides what was derived from the rows. Its texts have only their heads."""
    turn.traced, turn.outcome, turn.seconds = {}, None, None
    steps = [RecordedStep(finish="none")]  # stands for what comes before the first
    began = 0.0

    def notice(kind: str, text: str) -> None:
        ended = sum(bool(step.finish) for step in steps[1:])
        turn.notices.append({"at": time, "step": ended, "kind": kind, "text": text})

    for facts in traced:
        time = facts.get("t", 0.0)
        if facts["type"] == "turn_started":
            turn.at, turn.origin = facts["at"], facts["origin"]
            turn.message = turn.message or facts["message"]
        elif facts["type"] == "prompt":
            turn.traced = turn.traced or facts
            turn.model, turn.provider = facts["model"], facts["provider"]
        try:
            event = events.event_from_json({name: value for name, value in facts.items() if name != "t"})
        except (TypeError, ValueError):  # of another version
            continue
        if isinstance(event, events.StepStarted) or (steps[-1].finish and isinstance(event, _IN_STEP)):
            steps.append(RecordedStep())
            began = time
        step = steps[-1]
        match event:
            case events.RunStarted():
                turn.model = event.model
            case events.TextStarted() | events.ReasoningStarted():
                step.first_s = round(time - began, 4) if step.first_s is None else step.first_s
            case events.TextEnded():
                step.text += event.text
            case events.ToolStarted():
                step.calls.append(RecordedCall(event.call_id, event.name, event.arguments, asked=event.asked))
            case events.ToolEnded():
                for call in step.calls:
                    if call.id == event.call_id and call.ok is None:
                        call.seconds, call.ok, call.content = event.seconds, event.ok, event.content or None
            case events.StepEnded():
                step.seconds, step.finish = round(time - began, 4), event.finish_reason
                step.usage, step.cost_usd = event.usage, event.cost_usd
            case events.Notice():
                notice(event.kind, event.text)
            case events.ApprovalAsked():
                notice("asked", event.text)
            case events.ApprovalAnswered():
                notice("answered", event.answer)
            case events.ApprovalRefused():
                notice("refused", f"{event.text}\n{event.reason}")
            case events.TurnEnded():
                turn.outcome, turn.error, turn.seconds = event.outcome, event.error, time
                turn.text = (event.text or turn.text) if event.outcome == "failed" else (turn.text or event.text)
                turn.phases = {name: round(seconds, 4) for name, seconds in event.phase_seconds.items()}
                turn.usage, turn.cost_usd = event.usage, event.cost_usd
    turn.steps = _merge_steps(turn.steps, steps[1:])
    if not turn.usage:
        for step in turn.steps:
            add_tokens(turn.usage, step.usage)
    paid = [step.cost_usd for step in turn.steps if step.cost_usd is not None]
    if turn.cost_usd is None and paid:
        turn.cost_usd = sum(paid)


_IN_STEP = (
    events.TextStarted, events.ReasoningStarted, events.TextEnded, events.ToolStarted, events.ToolEnded,
    events.StepEnded,
)  # fmt: skip


def _merge_steps(from_rows: Sequence[RecordedStep], traced: Sequence[RecordedStep]) -> list[RecordedStep]:
    """Merge traced steps with those from rows. A step without text has no row, and an interrupted one no trace.

    Calls settled by a resumed run belong to the step that made them.
    """
    steps, begin = list(from_rows), 0
    calls = {call.id: call for step in from_rows for call in step.calls}
    for measured in traced:
        ids = {call.id for call in measured.calls}
        for call in measured.calls:
            if stored := calls.get(call.id):
                stored.seconds, stored.ok, stored.asked = call.seconds, call.ok, call.asked
        if measured.finish == FINISH_RESUMED:  # no model was called
            continue
        for at, row in enumerate(steps[begin:], begin):
            if ids & {call.id for call in row.calls} or (measured.text and not ids and not row.calls):
                steps[at] = replace(
                    measured, text=row.text, reasoning=row.reasoning, calls=row.calls, joined=row.joined
                )
                begin = at + 1
                break
        else:
            if measured.finish or ids:  # else it was running when the process died
                steps.insert(begin, replace(measured, text=""))
                begin += 1
    return steps
