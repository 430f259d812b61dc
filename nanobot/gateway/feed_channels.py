"""The channels of the page and the API: their people read the feed, so nothing is sent to them."""

import asyncio

from nanobot.agent.feed import Feed
from nanobot.bus.events import FEED_CHANNELS, WEB_CHANNEL, OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.channels.base import BaseChannel
from nanobot.channels.errors import NotConnectedError
from nanobot.channels.status import ChannelState
from nanobot.messages.types import ChatMessage, Provenance
from nanobot.session.manager import SessionManager

_BUSY_S = 2.0
"""How long a message waits for the turn of its chat, before it goes back to the queue for a moment."""


class FeedChannel(BaseChannel):
    """A channel whose people read the feed."""

    stall_s = 0.0

    def __init__(self, bus: MessageBus, feed: Feed, sessions: SessionManager) -> None:
        super().__init__({}, bus)
        self._feed = feed
        self._sessions = sessions

    async def start(self) -> None:
        self.status.set_state(ChannelState.UP)
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Nothing to do."""

    async def deliver(self, message: OutboundMessage) -> tuple[str, ...]:
        """Turn events show what answers a message of the chat; the rest, such as a job's report, is published."""
        is_answer = message.answers is not None and message.answers.startswith(f"{self.name}:")
        if message.kind not in (OutboundKind.REPLY, OutboundKind.NOTICE) or (is_answer and not message.by_tool):
            return (f"feed-{self._feed.position}",)
        return await self.send(message)

    async def send(self, message: OutboundMessage) -> tuple[str, ...]:
        """Publish a message, and store it unless the turn that sends it does."""
        if not message.by_tool:
            await self._store(message)
        return (f"feed-{self._feed.post(message)}",)

    async def _store(self, message: OutboundMessage) -> None:
        row: ChatMessage = {"role": "assistant", "content": message.content, "provenance": Provenance.SYSTEM}
        if message.media:
            row["media"] = list(message.media)
        try:
            async with asyncio.timeout(_BUSY_S), self._sessions.hold(f"{self.name}:{message.chat_id}") as session:
                await self._sessions.append(session, row)
        except TimeoutError as error:
            raise NotConnectedError("a turn runs in this chat; the message is stored after it") from error


class WebChannel(FeedChannel):
    """Chats of the page."""

    name = WEB_CHANNEL


class ApiChannel(FeedChannel):
    """Sessions of the API."""

    name = FEED_CHANNELS[1]
