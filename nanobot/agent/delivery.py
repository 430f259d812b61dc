"""Delivery: turn events become messages out, to the address the turn was given when its message arrived."""

from dataclasses import dataclass

from nanobot.agent import turn as events
from nanobot.bus.events import Button, InboundMessage, OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus


@dataclass(frozen=True, slots=True)
class DeliveryPolicy:
    """What of a turn a person is sent beside the reply."""

    progress: bool = True
    tool_hints: bool = False
    reasoning: bool = False
    streaming: bool = False
    replies: bool = True
    """Whether the reply goes out; else only where somebody's message has joined the turn."""


OF_GOALS = DeliveryPolicy(progress=False, replies=False)
"""For turns that work at a goal: its people hear of its end, and what they are asked meanwhile."""


class Delivery:
    """A sink for one turn. The reply goes out once, when the turn has ended."""

    def __init__(self, bus: MessageBus, message: InboundMessage, policy: DeliveryPolicy) -> None:
        """`message` is whose turn it is: where it came from the reply goes."""
        self._bus = bus
        self._address = message.address
        self._policy = policy
        self._reply_to = message.message_id
        self._answers = message.journal_key
        self._said = ""
        """Words that are progress as soon as the turn goes on behind them. Where it ends there, the reply has them."""

    def __call__(self, event: events.TurnEvent) -> None:
        """Send what the policy lets through."""
        policy = self._policy
        match event:
            case events.ToolStarted() | events.StepStarted() | events.ApprovalAsked():
                self._tell_progress(event)
            case events.TurnEnded(text=text) if self._said not in text:
                self._tell_progress(event)
        match event:
            case events.TextDelta(text=text) if policy.streaming:
                self._post(OutboundKind.STREAM_DELTA, text, event)
            case events.TextEnded(text=text) if policy.streaming:
                self._post(OutboundKind.STREAM_END, text, event)
            case events.TextEnded(text=text, final=False) if policy.progress:
                self._said = text
            case events.ToolStarted(name=name, arguments=arguments) if policy.tool_hints:
                self._post(OutboundKind.TOOL_HINT, hint(name, arguments), event)
            case events.ReasoningEnded(text=text) if policy.reasoning:
                self._post(OutboundKind.REASONING, text, event)
            case events.Notice(text=text, kind=events.NoticeKind.RECEIPT):
                self._post(OutboundKind.RECEIPT, text, event)
            case events.Notice(text=text):
                self._post(OutboundKind.NOTICE, text, event)
            case events.ApprovalAsked(text=text):
                self._post(OutboundKind.NOTICE, f"{text}\n{_how(event)}", event, _buttons(event))
            case events.ApprovalAnswered(answer=events.Answer.EXPIRED):
                self._post(OutboundKind.NOTICE, "Nobody answered my question, so I did not do it.", event)
            case events.TurnEnded(later=True) if not policy.replies:
                pass
            case events.TurnEnded(text=text, later=True) if text:
                self._post(OutboundKind.NOTICE, text, event)
            case events.TurnEnded(text=text, joined=joined) if text and (policy.replies or joined):
                self._post(OutboundKind.REPLY, text, event)
            case _:
                pass

    def _tell_progress(self, event: events.TurnEvent) -> None:
        if self._said:
            self._post(OutboundKind.PROGRESS, self._said, event)
            self._said = ""

    def _post(self, kind: OutboundKind, text: str, event: events.TurnEvent, buttons: tuple[Button, ...] = ()) -> None:
        self._bus.post_outbound(
            OutboundMessage(
                self._address.channel,
                self._address.chat_id,
                text,
                reply_to=self._reply_to if kind in _QUOTING else None,
                kind=kind,
                turn_id=event.turn_id,
                thread_id=self._address.thread_id,
                answers=self._answers,
                buttons=buttons,
            )
        )


_QUOTING = (OutboundKind.REPLY, OutboundKind.STREAM_DELTA, OutboundKind.RECEIPT)
"""What a channel may show as an answer to the very message: a reply, also while it grows, and the sign on it."""


def _how(asked: events.ApprovalAsked) -> str:
    words = "yes, always or no" if asked.may_always else "yes or no"
    return f"Only an owner's answer counts: a button, or {words}, within {asked.expires_s / 60:g} minutes."


def _buttons(asked: events.ApprovalAsked) -> tuple[Button, ...]:
    always = (Button("Always", f"/approve {asked.question} always"),) if asked.may_always else ()
    return (
        Button("Yes, this once", f"/approve {asked.question}"),
        *always,
        Button("No", f"/deny {asked.question}"),
    )


def hint(name: str, arguments: dict[str, object]) -> str:
    """A tool call in a few words: its name and the first thing it was given."""
    first = next((str(value) for value in arguments.values()), "")
    line = " ".join(first.split())
    return f"{name} {line[:57] + '...' if len(line) > 60 else line}".strip()
