"""Finds private chats with an owner, and sends notices there."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing

from nanobot.bus.events import Address, OutboundKind, OutboundMessage
from nanobot.channels.manager import ChannelManager
from nanobot.runtime.audience import is_private
from nanobot.runtime.build import Runtime


async def tell_owner(runtime: Runtime, manager: ChannelManager, channels: Sequence[str], text: str) -> None:
    """Queue a notice to the best chat with an owner of these channels, if there is one. Raises StorageError."""
    async with aclosing(owners_chats(runtime, manager, channels)) as chats:
        chat = await anext(chats, None)
    if chat is not None:
        notice = OutboundMessage(chat.channel, chat.chat_id, text, kind=OutboundKind.NOTICE)
        await runtime.bus.publish_outbound(notice)


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
