"""What an owner says about pairing in a chat, and what they are told: `/pairing list | approve | deny | revoke`.

Owners are made in the terminal alone: whoever holds the machine is asked, not whoever holds a phone.
"""

import asyncio
from collections.abc import Callable

from nanobot.errors import NanobotError
from nanobot.pairing.book import Book, Pending
from nanobot.pairing.codes import VALID_S
from nanobot.pairing.senders import Sender
from nanobot.pairing.store import PairingStore
from nanobot.utils.aio import finish

_USAGE = "Say /pairing list, /pairing approve CODE, /pairing deny CODE or /pairing revoke CHANNEL ID."


class PairingWords:
    """The words and the answer to each."""

    def __init__(self, store: PairingStore) -> None:
        self._store = store
        self._table: dict[str, tuple[int, Callable[..., str]]] = {
            "list": (0, self._list),
            "approve": (1, self._approve),
            "deny": (1, self._deny),
            "revoke": (2, self._revoke),
        }

    async def answer(self, argument: str) -> str:
        """Do what an owner asks; what they are told. Never raises: what cannot be done is an answer too."""
        word, _, rest = (argument.strip() or "list").partition(" ")
        count, action = self._table.get(word.lower(), (-1, self._list))
        given = rest.split(maxsplit=1) if count == 2 else [rest.strip()] if rest.strip() else []
        if len(given) != count:
            return _USAGE
        return await self._settled(action, *given)

    async def refuse(self, channel: str, sender_id: str) -> str:
        """What somebody is told who is no owner. Where nobody is, a code to become it in the terminal. Never raises."""
        if self._store.people(channel).owners:
            return "Only an owner may do that here. In the terminal, `nanobot pairing` does it too."
        return await self._settled(self._invite, channel, sender_id)

    @staticmethod
    async def _settled(action: Callable[..., str], *words: str) -> str:
        try:
            return await finish(asyncio.to_thread(action, *words))
        except NanobotError as error:
            return str(error)

    def _list(self) -> str:
        return "\n".join(_lines(self._store.book())) or "Nobody has paired, and nobody waits with a code."

    def _approve(self, code: str) -> str:
        return f"{_named(self._store.approve(code))} may speak now."

    def _deny(self, code: str) -> str:
        return f"{_named(self._store.deny(code))} is not let in, and the code is good for nothing now."

    def _revoke(self, channel: str, sender_id: str) -> str:
        role = self._store.revoke(channel.lower(), sender_id)
        return f"{sender_id} on {channel.lower()} is no longer known here (was: {role})."

    def _invite(self, channel: str, sender_id: str) -> str:
        sender = Sender.of(sender_id)
        first = f"Only an owner may do that, and nobody is owner on {channel} yet."
        if any(one.is_of(sender) for one in self._store.waiting(channel)):
            return f"{first} The code you were given is still good."
        asked = self._store.ask(channel, sender)
        if asked is None:
            return f"{first} Too many codes are out; ask again in {VALID_S // 60} minutes."
        return (
            f"{first} If that is you, run this in the terminal within {VALID_S // 60} minutes:\n"
            f"nanobot pairing approve {asked.code} --owner"
        )


def _named(one: Pending) -> str:
    return f"{one.sender_id} on {one.channel}"


def _lines(book: Book) -> list[str]:
    lines = [
        f"{channel}: {sender_id}{' (owner)' if sender_id in book.owners.get(channel, ()) else ''}"
        for channel in sorted(book.people())
        for sender_id in book.everyone(channel)
    ]
    return [*lines, *(f"{one.channel}: {one.sender_id} waits with {one.code}" for one in book.pending)]
