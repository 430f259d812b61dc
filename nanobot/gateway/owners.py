"""Finds private chats with an owner, and sends notices there: who asks to talk to the bot, for example."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing

from nanobot.bus.events import Address, Button, OutboundKind, OutboundMessage
from nanobot.channels.manager import ChannelManager
from nanobot.channels.registry import find
from nanobot.errors import StorageError
from nanobot.pairing.store import VALID_S, Pending
from nanobot.runtime.audience import is_private
from nanobot.runtime.build import Runtime
from nanobot.utils.clock import Clock

log = logging.getLogger(__name__)

MAX_NOTICES = 4
"""Most pairing requests an owner is told about in an hour."""
_HOUR_S = 3600.0


class PairingNotices:
    """Tells an owner who asks to talk to the bot, with buttons to decide. `run` is a supervised task."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queue: asyncio.Queue[Pending] = asyncio.Queue()
        self._sent_at: deque[float] = deque(maxlen=MAX_NOTICES)

    def put(self, entry: Pending) -> None:
        """Queue a notice about a new code. Never blocks or raises."""
        self._queue.put_nowait(entry)

    async def run(self, runtime: Runtime, manager: ChannelManager) -> None:
        """Send the notices until cancelled, at most MAX_NOTICES an hour; `/pairing list` has the others."""
        while True:
            entry, now = await self._queue.get(), self._clock.monotonic()
            if len(self._sent_at) == MAX_NOTICES and now - self._sent_at[0] < _HOUR_S:
                continue
            channels = dict.fromkeys([entry.channel, *manager.names])
            code = entry.code
            buttons = (Button("Let in", f"/pairing approve {code}"), Button("No", f"/pairing deny {code}"))
            try:
                if await tell_owner(runtime, manager, [*channels], _request(entry), buttons):
                    self._sent_at.append(now)
            except StorageError as error:
                log.warning("the request of %s to pair cannot be shown to an owner: %s", entry, error)


def _request(entry: Pending) -> str:
    spec = find(entry.channel)
    return (
        f"{entry.name or entry.sender_id} on {spec.title if spec else entry.channel} wants to talk to me.\n"
        f"Press a button, or write /pairing approve {entry.code} (or deny) within {VALID_S // 60} minutes. "
        "/pairing list shows everybody who waits."
    )


async def tell_owner(
    runtime: Runtime, manager: ChannelManager, channels: Sequence[str], text: str, buttons: tuple[Button, ...] = ()
) -> bool:
    """Queue a notice to the best chat with an owner of these channels. False if there is none. Raises StorageError."""
    async with aclosing(owners_chats(runtime, manager, channels)) as chats:
        chat = await anext(chats, None)
    if chat is not None:
        notice = OutboundMessage(chat.channel, chat.chat_id, text, kind=OutboundKind.NOTICE, buttons=buttons)
        await runtime.bus.publish_outbound(notice)
    return chat is not None


async def owners_chats(
    runtime: Runtime, manager: ChannelManager, channels: Sequence[str]
) -> AsyncGenerator[Address, None]:
    """Yield the private chats with owners of these channels, the best first, each once.

    First the private chat of each owner, opened if the platform allows that; then the newest chats that only an owner
    reads. Raises StorageError.
    """
    with_owners = [name for name in channels if runtime.pairing.people(name).owners]
    owners = runtime.pairing.load().owners
    seen: set[Address] = set()
    for name in with_owners:
        for owner in owners.get(name, ()):
            chat_id = await manager.chat_with(name, owner)
            if chat_id is not None and (chat := Address(name, chat_id)) not in seen:
                seen.add(chat)
                yield chat
    for chat in await asyncio.to_thread(lambda: [*_known_chats(runtime, with_owners)]):
        if chat not in seen:
            yield chat


def _known_chats(runtime: Runtime, channels: Sequence[str]) -> Iterator[Address]:
    for row in runtime.sessions.list_sessions():
        channel, _, chat_id = str(row["key"]).partition(":")
        chat = Address(channel, chat_id)
        known = not row["archived"] and channel in channels and ":" not in chat_id
        if known and is_private(runtime.sessions, runtime.pairing, chat):
            yield chat
