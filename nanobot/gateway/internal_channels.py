"""The channels without a platform: the terminal, the page and the API. They are always there; no config names them."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from nanobot.agent.feed import Feed
from nanobot.bus.events import FEED_CHANNELS, WEB_CHANNEL, InboundMessage, OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.channels.base import BaseChannel
from nanobot.channels.errors import NotConnectedError, UndeliverableError
from nanobot.channels.status import ChannelState
from nanobot.messages.types import ChatMessage, Provenance
from nanobot.session.manager import SessionManager

REOPEN_S = 0.5
"""How long to wait for a terminal to open again: it closes for a moment between two requests."""
_BUSY_S = 2.0
"""How long a message waits for the turn of its chat, before it goes back to the queue for a moment."""
Show = Callable[[str], None]
_SHOWN = (OutboundKind.REPLY, OutboundKind.NOTICE)


class InternalChannel(BaseChannel):
    """A channel whose people read the feed, which has the events of their turns."""

    stall_s = 0.0

    def __init__(self, bus: MessageBus, feed: Feed) -> None:
        super().__init__({}, bus)
        self._feed = feed

    async def start(self) -> None:
        self.status.set_state(ChannelState.UP)
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Nothing to do."""


class TerminalChannel(InternalChannel):
    """Shows messages in open terminal chats. What is typed there comes through the control socket."""

    name = "cli"

    def __init__(self, bus: MessageBus, feed: Feed) -> None:
        super().__init__(bus, feed)
        self.waiting_lines: dict[str, list[InboundMessage]] = {}
        """Lines typed while a turn runs, by its id: they join it."""
        self._open: list[tuple[str, Show, bool]] = []
        self._opened = asyncio.Event()

    @contextmanager
    def shown_by(self, chat_id: str, show: Show, *, for_all: bool = False) -> Iterator[None]:
        """Show messages to this chat with `show` until the block ends; with `for_all`, also those of closed chats.

        `show` must neither block nor raise.
        """
        terminal = (chat_id, show, for_all)
        self._open.append(terminal)
        self._opened.set()
        try:
            yield
        finally:
            self._open.remove(terminal)

    def take_lines(self, turn_id: str, limit: int) -> Sequence[InboundMessage]:
        """Remove and return lines that wait for a turn, which they join."""
        waiting = self.waiting_lines.get(turn_id, [])
        joining, waiting[:limit] = waiting[:limit], []
        if joining:
            self._feed.join_lines(turn_id, len(joining))
        return joining

    async def deliver(self, message: OutboundMessage) -> tuple[str, ...]:
        """Show replies and notices; the client of a turn gets its other events itself."""
        return await self.send(message) if message.kind in _SHOWN else ()

    async def send(self, message: OutboundMessage) -> tuple[str, ...]:
        """Show a message in every open terminal of the chat. Raises UndeliverableError if there is none."""
        try:
            async with asyncio.timeout(REOPEN_S):
                while not (shows := self._open_in(message.chat_id)):
                    self._opened.clear()
                    await self._opened.wait()
        except TimeoutError:
            raise UndeliverableError(f"no terminal has the chat {message.chat_id!r} open") from None
        for show in shows:
            show(message.content)
        return (f"terminal-{len(shows)}",)

    def _open_in(self, chat: str) -> list[Show]:
        """The terminals of a chat; of one that nobody has open, such as a single message's, all chats."""
        open_here = [show for chat_id, show, _ in self._open if chat_id == chat]
        return open_here or [show for _, show, for_all in self._open if for_all]


class WebChannel(InternalChannel):
    """Chats of the page. An answer is in the events of its turn; the rest, such as a job's report, is stored."""

    name = WEB_CHANNEL

    def __init__(self, bus: MessageBus, feed: Feed, sessions: SessionManager) -> None:
        super().__init__(bus, feed)
        self._sessions = sessions

    async def deliver(self, message: OutboundMessage) -> tuple[str, ...]:
        is_answer = message.answers is not None and message.answers.startswith(f"{self.name}:")
        if message.kind not in _SHOWN or (is_answer and not message.by_tool):
            return (f"feed-{self._feed.position}",)
        return await self.send(message)

    async def send(self, message: OutboundMessage) -> tuple[str, ...]:
        """Publish a message, and store it unless the turn that sends it does."""
        row: ChatMessage = {"role": "assistant", "content": message.content, "provenance": Provenance.SYSTEM}
        if message.media:
            row["media"] = list(message.media)
        if not message.by_tool:
            try:
                async with asyncio.timeout(_BUSY_S), self._sessions.hold(f"{self.name}:{message.chat_id}") as session:
                    await self._sessions.append(session, row)
            except TimeoutError as error:
                raise NotConnectedError("a turn runs in this chat; the message is stored after it") from error
        return (f"feed-{self._feed.post(message)}",)


class ApiChannel(WebChannel):
    """Sessions of the API."""

    name = FEED_CHANNELS[1]
