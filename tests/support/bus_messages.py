"""Messages on the bus: what a phone sends, and what comes back."""

from nanobot.bus.events import InboundMessage, OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.messages.types import Origin


def message(text: str, chat: str = "7", origin: Origin = Origin.USER) -> InboundMessage:
    return InboundMessage("phone", "ann", chat, text, origin=origin)


async def take(bus: MessageBus, kind: OutboundKind) -> OutboundMessage:
    """The next message out of this kind."""
    while (out := await bus.consume_outbound()) is not None:
        if out.kind is kind:
            return out
    raise AssertionError("the bus is closed")
