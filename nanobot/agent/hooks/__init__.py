"""Hooks: plugin code and configured programs that watch turns, change what passes through them, or deny it.

Derive from `Hook` and override the methods you need. A hook receives frozen data and returns `Deny`, one of the
`New...` types, or None for no change. It cannot end a turn: exceptions, invalid return values and timeouts are reported
once and otherwise ignored (`runner`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nanobot.agent.events import TurnOutcome
from nanobot.messages.types import ChatMessage, Origin, Provenance


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """The turn in which an event happens."""

    turn_id: str
    session_key: str
    channel: str
    chat_id: str
    sender_id: str | None = None
    """The author of the message, as the channel names them."""
    origin: Origin = Origin.USER
    provenance: Provenance = Provenance.OWNER
    """Provenance of the message; OWNER only where the channel knows its owner."""


@dataclass(frozen=True, slots=True)
class MessageSeen:
    """A message for the model, before it is stored. Slash commands and approval answers are not included."""

    turn: TurnFacts
    text: str
    media: tuple[str, ...] = ()
    joins: bool = False
    """Whether it joins a running turn."""
    begins: bool = False
    """Whether it is the first of its session."""


@dataclass(frozen=True, slots=True)
class RequestSeen:
    """A model request, before it is sent. `messages` is a copy; changing it has no effect."""

    turn: TurnFacts
    step: int
    model: str
    messages: list[ChatMessage]
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CallSeen:
    """A tool call, before it is stored, approved or run. `arguments` is a copy."""

    turn: TurnFacts
    call_id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class AnswerSeen:
    """A model response as received."""

    turn: TurnFacts
    step: int
    text: str
    calls: tuple[CallSeen, ...] = ()
    finish_reason: str = "stop"
    usage: Mapping[str, int] = field(default_factory=dict)
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class ResultSeen:
    """The result of a tool call, before the model reads it. Calls that did not run have none."""

    call: CallSeen
    text: str
    ok: bool
    provenance: Provenance
    """Where the text came from. It stays, whatever a hook changes."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class TurnSeen:
    """The end of a turn, after its reply was handed to delivery."""

    turn: TurnFacts
    outcome: TurnOutcome
    text: str
    error: str | None = None
    usage: Mapping[str, int] = field(default_factory=dict)
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Deny:
    """Deny the message or call. `reason` is shown to the person who wrote the message, or to the model that made the
    call.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class NewText:
    """Replace the message text. Set `provenance` if the new text is less trusted than the message."""

    text: str
    provenance: Provenance = Provenance.OWNER


@dataclass(frozen=True, slots=True)
class NewArguments:
    """Replace all arguments of the call. `provenance` as in `NewText`."""

    arguments: dict[str, Any]
    provenance: Provenance = Provenance.OWNER


@dataclass(frozen=True, slots=True)
class NewResult:
    """Replace the result text the model reads, and drop the result's images. `provenance` as in `NewText`."""

    text: str
    provenance: Provenance = Provenance.OWNER


class Hook:
    """A hook that does nothing. Methods may run for several turns at once, so keep state per turn."""

    guard: bool = False
    """Whether a message or call is denied when this hook fails. Otherwise the failure is ignored."""

    async def on_message(self, message: MessageSeen) -> Deny | NewText | None:
        """Called before a message starts a turn or joins one."""
        return None

    async def on_request(self, request: RequestSeen) -> None:
        """Called before a request is sent to a model."""

    async def on_answer(self, answer: AnswerSeen) -> None:
        """Called after a model responded."""

    async def before_tool(self, call: CallSeen) -> Deny | NewArguments | None:
        """Called before a tool call. Approval follows and judges the changed call.

        After a crash, a call that is resumed is passed again as stored: it can be denied, but not changed again.
        """
        return None

    async def after_tool(self, result: ResultSeen) -> NewResult | None:
        """Called after a tool call."""
        return None

    async def on_turn_end(self, turn: TurnSeen) -> None:
        """Called when a turn ended."""
