"""MessageBus: two asyncio queues between channels and agent, with a journal so that no message is lost in a crash."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from nanobot.bus.events import InboundMessage, OutboundKind, OutboundMessage, Receipt, StreamUpdate
from nanobot.bus.journal import InboundState, Journal
from nanobot.errors import StorageError
from nanobot.utils.aio import finish

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_EVERY_S = 0.1
_MAX_RETRIES = 20_000
"""Length of the retry queue; beyond it the oldest write is dropped."""

Write = Callable[[Journal], Awaitable[None]]
"""One write to the journal. Raises StorageError."""


class _ClosableQueue(Generic[T]):
    """A queue for one direction. After `close`, takers drain it and then get None."""

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
            self._queue.put_nowait(None)  # for the next taker
        return message

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._queue.put_nowait(None)

    def size(self) -> int:
        return self._queue.qsize() - int(self._closed)


@dataclass(slots=True)
class _Posted:
    """An outbound message that keeps its place while it, or one before it, is journaled."""

    message: OutboundMessage
    is_ready: bool
    is_duplicate: bool = False


class MessageBus:
    """Connects channels and agent, which do not know each other.

    With a journal, an accepted message is on the disk before `publish_inbound` returns, and a durable outbound message
    is on the disk before a channel gets it. The bus must then be used inside `open`.
    """

    def __init__(self, journal: Journal | None = None) -> None:
        self._inbound: _ClosableQueue[InboundMessage] = _ClosableQueue()
        self._outbound: _ClosableQueue[OutboundMessage] = _ClosableQueue()
        self.journal = journal
        """None if messages in flight may be lost in a crash."""
        self._posted: deque[_Posted] = deque()
        """Outbound messages that are not in their queue yet."""
        self._open: dict[str, InboundMessage] = {}
        """Accepted messages that are not settled, by journal key, oldest first."""
        self._taken: set[str] = set()
        """The keys of those that a previous process left or the agent has taken."""
        self._incomplete: list[InboundMessage] = []
        """Accepted messages not yet passed to the agent: attachments, or those of an earlier message, are missing."""
        self._settled_event = asyncio.Event()
        self._receipts: WeakKeyDictionary[Receipt, str] = WeakKeyDictionary()
        """Of replies and notices that were posted, with the channel of each."""
        self._stream_updates: dict[str, StreamUpdate] = {}
        self.on_turn: Callable[[InboundMessage, InboundState | None], None] = lambda message, state: None
        """Called when the turn of a message begins (None), and when a message is settled (with its state)."""
        self._writes: set[asyncio.Task[None]] = set()
        """Writes to the journal in progress. They are committed in the order in which they were started."""
        self._retries: deque[Write] = deque(maxlen=_MAX_RETRIES)
        """Writes that failed, in order. Without them a message answered while the disk was full would be answered again
        after a later crash.
        """
        self._retrying: asyncio.Task[None] | None = None
        self._has_failed = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator["MessageBus"]:
        """Load what a crash left, and queue outbound messages that were not sent. On exit everything is written."""
        if self.journal is None:
            yield self
            return
        for message in await self.journal.load_unsent():
            message.receipt = Receipt()
            self._outbound.put(message)
        waiting: set[str] = set()
        for unsettled_message in await self.journal.load_unsettled():  # before channels accept new messages
            self._track(unsettled_message)
            if unsettled_message.attachments or unsettled_message.session_key in waiting:
                waiting.add(unsettled_message.session_key)
                self._incomplete.append(unsettled_message)
            else:
                self._taken.add(unsettled_message.journal_key or "")
        self._stream_updates = await self.journal.load_shown()
        try:
            yield self
        finally:
            await finish(self._write_rest())

    # --- from channels to the agent

    async def publish_inbound(self, message: InboundMessage, *, is_ready: bool = True) -> bool:
        """Accept a message for the agent. Return False if it is a duplicate: then it is dropped.

        A message that is not ready is only journaled; `release` queues it. Raises StorageError if it cannot be
        journaled: then do not acknowledge it to the platform. Cancelling waits for the journal write, so that a
        journaled message is always queued.
        """
        accepting = self._accept(message, is_ready=is_ready)
        return await (finish(accepting) if self.journal is not None else accepting)

    async def _accept(self, message: InboundMessage, *, is_ready: bool) -> bool:
        if self.journal is not None and not await self.journal.receive(message):
            return False
        if is_ready:
            self._inbound.put(message)
        else:
            self._incomplete.append(message)
        self._track(message)
        return True

    def incomplete(self, channel: str) -> list[InboundMessage]:
        """Messages that this channel accepted, perhaps before a crash, and has not released; oldest first."""
        return [message for message in self._incomplete if message.channel == channel]

    async def save_inbound(self, message: InboundMessage) -> None:
        """Update an accepted message in the journal. Raises StorageError."""
        if self.journal is not None:
            await self.journal.save(message)

    def release(self, message: InboundMessage) -> None:
        """Queue an accepted message that has become ready. Never raises."""
        self._incomplete = [entry for entry in self._incomplete if entry is not message]
        try:
            self._inbound.put(message)
        except RuntimeError:  # closed; recovered from the journal at the next start
            log.debug("an inbound message waits for the next start")

    async def consume_inbound(self) -> InboundMessage | None:
        """Take the next inbound message; None once the bus is closed and drained. Cancelling loses none."""
        message = await self._inbound.take()
        if message is not None and message.journal_key is not None:
            self._taken.add(message.journal_key)
        return message

    def unsettled(self) -> list[InboundMessage]:
        """Messages that a previous process or a failed consumer left unsettled, oldest first.

        Messages still in the queue are not included, so that none is processed twice.
        """
        return [message for key, message in self._open.items() if key in self._taken]

    def begin(self, message: InboundMessage, turn_id: str) -> None:
        """Record that the turn of a message has started. Never raises."""
        self.on_turn(message, None)
        if (key := message.journal_key) is not None:
            self._start(self._write(lambda journal: journal.begin(key, turn_id)))

    def settle(self, message: InboundMessage, state: InboundState, reason: str = "") -> None:
        """Record how a message ended, after everything posted before it. Never raises."""
        self.on_turn(message, state)
        if (key := message.journal_key) is not None:
            self._open.pop(key, None)
            self._taken.discard(key)
            self._settled_event.set()
            self._start(self._write(lambda journal: journal.settle(key, state, reason), is_retried=True))

    def is_open(self, session_key: str, message_id: str) -> bool:
        """Whether a journaled message of this session is accepted and not settled."""
        messages = self._open.items()
        return any(key.endswith(f":{message_id}") for key, message in messages if message.session_key == session_key)

    async def wait_settled(self, journal_key: str) -> None:
        """Wait until this message is settled, if it was accepted."""
        while journal_key in self._open:
            self._settled_event.clear()
            await self._settled_event.wait()

    def _track(self, message: InboundMessage) -> None:
        if message.journal_key is not None:
            self._open[message.journal_key] = message

    # --- from the agent to channels

    async def publish_outbound(self, message: OutboundMessage) -> Receipt:
        """Send a message. The receipt settles when the platform has it."""
        return self.post_outbound(message)

    def post_outbound(self, message: OutboundMessage) -> Receipt:
        """Like `publish_outbound`, without waiting. A duplicate is not sent again; its receipt settles empty."""
        message.receipt = message.receipt or Receipt()
        message.kind = OutboundKind(message.kind)  # a plugin may set its text
        if message.kind.is_durable:
            self._receipts[message.receipt] = message.channel
        if self.journal is None:
            self._outbound.put(message)
            return message.receipt
        posted = _Posted(message, is_ready=not message.kind.is_durable)
        self._posted.append(posted)
        if posted.is_ready:
            self._queue_posted()
        else:
            self._start(self._journal_posted(self.journal, posted))
        return message.receipt

    async def _journal_posted(self, journal: Journal, posted: _Posted) -> None:
        """Journal a message and queue it. If that fails it is sent anyway: a person waits for it."""
        message = posted.message

        async def write_late(journal: Journal) -> None:
            if message.journal_id is None:
                await journal.add_outbound([message])

        try:
            [is_new] = await journal.add_outbound([message])
            posted.is_duplicate = not is_new
        except StorageError as error:
            self._retry_later(write_late, error)
        except Exception:  # an invalid message, perhaps of a plugin
            log.exception("cannot journal a message to %s", message.channel)
        finally:
            posted.is_ready = True
            self._queue_posted()

    def _queue_posted(self) -> None:
        """Queue the messages that are ready, up to the first that is not."""
        while self._posted and self._posted[0].is_ready:
            posted = self._posted.popleft()
            message = posted.message
            if posted.is_duplicate:
                if message.receipt is not None:
                    message.receipt.settle(repeated=True)
                continue
            try:
                self._outbound.put(message)
            except RuntimeError:  # closed; recovered from the journal at the next start
                log.debug("an outbound message waits for the next start")

    async def consume_outbound(self) -> OutboundMessage | None:
        """Take the next outbound message; None once the bus is closed and drained. Cancelling loses none."""
        return await self._outbound.take()

    async def wait_delivered(self, channel: str) -> None:
        """Wait until every reply and notice posted to a channel so far was delivered, or failed for good."""
        for receipt in [receipt for receipt, name in self._receipts.items() if name == channel]:
            with suppress(Exception):
                await receipt.wait()

    async def record_sending(self, message: OutboundMessage) -> None:
        """Record that the parts not in `sent_ids` are about to be sent. Never raises."""
        if (journal_id := message.journal_id) is not None:
            await self._write(lambda journal: journal.record_sending(journal_id, message.sent_ids))

    async def record_shown(self, turn_id: str, update: StreamUpdate) -> None:
        """Record what the platform shows, or is about to show, of this turn's streamed answer. Never raises."""
        await self._write(lambda journal: journal.record_shown(turn_id, update))

    def pop_shown(self, turn_id: str) -> StreamUpdate | None:
        """Pop what the platform showed of this turn's answer before a crash."""
        return self._stream_updates.pop(turn_id, None)

    async def record_sent(self, message: OutboundMessage, platform_ids: tuple[str, ...]) -> None:
        """Record that the platform has the message, and settle its receipt. Never raises."""
        await self._record_end(message, lambda journal, number: journal.record_sent(number, platform_ids))
        if message.receipt is not None:
            message.receipt.settle(platform_ids)

    async def record_failed(self, message: OutboundMessage, error: Exception) -> None:
        """Record that sending failed for good, and fail its receipt. Never raises."""
        await self._record_end(message, lambda journal, number: journal.record_failed(number, str(error)))
        if message.receipt is not None:
            message.receipt.fail(error)

    async def _record_end(self, message: OutboundMessage, record: Callable[[Journal, int], Awaitable[None]]) -> None:
        """Write the end of a message, after the write of the message itself if that is still to be retried."""

        async def write(journal: Journal) -> None:
            if message.journal_id is not None:
                await record(journal, message.journal_id)

        if message.journal_id is None and self._retries:
            self._retries.append(write)
        else:
            await self._write(write, is_retried=True)

    # --- both

    async def flush(self) -> None:
        """Wait until everything posted so far is written; failed writes are retried later."""
        if self.journal is not None:
            await self._start(self._write(lambda journal: journal.flush()))

    def close(self) -> None:
        """Accept no more messages; queued ones can still be taken."""
        self._inbound.close()
        self._outbound.close()

    @property
    def inbound_size(self) -> int:
        """Messages waiting for the agent."""
        return self._inbound.size()

    @property
    def outbound_size(self) -> int:
        """Messages waiting for their channels."""
        return self._outbound.size() + len(self._posted)

    # --- the journal

    def _start(self, writing: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(writing)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return task

    async def _write(self, write: Write, *, is_retried: bool = False) -> None:
        """Write to the journal, if there is one. On failure log it and go on, or retry it later."""
        if self.journal is None:
            return
        try:
            await write(self.journal)
        except StorageError as error:
            self._retry_later(write if is_retried else None, error)

    def _retry_later(self, write: Write | None, error: StorageError) -> None:
        if not self._has_failed:  # log once: the log file is on the same full disk
            log.error("messages in flight are not journaled any more and may be lost in a crash: %s", error)
        self._has_failed = True
        if write is not None:
            self._retries.append(write)
            self._retrying = self._retrying or asyncio.create_task(self._keep_retrying(), name="journal")

    async def _keep_retrying(self) -> None:
        while not await finish(self._retry_writes()):  # noqa: ASYNC110 the disk tells nobody when it works again
            await asyncio.sleep(RETRY_EVERY_S)
        log.info("messages in flight are journaled again")
        self._has_failed, self._retrying = False, None

    async def _retry_writes(self) -> bool:
        """Retry all failed writes in order. Return whether none is left."""
        while self.journal is not None and self._retries:
            try:
                await self._retries[0](self.journal)
            except StorageError:
                return False
            except Exception:  # it would fail again and block those behind it
                log.exception("a late journal write failed and was dropped")
            self._retries.popleft()
        return True

    async def _write_rest(self) -> None:
        """Wait for all writes, and try those that failed a last time."""
        while self._writes:
            await asyncio.wait(self._writes)
        if self._retrying is not None:
            self._retrying.cancel()
            await asyncio.wait([self._retrying])
        await self._retry_writes()
