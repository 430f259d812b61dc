"""The terminal as a channel: messages to `cli:...` appear in the terminal chats that are open, and lines that wait
there join the running turn.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from nanobot.agent.feed import Feed
from nanobot.bus.events import InboundMessage, OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.channels.base import BaseChannel
from nanobot.channels.errors import UndeliverableError
from nanobot.channels.status import ChannelState
from nanobot.gateway.channels import TERMINAL

REOPEN_S = 0.5
"""How long to wait for a chat to open again: it closes for a moment between two requests."""

Show = Callable[[str], None]
_SHOWN = (OutboundKind.REPLY, OutboundKind.NOTICE)


@dataclass(frozen=True, slots=True, eq=False)
class _OpenTerminal:
    chat_id: str
    show: Show
    for_all: bool


class TerminalChannel(BaseChannel):
    """Shows messages in open terminal chats. What is typed there comes through the control socket."""

    name = TERMINAL
    stall_s = 0.0

    def __init__(self, bus: MessageBus, feed: Feed) -> None:
        super().__init__({}, bus)
        self._feed = feed
        self.waiting_lines: dict[str, list[InboundMessage]] = {}
        """Lines typed while a turn runs, by its id."""
        self._open: list[_OpenTerminal] = []
        self._opened = asyncio.Event()

    @contextmanager
    def shown_by(self, chat_id: str, show: Show, *, for_all: bool = False) -> Iterator[None]:
        """Show messages to this chat with `show` until the block ends; with `for_all`, also those of closed chats.

        `show` must neither block nor raise.
        """
        terminal = _OpenTerminal(chat_id, show, for_all)
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

    async def start(self) -> None:
        self.status.set_state(ChannelState.UP)
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Nothing to do."""

    async def deliver(self, message: OutboundMessage) -> tuple[str, ...]:
        """Show replies and notices; the client of a turn gets its other events itself."""
        return await self.send(message) if message.kind in _SHOWN else ()

    async def send(self, message: OutboundMessage) -> tuple[str, ...]:
        """Show a message in every open terminal of the chat. Raises UndeliverableError if there is none."""
        open_in = self._open_in(message.chat_id)
        if not open_in:
            with suppress(TimeoutError):
                async with asyncio.timeout(REOPEN_S):
                    while not open_in:
                        self._opened.clear()
                        await self._opened.wait()
                        open_in = self._open_in(message.chat_id)
        if not open_in:
            raise UndeliverableError(f"no terminal has the chat {message.chat_id!r} open")
        for show in open_in:
            show(message.content)
        return (f"terminal-{len(open_in)}",)

    def _open_in(self, chat: str) -> list[Show]:
        """The terminals of a chat; of one that nobody has open, such as a single message's, all chats."""
        open_here = [terminal.show for terminal in self._open if terminal.chat_id == chat]
        return open_here or [terminal.show for terminal in self._open if terminal.for_all]
