"""Reconstructs recorded turns from the rows of a session and the traces of its turns.

Texts come from the session; times, costs and prompts from the trace. Either may be missing: for turns older than
tracing, deleted rows, or turns that were killed.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from nanobot.agent.claims import is_claim_feedback
from nanobot.agent.engine.interruption import FINISH_RESUMED
from nanobot.agent.engine.spec import RunLimits
from nanobot.agent.trace.store import Facts, TraceStore, dicts
from nanobot.errors import NanobotError
from nanobot.messages.shown import shown_text
from nanobot.messages.types import INTERRUPTED, ChatMessage, Content, Provenance, ToolSchema, is_synthetic, text_of
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
    def result(self) -> str | None:
        """The text of the result."""
        return None if self.content is None else text_of(self.content)

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

    @property
    def model_steps(self) -> list[RecordedStep]:
        """The steps with a model call, without those that only resumed an interrupted run."""
        return [step for step in self.steps if step.finish != FINISH_RESUMED]

    def to_json(self) -> dict[str, Any]:
        """The turn for programs; docs/guides/replay.md documents the fields."""
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
        for turn_id, events in traces.items():
            _apply_trace(turns[turn_id], events)
        self.turns = sorted(turns.values(), key=lambda turn: turn.at)

    def find(self, turn_ref: str | None = None) -> RecordedTurn:
        """Return a turn by id, by the start of its id, or counted from the end (-1); the last one for None.

        Raises NanobotError with similar ids if there is none.
        """
        turn_ref = turn_ref or "-1"
        if not self.turns:
            raise NanobotError(f"Session {self.key!r} has no turns yet.")
        if turn_ref.startswith("-") and turn_ref[1:].isdecimal():
            if 0 < int(turn_ref[1:]) <= len(self.turns):
                return self.turns[-int(turn_ref[1:])]
            raise NanobotError(f"There is no turn {turn_ref}: session {self.key!r} has {len(self.turns)}.")
        matches = [turn for turn in self.turns if turn.turn_id.startswith(turn_ref)]
        exact = [turn for turn in matches if turn.turn_id == turn_ref]
        if len(exact or matches) == 1:
            return (exact or matches)[0]
        similar = [turn.turn_id for turn in matches] or nearest(
            turn_ref, [turn.turn_id for turn in self.turns], cutoff=0.3
        )
        problem = "matches several turns" if matches else "is not a turn of this session"
        hint = f" Did you mean {' or '.join(similar[:3])}?" if similar else ""
        raise NanobotError(f"{turn_ref!r} {problem}.{hint} See `nanobot replay {self.key} --list`.")

    def prompt(self, turn: RecordedTurn, traces: TraceStore) -> RecordedPrompt:
        """Return the turn's first request. Raises NanobotError if it is no longer known."""
        traced = turn.traced or {}
        parts = {name: traces.blob(str(traced.get(name))) for name in ("system", "tools", "limits")}
        if not traced:
            raise NanobotError(f"Turn {turn.turn_id} called no model or was not traced, so its prompt is unknown.")
        if None in parts.values():
            raise NanobotError(f"The prompt of turn {turn.turn_id} was deleted with old traces.")
        history = self._history(turn.turn_id, int(traced.get("history", 0)), traced.get("until"))
        if not history:
            raise NanobotError(f"The messages of turn {turn.turn_id} are no longer in the session.")
        known = {item.name for item in fields(RunLimits)}
        limits = {name: value for name, value in json.loads(str(parts["limits"])).items() if name in known}
        return RecordedPrompt(
            str(parts["system"]), json.loads(str(parts["tools"])), replace(RunLimits(), **limits), history
        )

    def _history(self, turn_id: str, count: int, until: object) -> list[ChatMessage]:
        """Return the rows that were sent: `count` rows, up to the one with the timestamp `until`.

        A resumed turn had to settle its calls before it called a model, so those rows of its own are included.
        """
        rows = [row for row in self._rows_by_turn.get(turn_id, ()) if not row.get("_command")]
        end = next((at for at in range(len(rows), 0, -1) if rows[at - 1].get("timestamp") == until), 0)
        begin = max(0, end - count)
        while 0 < end < len(rows) and rows[end].get("turn_id") == turn_id and rows[end].get("role") != "assistant":
            end += 1
        return rows[begin:end]


def read_recording(name: str, sessions: SessionManager, traces: TraceStore) -> Recording | None:
    """Return the turns of a live session by key, or of an archived one by file name; None if nothing is known.

    For a live session this includes turns of its archived conversations. Raises StorageError.
    """
    path = sessions.find(name)
    session = sessions.read(path) if path is not None else None
    key = session.key if session is not None else name
    workspaces = (None, str(sessions.folder.parent))  # another workspace may have a session with this name
    by_turn = {
        turn_id: events
        for turn_id, events in traces.turns(key).items()
        if next((event["workspace"] for event in events if "workspace" in event), None) in workspaces
    }
    if session is None and not by_turn:
        return None
    conversations = [session.messages] if session is not None else []
    archived = {Path(row["path"]): str(row["key"]) for row in sessions.list_sessions() if row["archived"]}
    known_ids = _turn_ids(conversations)
    if path is not None and path in archived:
        return Recording(key, conversations, {turn_id: by_turn[turn_id] for turn_id in by_turn if turn_id in known_ids})
    if by_turn.keys() - known_ids:
        older = [sessions.read(file) for file, owner in archived.items() if owner == key]
        conversations += [archive.messages for archive in older if archive is not None]
    return Recording(key, conversations, by_turn)


def merge_turn(like: RecordedTurn, rows: list[ChatMessage], events: Sequence[Facts]) -> RecordedTurn:
    """Build a turn from the rows and events of a replay of `like`."""
    question: ChatMessage = {"role": "user", "content": like.message}
    turn = RecordedTurn(like.turn_id, like.session, text=_last_reply(rows), steps=rows_as_steps([question, *rows]))
    _apply_trace(turn, events)
    return turn


def rows_as_steps(rows: Iterable[ChatMessage]) -> list[RecordedStep]:
    """Return the steps of a turn's rows, without its first message."""
    steps: list[RecordedStep] = []
    calls: dict[str, RecordedCall] = {}
    joined: list[ChatMessage] = []
    has_started = False
    for row in rows:
        role = row.get("role")
        if role == "user" and not is_synthetic(row):
            joined += [row] if has_started else []
            has_started = True
        elif role == "assistant" and not _is_placeholder(row):
            step_calls = [
                call for raw_call in dicts(row.get("tool_calls")) if (call := _parse_call(raw_call)) is not None
            ]
            calls |= {call.id: call for call in step_calls}
            text = text_of(row["content"]) if row.get("sent_back") else shown_text(row)
            steps.append(RecordedStep(text, row.get("reasoning_content") or "", step_calls, joined))
            joined = []
        elif role == "tool" and (call := calls.get(str(row.get("tool_call_id")))) is not None:
            call.content, call.provenance = _content_of(row), row.get("provenance")
            call.failure = row.get("failure")
    return steps


def _content_of(row: ChatMessage) -> Content:
    """Return the content, whatever a file has in its place."""
    content: object = row.get("content")
    return content if isinstance(content, str) else dicts(content)


def _is_placeholder(row: ChatMessage) -> bool:
    """Whether the row was inserted by nanobot because the model gave no answer."""
    return row.get("provenance") == Provenance.SYSTEM and row.get("error") not in (None, INTERRUPTED)


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
    message = next((shown_text(row) for row in rows if row.get("role") == "user" and not is_synthetic(row)), "")
    last = rows[-1]
    turn = RecordedTurn(turn_id, key, str(rows[0].get("timestamp", "")), str(rows[0].get("origin", "")), message)
    turn.steps = rows_as_steps(rows)
    if last.get("role") == "assistant" and not last.get("tool_calls"):
        turn.error = last.get("error")
        turn.outcome = _OUTCOMES.get(turn.error, "failed")
        turn.text = _last_reply(rows)
    turn.seconds = _seconds_between(turn.at, str(last.get("timestamp", ""))) if turn.outcome else None
    return turn


def _apply_trace(turn: RecordedTurn, events: Sequence[Facts]) -> None:
    """Add what the trace knows, which overrides what was derived from the rows."""
    started: Facts = next((event for event in events if event.get("type") == "turn_started"), {})
    turn.at = str(started.get("at") or turn.at)
    turn.origin = str(started.get("origin") or turn.origin)
    turn.message = turn.message or str(started.get("message", ""))
    turn.traced, turn.outcome, turn.seconds = {}, None, None
    traced = _TracedSteps()
    for event in events:
        match event.get("type"):
            case "run_started":
                turn.model = str(event.get("model", ""))
            case "prompt":
                turn.traced = turn.traced or event
                turn.model, turn.provider = str(event.get("model", "")), str(event.get("provider", ""))
            case "turn_ended":
                turn.outcome, turn.error = event.get("outcome"), event.get("error")
                head = str(event.get("text", ""))  # only its head: rows take precedence, except for failures
                turn.text = (head or turn.text) if turn.outcome == "failed" else (turn.text or head)
                turn.seconds = event.get("t")
                turn.phases = {name: round(seconds, 4) for name, seconds in _dict(event.get("phase_seconds")).items()}
                turn.usage, turn.cost_usd = _dict(event.get("usage")), event.get("cost_usd")
            case _:
                traced.add(event)
    turn.notices = traced.notices
    turn.steps = _merge_steps(turn.steps, traced.steps)
    turn.usage = turn.usage or _sum_usage(turn.steps)
    paid = [step.cost_usd for step in turn.steps if step.cost_usd is not None]
    turn.cost_usd = turn.cost_usd if turn.cost_usd is not None else (sum(paid) if paid else None)


class _TracedSteps:
    """The steps of a turn's events, with measures and calls. `text` has only the head."""

    def __init__(self) -> None:
        self.steps: list[RecordedStep] = []
        self.notices: list[Facts] = []
        self._ended = 0
        self._began: float | None = None
        """When the open step began; None between steps."""

    def add(self, event: Facts) -> None:
        kind, time = event.get("type"), _number(event.get("t"))
        if kind in _NOTICES:
            text = "\n".join(str(event[name]) for name in _NOTICES[kind] if event.get(name))
            label = str(event.get("kind", "")) if kind == "notice" else str(kind).removeprefix("approval_")
            self.notices.append({"at": time, "step": self._ended, "kind": label, "text": text})
        elif kind == "step_started":
            self._open(time)
        elif kind in ("text_started", "reasoning_started"):
            step = self._step(time)
            step.first_s = round(time - (self._began or 0), 4) if step.first_s is None else step.first_s
        elif kind == "text_ended":
            self._step(time).text += str(event.get("text", ""))
        elif kind == "tool_started":
            asked = event.get("asked")
            call = RecordedCall(
                str(event.get("call_id")), str(event.get("name")), _dict(event.get("arguments")),
                asked=asked if isinstance(asked, dict) else None,
            )  # fmt: skip
            self._step(time).calls.append(call)
        elif kind == "tool_ended":
            self._end_call(self._step(time), event)
        elif kind == "step_ended":
            step = self._step(time)
            step.seconds = round(time - (self._began or 0), 4)
            step.finish, step.cost_usd = str(event.get("finish_reason", "")), event.get("cost_usd")
            step.usage = _dict(event.get("usage"))
            self._ended += 1
            self._began = None

    def _open(self, time: float) -> None:
        self._began = time
        self.steps.append(RecordedStep())

    def _step(self, time: float) -> RecordedStep:
        if self._began is None:
            self._open(time)
        return self.steps[-1]

    def _end_call(self, step: RecordedStep, event: Facts) -> None:
        call_id = str(event.get("call_id"))
        call = next((call for call in step.calls if call.id == call_id and call.ok is None), None)
        if call is None:
            call = RecordedCall(call_id, str(event.get("name")), {})
            step.calls.append(call)
        call.seconds, call.ok, call.content = event.get("seconds"), bool(event.get("ok")), event.get("content")


_NOTICES = {
    "notice": ("text",), "approval_asked": ("text",), "approval_answered": ("answer",),
    "approval_refused": ("text", "reason"),
}  # fmt: skip
"""The events that are shown as notices, and the fields with their text."""


def _merge_steps(from_rows: Sequence[RecordedStep], traced: Sequence[RecordedStep]) -> list[RecordedStep]:
    """Merge traced steps with those from rows. A step without text has no row, and an interrupted one no trace.

    Calls settled by a resumed run belong to the step that made them.
    """
    steps: list[RecordedStep] = []
    waiting = list(from_rows)
    row_call_ids = {call.id for step in from_rows for call in step.calls}
    for index, measured in enumerate(traced):
        ids = {call.id for call in measured.calls}
        if measured.finish == FINISH_RESUMED and ids <= row_call_ids:
            for step in from_rows:
                _measure_calls(step, measured)
            continue
        match = next((at for at, step in enumerate(waiting) if ids & {call.id for call in step.calls}), None)
        if match is None and waiting and not ids and (measured.text or len(waiting) >= len(traced) - index):
            match = 0
        if match is None and not measured.finish and not ids:
            continue  # it was running when the process died
        if match is not None:
            steps += waiting[:match]
            step = waiting[match]
            waiting = waiting[match + 1 :]
            _measure_calls(step, measured)
            steps.append(
                replace(measured, text=step.text, reasoning=step.reasoning, calls=step.calls, joined=step.joined)
            )
        else:
            steps.append(replace(measured, text=""))
    return steps + waiting


def _measure_calls(step: RecordedStep, measured: RecordedStep) -> None:
    by_id = {call.id: call for call in measured.calls}
    for call in step.calls:
        if (traced := by_id.get(call.id)) is not None:
            call.seconds, call.ok, call.asked = traced.seconds, traced.ok, traced.asked


def _parse_call(call: Facts) -> RecordedCall | None:
    function = call.get("function")
    if not isinstance(function, dict):
        return None
    text: Any = function.get("arguments") or "{}"
    try:
        arguments = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        arguments = None
    return RecordedCall(
        str(call.get("id")), str(function.get("name")), arguments if isinstance(arguments, dict) else {"": text}
    )


def _last_reply(rows: Iterable[ChatMessage]) -> str:
    """Return the answer: the text after the last call, which may span several rows if a limit cut it.

    A text whose claim was rejected is not part of the answer that followed it.
    """
    parts: list[str] = []
    for row in rows:
        if row.get("tool_calls") or is_claim_feedback(row):
            parts.clear()
        elif row.get("role") == "assistant" and not _is_placeholder(row):
            parts.append(shown_text(row))
    return "".join(parts)


def _sum_usage(steps: Iterable[RecordedStep]) -> dict[str, int]:
    total: dict[str, int] = {}
    for step in steps:
        add_tokens(total, step.usage)
    return total


def _turn_ids(conversations: Iterable[list[ChatMessage]]) -> set[str]:
    return {str(row["turn_id"]) for rows in conversations for row in rows if row.get("turn_id")}


def _dict(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _seconds_between(first: str, last: str) -> float | None:
    try:
        return round((datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds(), 4)
    except (ValueError, TypeError):
        return None
