"""What the contract suite asks of a platform: a local stand-in that people and the vendor's own SDK both talk to.

A fake keeps what people would see (edits applied, deletions gone), refuses what the platform refuses, and breaks on
demand. A new channel brings one of these as `tests/contracts/platform_<name>.py`, adds its line to PLATFORMS below, and
is done when its column of the matrix is green: `python -m pytest tests/contracts/test_every_channel.py -k <name>`.
"""

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from nanobot.bus.queue import MessageBus
from nanobot.channels.base import BaseChannel
from nanobot.plugins import load


@dataclass(slots=True)
class Shown:
    """A message of the bot as a person sees it now."""

    id: str
    text: str
    """What is read, without the dialect's marks where the platform renders them."""
    files: list[str] = field(default_factory=list)
    """Names of the files that came with it."""
    reply_to: str | None = None
    thread_id: str | None = None
    edits: int = 0
    buttons: list[str] = field(default_factory=list)


class Platform(ABC):
    """A platform on loopback. `async with` it; ids of chats and people are the platform's own kind."""

    name: ClassVar[str]
    """The channel's name."""
    stall_s: ClassVar[float] = 0.4
    """How long the suite lets a connection be silent before it counts as half open (`BaseChannel.stall_s`)."""
    person: ClassVar[str]
    """Somebody who is on the channel's allowFrom."""
    stranger: ClassVar[str]
    private: ClassVar[str]
    """The chat of `person` with the bot."""
    strange_chat: ClassVar[str]
    """The chat of `stranger` with the bot."""
    group: ClassVar[str | None] = None
    """A chat of several people; None where there is no such thing."""
    limit: ClassVar[int]
    """How long a message may be on the platform, in characters that count one; 0 where there is no limit."""
    edits: ClassVar[bool] = False
    threads: ClassVar[bool] = False
    thread: ClassVar[str] = "7"
    """A thread of `group` (of `private` where there are no groups); only asked for where there are threads."""
    files: ClassVar[bool] = False
    quotes: ClassVar[bool] = False
    takes_once: ClassVar[bool] = False
    """Whether it drops a message that is sent twice with the same nonce."""
    has_poll: ClassVar[bool] = False
    """Whether messages that come while the channel is down wait at the platform."""
    acknowledges: ClassVar[bool] = True
    """Whether the platform is told that a message arrived, and repeats it where it is not."""
    buttons: ClassVar[bool] = False
    reacts: ClassVar[bool] = False
    """Whether the bot can put a sign on somebody's message; then `signs_on` says which."""
    types: ClassVar[bool] = False
    """Whether a person sees that the bot is at work; then `typed` says whether one did."""
    shows_progress: ClassVar[bool] = True
    """Whether a person sees how the work goes."""
    refuses: ClassVar[bool] = True
    """Whether sendings can be refused; then `refuse` does it."""
    limits_rate: ClassVar[bool] = True
    """Whether the platform says after which time to try again (`retry_after_s` of `refuse`)."""
    has_token: ClassVar[bool] = True
    """Whether the bot logs in with something that can be taken from it; then `revoke` does it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def open(self) -> "AbstractAsyncContextManager[Platform]":
        """Begin to serve on loopback."""

    @abstractmethod
    def channel(self, bus: MessageBus, **settings: Any) -> BaseChannel:
        """The real channel, pointed here; `settings` go over the usual ones of its config section."""

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
        """A person writes (`person` in `private` unless said otherwise); the platform's id of the message."""

    @abstractmethod
    def shown(self, chat: str | None = None) -> list[Shown]:
        """The bot's messages that a person sees in a chat (`private` unless said otherwise), oldest first."""

    @abstractmethod
    async def repeat_last(self) -> None:
        """Deliver the last message of a person once more, as platforms do after a lost acknowledgement."""

    @abstractmethod
    def acknowledged(self, message_id: str) -> bool:
        """Whether the channel has told the platform that this message of a person arrived."""

    @abstractmethod
    def refuse(self, times: int, *, status: int = 500, retry_after_s: float | None = None) -> None:
        """Refuse the next so many sendings (and edits) of the bot, each request of the SDK counting one.

        As the platform says it: 500 for "not now", 429 for "too fast, wait `retry_after_s`", 403 for "never".
        """

    @abstractmethod
    async def drop(self) -> None:
        """Cut every open connection, as a network does that goes away for a moment."""

    @abstractmethod
    async def gone(self, *, gone: bool) -> None:
        """Accept no connections (and cut those there are), or accept them again."""

    @abstractmethod
    async def half_open(self) -> None:
        """Keep connections open but say nothing more on them, not even to pings, until the channel makes new ones."""

    @abstractmethod
    async def revoke(self) -> None:
        """The bot's token is no longer good."""

    async def presses(self, message_id: str, label: str) -> None:
        """`person` presses that button below a message of the bot."""
        raise AssertionError(f"{self.name} has buttons: its platform must say how one is pressed")

    def signs_on(self, message_id: str) -> list[str]:
        """What the bot put on that message of a person."""
        raise AssertionError(f"{self.name} has reactions: its platform must say which there are")

    def typed(self, chat: str | None = None) -> bool:
        """Whether the bot was seen at work in a chat (`private` unless said otherwise)."""
        raise AssertionError(f"{self.name} shows typing: its platform must say whether it was seen")


PLATFORMS: dict[str, str] = {
    "board": "tests.contracts.platform_board:BoardPlatform",
    "discord": "tests.contracts.platform_discord:DiscordPlatform",
    "telegram": "tests.contracts.platform_telegram:TelegramPlatform",
    "email": "tests.contracts.platform_email:EmailPlatform",
    "websocket": "tests.contracts.platform_websocket:WebSocketPlatform",
    "slack": "tests.contracts.platform_slack:SlackPlatform",
    "lines": "tests.contracts.platform_lines:LinesPlatform",
}
"""By name, `module:Class`; built with a folder to work in. A line here is all that a new platform adds to this file.

Then `python -m tests.contracts.matrix` writes its column into docs/guides/channels.md.
"""


def platform_class(name: str) -> type[Platform]:
    """The class behind a line of the table."""
    found: type[Platform] = load(PLATFORMS[name])
    assert issubclass(found, Platform)
    return found
