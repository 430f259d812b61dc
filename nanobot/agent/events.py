"""Turns as plain data: phases, turn events, results.

The terminal, `--json`, the SDK, delivery and the trace all use these events.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import Any, ClassVar

from nanobot.messages.types import INTERRUPTED
from nanobot.usage.types import format_dollars, format_tokens
from nanobot.utils.text import count_noun

log = logging.getLogger(__name__)


class TurnPhase(StrEnum):
    """A phase of the pipeline."""

    RESTORE = "restore"
    COMMAND = "command"
    COMPACT = "compact"
    """Old messages move into memory, if the session was idle for long or a consolidation is ready. Commands skip it."""
    BUILD = "build"
    RUN = "run"
    SAVE = "save"
    RESPOND = "respond"
    DONE = "done"


class TurnOutcome(StrEnum):
    """How a turn ended."""

    ANSWERED = "answered"
    PARTIAL = "partial"
    STOPPED = "stopped"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TurnResult:
    """How a turn ended. `text` is for a person, also when it failed; `error` is the name of the error's type."""

    outcome: TurnOutcome
    text: str
    error: str | None = None
    turn_id: str = ""
    usage: dict[str, int] = field(default_factory=dict)
    cost_usd: float | None = None
    later: bool = False
    """Whether nanobot stopped before the turn ended: it is resumed, or started, at the next start."""
    joined: int = 0
    """How many messages joined it."""
    retryable: bool = True
    """Whether a failed turn may succeed later without any change."""

    def summary(self, seconds: float, tool_calls: int = 0) -> str:
        """How it ended, in a few words for the log: `answered in 2.1 s, 2 tools, 5.2k tokens, $0.01`."""
        tokens = self.usage.get("prompt_tokens", 0) + self.usage.get("completion_tokens", 0)
        parts = [f"{self.outcome} in {seconds:.1f} s"]
        parts += [count_noun(tool_calls, "tool")] if tool_calls else []
        parts += [f"{format_tokens(tokens)} tokens"] if tokens else []
        parts += [format_dollars(self.cost_usd)] if self.cost_usd else []
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEvent:
    """Something that happened in a turn. `seq` counts from 0 within the turn, without gaps."""

    type: ClassVar[str]
    turn_id: str = ""
    seq: int = -1

    @property
    def delta(self) -> str:
        """The new text of the answer: that of a TextDelta, empty for all others."""
        return ""

    def to_json(self) -> dict[str, Any]:
        """The event as `{type, turn_id, seq, ...}` without fields that are None."""
        payload: dict[str, Any] = {}
        for name in self.__dataclass_fields__:  # with `type`, which comes first; `fields` would make a list each time
            value = getattr(self, name)
            if value is not None:
                payload[name] = _copy_json(value) if isinstance(value, dict | list) else value
        return payload


def _copy_json(value: "dict[str, Any] | list[Any]") -> Any:
    """A copy that later changes of the original do not reach."""
    if isinstance(value, list):
        return [_copy_json(inner) if isinstance(inner, dict | list) else inner for inner in value]
    return {key: _copy_json(inner) if isinstance(inner, dict | list) else inner for key, inner in value.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(TurnEvent):
    """A run starts. RunEnded always follows."""

    type: ClassVar[str] = "run_started"
    session_key: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(TurnEvent):
    """A run ended. `usage` (in tokens) and `cost_usd` are sums of its steps; None if no price is known."""

    type: ClassVar[str] = "run_ended"
    steps: int
    usage: dict[str, int]
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted(TurnEvent):
    """A model call starts. StepEnded always follows."""

    type: ClassVar[str] = "step_started"
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnded(TurnEvent):
    """The model call and its tool calls are done. `prompt_tokens` in `usage` is the size of the request."""

    type: ClassVar[str] = "step_ended"
    step: int
    finish_reason: str
    usage: dict[str, int]
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStarted(TurnEvent):
    """The first text of a step. TextEnded always follows."""

    type: ClassVar[str] = "text_started"
    continues: bool | None = None
    """Whether it goes on, in the middle of a sentence, where the last text was cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta(TurnEvent):
    type: ClassVar[str] = "text_delta"
    text: str

    @property
    def delta(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEnded(TurnEvent):
    """The whole text of a step. `final` if no tool call follows."""

    type: ClassVar[str] = "text_ended"
    text: str
    final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningStarted(TurnEvent):
    """The first reasoning of a step. ReasoningEnded always follows."""

    type: ClassVar[str] = "reasoning_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningDelta(TurnEvent):
    type: ClassVar[str] = "reasoning_delta"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningEnded(TurnEvent):
    """The whole reasoning of a step."""

    type: ClassVar[str] = "reasoning_ended"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted(TurnEvent):
    """A tool call starts. ToolEnded with the same `call_id` always follows."""

    type: ClassVar[str] = "tool_started"
    call_id: str
    name: str
    arguments: dict[str, Any]
    asked: dict[str, Any] | None = None
    """The arguments as the model sent them, if a hook changed them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDelta(TurnEvent):
    """Progress of a tool."""

    type: ClassVar[str] = "tool_delta"
    call_id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEnded(TurnEvent):
    """The result of a tool call. `display` is a form for screens, such as a diff."""

    type: ClassVar[str] = "tool_ended"
    call_id: str
    name: str
    ok: bool
    content: str
    seconds: float
    display: str | None = None


class NoticeKind(StrEnum):
    """What a notice is about; a channel may show a receipt as a reaction."""

    NOTE = "note"
    RECEIPT = "receipt"
    """The message arrived and waits: it joins the running turn, or starts the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice(TurnEvent):
    """A notice to the person, such as a retry or an omission."""

    type: ClassVar[str] = "notice"
    text: str
    kind: NoticeKind = NoticeKind.NOTE


class Answer(StrEnum):
    """How an approval question ended."""

    NO = "no"
    ONCE = "once"
    ALWAYS = "always"
    EXPIRED = "expired"
    """Not answered in time; counts as no."""
    STOPPED = "stopped"
    """The turn ended before an answer. A resumed turn asks again."""


_ANSWER_WORDS = {
    Answer.NO: (
        "no n nope nein non não nao nej nie nee нет ні hayır لا "
        "いいえ だめ 아니요 아니 不 不行 不要 否 không tidak 👎 ❌"
    ),
    Answer.ONCE: "yes y yep ja oui si sí sim da tak да так evet نعم はい いいよ 네 예 是 好 好的 可以 行 có ya 👍 ✅",
    Answer.ALWAYS: (
        "always a immer toujours siempre sempre alltid zawsze altijd всегда завжди دائما いつも 항상 总是 總是 luôn"
    ),
}
_ANSWERS = {word: answer for answer, words in _ANSWER_WORDS.items() for word in words.split()}


def parse_answer(text: str) -> Answer | None:
    """Parse "yes", "always" or "no" in a common language. Return None for any other text."""
    return _ANSWERS.get(text.strip().strip(".!。！").strip().casefold())


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAsked(TurnEvent):
    """A call waits for the owner's approval. ApprovalAnswered with the same `question` (an id) always follows.

    `text` is the whole question with the exact arguments. Secrets are redacted in `text` and `arguments`.
    """

    type: ClassVar[str] = "approval_asked"
    question: str
    call_id: str
    name: str
    arguments: dict[str, Any]
    reaches: list[str]
    """The permissions that a yes grants, as `kind:target`."""
    text: str
    source: str | None = None
    """The untrusted content that is the reason; None if the call always needs approval."""
    may_always: bool = True
    expires_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAnswered(TurnEvent):
    """An approval question ended."""

    type: ClassVar[str] = "approval_answered"
    question: str
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRefused(TurnEvent):
    """A call needed approval and nobody could be asked. It was not made; the turn continues."""

    type: ClassVar[str] = "approval_refused"
    call_id: str
    name: str
    arguments: dict[str, Any]
    reaches: list[str]
    text: str
    """The question that would have been asked, as in ApprovalAsked."""
    reason: str
    """Why nobody was asked, and what to do about it."""
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded(TurnEvent):
    """The last event of every turn."""

    type: ClassVar[str] = "turn_ended"
    outcome: TurnOutcome
    text: str
    error: str | None = None
    usage: dict[str, int] = field(default_factory=dict)
    cost_usd: float | None = None
    model: str | None = None
    phase_seconds: dict[str, float] = field(default_factory=dict)
    later: bool | None = None
    """Whether it is resumed, or started, at the next start: `text` is then not the reply."""
    joined: int | None = None
    """How many messages joined it; None for none."""


_EVENT_TYPES: dict[str, type[TurnEvent]] = {
    event.type: event
    for event in (
        RunStarted, RunEnded, StepStarted, StepEnded, TextStarted, TextDelta, TextEnded, ReasoningStarted,
        ReasoningDelta, ReasoningEnded, ToolStarted, ToolDelta, ToolEnded, Notice, ApprovalAsked, ApprovalAnswered,
        ApprovalRefused, TurnEnded,
    )
}  # fmt: skip
_ENUM_FIELDS: dict[str, type[StrEnum]] = {"outcome": TurnOutcome, "kind": NoticeKind, "answer": Answer}


def event_from_json(payload: Mapping[str, Any]) -> TurnEvent | None:
    """Parse the output of `to_json`. Return None for an unknown type. Raises TypeError or ValueError."""
    kind = _EVENT_TYPES.get(str(payload.get("type")))
    if kind is None:
        return None
    values: dict[str, Any] = {name: value for name, value in payload.items() if name != "type"}
    for name in _ENUM_FIELDS.keys() & values.keys():
        values[name] = _ENUM_FIELDS[name](values[name])
    return kind(**values)


EventSink = Callable[[TurnEvent], None]
"""Receives the events of a turn. Must neither block nor raise; a slow consumer should queue them."""


class OpenEvents:
    """What has started in a turn and not ended: tool calls and questions by their id, others by their kind."""

    def __init__(self) -> None:
        self._started: dict[str, TurnEvent] = {}

    def apply(self, event: TurnEvent) -> None:
        """Add what this event starts, or remove what it ends."""
        kind, _, step = event.type.rpartition("_")
        if step in ("started", "asked"):
            self._started[_id_of(event) or kind] = event
        elif step in ("ended", "answered"):
            self._started.pop(_id_of(event) or kind, None)

    def __contains__(self, key: str) -> bool:
        return key in self._started

    def names(self) -> list[str]:
        """The names of the running tools."""
        return [event.name for event in self._started.values() if isinstance(event, ToolStarted)]

    def has_question(self) -> bool:
        """Whether an approval question is open."""
        return any(isinstance(event, ApprovalAsked) for event in self._started.values())

    def ends(self, text: str, content: str) -> list[TurnEvent]:
        """An end for each, the newest first. `text` is what was written so far, `content` the result of tools."""
        return [_end_of(event, text, content) for event in reversed(self._started.values())]


def _id_of(event: TurnEvent) -> str:
    return getattr(event, "question", "") or getattr(event, "call_id", "")


def _end_of(started: TurnEvent, text: str, content: str) -> TurnEvent:
    match started:
        case ToolStarted(call_id=call_id, name=name):
            return ToolEnded(call_id=call_id, name=name, ok=False, content=content, seconds=0.0)
        case TextStarted():
            return TextEnded(text=text, final=False)
        case ReasoningStarted():
            return ReasoningEnded(text="")
        case StepStarted(step=step):
            return StepEnded(step=step, finish_reason=INTERRUPTED, usage={})
        case ApprovalAsked(question=question):
            return ApprovalAnswered(question=question, answer=Answer.STOPPED)
        case _:
            return RunEnded(steps=0, usage={})


class Emitter:
    """Stamps each new event with the turn id and its number, and passes it to the sinks."""

    def __init__(self, turn_id: str, *sinks: EventSink | None, seq: "count[int] | None" = None) -> None:
        self.turn_id = turn_id
        self._sinks = [sink for sink in sinks if sink is not None]
        self._seq = seq or count()

    def detach(self) -> "Emitter":
        """Return an emitter that continues the numbering; this one drops all further events."""
        successor = Emitter(self.turn_id, *self._sinks, seq=self._seq)
        self._sinks = []
        return successor

    def close(self) -> None:
        """Drop all further events."""
        self._sinks = []

    def __call__(self, event: TurnEvent) -> None:
        """Emit an event. A sink that raises is removed; the others still get it."""
        if not self._sinks:
            return
        object.__setattr__(event, "turn_id", self.turn_id)  # frozen for the sinks; a copy would cost ten times as much
        object.__setattr__(event, "seq", next(self._seq))
        for sink in (*self._sinks,):
            try:
                sink(event)
            except Exception:  # third-party code must not end the turn
                log.exception("an event sink of turn %s failed", self.turn_id)
                self._sinks.remove(sink)
