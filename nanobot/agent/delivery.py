"""Delivery: turn events become outbound messages, to the address that was fixed when the turn's message arrived."""

from dataclasses import dataclass

from nanobot.agent import events
from nanobot.bus.events import Button, InboundMessage, OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus


@dataclass(frozen=True, slots=True)
class DeliveryPolicy:
    """What is sent to a person besides the reply."""

    progress: bool = True
    tool_hints: bool = False
    reasoning: bool = False
    streaming: bool = False
    replies: bool = True
    """Whether the reply is sent; if not, it is still sent when a person's message joined the turn."""


GOAL_DELIVERY = DeliveryPolicy(progress=False, replies=False)
"""For turns of a goal: people get approval questions, and the goal reports its own end."""


class Delivery:
    """Event sink of one turn. Sends the reply once, at the end of the turn."""

    def __init__(
        self, bus: MessageBus, message: InboundMessage, policy: DeliveryPolicy, buttons: tuple[Button, ...] = ()
    ) -> None:
        """`buttons` are shown below the reply."""
        self._bus = bus
        self._message = message
        self._address = message.address
        self._policy = policy
        self._buttons = buttons
        self._pending_text = ""
        """Text that becomes a progress message if the turn continues. If the turn ends, the reply contains it."""

    def __call__(self, event: events.TurnEvent) -> None:
        policy = self._policy
        match event:
            case events.ToolStarted() | events.StepStarted() | events.ApprovalAsked():
                self._flush_progress(event)
            case events.TurnEnded(text=text) if self._pending_text not in text:
                self._flush_progress(event)
        match event:
            case events.TextDelta(text=text) if policy.streaming:
                self._post(OutboundKind.STREAM_DELTA, text, event)
            case events.TextEnded(text=text) if policy.streaming:
                self._post(OutboundKind.STREAM_END, text, event)
            case events.TextEnded(text=text, final=False) if policy.progress:
                self._pending_text = text
            case events.ToolStarted(name=name, arguments=arguments) if policy.tool_hints:
                self._post(OutboundKind.TOOL_HINT, tool_hint(name, arguments), event)
            case events.ReasoningEnded(text=text) if policy.reasoning:
                self._post(OutboundKind.REASONING, text, event)
            case events.Notice(text=text, kind=events.NoticeKind.RECEIPT):
                self._post(OutboundKind.RECEIPT, text, event)
            case events.Notice(text=text):
                self._post(OutboundKind.NOTICE, text, event)
            case events.ApprovalAsked(text=text):
                choices = "yes, always or no" if event.may_always else "yes or no"
                minutes = f"{event.expires_s / 60:g} minutes"
                hint = f"Only an owner's answer counts: a button, or {choices}, within {minutes}."
                self._post(OutboundKind.NOTICE, f"{text}\n{hint}", event, _buttons(event))
            case events.ApprovalAnswered(answer=events.Answer.EXPIRED):
                self._post(OutboundKind.NOTICE, "Nobody answered my question in time, so I did not do it.", event)
            case events.TurnEnded(later=True) if not policy.replies:
                pass
            case events.TurnEnded(text=text, later=True) if text:
                self._post(OutboundKind.NOTICE, text, event)
            case events.TurnEnded(text=text, joined=joined) if text and (policy.replies or joined):
                self._post(OutboundKind.REPLY, text, event, self._buttons)
            case _:
                pass

    def _flush_progress(self, event: events.TurnEvent) -> None:
        if self._pending_text:
            self._post(OutboundKind.PROGRESS, self._pending_text, event)
            self._pending_text = ""

    def _post(self, kind: OutboundKind, text: str, event: events.TurnEvent, buttons: tuple[Button, ...] = ()) -> None:
        message, to = self._message, self._address
        outbound = OutboundMessage(to.channel, to.chat_id, text, kind=kind, thread_id=to.thread_id, buttons=buttons)
        outbound.turn_id, outbound.answers = event.turn_id, message.journal_key
        outbound.reply_to = message.message_id if kind in _QUOTED_KINDS else None
        self._bus.post_outbound(outbound)


_QUOTED_KINDS = (OutboundKind.REPLY, OutboundKind.STREAM_DELTA, OutboundKind.RECEIPT)
"""Kinds that a channel may show as an answer to the message: reply, streamed reply, receipt."""


def _buttons(asked: events.ApprovalAsked) -> tuple[Button, ...]:
    always = (Button("Always", f"/approve {asked.question} always"),) if asked.may_always else ()
    return (
        Button("Yes, this once", f"/approve {asked.question}"),
        *always,
        Button("No", f"/deny {asked.question}"),
    )


def tool_hint(name: str, arguments: dict[str, object]) -> str:
    """A tool call in one line: its name and its first argument, shortened."""
    first = next((str(value) for value in arguments.values()), "")
    line = " ".join(first.split())
    return f"{name} {line[:57] + '...' if len(line) > 60 else line}".strip()
