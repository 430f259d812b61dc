"""Hooks: code that watches turns, changes what passes, or denies it.

Derive from `Hook` and write the methods you need; the others do nothing. A hook is handed frozen facts and gives back
what is to be otherwise: `Deny`, or one of the `New...`; None leaves all as it is. It cannot end a turn: what it raises,
what it returns that does not fit, and what takes too long is told once and passed over (`hook_wall`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nanobot.agent.turn import TurnOutcome
from nanobot.messages.types import ChatMessage, Origin, Provenance


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """The turn in which something happens."""

    turn_id: str
    session_key: str
    channel: str
    chat_id: str
    sender_id: str | None = None
    """Who wrote the message, as their channel says."""
    origin: Origin = Origin.USER
    provenance: Provenance = Provenance.OWNER
    """Whose words the turn answers: OWNER only where the channel knows its owner."""


@dataclass(frozen=True, slots=True)
class MessageSeen:
    """A message for the model, before anything of it is kept. Slash commands and answers to questions are none."""

    turn: TurnFacts
    text: str
    media: tuple[str, ...] = ()
    joins: bool = False
    """Whether it joins a turn that runs."""
    begins: bool = False
    """Whether it is the first of its session."""


@dataclass(frozen=True, slots=True)
class RequestSeen:
    """What a model is about to be asked. `messages` is a copy: the prefix that providers cache stays as it is."""

    turn: TurnFacts
    step: int
    model: str
    messages: list[ChatMessage]
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CallSeen:
    """A tool call, before it is kept, asked about or run. `arguments` is a copy."""

    turn: TurnFacts
    call_id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class AnswerSeen:
    """What a model answered, as it came."""

    turn: TurnFacts
    step: int
    text: str
    calls: tuple[CallSeen, ...] = ()
    finish_reason: str = "stop"
    usage: Mapping[str, int] = field(default_factory=dict)
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class ResultSeen:
    """What a tool call brought, before the model reads it. Of a call that did not run nobody is told."""

    call: CallSeen
    text: str
    ok: bool
    provenance: Provenance
    """Where the words came from. It stays, whatever a hook makes of them."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class TurnSeen:
    """The end of a turn; its reply is on its way."""

    turn: TurnFacts
    outcome: TurnOutcome
    text: str
    error: str | None = None
    usage: Mapping[str, int] = field(default_factory=dict)
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Deny:
    """It is not to be. `reason` is read by who asked: the person of a message, the model of a call."""

    reason: str


@dataclass(frozen=True, slots=True)
class NewText:
    """The message is to say this instead. `provenance` where words were put in that are trusted less than its own."""

    text: str
    provenance: Provenance = Provenance.OWNER


@dataclass(frozen=True, slots=True)
class NewArguments:
    """The call is to be made with these, all of them. `provenance` as in `NewText`."""

    arguments: dict[str, Any]
    provenance: Provenance = Provenance.OWNER


@dataclass(frozen=True, slots=True)
class NewResult:
    """The model is to read this instead. Pictures in the result go with the old words. `provenance` as in `NewText`."""

    text: str
    provenance: Provenance = Provenance.OWNER


class Hook:
    """A hook that does nothing. Its methods may run for several turns at once; what it keeps, it keeps by turn."""

    guard: bool = False
    """Whether a message or a call that it fails to judge is denied. Else it is passed over."""

    async def on_message(self, message: MessageSeen) -> Deny | NewText | None:
        """A message is about to begin a turn, or to join one."""
        return None

    async def on_request(self, request: RequestSeen) -> None:
        """A model is about to be asked."""

    async def on_answer(self, answer: AnswerSeen) -> None:
        """A model has answered."""

    async def before_tool(self, call: CallSeen) -> Deny | NewArguments | None:
        """A tool is about to be called; approval comes after this, and judges what this leaves.

        After a crash a call that goes on is shown again as it was kept: it can be denied then, and not changed twice.
        """
        return None

    async def after_tool(self, result: ResultSeen) -> NewResult | None:
        """A tool was called."""
        return None

    async def on_turn_end(self, turn: TurnSeen) -> None:
        """A turn is over."""
