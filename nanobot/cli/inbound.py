"""A message from the terminal. Whoever sits at it is the owner, always."""

from collections.abc import Sequence

from nanobot.bus.events import InboundMessage
from nanobot.messages.types import Origin

CHANNEL = "cli"
DEFAULT_SESSION = "cli:direct"
LEAVING = frozenset({"exit", "quit", "/exit", "/quit", ":q"})
"""Lines that end a chat."""


def terminal_message(text: str, session_key: str, media: Sequence[str] = ()) -> InboundMessage:
    """What was typed or piped, for this session; the answer goes back to the terminal."""
    chat_id = session_key.removeprefix(f"{CHANNEL}:") or "direct"
    return InboundMessage.from_owner(CHANNEL, chat_id, text, session_key=session_key, origin=Origin.CLI, media=media)
