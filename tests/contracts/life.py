"""A channel as it lives in the gateway: its manager, the bus with a journal on the disk, and an agent of a few lines.

Everything but the platform and the agent is the real thing. `live` may be entered again with the same folder: that is a
restart. Nothing here sleeps; what takes its time is waited for with `until`.
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
from nanobot.channels.access import Access, AccessPolicy
from nanobot.channels.base import BaseChannel, Services
from nanobot.channels.manager import ChannelManager
from nanobot.channels.media import MediaStore
from nanobot.config.paths import Places
from nanobot.errors import StorageError
from nanobot.pairing.store import PairingStore
from nanobot.utils.clock import Clock, SystemClock
from tests.contracts.platforms import Platform, Shown

T = TypeVar("T")

LONGEST_S = 10.0
"""Nothing on loopback takes as long as this."""


async def until(found: Callable[[], T | None], *, within_s: float = LONGEST_S) -> T:
    """What `found` returns, as soon as it is true. Raises AssertionError when it never is."""
    try:
        async with asyncio.timeout(within_s):
            while not (result := found()):
                await asyncio.sleep(0.004)
    except TimeoutError:
        raise AssertionError(f"not within {within_s:g} s; it is {result!r}") from None
    return result


class Bus(MessageBus):
    """The bus, on a disk that may be full, and in a process that may die between two pieces of a message."""

    full = False
    refused = 0
    handed = 0
    """How often the journal was told that a platform is about to be handed a message."""
    dies: Literal["", "before", "behind", "sent"] = ""
    """Whether nothing goes on any more before, or behind, the writing down of the first piece's id; or that of all."""

    def __init__(self, journal: Journal | None = None) -> None:
        super().__init__(journal)
        self.died = asyncio.Event()

    async def sending(self, message: OutboundMessage) -> None:
        self.handed += 1
        if self.dies != "before" or not message.sent_ids:
            await super().sending(message)
        if self.dies in ("before", "behind") and message.sent_ids:
            await self._die()

    async def sent(self, message: OutboundMessage, platform_ids: tuple[str, ...]) -> None:
        if self.dies == "sent":
            await self._die()
        await super().sent(message, platform_ids)

    async def _die(self) -> None:
        self.died.set()
        await asyncio.Event().wait()

    async def publish_inbound(self, message: InboundMessage) -> bool:
        if self.full:
            self.refused += 1
            raise StorageError("The disk is full. Make room.")
        return await super().publish_inbound(message)


@dataclass
class Life:
    """One life of a channel. `heard` is what reached the agent, `dead` what the platform would not have."""

    platform: Platform
    channel: BaseChannel
    bus: Bus
    manager: ChannelManager
    people: PairingStore
    media: Path
    heard: list[InboundMessage] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    silent: bool = False
    """Whether the agent answers nothing by itself."""

    async def hears(self, words: str) -> InboundMessage:
        """The message with these words, once it reached the agent."""
        return await until(lambda: next((one for one in self.heard if words in one.content), None))

    async def shows(self, words: str, chat: str | None = None) -> Shown:
        """The message of the bot with these words, once a person sees it."""
        return await until(lambda: next((one for one in self.platform.shown(chat) if words in one.text), None))

    async def is_up(self) -> None:
        """Wait until it is connected."""
        await asyncio.wait_for(self.channel.evidence.connected.wait(), LONGEST_S)

    async def asked(self, words: str, **where: Any) -> tuple[str, InboundMessage, Shown]:
        """A person says it and sees the answer: the platform's id, the message, the answer."""
        message_id = await self.platform.says(words, **where)
        message = await self.hears(words)
        return message_id, message, await self.shows(f"You said: {words}", where.get("chat"))

    def post(self, to: InboundMessage | Address, text: str, **how: Any) -> Receipt:
        """The agent says something there."""
        address = to.address if isinstance(to, InboundMessage) else to
        return self.bus.post_outbound(
            OutboundMessage(address.channel, address.chat_id, text, thread_id=address.thread_id, **how)
        )

    async def posted(self, to: InboundMessage | Address, text: str, **how: Any) -> tuple[str, ...]:
        """The same, until the platform has it; its ids there."""
        return await asyncio.wait_for(self.post(to, text, **how).wait(), LONGEST_S)

    async def counts(self) -> JournalCounts:
        """What the journal says of everything."""
        assert self.bus.journal is not None
        return await self.bus.journal.counts()

    def answers(self, message: InboundMessage, text: str, turn_id: str = "") -> None:
        """A turn that ends with this reply, as the agent's delivery puts it out."""
        turn_id = turn_id or f"turn of {message.journal_key}"
        self.bus.begin(message, turn_id)
        self.post(message, text, turn_id=turn_id, answers=message.journal_key)
        self.bus.settle(message, InboundState.ANSWERED)

    async def listen(self) -> None:
        """The agent: what a crash left open first, then what comes."""
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
    **settings: Any,
) -> AsyncIterator[Life]:
    """Run the channel of this platform until the end of the block. The same folder is the same journal and pairing.

    With a clock of the test it waits as long as it does for people.
    """
    dead: list[str] = []

    async def dead_letter(message: OutboundMessage, error: DeliveryFailedError) -> None:
        dead.append(f"{message.content}: {error}")

    async with open_journal(folder / "journal.db") as journal, Bus(journal).open() as bus:
        assert isinstance(bus, Bus)
        channel = platform.channel(bus, **settings)
        people = PairingStore(Places(folder / "data"))
        media = folder / "media"
        access = Access(AccessPolicy.of(channel.name, channel.config), people)
        store = MediaStore(media)
        channel.attach(Services(access, store, clock=clock or SystemClock(), state=folder, commands=commands))
        first_wait_s = 1.0 if clock is not None else 0.02
        manager = ChannelManager([channel], bus, waits_s=(0, 0, 0), first_wait_s=first_wait_s, dead_letter=dead_letter)
        life = Life(platform, channel, bus, manager, people, media, dead=dead, silent=silent)
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
    """What marks whatever a turn puts out."""
    return {"turn_id": f"turn of {message.journal_key}", "answers": message.journal_key}


def delta(life: Life, message: InboundMessage, text: str) -> None:
    """More of an answer that grows."""
    life.post(message, text, kind=OutboundKind.STREAM_DELTA, **turn_of(message))
