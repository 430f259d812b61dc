"""MessageBus: two asyncio queues between channels and agent, with a journal so that no message is lost in a crash."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from nanobot.bus.events import InboundMessage, OutboundMessage, Receipt, StreamUpdate
from nanobot.bus.journal import InboundState, Journal
from nanobot.errors import StorageError
from nanobot.utils.aio import finish

log = logging.getLogger(__name__)

T = TypeVar("T")


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


RETRY_EVERY_S = 5.0
_MAX_RETRIES = 20_000
"""Length of the retry queue; beyond it the oldest write is dropped."""

Write = Callable[[Journal], Awaitable[None]]
"""One write to the journal. Raises StorageError."""


@dataclass(frozen=True, slots=True)
class _Note:
    """A write to the journal that keeps its place behind the messages posted before it."""

    write: Write
    is_retried: bool = False


class MessageBus:
    """Connects channels and agent, which do not know each other.

    With a journal, an accepted message is on the disk before `publish_inbound` returns, and a durable outbound message
    is on the disk before a channel gets it. The bus must then be used inside `open`.
    """

    def __init__(self, journal: Journal | None = None) -> None:
        self._inbound: _ClosableQueue[InboundMessage] = _ClosableQueue()
        self._outbound: _ClosableQueue[OutboundMessage] = _ClosableQueue()
        self._journal = journal
        self._to_journal: asyncio.Queue[OutboundMessage | _Note | None] = asyncio.Queue()
        self._unsettled: dict[str, InboundMessage] = {}
        """Messages by journal key that a previous process left or the agent has taken, and that are not settled."""
        self._incomplete: list[InboundMessage] = []
        """Accepted messages not yet passed to the agent: attachments, or those of an earlier message, are missing."""
        self._open_keys: dict[str, set[str]] = {}
        """Journal keys of accepted messages that are not settled, by session."""
        self._settled_event = asyncio.Event()
        self._outbound_event = asyncio.Event()
        """Set when an outbound message is taken, or dropped as a duplicate."""
        self._stream_updates: dict[str, StreamUpdate] = {}
        self._write_tasks: set[asyncio.Task[None]] = set()
        """Journal notes being written."""
        self._journaling_count = 0
        """Outbound messages being journaled; they are in neither queue."""
        self.on_turn: Callable[[InboundMessage, InboundState | None], None] = lambda message, state: None
        """Called when the turn of a message begins (None), and when a message is settled (with its state)."""
        self._retries: deque[Write] = deque(maxlen=_MAX_RETRIES)
        """Writes that failed, in order. Without them a message answered while the disk was full would be answered again
        after a later crash.
        """
        self._reported_failure = False

    @property
    def journal(self) -> Journal | None:
        """The journal; None if messages in flight may be lost in a crash."""
        return self._journal

    @asynccontextmanager
    async def open(self) -> AsyncIterator["MessageBus"]:
        """Run the journal, and queue outbound messages that a crash left unsent. On exit everything is written."""
        if self._journal is None:
            yield self
            return
        for message in await self._journal.load_unsent():
            message.receipt = Receipt()
            self._outbound.put(message)
        waiting: set[str] = set()
        for unsettled_message in await self._journal.load_unsettled():  # before channels accept new messages
            if unsettled_message.attachments or unsettled_message.session_key in waiting:
                waiting.add(unsettled_message.session_key)
                self._incomplete.append(unsettled_message)
            else:
                self._track_unsettled(unsettled_message)
            self._track_open(unsettled_message)
        self._stream_updates = await self._journal.load_shown()
        journaling = asyncio.create_task(self._run_journal(self._journal), name="journal")
        try:
            yield self
        finally:
            self._to_journal.put_nowait(None)
            await finish(journaling)

    async def publish_inbound(self, message: InboundMessage, *, is_ready: bool = True) -> bool:
        """Accept a message for the agent. Return False if it is a duplicate: then it is dropped.

        A message that is not ready is only journaled; `release` queues it. Raises StorageError if it cannot be
        journaled: then do not acknowledge it to the platform. Cancelling waits for the journal write, so that a
        journaled message is always queued.
        """
        accepting = self._accept(message, is_ready=is_ready)
        return await (finish(accepting) if self._journal is not None else accepting)

    async def _accept(self, message: InboundMessage, *, is_ready: bool) -> bool:
        if self._journal is not None and not await self._journal.receive(message):
            return False
        if is_ready:
            self._inbound.put(message)
        else:
            self._incomplete.append(message)
        self._track_open(message)
        return True

    def incomplete(self, channel: str) -> list[InboundMessage]:
        """Messages that this channel accepted, perhaps before a crash, and has not released; oldest first."""
        return [message for message in self._incomplete if message.channel == channel]

    async def save_inbound(self, message: InboundMessage) -> None:
        """Update an accepted message in the journal. Raises StorageError."""
        if self._journal is not None:
            await self._journal.save(message)

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
        if message is not None and self._journal is not None:
            self._track_unsettled(message)
        return message

    def unsettled(self) -> list[InboundMessage]:
        """Messages that a previous process or a failed consumer left unsettled, oldest first.

        Messages still in the queue are not included, so that none is processed twice.
        """
        return [*self._unsettled.values()]

    def begin(self, message: InboundMessage, turn_id: str) -> None:
        """Record that the turn of a message has started. Never raises."""
        self.on_turn(message, None)
        if self._journal is not None and (key := message.journal_key) is not None:
            self._to_journal.put_nowait(_Note(lambda journal: journal.begin(key, turn_id)))

    def settle(self, message: InboundMessage, state: InboundState, reason: str = "") -> None:
        """Record how a message ended, after everything posted before it. Never raises."""
        self.on_turn(message, state)
        open_keys = self._open_keys.get(message.session_key, set())
        open_keys.discard(message.journal_key or "")
        if not open_keys and self._open_keys.pop(message.session_key, None) is not None:
            self._settled_event.set()
        if self._journal is not None and (key := message.journal_key) is not None:
            self._unsettled.pop(key, None)
            self._to_journal.put_nowait(_Note(lambda journal: journal.settle(key, state, reason), is_retried=True))

    def is_open(self, session_key: str, message_id: str) -> bool:
        """Whether a journaled message of this session is accepted and not settled."""
        return any(key.endswith(f":{message_id}") for key in self._open_keys.get(session_key, ()))

    async def wait_settled(self, session_key: str) -> None:
        """Wait until all journaled messages of this session are settled."""
        while session_key in self._open_keys:
            self._settled_event.clear()
            await self._settled_event.wait()

    async def flush(self) -> None:
        """Wait until everything posted so far is written; failed writes are retried later."""
        if self._journal is None:
            return
        written = asyncio.Event()

        async def flush(journal: Journal) -> None:
            try:
                await journal.flush()
            finally:
                written.set()

        self._to_journal.put_nowait(_Note(flush))
        await written.wait()

    async def publish_outbound(self, message: OutboundMessage) -> Receipt:
        """Send a message. The receipt settles when the platform has it."""
        return self.post_outbound(message)

    def post_outbound(self, message: OutboundMessage) -> Receipt:
        """Like `publish_outbound`, without waiting. A duplicate is not sent again; its receipt settles empty."""
        message.receipt = message.receipt or Receipt()
        if self._journal is None:
            self._outbound.put(message)
        else:
            self._to_journal.put_nowait(message)
        return message.receipt

    async def consume_outbound(self) -> OutboundMessage | None:
        """Take the next outbound message; None once the bus is closed and drained. Cancelling loses none."""
        message = await self._outbound.take()
        self._outbound_event.set()
        return message

    async def record_sending(self, message: OutboundMessage) -> None:
        """Record that the parts not in `sent_ids` are about to be sent. Never raises."""
        if self._journal is not None and (journal_id := message.journal_id) is not None:
            await self._write_or_report(lambda journal: journal.record_sending(journal_id, message.sent_ids))

    async def record_shown(self, turn_id: str, update: StreamUpdate) -> None:
        """Record what the platform shows, or is about to show, of this turn's streamed answer. Never raises."""
        if self._journal is not None:
            await self._write_or_report(lambda journal: journal.record_shown(turn_id, update))

    def pop_shown(self, turn_id: str) -> StreamUpdate | None:
        """Pop what the platform showed of this turn's answer before a crash."""
        return self._stream_updates.pop(turn_id, None)

    async def record_sent(self, message: OutboundMessage, platform_ids: tuple[str, ...]) -> None:
        """Record that the platform has the message, and settle its receipt. Never raises."""

        async def write(journal: Journal) -> None:
            if message.journal_id is not None:
                await journal.record_sent(message.journal_id, platform_ids)

        await self._record_end(message, write)
        if message.receipt is not None:
            message.receipt.settle(platform_ids)

    async def record_failed(self, message: OutboundMessage, error: Exception) -> None:
        """Record that sending failed for good, and fail its receipt. Never raises."""

        async def write(journal: Journal) -> None:
            if message.journal_id is not None:
                await journal.record_failed(message.journal_id, str(error))

        await self._record_end(message, write)
        if message.receipt is not None:
            message.receipt.fail(error)

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
        return self._outbound.size() + self._to_journal.qsize() + self._journaling_count

    async def wait_outbound_empty(self) -> None:
        """Wait until no outbound message is queued."""
        while self.outbound_size:
            self._outbound_event.clear()
            await self._outbound_event.wait()

    async def _run_journal(self, journal: Journal) -> None:
        """Journal what was posted, in order; in batches that share a commit."""
        last = False
        while not last:
            waiting = [await self._next_to_journal(journal)]
            while not self._to_journal.empty():
                waiting.append(self._to_journal.get_nowait())
            last = None in waiting
            messages = [entry for entry in waiting if isinstance(entry, OutboundMessage)]
            self._journaling_count = len(messages)
            await self._journal_outbound(journal, messages)
            self._journaling_count = 0
            self._outbound_event.set()
            for entry in waiting:
                if isinstance(entry, _Note):  # in a task of its own, so that the journal can batch its commits
                    writing = asyncio.create_task(self._write_or_report(entry.write, later=entry.is_retried))
                    self._write_tasks.add(writing)
                    writing.add_done_callback(self._write_tasks.discard)
        await asyncio.gather(*self._write_tasks, return_exceptions=True)
        await self._retry_writes(journal)

    async def _next_to_journal(self, journal: Journal) -> OutboundMessage | _Note | None:
        """The next entry to journal. Failed writes are retried first, and while the queue is empty."""
        while self._retries:
            if await self._retry_writes(journal):
                log.info("messages in flight are journaled again")
                self._reported_failure = False
            try:
                return await asyncio.wait_for(self._to_journal.get(), RETRY_EVERY_S)
            except TimeoutError:
                continue
        return await self._to_journal.get()

    async def _retry_writes(self, journal: Journal) -> bool:
        """Retry all failed writes in order. Return whether none is left."""
        while self._retries:
            try:
                await self._retries[0](journal)
            except StorageError:
                return False
            except Exception:  # it would fail again and block those behind it
                log.exception("a late journal write failed and was dropped")
            self._retries.popleft()
        return True

    async def _journal_outbound(self, journal: Journal, messages: list[OutboundMessage]) -> None:
        """Journal messages and queue them. If that fails they are sent anyway: a person waits for them."""
        durable: list[OutboundMessage] = []
        duplicates: set[int] = set()
        try:
            durable = [message for message in messages if message.kind.is_durable]
            is_new = await journal.add_outbound(durable) if durable else []
            duplicates = {id(message) for message, new in zip(durable, is_new, strict=True) if not new}
        except StorageError as error:
            self._report(error)
            for message in durable:
                self._retries.append(partial(_journal_late, message))
        except Exception:  # an invalid message, perhaps of a plugin, must not stop the others or this task
            if len(messages) > 1:
                for message in messages:
                    await self._journal_outbound(journal, [message])
                return
            log.exception("cannot journal a message to %s", messages[0].channel)
        for message in messages:
            if id(message) in duplicates:
                if message.receipt is not None:
                    message.receipt.settle(repeated=True)
            else:
                self._enqueue_outbound(message)

    def _track_open(self, message: InboundMessage) -> None:
        if message.journal_key is not None:
            self._open_keys.setdefault(message.session_key, set()).add(message.journal_key)

    def _track_unsettled(self, message: InboundMessage) -> None:
        if message.journal_key is not None:
            self._unsettled[message.journal_key] = message

    def _enqueue_outbound(self, message: OutboundMessage) -> None:
        try:
            self._outbound.put(message)
        except RuntimeError:  # closed; recovered from the journal at the next start
            log.debug("an outbound message waits for the next start")

    async def _record_end(self, message: OutboundMessage, write: Write) -> None:
        """Write the end of a message, after the write of the message itself if that is still pending."""
        if self._journal is None or not message.kind.is_durable:
            return
        if message.journal_id is None and self._retries:
            self._retries.append(write)
        else:
            await self._write_or_report(write, later=True)

    async def _write_or_report(self, write: Write, *, later: bool = False) -> None:
        """Write to the journal; on failure log it and go on. With `later`, the write is retried."""
        assert self._journal is not None  # noqa: S101 callers check
        try:
            await write(self._journal)
        except StorageError as error:
            self._report(error)
            if later:
                self._retries.append(write)

    def _report(self, error: Exception) -> None:
        if not self._reported_failure:  # log once: the log file is on the same full disk
            log.error("messages in flight are not journaled any more and may be lost in a crash: %s", error)
        self._reported_failure = True


async def _journal_late(message: OutboundMessage, journal: Journal) -> None:
    if message.journal_id is None:
        await journal.add_outbound([message])
