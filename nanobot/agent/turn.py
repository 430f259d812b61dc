"""A turn as plain data: its phases, what happens in it (turn events), how it ends.

The terminal, `--json`, the SDK, delivery and the trace all carry these same events.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import count
from typing import Any, ClassVar

log = logging.getLogger(__name__)


class TurnPhase(StrEnum):
    """A station of a turn in the pipeline."""

    RESTORE = "restore"
    COMMAND = "command"
    COMPACT = "compact"
    """Never entered: room is made inside RUN, and old messages move into memory while nobody waits."""
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
    """The end of a turn. `text` is what a person reads, also when it failed; `error` names what went wrong."""

    outcome: TurnOutcome
    text: str
    error: str | None = None
    turn_id: str = ""
    usage: dict[str, int] = field(default_factory=dict)
    cost_usd: float | None = None
    later: bool = False
    """Whether nanobot's own end came before its end: it goes on, or begins, at the next start."""
    joined: int = 0
    """How many messages have joined it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEvent:
    """Something that happened in a turn. `seq` counts from 0 within the turn, without gaps."""

    type: ClassVar[str]
    turn_id: str = ""
    seq: int = -1

    def to_json(self) -> dict[str, Any]:
        """The event as `{type, turn_id, seq, ...}`; fields that are None are left out."""
        fields = {key: value for key, value in asdict(self).items() if value is not None}
        return {"type": self.type, **fields}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(TurnEvent):
    """Model and tools begin to work. RunEnded follows, always."""

    type: ClassVar[str] = "run_started"
    session_key: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(TurnEvent):
    """The run is over. `usage` is the sum of its steps, in tokens; `cost_usd` too, None where no price is known."""

    type: ClassVar[str] = "run_ended"
    steps: int
    usage: dict[str, int]
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted(TurnEvent):
    """A model is asked. StepEnded follows, always."""

    type: ClassVar[str] = "step_started"
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnded(TurnEvent):
    """The model's answer and the tools it asked for are done. `prompt_tokens` is what the request weighed."""

    type: ClassVar[str] = "step_ended"
    step: int
    finish_reason: str
    usage: dict[str, int]
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStarted(TurnEvent):
    """The model begins to speak. TextEnded follows, always."""

    type: ClassVar[str] = "text_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta(TurnEvent):
    """More of what it says."""

    type: ClassVar[str] = "text_delta"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEnded(TurnEvent):
    """What it said, whole. `final` where no tool call stands behind it."""

    type: ClassVar[str] = "text_ended"
    text: str
    final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningStarted(TurnEvent):
    """The model begins to think aloud. ReasoningEnded follows, always."""

    type: ClassVar[str] = "reasoning_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningDelta(TurnEvent):
    """More of its thinking."""

    type: ClassVar[str] = "reasoning_delta"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningEnded(TurnEvent):
    """Its thinking, whole."""

    type: ClassVar[str] = "reasoning_ended"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted(TurnEvent):
    """A tool begins. ToolEnded with the same `call_id` follows, always."""

    type: ClassVar[str] = "tool_started"
    call_id: str
    name: str
    arguments: dict[str, Any]
    asked: dict[str, Any] | None = None
    """The arguments as the model gave them, where a hook has changed them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDelta(TurnEvent):
    """A tool says how far it is."""

    type: ClassVar[str] = "tool_delta"
    call_id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEnded(TurnEvent):
    """What came back. `display` is for screens (a diff, say); `seconds` is how long it took."""

    type: ClassVar[str] = "tool_ended"
    call_id: str
    name: str
    ok: bool
    content: str
    seconds: float
    display: str | None = None


class NoticeKind(StrEnum):
    """What a notice is about, so that a channel may show it, fold it or make a sign of it."""

    NOTE = "note"
    RECEIPT = "receipt"
    """The message is here and waits: it joins the running turn, or is the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice(TurnEvent):
    """A word of ours to the person: something is being tried again, something was left out."""

    type: ClassVar[str] = "notice"
    text: str
    kind: NoticeKind = NoticeKind.NOTE


class Answer(StrEnum):
    """How a question to the owner ended."""

    NO = "no"
    ONCE = "once"
    ALWAYS = "always"
    EXPIRED = "expired"
    """Nobody answered in time: it counts as no."""
    STOPPED = "stopped"
    """The turn was ended before somebody answered. One that is taken up asks again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAsked(TurnEvent):
    """A call waits for the owner's yes. ApprovalAnswered with the same `question` follows, always.

    `text` is the whole question in words, with the exact arguments; secrets are masked, here as in `arguments`.
    """

    type: ClassVar[str] = "approval_asked"
    question: str
    call_id: str
    name: str
    arguments: dict[str, Any]
    reaches: list[str]
    """The rules that a yes is given to, as `kind:target`."""
    text: str
    source: str | None = None
    """Which words from outside are the reason; None where whoever's words would be asked about."""
    may_always: bool = True
    expires_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAnswered(TurnEvent):
    """The question is over."""

    type: ClassVar[str] = "approval_answered"
    question: str
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRefused(TurnEvent):
    """A call would have needed the owner's yes, and nobody was asked. It was not made, and the turn goes on."""

    type: ClassVar[str] = "approval_refused"
    call_id: str
    name: str
    arguments: dict[str, Any]
    reaches: list[str]
    text: str
    """The question that was not asked, as in ApprovalAsked."""
    reason: str
    """Why nobody was asked, and what would help."""
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
    """Whether it goes on, or begins, at the next start: what is told is not the reply."""
    joined: int | None = None
    """How many messages have joined it, where some have."""


_EVENTS: dict[str, type[TurnEvent]] = {
    event.type: event
    for event in (
        RunStarted, RunEnded, StepStarted, StepEnded, TextStarted, TextDelta, TextEnded, ReasoningStarted,
        ReasoningDelta, ReasoningEnded, ToolStarted, ToolDelta, ToolEnded, Notice, ApprovalAsked, ApprovalAnswered,
        ApprovalRefused, TurnEnded,
    )
}  # fmt: skip
_WORDS: dict[str, type[StrEnum]] = {"outcome": TurnOutcome, "kind": NoticeKind, "answer": Answer}
"""Fields whose values are of a list of words."""


def event_from_json(told: Mapping[str, Any]) -> TurnEvent | None:
    """The event that `to_json` told; None for one of a kind we do not know. Raises TypeError, ValueError."""
    kind = _EVENTS.get(str(told.get("type")))
    if kind is None:
        return None
    fields: dict[str, Any] = {name: value for name, value in told.items() if name != "type"}
    for name in _WORDS.keys() & fields.keys():
        fields[name] = _WORDS[name](fields[name])
    return kind(**fields)


EventSink = Callable[[TurnEvent], None]
"""Who watches a turn. A sink neither blocks nor raises: who needs time puts the event in a queue of its own."""


class Emitter:
    """Stamps each event with the turn and its number, and hands it to the sinks."""

    def __init__(self, turn_id: str, *sinks: EventSink | None, seq: "count[int] | None" = None) -> None:
        self.turn_id = turn_id
        self._sinks = [sink for sink in sinks if sink is not None]
        self._seq = seq or count()

    def handed_over(self) -> "Emitter":
        """Another one that goes on from here; this one is heard no more."""
        other = Emitter(self.turn_id, *self._sinks, seq=self._seq)
        self._sinks = []
        return other

    def close(self) -> None:
        """All is told: nobody is told anything more."""
        self._sinks = []

    def __call__(self, event: TurnEvent) -> None:
        """Tell what happened. A sink that raises all the same is not told of this turn again; the others are."""
        if not self._sinks:
            return
        stamped = replace(event, turn_id=self.turn_id, seq=next(self._seq))
        for sink in (*self._sinks,):
            try:
                sink(stamped)
            except Exception:  # somebody else's code; a turn does not end for it
                log.exception("a sink of turn %s broke", self.turn_id)
                self._sinks.remove(sink)
