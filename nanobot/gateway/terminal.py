"""The terminal as a channel: what a job or a tool sends to `cli:...` appears in the chats that are open there."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from nanobot.bus.events import OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.channels.base import BaseChannel
from nanobot.channels.errors import UndeliverableError
from nanobot.channels.evidence import ChannelState
from nanobot.gateway.roster import TERMINAL

AGAIN_S = 0.5
"""A chat that asks for its next line closes for a moment."""
_LOOK_S = 0.02

Show = Callable[[str], None]
_SHOWN = (OutboundKind.REPLY, OutboundKind.NOTICE)


class TerminalChannel(BaseChannel):
    """Open chats, by the chat they are in. Nobody speaks through it: turns are asked for at the control socket."""

    name = TERMINAL
    stall_s = 0.0

    def __init__(self, bus: MessageBus, config: Any = None) -> None:
        super().__init__(config or {}, bus)
        self._open: list[tuple[str, Show]] = []

    @contextmanager
    def shown_by(self, chat_id: str, show: Show) -> Iterator[None]:
        """Let this chat show what comes for it, until the block ends. `show` neither blocks nor raises."""
        chat = (chat_id, show)
        self._open.append(chat)
        try:
            yield
        finally:
            self._open.remove(chat)

    async def start(self) -> None:
        """It is there as long as the gateway."""
        self.evidence.turn(ChannelState.UP)
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Nothing to let go of."""

    async def deliver(self, message: OutboundMessage) -> tuple[str, ...]:
        """Show what lasts; how a turn goes is seen by who asked for it."""
        return await self.send(message) if message.kind in _SHOWN else ()

    async def send(self, message: OutboundMessage) -> tuple[str, ...]:
        """Show it in that chat, wherever it is open or opens again soon. Raises UndeliverableError where it is not."""
        open_in = self._open_in(message.chat_id)
        if not open_in:
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    while not open_in:
                        await asyncio.sleep(_LOOK_S)
                        open_in = self._open_in(message.chat_id)
        if not open_in:
            raise UndeliverableError(f"no terminal has the chat {message.chat_id!r} open")
        for show in open_in:
            show(message.content)
        return (f"terminal-{len(open_in)}",)

    def _open_in(self, chat: str) -> list[Show]:
        return [show for chat_id, show in self._open if chat_id == chat]
