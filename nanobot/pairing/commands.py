"""The chat command `/pairing list | approve | deny | revoke`.

Owners can be made in the terminal only, so that a stolen phone cannot make one.
"""

import asyncio
from dataclasses import dataclass

from nanobot.bus.events import OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.errors import NanobotError
from nanobot.pairing.senders import Sender
from nanobot.pairing.store import VALID_S, PairingStore, Pending
from nanobot.utils.aio import finish
from nanobot.utils.text import duration

WELCOME = "You are in. Write to me whenever you like; /help lists the commands."
"""What a person hears once an owner has let them in."""


@dataclass(frozen=True, slots=True)
class PairingCommands:
    """Runs `/pairing` and returns its answers."""

    store: PairingStore
    bus: MessageBus

    async def answer(self, argument: str) -> str:
        """Run an owner's command and return the answer. Never raises: errors are returned as text."""
        try:
            return await finish(self._run(argument.split() or ["list"]))
        except NanobotError as error:
            return str(error)

    async def _run(self, words: list[str]) -> str:
        match [words[0].lower(), *words[1:]]:
            case ["list"]:
                return await asyncio.to_thread(self._list)
            case ["approve", *code] if code:
                return f"{await self.approve(' '.join(code))} may talk to me now."
            case ["deny", *code] if code:
                return f"{await asyncio.to_thread(self.store.deny, ' '.join(code))} is denied."
            case ["revoke", channel, *sender] if sender:
                channel, sender_id = channel.lower(), " ".join(sender)
                role = await asyncio.to_thread(self.store.revoke, channel, sender_id)
                return f"{sender_id} on {channel} is no longer paired (was: {role})."
        return "Use /pairing list, /pairing approve CODE, /pairing deny CODE or /pairing revoke CHANNEL ID."

    async def approve(self, code: str, *, owner: bool = False) -> Pending:
        """Approve the person with this code and tell them. Raises NanobotError."""
        entry = await asyncio.to_thread(lambda: self.store.approve(code, owner=owner))
        if entry.chat_id:
            welcome = OutboundMessage(entry.channel, entry.chat_id, WELCOME, kind=OutboundKind.NOTICE)
            await self.bus.publish_outbound(welcome)
        return entry

    async def refuse(self, channel: str, sender_id: str, command: str) -> str:
        """Return the answer to a sender who is not an owner but used this command. Never raises.

        On a channel without an owner it offers a code to become one in the terminal.
        """
        refusal = f"Only an owner may use /{command}"
        if self.store.people(channel).owners:
            return f"{refusal}."
        try:
            invitation = await finish(asyncio.to_thread(self._invite, channel, Sender.of(sender_id)))
        except NanobotError as error:
            return str(error)
        return f"{refusal}, and {channel} has no owner yet. {invitation}"

    def _list(self) -> str:
        """A line for each paired sender and each pending code."""
        state, lines = self.store.load(), []
        for sender in state.paired():
            name, role = f" {sender.name}" if sender.name else "", " (owner)" if sender.is_owner else ""
            lines.append(f"{sender.channel}: {sender.sender_id}{name}{role}")
        for entry in state.pending.values():
            name, age = f" {entry.name}" if entry.name else "", duration(self.store.now() - entry.created_at)
            lines.append(f"{entry.channel}: {entry.sender_id}{name} waits with {entry.code}, since {age}")
        return "\n".join(lines) or "Nobody has paired, and no code is pending."

    def _invite(self, channel: str, sender: Sender) -> str:
        if any(entry.is_from(sender) for entry in self.store.pending(channel)):
            return "The code you were given is still valid."
        entry = self.store.ask(channel, sender)
        if entry is None:
            return f"Too many codes are pending; try again in {VALID_S // 60} minutes."
        return (
            f"If you are the owner, run this in the terminal within {VALID_S // 60} minutes:\n"
            f"nanobot pairing approve {entry.code} --owner"
        )
