"""The terminal as a channel: messages to `cli:...` appear in the terminal chats that are open."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from nanobot.bus.events import OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.channels.base import BaseChannel
from nanobot.channels.errors import UndeliverableError
from nanobot.channels.status import ChannelState
from nanobot.gateway.channels import TERMINAL

REOPEN_S = 0.5
"""How long to wait for a chat to open again: it closes for a moment between two requests."""

Show = Callable[[str], None]
_SHOWN = (OutboundKind.REPLY, OutboundKind.NOTICE)


class TerminalChannel(BaseChannel):
    """Shows messages in open terminal chats. Outbound only: their turns are requested through the control socket."""

    name = TERMINAL
    stall_s = 0.0

    def __init__(self, bus: MessageBus) -> None:
        super().__init__({}, bus)
        self._open: list[tuple[str, Show]] = []
        self._opened = asyncio.Event()

    @contextmanager
    def shown_by(self, chat_id: str, show: Show) -> Iterator[None]:
        """Show messages to this chat with `show` until the block ends. `show` must neither block nor raise."""
        chat = (chat_id, show)
        self._open.append(chat)
        self._opened.set()
        try:
            yield
        finally:
            self._open.remove(chat)

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
        return [show for chat_id, show in self._open if chat_id == chat]
