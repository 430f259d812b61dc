"""The chat command `/pairing list | approve | deny | revoke`.

Owners can be made in the terminal only, so that a stolen phone cannot make one.
"""

import asyncio
from collections.abc import Callable

from nanobot.errors import NanobotError
from nanobot.pairing.codes import VALID_S
from nanobot.pairing.senders import Sender
from nanobot.pairing.state import PairingState, Pending
from nanobot.pairing.store import PairingStore
from nanobot.utils.aio import finish

_USAGE = "Use /pairing list, /pairing approve CODE, /pairing deny CODE or /pairing revoke CHANNEL ID."


class PairingCommands:
    """Runs `/pairing` and returns its answers."""

    def __init__(self, store: PairingStore) -> None:
        self._store = store
        self._table: dict[str, tuple[int, Callable[..., str]]] = {
            "list": (0, self._list),
            "approve": (1, self._approve),
            "deny": (1, self._deny),
            "revoke": (2, self._revoke),
        }

    async def answer(self, argument: str) -> str:
        """Run an owner's command and return the answer. Never raises: errors are returned as text."""
        name, _, rest = (argument.strip() or "list").partition(" ")
        count, action = self._table.get(name.lower(), (-1, self._list))
        arguments = rest.split(maxsplit=1) if count == 2 else [rest.strip()] if rest.strip() else []
        if len(arguments) != count:
            return _USAGE
        return await self._run(action, *arguments)

    async def refuse(self, channel: str, sender_id: str) -> str:
        """Return the answer to a sender who is not an owner. Never raises.

        On a channel without an owner it offers a code to become one in the terminal.
        """
        if self._store.people(channel).owners:
            return "Only an owner may do that here. Or use `nanobot pairing` in the terminal."
        return await self._run(self._invite, channel, sender_id)

    @staticmethod
    async def _run(action: Callable[..., str], *arguments: str) -> str:
        try:
            return await finish(asyncio.to_thread(action, *arguments))
        except NanobotError as error:
            return str(error)

    def _list(self) -> str:
        return "\n".join(_format_state(self._store.load())) or "Nobody has paired, and no code is pending."

    def _approve(self, code: str) -> str:
        return f"{_format_sender(self._store.approve(code))} may speak now."

    def _deny(self, code: str) -> str:
        return f"{_format_sender(self._store.deny(code))} was denied. The code is no longer valid."

    def _revoke(self, channel: str, sender_id: str) -> str:
        role = self._store.revoke(channel.lower(), sender_id)
        return f"{sender_id} on {channel.lower()} is no longer paired (was: {role})."

    def _invite(self, channel: str, sender_id: str) -> str:
        sender = Sender.of(sender_id)
        first = f"Only an owner may do that, and {channel} has no owner yet."
        if any(entry.is_from(sender) for entry in self._store.pending(channel)):
            return f"{first} The code you were given is still valid."
        entry = self._store.ask(channel, sender)
        if entry is None:
            return f"{first} Too many codes are pending; try again in {VALID_S // 60} minutes."
        return (
            f"{first} If you are the owner, run this in the terminal within {VALID_S // 60} minutes:\n"
            f"nanobot pairing approve {entry.code} --owner"
        )


def _format_sender(entry: Pending) -> str:
    return f"{entry.sender_id} on {entry.channel}"


def _format_state(state: PairingState) -> list[str]:
    lines = [
        f"{channel}: {sender_id}{' (owner)' if sender_id in state.owners.get(channel, ()) else ''}"
        for channel in sorted(state.people())
        for sender_id in state.everyone(channel)
    ]
    return [*lines, *(f"{entry.channel}: {entry.sender_id} waits with {entry.code}" for entry in state.pending)]
