"""Runs all channels and sends outbound messages, in order within each chat.

A lasting message is retried until the platform has it or refuses it for good; a progress message is tried once. A dead
channel or a slow chat delays no other.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from nanobot.bus.events import DeliveryFailedError, InboundMessage, OutboundKind, OutboundMessage
from nanobot.bus.journal import InboundState
from nanobot.bus.queue import MessageBus
from nanobot.channels.base import BaseChannel
from nanobot.channels.errors import (
    ChannelSetupError,
    NotConnectedError,
    RateLimitedError,
    SendError,
    UndeliverableError,
)
from nanobot.channels.outgoing import SLOWEST_UPLOAD
from nanobot.channels.status import ChannelStatus
from nanobot.channels.supervisor import ChannelSupervisor, describe_error
from nanobot.messages.types import Origin
from nanobot.utils.aio import contain_errors

log = logging.getLogger(__name__)

RETRY_DELAYS_S = (1.0, 2.0, 4.0)
"""Delays between the attempts for one message; a platform's retry-after takes precedence."""
SEND_TIMEOUT_S = 120.0
"""Timeout of one attempt, without the time for its files."""
_MAX_FAST_RETRIES = 10
"""How often a rate limited message is retried after a pause shorter than `first_wait_s`."""
_MAX_THROTTLED_S = 600.0
"""How long a platform may rate limit one message before it counts as undeliverable."""

DeadLetter = Callable[[OutboundMessage, DeliveryFailedError], Awaitable[None]]
"""Called with each undeliverable message."""
_ChatKey = tuple[str, str, str | None]


@dataclass(slots=True)
class _Outbox:
    """The outbound queue of one chat."""

    waiting: deque[OutboundMessage] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    in_flight: OutboundMessage | None = None
    task: "asyncio.Task[None] | None" = None


class ChannelManager:
    """Runs channels and sends outbound messages through them."""

    def __init__(
        self,
        channels: Sequence[BaseChannel],
        bus: MessageBus,
        *,
        retries: Mapping[str, int] | None = None,
        dead_letter: DeadLetter | None = None,
        retry_delays_s: Sequence[float] = RETRY_DELAYS_S,
        first_wait_s: float = 1.0,
        max_throttled_s: float = _MAX_THROTTLED_S,
    ) -> None:
        """`retries`: how often a channel retries a message, by channel name (default: 3)."""
        self._channels = {channel.name: channel for channel in channels}
        self._bus = bus
        self._retries = retries or {}
        self._dead_letter = dead_letter
        self._retry_delays_s = retry_delays_s
        self._first_wait_s = first_wait_s
        self._max_throttled_s = max_throttled_s
        self._outboxes: dict[_ChatKey, _Outbox] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._supervisors: dict[str, asyncio.Task[None]] = {}

    @property
    def names(self) -> list[str]:
        return [*self._channels]

    def get(self, name: str) -> BaseChannel | None:
        return self._channels.get(name)

    async def find(self, channel: str, name: str) -> str | None:
        """Return the id of the chat with this name or id; None if the channel has no such chat."""
        target = self._channels.get(channel)
        return await target.find(name) if target is not None else None

    async def chat_with(self, channel: str, sender_id: str) -> str | None:
        """Return the id of the private chat with this sender; None if it cannot be opened now."""
        target = self._channels.get(channel)
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                return await target.chat_with(sender_id) if target is not None else None
        except (SendError, TimeoutError) as error:
            log.debug("%s: no private chat with %s: %s", channel, sender_id, error)
            return None

    def statuses(self) -> dict[str, ChannelStatus]:
        """The status of each channel, by name."""
        return {name: channel.status for name, channel in self._channels.items()}

    def streams(self, name: str) -> bool:
        """Whether the channel shows an answer while the model writes it."""
        channel = self._channels.get(name)
        return channel is not None and channel.supports_streaming

    async def run(self) -> None:
        """Keep all channels connected and send outbound messages until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._bus.on_turn = self._show_turn
                for channel in self._channels.values():
                    self._supervise(tasks, channel)
                while (message := await self._bus.consume_outbound()) is not None:
                    self._put(tasks, message)
        finally:
            self._tasks = None

    async def pause(self, name: str) -> None:
        """Disconnect a channel until `change` replaces it. Messages to it wait."""
        if (supervisor := self._supervisors.pop(name, None)) is not None:
            supervisor.cancel()
            await asyncio.wait([supervisor])

    async def change(self, name: str, channel: BaseChannel | None) -> None:
        """Replace the channel of this name, also while it runs; None removes it.

        Its queued messages go to the new channel. If cancelled, the old channel is stopped and the new one not started.
        """
        await self.pause(name)
        waiting: list[OutboundMessage] = []
        while (key := next((key for key in self._outboxes if key[0] == name), None)) is not None:
            outbox = self._outboxes.pop(key)
            if outbox.task is not None:
                outbox.task.cancel()
                await asyncio.wait([outbox.task])
            waiting += [outbox.in_flight] if outbox.in_flight is not None else []
            waiting += outbox.waiting
        self._channels.pop(name, None)
        if channel is not None:
            self._channels[name] = channel
        if self._tasks is not None:
            if channel is not None:
                self._supervise(self._tasks, channel)
            for message in waiting:
                self._put(self._tasks, message)

    def _show_turn(self, message: InboundMessage, state: InboundState | None) -> None:
        """Let the channel show that a user's message is being worked on; nobody waits for a job."""
        channel, to = self._channels.get(message.channel), message.address
        if channel is not None and message.origin is Origin.USER and not message.quiet:
            key = message.journal_key or str(id(message))
            (channel.turn_started if state is None else channel.turn_ended)(to, key)
            if state is InboundState.ANSWERED and message.message_id is not None:
                channel.turn_answered(to, message.message_id)

    def _supervise(self, tasks: asyncio.TaskGroup, channel: BaseChannel) -> None:
        supervisor = ChannelSupervisor(channel, first_wait_s=self._first_wait_s)
        self._supervisors[channel.name] = tasks.create_task(supervisor.run())

    async def drain(self) -> None:
        """Wait until no message is queued for a connected channel."""

        def can_send(name: str) -> bool:
            channel = self._channels.get(name)
            return channel is None or channel.is_running  # messages for a missing channel fail at once

        while self._bus.outbound_size or any(can_send(name) for name, _, _ in self._outboxes):  # noqa: ASYNC110 only at the end
            await asyncio.sleep(0.01)

    def _put(self, tasks: asyncio.TaskGroup, message: OutboundMessage) -> None:
        key = (message.channel, message.chat_id, message.thread_id)
        outbox = self._outboxes.get(key)
        if outbox is not None:
            outbox.waiting.append(message)
            outbox.arrived.set()
            return
        self._outboxes[key] = outbox = _Outbox(deque([message]))
        outbox.task = tasks.create_task(self._serve(key, outbox))

    async def _serve(self, key: _ChatKey, outbox: _Outbox) -> None:
        channel = self._channels.get(key[0])
        try:
            while outbox.waiting:
                outbox.in_flight = message = _pop_merged(outbox.waiting)
                if channel is None:
                    await self._fail(message, f"there is no channel {message.channel!r} here")
                elif message.kind.is_durable:
                    await self._send_with_retries(channel, message)
                else:
                    await self._show(channel, message)
                    if message.kind is OutboundKind.STREAM_DELTA:
                        await _pause(outbox, message, channel.delta_pause_s(message.chat_id))
                outbox.in_flight = None
        finally:
            if self._outboxes.get(key) is outbox:
                del self._outboxes[key]

    async def _show(self, channel: BaseChannel, message: OutboundMessage) -> None:
        """Try once to show a progress message, if the channel is connected."""
        if not channel.is_running:
            return
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await contain_errors(channel.deliver(message))
        except Exception as error:  # a channel may raise anything, and only the reply counts
            if isinstance(error, ChannelSetupError):
                channel.refuse(error)
            log.debug("%s: a %s was not shown: %s", channel.name, message.kind.value, error)

    async def _send_with_retries(self, channel: BaseChannel, message: OutboundMessage) -> None:
        delays = deque(self._retry_delays_s[: self._retries.get(channel.name, len(self._retry_delays_s))])
        throttled, throttled_s = 0, 0.0
        while True:
            try:
                await contain_errors(channel.reachable(message.chat_id))
            except Exception:  # a channel may raise anything; sending will show whether the chat is reachable
                log.exception("%s: checking whether a chat is reachable failed", channel.name)
            await self._bus.record_sending(message)
            try:
                async with asyncio.timeout(timeout_s := await asyncio.to_thread(_timeout_s, message.media)):
                    ids = await contain_errors(channel.deliver(message))
            except UndeliverableError as error:
                await self._fail(message, str(error))
                return
            except RateLimitedError as error:
                throttled += 1
                if throttled > _MAX_FAST_RETRIES and throttled_s >= self._max_throttled_s:
                    await self._fail(message, str(error))
                    return
                least_s = self._first_wait_s if throttled >= _MAX_FAST_RETRIES else 0.0
                pause_s = max(error.retry_after_s, least_s)
                await asyncio.sleep(pause_s)
                throttled_s += pause_s
                continue
            except ChannelSetupError as error:
                channel.refuse(error)
                await asyncio.sleep(self._first_wait_s)
                continue
            except Exception as error:  # a channel may raise anything
                may_have_arrived = isinstance(error, TimeoutError) or (
                    isinstance(error, SendError) and error.may_have_arrived
                )
                if isinstance(error, NotConnectedError) and not may_have_arrived:
                    await asyncio.sleep(self._first_wait_s)  # the supervisor notices soon
                    continue
                if not isinstance(error, SendError | TimeoutError):
                    log.exception("%s: sending failed", channel.name)
                if not delays:
                    timed_out = isinstance(error, TimeoutError) and not str(error)
                    reason = f"no answer within {timeout_s:g} s" if timed_out else describe_error(error)
                    await self._fail(message, reason)
                    return
                await asyncio.sleep(delays.popleft())
                message.may_repeat = message.may_repeat or may_have_arrived
                message.unconfirmed = message.unconfirmed or may_have_arrived
                continue
            channel.status.record_sent()
            await self._bus.record_sent(message, ids)
            return

    async def _fail(self, message: OutboundMessage, reason: str) -> None:
        error = DeliveryFailedError(f"The message to {message.channel}:{message.chat_id} was not delivered: {reason}")
        channel = self._channels.get(message.channel)
        if channel is not None:
            channel.status.record_failed(reason)
        await self._bus.record_failed(message, error)
        if message.kind.is_durable and self._dead_letter is not None:
            await self._dead_letter(message, error)
        elif message.kind.is_durable:
            log.error("%s", error)


def _timeout_s(files: Sequence[str]) -> float:
    """Return the timeout of one attempt, in seconds. Blocking: reads the sizes of the files."""
    size = 0
    for path in files:
        with suppress(OSError, ValueError):  # a URL, or a file that has gone
            size += Path(path).stat().st_size
    return round(SEND_TIMEOUT_S + size / SLOWEST_UPLOAD)


def _pop_merged(waiting: deque[OutboundMessage]) -> OutboundMessage:
    """Pop the next message; consecutive deltas of one turn are merged."""
    message = waiting.popleft()
    if message.kind is not OutboundKind.STREAM_DELTA:
        return message
    texts = [message.content]
    while waiting and _is_next_delta(waiting[0], message):
        texts.append(waiting.popleft().content)
    return replace(message, content="".join(texts)) if len(texts) > 1 else message


def _is_next_delta(message: OutboundMessage, previous: OutboundMessage) -> bool:
    return message.kind is OutboundKind.STREAM_DELTA and message.turn_id == previous.turn_id


async def _pause(outbox: _Outbox, shown: OutboundMessage, seconds: float) -> None:
    """Throttle the updates of a streamed answer. Ends early when anything but another delta is queued."""
    try:
        async with asyncio.timeout(seconds):
            while not outbox.waiting or _is_next_delta(outbox.waiting[-1], shown):
                outbox.arrived.clear()
                await outbox.arrived.wait()
    except TimeoutError:
        pass
