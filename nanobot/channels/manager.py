"""All channels: opened as the config says, kept alive, and handed what goes out, each chat in its order.

A message that lasts is tried until its platform has it or says never; what only shows how the work goes is tried once.
One dead channel, or one chat that is slow, keeps nobody else waiting.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nanobot.bus.events import DeliveryFailedError, OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.channels.base import BaseChannel
from nanobot.channels.errors import NotConnectedError, RateLimitedError, SendError, UndeliverableError
from nanobot.channels.evidence import Evidence
from nanobot.channels.supervisor import Supervisor, told_of
from nanobot.utils.aio import contained

log = logging.getLogger(__name__)

WAITS_S = (1.0, 2.0, 4.0)
"""Between the tries of one message; the platform's own word goes before."""
SEND_S = 120.0
"""How long one try may take, files included."""
_MOST_LIMITED = 10
"""How often a platform may say "later" to one message, before it is asked less often."""
_LONGEST_LIMITED_S = 600.0
"""How long it may go on saying so; then it is a no, and told as one."""

DeadLetter = Callable[[OutboundMessage, DeliveryFailedError], Awaitable[None]]
"""Told of a message that its platform will not have."""
_ChatKey = tuple[str, str, str | None]


@dataclass(slots=True)
class _Outbox:
    """What waits for one chat, and whether something was put in."""

    waiting: deque[OutboundMessage] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    now: OutboundMessage | None = None
    """What is being sent."""
    serving: "asyncio.Task[None] | None" = None


async def _log_it(message: OutboundMessage, error: DeliveryFailedError) -> None:
    log.error("a message to %s:%s is not delivered: %s", message.channel, message.chat_id, error)


class ChannelManager:
    """Runs channels and hands them what goes out."""

    def __init__(
        self,
        channels: Sequence[BaseChannel],
        bus: MessageBus,
        *,
        tries: Mapping[str, int] | None = None,
        dead_letter: DeadLetter | None = None,
        waits_s: Sequence[float] = WAITS_S,
        first_wait_s: float = 1.0,
        limited_s: float = _LONGEST_LIMITED_S,
    ) -> None:
        """`tries` says of a channel how often a message is tried again after the first time (3 where it does not)."""
        self._channels = {channel.name: channel for channel in channels}
        self._bus = bus
        self._tries = tries or {}
        self._dead_letter = dead_letter or _log_it
        self._waits_s = waits_s
        self._first_wait_s = first_wait_s
        self._limited_s = limited_s
        self._outboxes: dict[_ChatKey, _Outbox] = {}
        self._lives: asyncio.TaskGroup | None = None
        self._kept: dict[str, asyncio.Task[None]] = {}

    @property
    def names(self) -> list[str]:
        """The channels it runs."""
        return [*self._channels]

    def get(self, name: str) -> BaseChannel | None:
        """The channel of that name."""
        return self._channels.get(name)

    async def find(self, channel: str, name: str) -> str | None:
        """The id of the chat that a person would call so; None where the channel knows no such chat."""
        found = self._channels.get(channel)
        return await found.find(name) if found is not None else None

    async def chat_with(self, channel: str, sender_id: str) -> str | None:
        """The private chat with this person; None where there is none, or where it cannot be opened just now."""
        found = self._channels.get(channel)
        try:
            async with asyncio.timeout(SEND_S):
                return await found.chat_with(sender_id) if found is not None else None
        except (SendError, TimeoutError) as error:
            log.debug("%s: no private chat with %s: %s", channel, sender_id, error)
            return None

    def evidence(self) -> dict[str, Evidence]:
        """The signs of life of each."""
        return {name: channel.evidence for name, channel in self._channels.items()}

    def streams(self, name: str) -> bool:
        """Whether that channel shows an answer as it grows."""
        channel = self._channels.get(name)
        return channel is not None and channel.supports_streaming

    async def run(self) -> None:
        """Keep all of them alive and send what goes out, until this is cancelled."""
        try:
            async with asyncio.TaskGroup() as lives:
                self._lives = lives
                for channel in self._channels.values():
                    self._keep(lives, channel)
                while (message := await self._bus.consume_outbound()) is not None:
                    self._put(lives, message)
        finally:
            self._lives = None

    async def change(self, name: str, channel: BaseChannel | None) -> None:
        """Put this channel in the place of the one of that name, also while they run; None takes it away.

        What waits for it waits for the new one. Cancelling leaves the place empty.
        """
        self._channels.pop(name, None)
        waiting: list[OutboundMessage] = []
        for key, outbox in [*self._outboxes.items()]:
            if key[0] == name and outbox.serving is not None:
                outbox.serving.cancel()
                await asyncio.wait([outbox.serving])
                waiting += [outbox.now] if outbox.now is not None else []
                waiting += outbox.waiting
        if (kept := self._kept.pop(name, None)) is not None:
            kept.cancel()
            await asyncio.wait([kept])
        if channel is not None:
            self._channels[name] = channel
        if self._lives is not None:
            if channel is not None:
                self._keep(self._lives, channel)
            for message in waiting:
                self._put(self._lives, message)

    def _keep(self, lives: asyncio.TaskGroup, channel: BaseChannel) -> None:
        self._kept[channel.name] = lives.create_task(Supervisor(channel, first_wait_s=self._first_wait_s).run())

    async def drain(self) -> None:
        """Wait until nothing is on its way out to a platform that can be reached."""
        while self._bus.outbound_size or any(self._can_go(name) for name, _, _ in self._outboxes):  # noqa: ASYNC110 only at the end
            await asyncio.sleep(0.01)

    def _can_go(self, name: str) -> bool:
        channel = self._channels.get(name)
        return channel is None or channel.is_running  # where there is none, it is given up at once

    def _put(self, lives: asyncio.TaskGroup, message: OutboundMessage) -> None:
        key = (message.channel, message.chat_id, message.thread_id)
        outbox = self._outboxes.get(key)
        if outbox is not None:
            outbox.waiting.append(message)
            outbox.arrived.set()
            return
        self._outboxes[key] = outbox = _Outbox(deque([message]))
        outbox.serving = lives.create_task(self._serve(key, outbox))

    async def _serve(self, key: _ChatKey, outbox: _Outbox) -> None:
        """One chat's messages, in order, until none waits."""
        channel = self._channels.get(key[0])
        try:
            while outbox.waiting:
                outbox.now = message = _next(outbox.waiting)
                if channel is None:
                    await self._give_up(message, f"there is no channel {message.channel!r} here")
                elif message.kind.lasts:
                    await self._until_it_is_sent(channel, message)
                else:
                    await self._show(channel, message)
                    if message.kind is OutboundKind.STREAM_DELTA:
                        await _pause(outbox, message, channel.delta_pause_s(message.chat_id))
                outbox.now = None
        finally:
            del self._outboxes[key]

    async def _show(self, channel: BaseChannel, message: OutboundMessage) -> None:
        """Something that only shows how the work goes: tried once, and only where somebody can see it."""
        if not channel.is_running:
            return
        try:
            async with asyncio.timeout(SEND_S):
                await contained(channel.deliver(message))
        except Exception as error:  # the wall of a connection; the reply is what counts
            log.debug("%s: a %s was not shown: %s", channel.name, message.kind.value, error)

    async def _until_it_is_sent(self, channel: BaseChannel, message: OutboundMessage) -> None:
        waits = deque(self._waits_s[: self._tries.get(channel.name, len(self._waits_s))])
        limited, limited_s = 0, 0.0
        while True:
            await _until_reachable(channel, message.chat_id)
            await self._bus.sending(message)
            try:
                async with asyncio.timeout(SEND_S):
                    ids = await contained(channel.deliver(message))
            except NotConnectedError as error:
                message.may_repeat = message.may_repeat or error.may_have_it
                await asyncio.sleep(self._first_wait_s)  # the supervisor notices soon
                continue
            except UndeliverableError as error:
                await self._give_up(message, str(error))
                return
            except RateLimitedError as error:
                limited += 1
                if limited > _MOST_LIMITED and limited_s >= self._limited_s:
                    await self._give_up(message, str(error))
                    return
                least_s = self._first_wait_s if limited >= _MOST_LIMITED else 0.0
                pause_s = max(error.retry_after_s, least_s)
                await asyncio.sleep(pause_s)
                limited_s += pause_s
                continue
            except Exception as error:  # the wall of a connection
                if not isinstance(error, SendError | TimeoutError):
                    log.exception("%s: sending broke", channel.name)
                if not waits:
                    late = isinstance(error, TimeoutError) and not str(error)
                    await self._give_up(message, f"no answer within {SEND_S:g} s" if late else told_of(error))
                    return
                await asyncio.sleep(waits.popleft())
                message.may_repeat = message.may_repeat or isinstance(error, TimeoutError) or _may_have_it(error)
                continue
            channel.evidence.went()
            await self._bus.sent(message, ids)
            return

    async def _give_up(self, message: OutboundMessage, reason: str) -> None:
        error = DeliveryFailedError(f"The message to {message.channel}:{message.chat_id} was not delivered: {reason}")
        channel = self._channels.get(message.channel)
        if channel is not None:
            channel.evidence.refused(reason)
        await self._bus.failed(message, error)
        if message.kind.lasts:
            await self._dead_letter(message, error)


async def _until_reachable(channel: BaseChannel, chat_id: str) -> None:
    try:
        await contained(channel.reachable(chat_id))
    except Exception:  # the wall of a connection: sending will show whether it can be reached
        log.exception("%s: asking whether a chat can be reached broke", channel.name)


def _may_have_it(error: Exception) -> bool:
    return isinstance(error, SendError) and error.may_have_it


def _next(waiting: deque[OutboundMessage]) -> OutboundMessage:
    """The next message; pieces of one growing answer that wait behind each other are one."""
    message = waiting.popleft()
    if message.kind is not OutboundKind.STREAM_DELTA:
        return message
    pieces = [message.content]
    while waiting and _goes_on(waiting[0], message):
        pieces.append(waiting.popleft().content)
    return replace(message, content="".join(pieces)) if len(pieces) > 1 else message


def _goes_on(message: OutboundMessage, before: OutboundMessage) -> bool:
    return message.kind is OutboundKind.STREAM_DELTA and message.turn_id == before.turn_id


async def _pause(outbox: _Outbox, shown: OutboundMessage, seconds: float) -> None:
    """Wait a while, so that a growing answer is not shown anew at each word; but not with what ends it."""
    try:
        async with asyncio.timeout(seconds):
            while not outbox.waiting or _goes_on(outbox.waiting[-1], shown):
                outbox.arrived.clear()
                await outbox.arrived.wait()
    except TimeoutError:
        pass
