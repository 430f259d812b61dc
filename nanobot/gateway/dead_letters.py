"""Dead letters: what no platform took is told to the owner by another channel, and to the agent in that very chat."""

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
from nanobot.runtime import Runtime
from nanobot.utils.clock import timestamp

log = logging.getLogger(__name__)

TELL_S = 60.0
"""How long one channel is given to take the word to the owner, before the next is tried."""
_SHOWN = 300
_MOST = 1_000
"""Dead letters that wait to be told; beyond that they are in the log and the journal alone."""


class DeadLetters:
    """Tells of them, one after the other. `put` is what the channel manager calls; `run` is a member."""

    def __init__(self, bus: MessageBus) -> None:
        self._bus = bus
        self._waiting: asyncio.Queue[tuple[OutboundMessage, DeliveryFailedError]] = asyncio.Queue(_MOST)
        self._told: list[OutboundMessage] = []
        self.count = 0
        self.last = ""

    async def put(self, message: OutboundMessage, error: DeliveryFailedError) -> None:
        """Take it in; never waits, since a chat's other messages wait behind it. Never raises."""
        if any(message is own for own in self._told):  # a word about a dead letter is no news when it dies too
            return
        self.count += 1
        self.last = str(error)
        log.error("%s", error)
        if not self._waiting.full():
            self._waiting.put_nowait((message, error))

    async def run(self, runtime: Runtime, manager: ChannelManager) -> None:
        """Tell of what comes, until cancelled."""
        while True:
            message, error = await self._waiting.get()
            await self._tell_agent(runtime, message, error)
            await self._tell_owner(runtime, manager, message, error)

    async def _tell_agent(self, runtime: Runtime, message: OutboundMessage, error: DeliveryFailedError) -> None:
        """A row of ours in the session of that chat, which the model reads at its next turn."""
        try:
            key = await asyncio.to_thread(_session_of, runtime, message)
        except StorageError as refusal:
            log.warning("the agent cannot be told of a dead letter: %s", refusal)
            return
        if key is None:
            return
        row: ChatMessage = {
            "role": "user",
            "content": f"[{error} The person has not seen it. It began: {_head(message)}]",
            "origin": Origin.SYSTEM,
            "provenance": Provenance.SYSTEM,
            "timestamp": timestamp(runtime.clock),
        }
        try:
            async with runtime.loop.lane(key), runtime.sessions.hold(key) as session:
                await runtime.sessions.append(session, row)
        except StorageError as refusal:
            log.warning("the agent cannot be told of a dead letter: %s", refusal)

    async def _tell_owner(
        self, runtime: Runtime, manager: ChannelManager, message: OutboundMessage, error: DeliveryFailedError
    ) -> None:
        """By the first channel that takes the word; not by the one that failed."""
        others = [name for name in manager.names if name != message.channel and _is_up(manager, name)]
        text = f"{error}\nIt said: {_head(message)}"
        try:
            async with aclosing(owners_chats(runtime, manager, others)) as chats:
                async for there in chats:
                    if await self._told_at(there, text):
                        return
        except StorageError as refusal:
            log.warning("no owner can be told of a dead letter: %s", refusal)

    async def _told_at(self, there: Address, text: str) -> bool:
        word = OutboundMessage(there.channel, there.chat_id, text, kind=OutboundKind.NOTICE)
        self._told = [*self._told[-20:], word]
        receipt = await self._bus.publish_outbound(word)
        try:
            async with asyncio.timeout(TELL_S):
                await receipt.wait()
        except (DeliveryFailedError, TimeoutError):
            return False
        return True


def _session_of(runtime: Runtime, message: OutboundMessage) -> str | None:
    """The session of the chat it was for; None where nobody has spoken there. Blocks on the disk.

    With one session for all chats of an owner it is that one where the chat has spoken in it, whatever session of its
    own the chat had before.
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


def _head(message: OutboundMessage) -> str:
    text = " ".join(message.content.split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
