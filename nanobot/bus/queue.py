"""MessageBus: two asyncio queues between the channels and the agent. What is put in is taken out once, in order."""

import asyncio
from typing import Generic, TypeVar

from nanobot.bus.events import InboundMessage, OutboundMessage, Receipt

T = TypeVar("T")


class _Road(Generic[T]):
    """One direction. Closing lets takers drain what is there, then tells each of them."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[T | None] = asyncio.Queue()
        self._closed = False

    def put(self, message: T) -> None:
        if self._closed:
            raise RuntimeError("the bus is closed")
        self._queue.put_nowait(message)

    async def take(self) -> T | None:
        message = await self._queue.get()
        if message is None:
            self._queue.put_nowait(None)  # the next taker must hear it too
        return message

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._queue.put_nowait(None)

    def size(self) -> int:
        return self._queue.qsize() - int(self._closed)


class MessageBus:
    """Who produces messages knows the bus; who consumes them knows the bus; nobody else knows anybody."""

    def __init__(self) -> None:
        self._inbound: _Road[InboundMessage] = _Road()
        self._outbound: _Road[OutboundMessage] = _Road()

    async def publish_inbound(self, message: InboundMessage) -> None:
        """Put a message in for the agent."""
        self._inbound.put(message)

    async def consume_inbound(self) -> InboundMessage | None:
        """Take the next message in; None once the bus is closed and drained. Cancelling loses nothing."""
        return await self._inbound.take()

    async def publish_outbound(self, message: OutboundMessage) -> Receipt:
        """Put a message out for its channel. The receipt settles when the platform has it."""
        return self.post_outbound(message)

    def post_outbound(self, message: OutboundMessage) -> Receipt:
        """The same for callers that may not wait."""
        message.receipt = message.receipt or Receipt()
        self._outbound.put(message)
        return message.receipt

    async def consume_outbound(self) -> OutboundMessage | None:
        """Take the next message out; None once the bus is closed and drained. Cancelling loses nothing."""
        return await self._outbound.take()

    def close(self) -> None:
        """Take nothing more in; what is queued can still be taken."""
        self._inbound.close()
        self._outbound.close()

    @property
    def inbound_size(self) -> int:
        """Messages waiting for the agent."""
        return self._inbound.size()

    @property
    def outbound_size(self) -> int:
        """Messages waiting for their channels."""
        return self._outbound.size()
