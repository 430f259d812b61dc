"""Turns as they happened: the rows of a session and the traces of its turns, put together again.

What was said stands in the session; how long it took, what it cost and what it was sent with, in the trace. Either may
be missing: of turns from before there were traces, whose rows were deleted, that were killed half-way.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from nanobot.agent.run.claims.judge import is_doubt
from nanobot.agent.run.cut import TAKEN_UP
from nanobot.agent.run.spec import RunLimits
from nanobot.agent.trace.folder import TraceFolder, merge
from nanobot.agent.trace.turn_trace import Facts
from nanobot.errors import NanobotError
from nanobot.messages.shown import shown_text
from nanobot.messages.types import INTERRUPTED, ChatMessage, Content, Provenance, ToolSchema, is_our_word, text_of
from nanobot.session.manager import SessionManager
from nanobot.usage.types import add_tokens
from nanobot.utils.text import nearest

_OUTCOMES = {None: "answered", "stopped": "stopped", INTERRUPTED: None}
"""How a turn ended, by the `error` of its last row; any other one is a failure."""


@dataclass(slots=True)
class RecordedCall:
    """A tool call. `content` is its result as the model read it, None where none was kept."""

    id: str
    name: str
    arguments: dict[str, Any]
    content: Content = None
    provenance: str | None = None
    seconds: float | None = None
    ok: bool | None = None
    failure: str | None = None
    """How it failed, as its row says."""
    asked: dict[str, Any] | None = None
    """The arguments as the model gave them, where a hook has changed them."""

    @property
    def result(self) -> str | None:
        """The words of the result."""
        return None if self.content is None else text_of(self.content)

    @property
    def in_words(self) -> str:
        """`read_file {"path": "a.txt"}`"""
        return f"{self.name} {json.dumps(self.arguments, ensure_ascii=False, default=str)}"


@dataclass(slots=True)
class RecordedStep:
    """One model call, with what it asked for. `heard` is what the person said meanwhile, before it."""

    text: str = ""
    reasoning: str = ""
    calls: list[RecordedCall] = field(default_factory=list)
    heard: list[ChatMessage] = field(default_factory=list)
    seconds: float | None = None
    first_s: float | None = None
    finish: str = ""
    usage: dict[str, int] = field(default_factory=dict)
    cost_usd: float | None = None


@dataclass(slots=True)
class RecordedTurn:
    """A turn. What nobody kept is None or empty; without an `outcome` it still runs, or was killed."""

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
    """What its trace says of the prompt; None where it has no trace."""

    @property
    def asked(self) -> list[RecordedStep]:
        """The steps in which a model was asked: not the one that took up a run which was cut off."""
        return [step for step in self.steps if step.finish != TAKEN_UP]


@dataclass(frozen=True, slots=True)
class RecordedPrompt:
    """What the first request of a turn was made of."""

    system: str
    tools: list[ToolSchema]
    limits: RunLimits
    history: list[ChatMessage]


class Recording:
    """The turns of one session, the oldest first."""

    def __init__(self, key: str, conversations: Sequence[list[ChatMessage]], traces: Sequence[Facts]) -> None:
        """`conversations` are the rows of each file that holds turns of this session."""
        self.key = key
        self._home: dict[str, list[ChatMessage]] = {}
        turns = {str(facts.get("turn")): RecordedTurn(str(facts.get("turn")), key) for facts in traces}
        for rows in conversations:
            for turn_id, mine in _by_turn(rows).items():
                self._home[turn_id] = rows
                turns[turn_id] = _from_rows(turn_id, key, mine)
        for facts in traces:
            _add_trace(turns[str(facts.get("turn"))], facts)
        self.turns = sorted(turns.values(), key=lambda turn: turn.at)

    def find(self, which: str | None = None) -> RecordedTurn:
        """A turn by its id, by the beginning of its id, or counted from the end (-1); the last one for None.

        Raises NanobotError, with the nearest ids, where there is none.
        """
        which = which or "-1"
        if not self.turns:
            raise NanobotError(f"Session {self.key!r} has no turns yet.")
        if which.startswith("-") and which[1:].isdigit():
            if 0 < int(which[1:]) <= len(self.turns):
                return self.turns[-int(which[1:])]
            raise NanobotError(f"There is no turn {which}: session {self.key!r} has {len(self.turns)}.")
        found = [turn for turn in self.turns if turn.turn_id.startswith(which)]
        exact = [turn for turn in found if turn.turn_id == which]
        if len(exact or found) == 1:
            return (exact or found)[0]
        near = [turn.turn_id for turn in found] or nearest(which, [turn.turn_id for turn in self.turns], cutoff=0.3)
        many = "is the beginning of several" if found else "is no turn of this session"
        hint = f" Did you mean {' or '.join(near[:3])}?" if near else ""
        raise NanobotError(f"{which!r} {many}.{hint} See `nanobot replay {self.key} --list`.")

    def prompt(self, turn: RecordedTurn, folder: TraceFolder) -> RecordedPrompt:
        """What the turn sent first. Raises NanobotError where that is not known any more."""
        traced = turn.traced or {}
        parts = {name: folder.blob(str(traced.get(name))) for name in ("system", "tools", "limits")}
        if "system" not in traced:
            raise NanobotError(f"Turn {turn.turn_id} asked no model, or was not traced: its prompt is not known.")
        if None in parts.values():
            raise NanobotError(f"The prompt of turn {turn.turn_id} was swept away with old traces.")
        history = self._history(turn.turn_id, int(traced.get("history", 0)), traced.get("until"))
        if not history:
            raise NanobotError(f"The messages of turn {turn.turn_id} are not in the session any more.")
        known = {one.name for one in fields(RunLimits)}
        limits = {name: value for name, value in json.loads(str(parts["limits"])).items() if name in known}
        return RecordedPrompt(
            str(parts["system"]), json.loads(str(parts["tools"])), replace(RunLimits(), **limits), history
        )

    def _history(self, turn_id: str, count: int, until: object) -> list[ChatMessage]:
        """The rows that were sent: so many, up to the one of that moment.

        A turn that took up another had to settle its calls before it asked a model: those rows of its own belong to it.
        """
        rows = [row for row in self._home.get(turn_id, ()) if not row.get("_command")]
        end = next((at for at in range(len(rows), 0, -1) if rows[at - 1].get("timestamp") == until), 0)
        begin = max(0, end - count)
        while 0 < end < len(rows) and rows[end].get("turn_id") == turn_id and rows[end].get("role") != "assistant":
            end += 1
        return rows[begin:end]


def read_recording(name: str, sessions: SessionManager, folder: TraceFolder) -> Recording | None:
    """The turns of a session, live by its key or archived by the name of its file; None where nothing is known of it.

    Of a live session also those turns that its archived conversations held. Raises StorageError.
    """
    path = sessions.find(name)
    session = sessions.read(path) if path is not None else None
    key = session.key if session is not None else name
    here = (None, str(sessions.folder.parent))  # another workspace may have a session of this name
    traces = [facts for facts in folder.turns(key) if facts.get("workspace") in here]
    if session is None and not traces:
        return None
    conversations = [session.messages] if session is not None else []
    archived = {Path(row["path"]): str(row["key"]) for row in sessions.list_sessions() if row["archived"]}
    told = _turn_ids(conversations)
    if path is not None and path in archived:
        return Recording(key, conversations, [facts for facts in traces if facts.get("turn") in told])
    if {str(facts.get("turn")) for facts in traces} - told:
        older = [sessions.read(file) for file, owner in archived.items() if owner == key]
        conversations += [found.messages for found in older if found is not None]
    return Recording(key, conversations, traces)


def merged_turn(like: RecordedTurn, rows: list[ChatMessage], pieces: Iterable[Facts]) -> RecordedTurn:
    """A turn of now, on the same message as another: from the rows it made and the pieces of its trace."""
    facts: Facts = {}
    for piece in pieces:
        merge(facts, piece)
    question: ChatMessage = {"role": "user", "content": like.message}
    turn = RecordedTurn(like.turn_id, like.session, text=_last_words(rows), steps=rows_as_steps([question, *rows]))
    _add_trace(turn, facts)
    return turn


def rows_as_steps(rows: Iterable[ChatMessage]) -> list[RecordedStep]:
    """The steps that rows of a turn tell of, without the message it began with."""
    steps: list[RecordedStep] = []
    calls: dict[str, RecordedCall] = {}
    heard: list[ChatMessage] = []
    begun = False
    for row in rows:
        role = row.get("role")
        if role == "user" and not is_our_word(row):
            heard += [row] if begun else []
            begun = True
        elif role == "assistant" and not _is_placeholder(row):
            made = [call for given in _dicts(row.get("tool_calls")) if (call := _call_of(given)) is not None]
            calls |= {call.id: call for call in made}
            steps.append(RecordedStep(shown_text(row), row.get("reasoning_content") or "", made, heard))
            heard = []
        elif role == "tool" and (call := calls.get(str(row.get("tool_call_id")))) is not None:
            call.content, call.provenance = _content_of(row), row.get("provenance")
            call.failure = row.get("failure")
    return steps


def _content_of(row: ChatMessage) -> Content:
    """The content, whatever a file holds under that name."""
    content: object = row.get("content")
    return content if isinstance(content, str) else _dicts(content)


def _is_placeholder(row: ChatMessage) -> bool:
    """Whether this row is ours, put where the model gave no answer."""
    return row.get("provenance") == Provenance.SYSTEM and row.get("error") not in (None, INTERRUPTED)


def _by_turn(rows: Iterable[ChatMessage]) -> dict[str, list[ChatMessage]]:
    """Rows by turn. Where they do not say theirs, a turn begins with what a person wrote, and is named by its place."""
    turns: dict[str, list[ChatMessage]] = {}
    current = ""
    for at, row in enumerate(rows):
        if row.get("_command"):
            continue
        if row.get("turn_id"):
            current = str(row["turn_id"])
        elif not current or (row.get("role") == "user" and not is_our_word(row)):
            current = f"row-{at}"
        turns.setdefault(current, []).append(row)
    return turns


def _from_rows(turn_id: str, key: str, rows: list[ChatMessage]) -> RecordedTurn:
    """What the session alone tells of a turn."""
    message = next((shown_text(row) for row in rows if row.get("role") == "user" and not is_our_word(row)), "")
    last = rows[-1]
    turn = RecordedTurn(turn_id, key, str(rows[0].get("timestamp", "")), str(rows[0].get("origin", "")), message)
    turn.steps = rows_as_steps(rows)
    if last.get("role") == "assistant" and not last.get("tool_calls"):
        turn.error = last.get("error")
        turn.outcome = _OUTCOMES.get(turn.error, "failed")
        turn.text = _last_words(rows)
    turn.seconds = _between(turn.at, str(last.get("timestamp", ""))) if turn.outcome else None
    return turn


def _add_trace(turn: RecordedTurn, facts: Facts) -> None:
    """What the trace knows goes before what was guessed from the rows."""
    turn.traced = facts
    turn.at = str(facts.get("at") or turn.at)
    turn.origin = str(facts.get("origin") or turn.origin)
    turn.message = turn.message or str(facts.get("message", ""))
    turn.model, turn.provider = str(facts.get("model", "")), str(facts.get("provider", ""))
    turn.outcome = facts.get("outcome")
    turn.error = facts.get("error", turn.error if turn.outcome is None else None)
    told = str(facts.get("text", ""))  # only its head: what the rows hold goes before it, but for why a turn failed
    turn.text = (told or turn.text) if turn.outcome == "failed" else (turn.text or told)
    turn.seconds = facts.get("seconds")
    turn.phases, turn.usage = dict(facts.get("phases", {})), dict(facts.get("usage", {}))
    turn.notices = _dicts(facts.get("notices"))
    turn.steps = _steps_of(turn.steps, _dicts(facts.get("steps")))
    turn.usage = turn.usage or _sum_of(turn.steps)
    paid = [step.cost_usd for step in turn.steps if step.cost_usd is not None]
    turn.cost_usd = facts.get("usd", sum(paid) if paid else None)


def _steps_of(said: Sequence[RecordedStep], traced: Sequence[Facts]) -> list[RecordedStep]:
    """Each traced step with what was said in it. A step without a word left no row; one that was cut off no trace.

    What a run that was taken up did for calls of its own is told of the step that made them.
    """
    steps: list[RecordedStep] = []
    waiting = list(said)
    made = {call.id for step in said for call in step.calls}
    for index, facts in enumerate(traced):
        ids = {str(call.get("id")) for call in _dicts(facts.get("calls"))}
        if facts.get("finish") == TAKEN_UP and ids <= made:
            for step in said:
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
        steps.append(_with_facts(step, facts))
    return steps + waiting


def _with_facts(step: RecordedStep, facts: Facts) -> RecordedStep:
    _add_calls(step, facts)
    step.seconds, step.first_s = facts.get("seconds"), facts.get("first_s")
    step.finish, step.cost_usd = str(facts.get("finish", "")), facts.get("usd")
    step.usage = dict(facts.get("usage", {}))
    return step


def _add_calls(step: RecordedStep, facts: Facts) -> None:
    by_id = {str(call.get("id")): call for call in _dicts(facts.get("calls"))}
    for call in step.calls:
        if (told := by_id.get(call.id)) is not None:
            call.seconds, call.ok, call.asked = told.get("seconds"), told.get("ok"), _asked_in(told)


def _traced_call(facts: Facts) -> RecordedCall:
    return RecordedCall(
        str(facts.get("id")),
        str(facts.get("tool")),
        dict(facts.get("args") or {}),
        content=facts.get("error"),
        asked=_asked_in(facts),
    )


def _asked_in(facts: Facts) -> Facts | None:
    asked = facts.get("asked")
    return asked if isinstance(asked, dict) else None


def _call_of(call: Facts) -> RecordedCall | None:
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


def _last_words(rows: Iterable[ChatMessage]) -> str:
    """The answer: what was said after the last call, in one piece or, where it was cut by a limit, in several.

    What was doubted is no part of the answer that followed it.
    """
    said: list[str] = []
    for row in rows:
        if row.get("tool_calls") or is_doubt(row):
            said.clear()
        elif row.get("role") == "assistant" and not _is_placeholder(row):
            said.append(shown_text(row))
    return "".join(said)


def _sum_of(steps: Iterable[RecordedStep]) -> dict[str, int]:
    total: dict[str, int] = {}
    for step in steps:
        add_tokens(total, step.usage)
    return total


def _turn_ids(conversations: Iterable[list[ChatMessage]]) -> set[str]:
    return {str(row["turn_id"]) for rows in conversations for row in rows if row.get("turn_id")}


def _dicts(value: object) -> list[Facts]:
    """The objects in a list, whatever a file holds in its place."""
    return [cast(Facts, one) for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _between(first: str, last: str) -> float | None:
    try:
        return round((datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds(), 4)
    except (ValueError, TypeError):
        return None
