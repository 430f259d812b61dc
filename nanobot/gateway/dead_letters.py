"""Reports undeliverable messages: to the owner by another channel, and to the agent in the session of that chat."""

import asyncio
import logging
from contextlib import aclosing

from nanobot.bus.events import Address, DeliveryFailedError, OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.channels.base import UNIFIED_SESSION
from nanobot.channels.manager import ChannelManager
from nanobot.errors import StorageError
from nanobot.gateway.owners import owners_chats
from nanobot.messages.types import ChatMessage, Origin, Provenance
from nanobot.runtime.build import Runtime
from nanobot.utils.clock import timestamp
from nanobot.utils.text import clip_line

log = logging.getLogger(__name__)

NOTIFY_S = 60.0
"""How long one channel may take to notify the owner, before the next is tried."""
_EXCERPT_CHARS = 300
_MAX_QUEUED = 1_000
"""Unreported dead letters; further ones are only in the log and the journal."""


class DeadLetters:
    """A queue of dead letters. The channel manager calls `put`; `run` is a supervised task."""

    def __init__(self, bus: MessageBus) -> None:
        self._bus = bus
        self._queue: asyncio.Queue[tuple[OutboundMessage, DeliveryFailedError]] = asyncio.Queue(_MAX_QUEUED)
        self._notices: list[OutboundMessage] = []
        self.count = 0

    async def put(self, message: OutboundMessage, error: DeliveryFailedError) -> None:
        """Queue a dead letter. Never blocks or raises."""
        if any(message is notice for notice in self._notices):  # do not report undeliverable reports
            return
        self.count += 1
        log.error("%s", error)
        if not self._queue.full():
            self._queue.put_nowait((message, error))

    async def run(self, runtime: Runtime, manager: ChannelManager) -> None:
        """Report dead letters until cancelled."""
        while True:
            message, error = await self._queue.get()
            await self._tell_agent(runtime, message, error)
            await self._tell_owner(runtime, manager, message, error)

    async def _tell_agent(self, runtime: Runtime, message: OutboundMessage, error: DeliveryFailedError) -> None:
        """Add a system row to the session of the chat, for the model's next turn."""
        try:
            key = await asyncio.to_thread(_session_of, runtime, message)
        except StorageError as storage_error:
            log.warning("a dead letter cannot be reported to the agent: %s", storage_error)
            return
        if key is None:
            return
        row: ChatMessage = {
            "role": "user",
            "content": f"[{error} The user has not seen it. It began: {_excerpt(message)}]",
            "origin": Origin.SYSTEM,
            "provenance": Provenance.SYSTEM,
            "timestamp": timestamp(runtime.clock),
        }
        try:
            async with runtime.loop.lane(key), runtime.sessions.hold(key) as session:
                await runtime.sessions.append(session, row)
        except StorageError as storage_error:
            log.warning("a dead letter cannot be reported to the agent: %s", storage_error)

    async def _tell_owner(
        self, runtime: Runtime, manager: ChannelManager, message: OutboundMessage, error: DeliveryFailedError
    ) -> None:
        """Send a notice by the first channel that delivers it, except the one that failed."""
        others = [name for name in manager.names if name != message.channel and _is_up(manager, name)]
        text = f"{error}\nIt said: {_excerpt(message)}"
        try:
            async with aclosing(owners_chats(runtime, manager, others)) as chats:
                async for chat in chats:
                    if await self._send_notice(chat, text):
                        return
        except StorageError as storage_error:
            log.warning("a dead letter cannot be reported to an owner: %s", storage_error)

    async def _send_notice(self, chat: Address, text: str) -> bool:
        notice = OutboundMessage(chat.channel, chat.chat_id, text, kind=OutboundKind.NOTICE)
        self._notices = [*self._notices[-20:], notice]
        receipt = await self._bus.publish_outbound(notice)
        try:
            async with asyncio.timeout(NOTIFY_S):
                await receipt.wait()
        except (DeliveryFailedError, TimeoutError):
            return False
        return True


def _session_of(runtime: Runtime, message: OutboundMessage) -> str | None:
    """Return the session key of the message's chat, or None if there is no session. Blocking.

    The unified session takes precedence if the chat has written in it.
    """
    chat = f"{message.channel}:{message.chat_id}"
    own = [f"{chat}:{message.thread_id}", chat] if message.thread_id else [chat]
    if runtime.config.agents.defaults.unified_session and (all_chats := runtime.sessions.read(UNIFIED_SESSION)):
        if any(str(row.get("inbound", "")).startswith(f"{chat}:") for row in all_chats.messages):
            return UNIFIED_SESSION
        own.append(UNIFIED_SESSION)
    return next((key for key in own if runtime.sessions.find(key) is not None), None)


def _is_up(manager: ChannelManager, name: str) -> bool:
    channel = manager.get(name)
    return channel is not None and channel.is_running


def _excerpt(message: OutboundMessage) -> str:
    return clip_line(" ".join(message.content.split()), _EXCERPT_CHARS)
