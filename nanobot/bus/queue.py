"""MessageBus: two asyncio queues between the channels and the agent. What is put in is taken out once, in order.

With a journal beside them, also through a crash.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from nanobot.bus.events import Growth, InboundMessage, OutboundMessage, Receipt
from nanobot.bus.journal import InboundState, Journal
from nanobot.bus.late import EVERY_S, LateWrites, Write
from nanobot.errors import StorageError
from nanobot.utils.aio import finish

log = logging.getLogger(__name__)

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


@dataclass(frozen=True, slots=True)
class _Beginning:
    """The turn of an accepted message runs."""

    key: str
    turn_id: str

    async def write(self, journal: Journal) -> None:
        await journal.begin(self.key, self.turn_id)


@dataclass(frozen=True, slots=True)
class _Settlement:
    """How an accepted message ended. It waits behind the replies that were posted before it."""

    key: str
    state: InboundState
    reason: str

    async def write(self, journal: Journal) -> None:
        await journal.settle(self.key, self.state, self.reason)


@dataclass(frozen=True, slots=True)
class _Mark:
    """Somebody waits until all before it is written."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)

    async def write(self, journal: Journal) -> None:
        try:
            await journal.written()
        finally:
            self.reached.set()


_Note = _Beginning | _Settlement | _Mark


class MessageBus:
    """Who produces messages knows the bus; who consumes them knows the bus; nobody else knows anybody.

    With a journal, what is accepted is on the disk before `publish_inbound` returns, and what must reach a person is on
    the disk before a channel gets it. Then the bus is to be used inside `open`.
    """

    def __init__(self, journal: Journal | None = None) -> None:
        self._inbound: _Road[InboundMessage] = _Road()
        self._outbound: _Road[OutboundMessage] = _Road()
        self._journal = journal
        self._to_keep: asyncio.Queue[OutboundMessage | _Note | None] = asyncio.Queue()
        self._owed: dict[str, InboundMessage] = {}
        """What was left by an earlier life or taken in this one, and has not ended; by its journal key."""
        self._shown: dict[str, Growth] = {}
        self._writing: set[asyncio.Task[None]] = set()
        """Notes on their way to the disk."""
        self._holding = 0
        """Messages out on their way to the disk: in neither queue, and not sent yet."""
        self._late = LateWrites()
        self._refused = False

    @property
    def journal(self) -> Journal | None:
        """What remembers; None where a crash may lose what is on the road."""
        return self._journal

    @asynccontextmanager
    async def open(self) -> AsyncIterator["MessageBus"]:
        """Keep the journal beside the traffic, and put out again what a crash left unsent. At the end all is kept."""
        if self._journal is None:
            yield self
            return
        for message in await self._journal.unsent():
            message.receipt = Receipt()
            self._outbound.put(message)
        for left in await self._journal.unsettled():  # now: channels may accept before the agent asks
            self._owe(left)
        self._shown = await self._journal.shown()
        keeping = asyncio.create_task(self._keep(self._journal), name="journal")
        try:
            yield self
        finally:
            self._to_keep.put_nowait(None)
            await finish(keeping)

    async def publish_inbound(self, message: InboundMessage) -> bool:
        """Put a message in for the agent. False where it was here before: then it is dropped.

        Raises StorageError where the journal refuses: the platform must not be told that the message came. Cancelling
        waits for the journal: what it has is put in, or it would be neither answered nor taken again.
        """
        if self._journal is None:
            self._inbound.put(message)
            return True
        return await finish(self._accept(self._journal, message))

    async def _accept(self, journal: Journal, message: InboundMessage) -> bool:
        if not await journal.receive(message):
            return False
        self._inbound.put(message)
        return True

    async def consume_inbound(self) -> InboundMessage | None:
        """Take the next message in; None once the bus is closed and drained. Cancelling loses nothing."""
        message = await self._inbound.take()
        if message is not None and self._journal is not None:
            self._owe(message)
        return message

    def unsettled(self) -> list[InboundMessage]:
        """What was accepted and never ended, oldest first: before this start, or taken by somebody who broke.

        What waits to be taken is not among it, so that nothing is in two hands.
        """
        return [*self._owed.values()]

    def begin(self, message: InboundMessage, turn_id: str) -> None:
        """Its turn runs. Never raises."""
        if self._journal is not None and message.journal_key is not None:
            self._to_keep.put_nowait(_Beginning(message.journal_key, turn_id))

    def settle(self, message: InboundMessage, state: InboundState, reason: str = "") -> None:
        """This is how it ended. On the disk after all that was posted before. Never raises."""
        if self._journal is not None and message.journal_key is not None:
            self._owed.pop(message.journal_key, None)
            self._to_keep.put_nowait(_Settlement(message.journal_key, state, reason))

    async def kept(self) -> None:
        """Wait until all that was posted so far is on the disk, as far as the disk takes it."""
        if self._journal is not None:
            self._to_keep.put_nowait(mark := _Mark())
            await mark.reached.wait()

    async def publish_outbound(self, message: OutboundMessage) -> Receipt:
        """Put a message out for its channel. The receipt settles when the platform has it."""
        return self.post_outbound(message)

    def post_outbound(self, message: OutboundMessage) -> Receipt:
        """The same for callers that may not wait. One that went out already is not sent again: its receipt is empty."""
        message.receipt = message.receipt or Receipt()
        if self._journal is None:
            self._outbound.put(message)
        else:
            self._to_keep.put_nowait(message)
        return message.receipt

    async def consume_outbound(self) -> OutboundMessage | None:
        """Take the next message out; None once the bus is closed and drained. Cancelling loses nothing."""
        return await self._outbound.take()

    async def sending(self, message: OutboundMessage) -> None:
        """The platform is about to be handed what of it is not in `sent_ids`. Never raises."""
        if self._journal is not None and (journal_id := message.journal_id) is not None:
            await self._keep_or_tell(lambda journal: journal.sending(journal_id, message.sent_ids))

    async def showing(self, turn_id: str, growth: Growth) -> None:
        """So much is seen of the answer of this turn as it grows, or is about to be. Never raises."""
        if self._journal is not None:
            await self._keep_or_tell(lambda journal: journal.showing(turn_id, growth))

    def shown(self, turn_id: str) -> Growth | None:
        """What was seen of the answer of this turn when a crash came; told once."""
        return self._shown.pop(turn_id, None)

    async def sent(self, message: OutboundMessage, platform_ids: tuple[str, ...]) -> None:
        """The platform has it; whoever waits for its receipt hears of it. Never raises."""

        async def write(journal: Journal) -> None:
            if message.journal_id is not None:
                await journal.sent(message.journal_id, platform_ids)

        await self._ended(message, write)
        if message.receipt is not None:
            message.receipt.settle(platform_ids)

    async def failed(self, message: OutboundMessage, error: Exception) -> None:
        """The platform will not have it; whoever waits for its receipt hears of it. Never raises."""

        async def write(journal: Journal) -> None:
            if message.journal_id is not None:
                await journal.failed(message.journal_id, str(error))

        await self._ended(message, write)
        if message.receipt is not None:
            message.receipt.fail(error)

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
        return self._outbound.size() + self._to_keep.qsize() + self._holding

    async def _keep(self, journal: Journal) -> None:
        """Keep what was posted, in its order: many at a time, so that they share a commit."""
        last = False
        while not last:
            waiting = [await self._next_to_keep(journal)]
            while not self._to_keep.empty():
                waiting.append(self._to_keep.get_nowait())
            last = None in waiting
            messages = [one for one in waiting if isinstance(one, OutboundMessage)]
            self._holding = len(messages)
            await self._hold(journal, messages)
            self._holding = 0
            for one in waiting:
                if isinstance(one, _Note):
                    self._begin_to_write(one)
        self._begin_to_write(_Mark())
        await asyncio.wait(self._writing)
        await self._late.catch_up(journal)

    async def _next_to_keep(self, journal: Journal) -> OutboundMessage | _Note | None:
        """What is to be kept next. What was refused before is tried again first, and while nothing comes."""
        while self._late:
            if await self._late.catch_up(journal):
                log.info("What is on the road is written down again.")
                self._refused = False
            try:
                return await asyncio.wait_for(self._to_keep.get(), EVERY_S)
            except TimeoutError:
                continue
        return await self._to_keep.get()

    def _begin_to_write(self, note: _Note) -> None:
        """Into the journal's hands one after the other. Nobody waits for a note, so that it may wait for company."""
        keeping = self._keep_or_tell(note.write, later=isinstance(note, _Settlement))
        self._writing.add(writing := asyncio.create_task(keeping))
        writing.add_done_callback(self._writing.discard)

    async def _hold(self, journal: Journal, messages: list[OutboundMessage]) -> None:
        lasting = [message for message in messages if message.kind.lasts]
        repeated: set[int] = set()
        try:
            held = await journal.hold(lasting) if lasting else []
            repeated = {id(message) for message, new in zip(lasting, held, strict=True) if not new}
        except (StorageError, TypeError, ValueError, RecursionError) as error:
            self._tell_of(error)  # a person who waits matters more than the book
            for message in lasting if isinstance(error, StorageError) else ():
                self._late.put(partial(_hold_late, message))
        for message in messages:
            if id(message) in repeated:
                if message.receipt is not None:
                    message.receipt.settle(repeated=True)
            else:
                self._put_out(message)

    def _owe(self, message: InboundMessage) -> None:
        if message.journal_key is not None:
            self._owed[message.journal_key] = message

    def _put_out(self, message: OutboundMessage) -> None:
        try:
            self._outbound.put(message)
        except RuntimeError:  # closed: the journal has it for the next start
            log.debug("a message out waits for the next start")

    async def _ended(self, message: OutboundMessage, write: Write) -> None:
        """A message went out, or never will. Of one that is not held yet it is written behind that it is."""
        if self._journal is None or not message.kind.lasts:
            return
        if message.journal_id is None and self._late:
            self._late.put(write)
        else:
            await self._keep_or_tell(write, later=True)

    async def _keep_or_tell(self, write: Write, *, later: bool = False) -> None:
        """See it to the disk; where that refuses, say so and go on. `later`: it is tried again."""
        assert self._journal is not None  # noqa: S101 who has none has nothing to write
        try:
            await write(self._journal)
        except StorageError as error:
            self._tell_of(error)
            if later:
                self._late.put(write)

    def _tell_of(self, error: Exception) -> None:
        """Once: a full disk refuses everything, and the log is on it too."""
        if not self._refused:
            log.error("What is on the road is not written down any more: %s", error)
        self._refused = True


async def _hold_late(message: OutboundMessage, journal: Journal) -> None:
    if message.journal_id is None:
        await journal.hold([message])
