"""The channels of the page and the API: their people read the feed, so nothing is sent to them."""

import asyncio

from nanobot.agent.feed import FEED_CHANNELS, WEB_CHANNEL, Feed
from nanobot.bus.events import OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.channels.base import BaseChannel
from nanobot.channels.status import ChannelState


class FeedChannel(BaseChannel):
    """A channel whose people read the feed."""

    stall_s = 0.0

    def __init__(self, bus: MessageBus, feed: Feed) -> None:
        super().__init__({}, bus)
        self._feed = feed

    async def start(self) -> None:
        self.status.set_state(ChannelState.UP)
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Nothing to do."""

    async def deliver(self, message: OutboundMessage) -> tuple[str, ...]:
        """Turn events show what answers a message; the rest, such as a job's report, is published."""
        is_posted = message.answers is None or message.by_tool
        if is_posted and message.kind in (OutboundKind.REPLY, OutboundKind.NOTICE):
            return await self.send(message)
        return (f"feed-{self._feed.position}",)

    async def send(self, message: OutboundMessage) -> tuple[str, ...]:
        return (f"feed-{self._feed.post(message)}",)


class WebChannel(FeedChannel):
    """Chats of the page."""

    name = WEB_CHANNEL


class ApiChannel(FeedChannel):
    """Sessions of the API."""

    name = FEED_CHANNELS[1]
