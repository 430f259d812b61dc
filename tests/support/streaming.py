"""An answer that grows in a chat."""

from typing import Any

from nanobot.bus.events import InboundMessage
from nanobot.testing.live_channel import LiveChannel, delta


async def streamed(life: LiveChannel, *parts: str, chat: str | None = None, **options: Any) -> InboundMessage:
    """Say hello; the answer begins with these parts, each shown before the next. Return the message it answers."""
    life.adjust(delta_interval_s=0.0)
    message = await life.receives("hello", chat=chat, **options)
    for part in parts:
        delta(life, message, part)
        await life.shows(part.strip(), chat)
    return message
