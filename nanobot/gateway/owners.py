"""Where an owner can be told something: in a chat where nobody but them has written. Blocks: sessions are read."""

from collections.abc import Iterator, Sequence

from nanobot.bus.events import Address
from nanobot.runtime import Runtime


def is_private(runtime: Runtime, channel: str, chat_id: str) -> bool:
    """Whether nobody but one person, who is an owner where there are owners, has written there."""
    session = runtime.sessions.read(f"{channel}:{chat_id}")
    rows = session.messages if session is not None else ()
    senders = [str(row["sender_id"]) for row in rows if row.get("sender_id")]
    return runtime.pairing.people(channel).is_one_of_them(senders)


def owners_chats(runtime: Runtime, channels: Sequence[str]) -> Iterator[Address]:
    """Where owners of these channels may be told what is for nobody else, the best place first.

    On most platforms a private chat goes by the id of the person in it. Where it does not, a platform refuses that id;
    then it is the newest chat in which nobody but an owner has written.
    """
    with_owners = [name for name in channels if runtime.pairing.people(name).owners]
    book = runtime.pairing.book()
    yield from (Address(name, owner) for name in with_owners for owner in book.owners.get(name, ()))
    for row in runtime.sessions.list_sessions():
        channel, _, chat_id = str(row["key"]).partition(":")
        known = not row["archived"] and channel in with_owners and ":" not in chat_id
        if known and is_private(runtime, channel, chat_id):
            yield Address(channel, chat_id)
