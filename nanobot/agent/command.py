"""A slash command: how it is parsed, one entry of the command table, one call."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from nanobot.agent.scope import OWNERS, Scope
from nanobot.bus.events import Button, InboundMessage
from nanobot.messages.types import Origin, Provenance
from nanobot.session.manager import Session

_COMMAND = re.compile(r"^/([a-z][a-z_-]*)(?:@\w+)?(?:\s+(.*))?$", re.IGNORECASE | re.DOTALL)

TYPED = (Origin.USER, Origin.CLI, Origin.API)
"""Origins of messages that somebody wrote."""


@dataclass(frozen=True, slots=True)
class Command:
    """A parsed slash command."""

    name: str
    argument: str = ""


def parse_command(text: str) -> Command | None:
    """Return the command in a message, or None if the message is for the model, as `/etc/hosts is odd` is.

    Telegram's menu allows no hyphen, so `/dream_log` means `/dream-log`.
    """
    match = _COMMAND.match(text.strip())
    return Command(match[1].lower().replace("_", "-"), (match[2] or "").strip()) if match else None


@dataclass(frozen=True, slots=True)
class CommandCall:
    """One use of a command."""

    session: Session
    argument: str
    message: InboundMessage
    scope: Scope = OWNERS
    """Whose memory the reply may show."""
    attended: bool = False
    """Whether the person who sees the reply can answer questions, as in a terminal."""


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One entry of the command table."""

    answer: Callable[[CommandCall], Awaitable[str]]
    """Runs the command and returns the reply. Raises NanobotError only for storage failures."""
    text: str
    arguments: str = ""
    """Its arguments, for help and menus."""
    for_owners: bool = False
    buttons: tuple[Button, ...] = ()
    """Shown below its reply in a chat app."""


def is_from_owner(message: InboundMessage) -> bool:
    """Whether an owner typed this message. Jobs carry the owner's provenance too, with text a model may have
    written.
    """
    return message.provenance is Provenance.OWNER and message.origin in TYPED
