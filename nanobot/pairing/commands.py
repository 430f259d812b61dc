"""The chat command `/pairing list | approve | deny | revoke`.

Owners can be made in the terminal only, so that a stolen phone cannot make one.
"""

import asyncio
from collections.abc import Awaitable, Callable

from nanobot.bus.events import OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.errors import NanobotError
from nanobot.pairing.senders import Sender
from nanobot.pairing.store import VALID_S, PairingState, PairingStore, Pending
from nanobot.utils.aio import finish
from nanobot.utils.text import duration

_USAGE = "Use /pairing list, /pairing approve CODE, /pairing deny CODE or /pairing revoke CHANNEL ID."
WELCOME = "You are in. Write to me whenever you like; /help lists the commands."
"""What a person hears once an owner has let them in."""


class PairingCommands:
    """Runs `/pairing` and returns its answers."""

    def __init__(self, store: PairingStore, bus: MessageBus) -> None:
        self._store = store
        self._bus = bus
        self._table: dict[str, tuple[int, Callable[..., Awaitable[str]]]] = {
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
        try:
            return await finish(action(*arguments))
        except NanobotError as error:
            return str(error)

    async def refuse(self, channel: str, sender_id: str, command: str) -> str:
        """Return the answer to a sender who is not an owner but used this command. Never raises.

        On a channel without an owner it offers a code to become one in the terminal.
        """
        refusal = f"Only an owner may use /{command}"
        if self._store.people(channel).owners:
            return f"{refusal}."
        try:
            invitation = await finish(asyncio.to_thread(self._invite, channel, sender_id))
        except NanobotError as error:
            return str(error)
        return f"{refusal}, and {channel} has no owner yet. {invitation}"

    async def _list(self) -> str:
        state = await asyncio.to_thread(self._store.load)
        return "\n".join(_format_state(state, self._store.now())) or "Nobody has paired, and no code is pending."

    async def approve(self, code: str, *, owner: bool = False) -> Pending:
        """Approve the person with this code and tell them. Raises NanobotError."""
        entry = await asyncio.to_thread(lambda: self._store.approve(code, owner=owner))
        if entry.chat_id:
            welcome = OutboundMessage(entry.channel, entry.chat_id, WELCOME, kind=OutboundKind.NOTICE)
            await self._bus.publish_outbound(welcome)
        return entry

    async def _approve(self, code: str) -> str:
        return f"{await self.approve(code)} may talk to me now."

    async def _deny(self, code: str) -> str:
        entry = await asyncio.to_thread(self._store.deny, code)
        return f"{entry} is denied; the code is no longer valid."

    async def _revoke(self, channel: str, sender_id: str) -> str:
        role = await asyncio.to_thread(self._store.revoke, channel.lower(), sender_id)
        return f"{sender_id} on {channel.lower()} is no longer paired (was: {role})."

    def _invite(self, channel: str, sender_id: str) -> str:
        sender = Sender.of(sender_id)
        if any(entry.is_from(sender) for entry in self._store.pending(channel)):
            return "The code you were given is still valid."
        entry = self._store.ask(channel, sender)
        if entry is None:
            return f"Too many codes are pending; try again in {VALID_S // 60} minutes."
        return (
            f"If you are the owner, run this in the terminal within {VALID_S // 60} minutes:\n"
            f"nanobot pairing approve {entry.code} --owner"
        )


def _format_state(state: PairingState, now: float) -> list[str]:
    """A line for each paired sender and each pending code."""
    lines = []
    for sender in state.paired():
        name, role = f" {sender.name}" if sender.name else "", " (owner)" if sender.is_owner else ""
        lines.append(f"{sender.channel}: {sender.sender_id}{name}{role}")
    for entry in state.pending.values():
        name, age = f" {entry.name}" if entry.name else "", duration(now - entry.created_at)
        lines.append(f"{entry.channel}: {entry.sender_id}{name} waits with {entry.code}, since {age}")
    return lines
