"""The interface of a fake platform for the channel checks.

A fake serves the platform's API on loopback, keeps what people would see, rejects what the platform rejects, and fails
on demand. Class attributes say what the platform supports; checks of other features are skipped.
"""

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from nanobot.bus.queue import MessageBus
from nanobot.channels.base import BaseChannel


@dataclass(slots=True)
class Shown:
    """A message of the bot as a person sees it now."""

    id: str
    text: str
    """The text, without markup if the platform renders it."""
    files: list[str] = field(default_factory=list)
    """Names of attached files."""
    reply_to: str | None = None
    thread_id: str | None = None
    edits: int = 0
    buttons: list[str] = field(default_factory=list)


class Platform(ABC):
    """A fake platform on loopback. Ids have the platform's format."""

    name: ClassVar[str]
    """The channel's name."""
    stall_s: ClassVar[float] = 0.4
    """`BaseChannel.stall_s` during the checks."""
    person: ClassVar[str]
    """A sender in the channel's allowFrom."""
    stranger: ClassVar[str]
    private: ClassVar[str]
    """The chat of `person` with the bot."""
    stranger_chat: ClassVar[str]
    """The chat of `stranger` with the bot."""
    group: ClassVar[str | None] = None
    """A group chat; None if the platform has none."""
    hears_groups: ClassVar[bool] = True
    """Whether the bot also gets group messages that do not address it."""
    limit: ClassVar[int]
    """Longest message, in ASCII characters; 0 without a limit."""
    edits: ClassVar[bool] = False
    resumes_edits: ClassVar[bool] = True
    """Whether messages of a bot that crashed can be edited."""
    threads: ClassVar[bool] = False
    thread: ClassVar[str] = "7"
    """A thread of `group`, or of `private` without groups; used if `threads` is set."""
    files: ClassVar[bool] = False
    quotes: ClassVar[bool] = False
    dedupes: ClassVar[bool] = False
    """Whether it drops a second message with the same nonce."""
    queues_messages: ClassVar[bool] = False
    """Whether the platform keeps messages while the channel is down."""
    speaks_first: ClassVar[bool] = True
    """Whether the bot can write to somebody who never wrote to it."""
    acknowledges: ClassVar[bool] = True
    """Whether the channel acknowledges messages, and the platform repeats unacknowledged ones."""
    buttons: ClassVar[bool] = False
    reacts: ClassVar[bool] = False
    """Whether the bot can react to messages; implement `reactions_on`."""
    takes_back: ClassVar[bool] = False
    """Whether the channel removes the reaction to a message that had to wait, at the end of its turn."""
    types: ClassVar[bool] = False
    """Whether there is a typing indicator; implement `typed`."""
    shows_progress: ClassVar[bool] = True
    """Whether progress messages are shown."""
    refuses: ClassVar[bool] = True
    """Whether sends can be refused; implement `refuse`."""
    rate_limits: ClassVar[bool] = True
    """Whether the platform sends a retry-after (`retry_after_s` of `refuse`)."""
    connects: ClassVar[bool] = True
    """Whether there is a connection that can break; implement `drop`, `gone` and `half_open`."""
    loses_answers: ClassVar[bool] = False
    """Whether a connection can break between a send and its response; implement `lose_answers`."""
    has_token: ClassVar[bool] = True
    """Whether the bot logs in with a token; implement `revoke`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def open(self) -> "AbstractAsyncContextManager[Platform]":
        """Serve on loopback until the block ends."""

    @abstractmethod
    def channel(self, bus: MessageBus, **settings: Any) -> BaseChannel:
        """Return the real channel, configured for this fake. `settings` override its config section."""

    @abstractmethod
    async def says(
        self,
        text: str,
        *,
        sender: str | None = None,
        chat: str | None = None,
        thread: str | None = None,
        mention: bool = False,
        file: Path | None = None,
        reply_to: str | None = None,
    ) -> str:
        """Send a message as a person (default: `person` in `private`). Return its platform id."""

    @abstractmethod
    def shown(self, chat: str | None = None) -> list[Shown]:
        """The bot's messages visible in a chat (default: `private`), oldest first."""

    async def repeat_last(self) -> None:
        """Deliver the last inbound message again, as platforms do after a lost acknowledgement."""
        raise AssertionError(f"{type(self).__name__} must implement repeat_last")

    def acknowledged(self, message_id: str) -> bool:
        """Whether the channel has acknowledged this message."""
        raise AssertionError(f"{type(self).__name__} must implement acknowledged, or set acknowledges to False")

    def refuse(self, times: int, *, status: int = 500, retry_after_s: float | None = None) -> None:
        """Refuse the next sends and edits of the bot; each request of the SDK counts.

        `status`: 500 for a temporary error, 429 for a rate limit with `retry_after_s`, 403 for a permanent error, each
        in the platform's format.
        """
        raise AssertionError(f"{type(self).__name__} must implement refuse, or set refuses to False")

    def lose_answers(self, times: int) -> None:
        """Accept the next sends of the bot, but drop the connection before each response."""
        raise AssertionError(f"{type(self).__name__} must implement lose_answers, or set loses_answers to False")

    async def drop(self) -> None:
        """Drop every open connection."""
        raise AssertionError(f"{type(self).__name__} must implement drop, or set connects to False")

    async def gone(self, *, gone: bool) -> None:
        """Drop and refuse all connections, or accept them again."""
        raise AssertionError(f"{type(self).__name__} must implement gone, or set connects to False")

    async def half_open(self) -> None:
        """Keep open connections, but send nothing on them, not even pongs. New connections work."""
        raise AssertionError(f"{type(self).__name__} must implement half_open, or set connects to False")

    async def revoke(self) -> None:
        """Invalidate the bot's token."""
        raise AssertionError(f"{type(self).__name__} must implement revoke, or set has_token to False")

    async def press_button(self, message_id: str, label: str) -> None:
        """Press a button of a message of the bot, as `person`."""
        raise AssertionError(f"{type(self).__name__} must implement press_button, or set buttons to False")

    def reactions_on(self, message_id: str) -> list[str]:
        """The bot's reactions to a message."""
        raise AssertionError(f"{type(self).__name__} must implement reactions_on, or set reacts to False")

    def typed(self, chat: str | None = None) -> int:
        """How often a typing indicator was shown in a chat (default: `private`)."""
        raise AssertionError(f"{type(self).__name__} must implement typed, or set types to False")
