"""Reconstructs recorded turns from the rows of a session and the traces of its turns.

Texts come from the session; times, costs and prompts from the trace. Either may be missing: for turns older than
tracing, deleted rows, or turns that were killed.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from nanobot.agent.claims import is_claim_feedback
from nanobot.agent.engine.interruption import FINISH_RESUMED
from nanobot.agent.engine.spec import RunLimits
from nanobot.agent.trace.store import TraceStore, merge
from nanobot.agent.trace.turn_trace import Facts
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
    """The trace's facts about the prompt; None without a trace."""

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

    def __init__(self, key: str, conversations: Sequence[list[ChatMessage]], traces: Sequence[Facts]) -> None:
        """`conversations` are the rows of each file that holds turns of this session."""
        self.key = key
        self._rows_by_turn: dict[str, list[ChatMessage]] = {}
        turns = {str(facts.get("turn")): RecordedTurn(str(facts.get("turn")), key) for facts in traces}
        for rows in conversations:
            for turn_id, turn_rows in _group_by_turn(rows).items():
                self._rows_by_turn[turn_id] = rows
                turns[turn_id] = _turn_from_rows(turn_id, key, turn_rows)
        for facts in traces:
            _apply_trace(turns[str(facts.get("turn"))], facts)
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
        if "system" not in traced:
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
    turn_facts = [facts for facts in traces.turns(key) if facts.get("workspace") in workspaces]
    if session is None and not turn_facts:
        return None
    conversations = [session.messages] if session is not None else []
    archived = {Path(row["path"]): str(row["key"]) for row in sessions.list_sessions() if row["archived"]}
    known_ids = _turn_ids(conversations)
    if path is not None and path in archived:
        return Recording(key, conversations, [facts for facts in turn_facts if facts.get("turn") in known_ids])
    if {str(facts.get("turn")) for facts in turn_facts} - known_ids:
        older = [sessions.read(file) for file, owner in archived.items() if owner == key]
        conversations += [archive.messages for archive in older if archive is not None]
    return Recording(key, conversations, turn_facts)


def merge_turn(like: RecordedTurn, rows: list[ChatMessage], pieces: Iterable[Facts]) -> RecordedTurn:
    """Build a turn from the rows and trace records of a replay of `like`."""
    facts: Facts = {}
    for piece in pieces:
        merge(facts, piece)
    question: ChatMessage = {"role": "user", "content": like.message}
    turn = RecordedTurn(like.turn_id, like.session, text=_last_reply(rows), steps=rows_as_steps([question, *rows]))
    _apply_trace(turn, facts)
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
                call for raw_call in _dicts(row.get("tool_calls")) if (call := _parse_call(raw_call)) is not None
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
    return content if isinstance(content, str) else _dicts(content)


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


def _apply_trace(turn: RecordedTurn, facts: Facts) -> None:
    """Add the trace's facts, which override what was derived from the rows."""
    turn.traced = facts
    turn.at = str(facts.get("at") or turn.at)
    turn.origin = str(facts.get("origin") or turn.origin)
    turn.message = turn.message or str(facts.get("message", ""))
    turn.model, turn.provider = str(facts.get("model", "")), str(facts.get("provider", ""))
    turn.outcome = facts.get("outcome")
    turn.error = facts.get("error", turn.error if turn.outcome is None else None)
    head = str(facts.get("text", ""))  # only its head: rows take precedence, except for failures
    turn.text = (head or turn.text) if turn.outcome == "failed" else (turn.text or head)
    turn.seconds = facts.get("seconds")
    turn.phases, turn.usage = dict(facts.get("phases", {})), dict(facts.get("usage", {}))
    turn.notices = _dicts(facts.get("notices"))
    turn.steps = _merge_steps(turn.steps, _dicts(facts.get("steps")))
    turn.usage = turn.usage or _sum_usage(turn.steps)
    paid = [step.cost_usd for step in turn.steps if step.cost_usd is not None]
    turn.cost_usd = facts.get("usd", sum(paid) if paid else None)


def _merge_steps(from_rows: Sequence[RecordedStep], traced: Sequence[Facts]) -> list[RecordedStep]:
    """Merge traced steps with those from rows. A step without text has no row, and an interrupted one no trace.

    Calls settled by a resumed run belong to the step that made them.
    """
    steps: list[RecordedStep] = []
    waiting = list(from_rows)
    row_call_ids = {call.id for step in from_rows for call in step.calls}
    for index, facts in enumerate(traced):
        ids = {str(call.get("id")) for call in _dicts(facts.get("calls"))}
        if facts.get("finish") == FINISH_RESUMED and ids <= row_call_ids:
            for step in from_rows:
                _add_calls(step, facts)
            continue
        match = next((at for at, step in enumerate(waiting) if ids & {call.id for call in step.calls}), None)
        if match is None and waiting and not ids and (facts.get("said") or len(waiting) >= len(traced) - index):
            match = 0
        if match is not None:
            steps += waiting[:match]
            step = waiting[match]
            waiting = waiting[match + 1 :]
        else:
            step = RecordedStep(calls=[_traced_call(call) for call in _dicts(facts.get("calls"))])
        steps.append(_apply_facts(step, facts))
    return steps + waiting


def _apply_facts(step: RecordedStep, facts: Facts) -> RecordedStep:
    _add_calls(step, facts)
    step.seconds, step.first_s = facts.get("seconds"), facts.get("first_s")
    step.finish, step.cost_usd = str(facts.get("finish", "")), facts.get("usd")
    step.usage = dict(facts.get("usage", {}))
    return step


def _add_calls(step: RecordedStep, facts: Facts) -> None:
    by_id = {str(call.get("id")): call for call in _dicts(facts.get("calls"))}
    for call in step.calls:
        if (traced := by_id.get(call.id)) is not None:
            call.seconds, call.ok, call.asked = traced.get("seconds"), traced.get("ok"), _original_arguments(traced)


def _traced_call(facts: Facts) -> RecordedCall:
    return RecordedCall(
        str(facts.get("id")),
        str(facts.get("tool")),
        dict(facts.get("args") or {}),
        content=facts.get("error"),
        asked=_original_arguments(facts),
    )


def _original_arguments(facts: Facts) -> Facts | None:
    asked = facts.get("asked")
    return asked if isinstance(asked, dict) else None


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


def _dicts(value: object) -> list[Facts]:
    """Return the objects in a list, whatever a file has in its place."""
    return [cast(Facts, item) for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _seconds_between(first: str, last: str) -> float | None:
    try:
        return round((datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds(), 4)
    except (ValueError, TypeError):
        return None
