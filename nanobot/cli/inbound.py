"""A message from the terminal. Whoever sits at it is the owner, always."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nanobot.bus.events import InboundMessage
from nanobot.messages.types import Origin

if TYPE_CHECKING:
    from nanobot.config.schema import Config

CHANNEL = "cli"
DEFAULT_SESSION = "cli:direct"
LEAVING = frozenset({"exit", "quit", "/exit", "/quit", ":q"})
"""Lines that end a chat."""


def terminal_message(text: str, session_key: str, media: Sequence[str] = ()) -> InboundMessage:
    """What was typed or piped, for this session; the answer goes back to the terminal."""
    chat_id = session_key.removeprefix(f"{CHANNEL}:") or "direct"
    return InboundMessage.from_owner(CHANNEL, chat_id, text, session_key=session_key, origin=Origin.CLI, media=media)


async def heard(config: "Config", text: str, media: Sequence[str]) -> str:
    """The text with what is said in the recordings among the attachments, or why that could not be made out."""
    if not media:
        return text
    from nanobot.providers.transcription import choose_transcriber, is_recording, with_transcriptions

    if not any(map(is_recording, media)):
        return text
    chosen = choose_transcriber(config, os.environ)
    try:
        return await with_transcriptions(text, media, chosen)
    finally:
        if chosen.transcriber is not None:
            await chosen.transcriber.close()
