"""Where an owner can be told something: in a chat where nobody but them reads."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing

from nanobot.bus.events import Address, OutboundKind, OutboundMessage
from nanobot.channels.manager import ChannelManager
from nanobot.runtime import Runtime


def is_private(runtime: Runtime, channel: str, chat_id: str) -> bool:
    """Whether nobody but one person, who is an owner where there are owners, has written there. Blocks on the disk."""
    session = runtime.sessions.read(f"{channel}:{chat_id}")
    rows = session.messages if session is not None else ()
    senders = [str(row["sender_id"]) for row in rows if row.get("sender_id")]
    return runtime.pairing.people(channel).is_one_of_them(senders)


async def tell_owner(runtime: Runtime, manager: ChannelManager, channels: Sequence[str], text: str) -> None:
    """A word in the best chat with an owner of these channels; it goes out when its platform can be reached.

    Where there is no such chat, the log has it alone. Raises StorageError.
    """
    async with aclosing(owners_chats(runtime, manager, channels)) as chats:
        there = await anext(chats, None)
    if there is not None:
        word = OutboundMessage(there.channel, there.chat_id, text, kind=OutboundKind.NOTICE)
        await runtime.bus.publish_outbound(word)


async def owners_chats(
    runtime: Runtime, manager: ChannelManager, channels: Sequence[str]
) -> AsyncGenerator[Address, None]:
    """Where owners of these channels may be told what is for nobody else, the best place first, each once.

    First the private chat with each, which is opened where the platform lets a bot do that; then, should it be refused
    there, the newest chats in which nobody but an owner has written. Raises StorageError.
    """
    with_owners = [name for name in channels if runtime.pairing.people(name).owners]
    owners = runtime.pairing.book().owners
    told: set[Address] = set()
    for name in with_owners:
        for owner in owners.get(name, ()):
            chat_id = await manager.chat_with(name, owner)
            if chat_id is not None and (there := Address(name, chat_id)) not in told:
                told.add(there)
                yield there
    for there in await asyncio.to_thread(lambda: [*_known_chats(runtime, with_owners)]):
        if there not in told:
            yield there


def _known_chats(runtime: Runtime, channels: Sequence[str]) -> Iterator[Address]:
    for row in runtime.sessions.list_sessions():
        channel, _, chat_id = str(row["key"]).partition(":")
        known = not row["archived"] and channel in channels and ":" not in chat_id
        if known and is_private(runtime, channel, chat_id):
            yield Address(channel, chat_id)
