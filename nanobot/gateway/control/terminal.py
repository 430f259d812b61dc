"""The terminal as a channel: messages to `cli:...` appear in the terminal chats that are open."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from nanobot.agent.feed import Feed, FeedItem, MessagePosted
from nanobot.bus.events import InboundMessage, OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.channels.base import BaseChannel
from nanobot.channels.errors import UndeliverableError
from nanobot.channels.status import ChannelState
from nanobot.gateway.channels import TERMINAL

REOPEN_S = 0.5
"""How long to wait for a chat to open again: it closes for a moment between two requests."""


@dataclass(frozen=True, slots=True)
class OpenTerminal:
    """A terminal that has a chat open."""

    chat_id: str
    for_all: bool
    """Whether it also shows messages to chats that no terminal has open, such as a single message's."""


class TerminalChannel(BaseChannel):
    """Publishes messages for open terminal chats, which follow the feed through the local socket."""

    name = TERMINAL
    stall_s = 0.0

    def __init__(self, bus: MessageBus, feed: Feed) -> None:
        super().__init__({}, bus)
        self._feed = feed
        self._open: list[OpenTerminal] = []
        self._opened = asyncio.Event()
        self.waiting_lines: dict[str, list[InboundMessage]] = {}
        """Lines typed while a turn runs, by its id."""

    @contextmanager
    def opened(self, terminal: OpenTerminal) -> Iterator[None]:
        """Count a terminal as open until the block ends."""
        self._open.append(terminal)
        self._opened.set()
        try:
            yield
        finally:
            self._open.remove(terminal)

    def is_shown(self, item: FeedItem, terminal: OpenTerminal) -> bool:
        """Whether an item of the feed is a message that this terminal shows."""
        channel, _, chat_id = item.session.partition(":")
        return isinstance(item.event, MessagePosted) and channel == TERMINAL and terminal in self._open_in(chat_id)

    def _open_in(self, chat_id: str) -> list[OpenTerminal]:
        open_here = [terminal for terminal in self._open if terminal.chat_id == chat_id]
        return open_here or [terminal for terminal in self._open if terminal.for_all]

    def take_lines(self, turn_id: str, limit: int) -> Sequence[InboundMessage]:
        """Remove and return lines that wait for a turn, which they join."""
        waiting = self.waiting_lines.get(turn_id, [])
        joining, waiting[:limit] = waiting[:limit], []
        if joining:
            self._feed.join_lines(turn_id, len(joining))
        return joining

    async def start(self) -> None:
        self.status.set_state(ChannelState.UP)
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Nothing to do."""

    async def deliver(self, message: OutboundMessage) -> tuple[str, ...]:
        """Publish replies and notices; the reader of a turn has its other events."""
        return await self.send(message) if message.kind in (OutboundKind.REPLY, OutboundKind.NOTICE) else ()

    async def send(self, message: OutboundMessage) -> tuple[str, ...]:
        """Publish a message for every open terminal of the chat. Raises UndeliverableError if there is none."""
        with suppress(TimeoutError):
            async with asyncio.timeout(REOPEN_S):
                while not self._open_in(message.chat_id):
                    self._opened.clear()
                    await self._opened.wait()
        if not self._open_in(message.chat_id):
            raise UndeliverableError(f"no terminal has the chat {message.chat_id!r} open")
        return (f"feed-{self._feed.post(message)}",)
