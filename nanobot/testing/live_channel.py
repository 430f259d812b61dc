"""Runs a channel as the gateway does, with a real manager, bus and journal, and an agent that echoes.

Entering `live` again with the same folder simulates a restart. `until` waits for conditions.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from nanobot.bus.events import (
    Address,
    DeliveryFailedError,
    InboundMessage,
    MenuEntry,
    OutboundKind,
    OutboundMessage,
    Receipt,
)
from nanobot.bus.journal import InboundState, Journal, JournalCounts, open_journal
from nanobot.bus.queue import MessageBus
from nanobot.channels.access import AccessControl, AccessPolicy
from nanobot.channels.base import BaseChannel, ChannelServices
from nanobot.channels.manager import ChannelManager
from nanobot.channels.media import MediaStore, Transcriber
from nanobot.config.paths import DataPaths
from nanobot.errors import StorageError
from nanobot.pairing.store import PairingStore
from nanobot.testing.platform import Platform, Shown
from nanobot.utils.clock import Clock, SystemClock

T = TypeVar("T")

TIMEOUT_S = 10.0
"""Default timeout of waits."""


async def until(condition: Callable[[], T | None], *, within_s: float = TIMEOUT_S) -> T:
    """Wait until `condition` returns something true, and return that. Raises AssertionError after the timeout."""
    try:
        async with asyncio.timeout(within_s):
            while not (result := condition()):
                await asyncio.sleep(0.004)
    except TimeoutError:
        raise AssertionError(f"not within {within_s:g} s; it is {result!r}") from None
    return result


class Bus(MessageBus):
    """A bus that can simulate a full disk, and a crash between two parts of a message."""

    full = False
    refused = 0
    handed = 0
    """How often a send was journaled."""
    dies: Literal["", "before", "behind", "sent"] = ""
    """Stop before or after journaling the first part's id, or before journaling that all parts are sent."""

    def __init__(self, journal: Journal | None = None) -> None:
        super().__init__(journal)
        self.died = asyncio.Event()

    async def record_sending(self, message: OutboundMessage) -> None:
        self.handed += 1
        if self.dies != "before" or not message.sent_ids:
            await super().record_sending(message)
        if self.dies in ("before", "behind") and message.sent_ids:
            await self._die()

    async def record_sent(self, message: OutboundMessage, platform_ids: tuple[str, ...]) -> None:
        if self.dies == "sent":
            await self._die()
        await super().record_sent(message, platform_ids)

    async def _die(self) -> None:
        self.died.set()
        await asyncio.Event().wait()

    async def publish_inbound(self, message: InboundMessage, *, is_ready: bool = True) -> bool:
        if self.full:
            self.refused += 1
            raise StorageError("The disk is full. Make room.")
        return await super().publish_inbound(message, is_ready=is_ready)

    async def save_inbound(self, message: InboundMessage) -> None:
        if self.full:
            self.refused += 1
            raise StorageError("The disk is full. Make room.")
        await super().save_inbound(message)


@dataclass
class LiveChannel:
    """A running channel. `heard`: messages that reached the agent; `dead`: undeliverable messages."""

    platform: Platform
    channel: BaseChannel
    bus: Bus
    manager: ChannelManager
    people: PairingStore
    media: Path
    heard: list[InboundMessage] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    silent: bool = False
    """Whether the agent does not answer."""

    async def hears(self, text: str) -> InboundMessage:
        """Wait until the agent has received a message with this text, and return it."""
        return await until(lambda: next((message for message in self.heard if text in message.content), None))

    async def shows(self, text: str, chat: str | None = None) -> Shown:
        """Wait until the platform shows a message of the bot with this text, and return it."""
        return await until(lambda: next((shown for shown in self.platform.shown(chat) if text in shown.text), None))

    def adjust(self, **attributes: float) -> None:
        """Override class attributes of the channel, such as `stall_s`."""
        vars(self.channel).update(attributes)

    async def is_up(self) -> None:
        """Wait until the channel is connected."""
        await asyncio.wait_for(self.channel.status.connected.wait(), TIMEOUT_S)

    async def receives(self, text: str, **options: Any) -> InboundMessage:
        """Send a message as a person, and return it as the agent received it."""
        await self.platform.says(text, **options)
        return await self.hears(text)

    async def asked(self, text: str, **options: Any) -> tuple[str, InboundMessage, Shown]:
        """Send a message as a person and wait for the answer. Return platform id, inbound message and answer."""
        message_id = await self.platform.says(text, **options)
        message = await self.hears(text)
        return message_id, message, await self.shows(f"You said: {text}", options.get("chat"))

    def post(self, to: InboundMessage | Address, text: str, **options: Any) -> Receipt:
        """Queue a message of the agent."""
        address = to.address if isinstance(to, InboundMessage) else to
        return self.bus.post_outbound(
            OutboundMessage(address.channel, address.chat_id, text, thread_id=address.thread_id, **options)
        )

    async def posted(self, to: InboundMessage | Address, text: str, **options: Any) -> tuple[str, ...]:
        """Send a message of the agent and return its platform ids."""
        return await asyncio.wait_for(self.post(to, text, **options).wait(), TIMEOUT_S)

    async def counts(self) -> JournalCounts:
        """The counts of the journal."""
        assert self.bus.journal is not None
        return await self.bus.journal.counts()

    def answers(self, message: InboundMessage, text: str) -> None:
        """Settle a message with this reply, as the agent does at the end of a turn."""
        turn_id = f"turn of {message.journal_key}"
        self.bus.begin(message, turn_id)
        self.post(message, text, turn_id=turn_id, answers=message.journal_key)
        self.bus.settle(message, InboundState.ANSWERED)

    async def listen(self) -> None:
        """Run the agent: unsettled messages of a crash first, then new ones."""
        for message in self.bus.unsettled():
            self._take(message)
        while (taken := await self.bus.consume_inbound()) is not None:
            self._take(taken)

    def _take(self, message: InboundMessage) -> None:
        self.heard.append(message)
        if not self.silent:
            self.answers(message, f"You said: {message.content}")


@asynccontextmanager
async def live(
    platform: Platform,
    folder: Path,
    *,
    silent: bool = False,
    clock: Clock | None = None,
    commands: tuple[MenuEntry, ...] = (),
    transcribe: Transcriber | None = None,
    bypasses_lane: Callable[[InboundMessage], bool] = lambda message: False,
    **settings: Any,
) -> AsyncIterator[LiveChannel]:
    """Run the platform's channel until the end of the block. Journal and pairing are in the folder.

    With `clock` the retry delays are the real ones, else they are short.
    """
    dead: list[str] = []

    async def dead_letter(message: OutboundMessage, error: DeliveryFailedError) -> None:
        dead.append(f"{message.content}: {error}")

    async with open_journal(folder / "journal.db") as journal, Bus(journal).open() as bus:
        assert isinstance(bus, Bus)
        channel = platform.channel(bus, **settings)
        people = PairingStore(DataPaths(folder / "data"))
        media = folder / "media"
        access = AccessControl(AccessPolicy.of(channel.name, channel.config), people)
        store = MediaStore(media)
        clock_of = clock or SystemClock()
        channel.attach(
            ChannelServices(
                access, store, clock_of, transcribe, state=folder, commands=commands, bypasses_lane=bypasses_lane
            )
        )
        first_wait_s = 1.0 if clock is not None else 0.02
        manager = ChannelManager(
            [channel], bus, retry_delays_s=(0, 0, 0), first_wait_s=first_wait_s, dead_letter=dead_letter
        )
        life = LiveChannel(platform, channel, bus, manager, people, media, dead=dead, silent=silent)
        tasks = [asyncio.create_task(manager.run()), asyncio.create_task(life.listen())]
        try:
            yield life
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task


def turn_of(message: InboundMessage) -> dict[str, Any]:
    """The fields of outbound messages of the message's turn."""
    return {"turn_id": f"turn of {message.journal_key}", "answers": message.journal_key}


def delta(life: LiveChannel, message: InboundMessage, text: str) -> None:
    """Queue a delta of a streamed answer."""
    life.post(message, text, kind=OutboundKind.STREAM_DELTA, **turn_of(message))
