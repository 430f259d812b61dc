"""A message from the terminal. Whoever sits at it is the owner, always."""

from collections.abc import Sequence

from nanobot.bus.events import InboundMessage
from nanobot.messages.types import Origin, Provenance

CHANNEL = "cli"
DEFAULT_SESSION = "cli:direct"
LEAVING = frozenset({"exit", "quit", "/exit", "/quit", ":q"})
"""Lines that end a chat."""


def terminal_message(text: str, session_key: str, media: Sequence[str] = ()) -> InboundMessage:
    """What was typed or piped, for this session; the answer goes back to the terminal."""
    return InboundMessage(
        CHANNEL,
        "owner",
        session_key.removeprefix(f"{CHANNEL}:") or "direct",
        text,
        media=list(media),
        session_key_override=session_key,
        origin=Origin.CLI,
        provenance=Provenance.OWNER,
    )
