"""Who may write, who is an owner, and who else reads a chat: from pairing, sessions and platforms together."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from nanobot.agent.scope import OWNERS, Scope
from nanobot.bus.events import Address, InboundMessage
from nanobot.config.schema import Config
from nanobot.errors import StorageError
from nanobot.messages.types import ChatMessage, Origin, Provenance
from nanobot.pairing.senders import Sender
from nanobot.pairing.store import PairingStore, Role
from nanobot.session.manager import SessionManager
from nanobot.session.types import Audience

_API = "api"


@dataclass(frozen=True, slots=True)
class ChatPrivacy:
    """Who may write in the chats of a bot, who is an owner, and whose memory may be read there."""

    config: Config
    pairing: PairingStore
    sessions: SessionManager

    def is_allowed(self, channel: str, sender_id: str, chat_id: str) -> bool:
        """Whether this sender may write in this chat. Raises ConfigError, StorageError if that cannot be decided."""
        from nanobot.channels.access import AccessPolicy, is_still_allowed  # not imported at a terminal's start

        if channel not in self.config.channels.enabled_by_name():  # the terminal, which belongs to the owner
            return True
        policy = AccessPolicy.of(channel, self.config.channels.section(channel))
        if is_still_allowed(policy, self.pairing.people(channel), sender_id, chat_id):
            return True
        if self.pairing.problem:
            raise StorageError(self.pairing.problem)
        return False

    def is_private(self, chat: Address) -> bool:
        """Whether only owners read this chat: the terminal, the page, and chats where nobody else has written."""
        if chat.channel in ("cli", "web"):
            return True
        if is_group(chat):
            return False
        people = self.pairing.people(chat.channel)
        if people.role_of(Sender.of(chat.chat_id)) is Role.OWNER:
            return True
        audiences = self._audiences(chat)
        if any(audience.in_group for audience in audiences):
            return False
        return people.is_same_person(sender for audience in audiences for sender in audience.senders)

    def is_owners_own(self, chat: Address) -> bool:
        """Like `is_private`, and it is known whose chat it is: an owner is paired, or only one person is allowed."""
        if not self.pairing.people(chat.channel).owners and has_other_writers(
            self.config, self.pairing, f"{chat.channel}:{chat.chat_id}"
        ):
            return False
        return self.is_private(chat)

    def owners_last_chat(self, channels: Collection[str]) -> Address | None:
        """The chat of these channels where the owner wrote last in private. Blocks; raises StorageError."""

        def is_owners(key: str) -> bool:
            channel, _, chat_id = key.partition(":")
            return channel in channels and ":" not in chat_id and self.is_owners_own(Address(channel, chat_id))

        channel, _, chat_id = (self.sessions.latest(is_owners) or "").partition(":")
        return Address(channel, chat_id) if channel else None

    def owners_chat(self) -> Address | None:
        """The chat app where the owner wrote last in private, else the private chat of the owner paired last."""
        from nanobot.channels.registry import find  # imported on first use

        names = [name for name, is_on in self.config.channels.enabled_by_name().items() if is_on]
        if chat := self.owners_last_chat(names):
            return chat
        for channel, owners in reversed([*self.pairing.load().owners.items()]):
            spec = find(channel)
            if channel in names and owners and (spec is None or spec.chat_is_sender):
                return Address(channel, Sender.of(owners[-1]).id)
        return None

    async def scope_of(self, message: InboundMessage) -> Scope:
        """Return whose memory the turn of a message may read: the owner's if nobody else reads the answer, else that of
        the chat it goes to. In doubt, the chat's.
        """
        chat = message.address
        if message.scope and message.origin in (Origin.SUBAGENT, Origin.GOAL, Origin.API):
            return Scope(message.scope)  # the readers of that time may no longer be known; that of a guest's key
        if chat.channel == _API and message.provenance is not Provenance.OWNER:  # what a guest's key has set up
            return Scope(f"{_API}:{chat.chat_id.partition(':')[0]}")
        if chat.channel not in self.config.channels.enabled_by_name():  # the terminal or a program of the owner
            return OWNERS
        chat_scope = Scope(f"{chat.channel}:{chat.chat_id}")
        if message.in_group or is_group(chat):
            return chat_scope
        # in threads: what may read a whole session file. A job's message does not say that people write as in a group
        if message.origin is not Origin.USER:
            audiences = await asyncio.to_thread(self._audiences, chat)
            if any(audience.in_group for audience in audiences):
                return chat_scope
        if not has_other_writers(self.config, self.pairing, chat_scope.chat):
            return OWNERS
        if message.provenance is Provenance.OWNER and message.origin is Origin.USER:
            return OWNERS
        return OWNERS if await asyncio.to_thread(self.is_owners_own, chat) else chat_scope

    def _audiences(self, chat: Address) -> list[Audience]:
        chat_key = f"{chat.channel}:{chat.chat_id}"
        keys = [chat_key, f"{chat_key}:{chat.thread_id}"] if chat.thread_id else [chat_key]
        return [self.sessions.audience(key) for key in keys]

    def scope_of_row(self, session_key: str, row: ChatMessage) -> Scope:
        """Return the scope of the memory a stored message belongs to: that of its turn. Old rows have none; then the
        chat's, unless it was certainly the owner's alone.
        """
        if "scope" in row:
            return Scope(row["scope"])
        channel, _, chat_id = session_key.partition(":")
        if channel not in self.config.channels.enabled_by_name():
            return OWNERS
        chat_scope = Scope(session_key)
        if row.get("in_group") or is_group(Address(channel, chat_id)):
            return chat_scope
        by_owner = row.get("provenance") == Provenance.OWNER
        if by_owner or self.pairing.people(channel).role_of(Sender.of(chat_id)) is Role.OWNER:
            return OWNERS
        return chat_scope if has_other_writers(self.config, self.pairing, session_key) else OWNERS

    def has_no_owner(self, chat: Address, senders: Sequence[str], *, in_group: bool) -> str | None:
        """Return why no owner can answer a question in this chat with these senders; None if one can."""
        from nanobot.channels.registry import find  # imported on first use

        spec, people = find(chat.channel), self.pairing.people(chat.channel)
        if spec is not None and not spec.owners_are_known:
            return f"{spec.title} does not verify senders, so nobody can approve there; use the terminal or a chat."
        if not people.owners:
            return (
                f"{chat.channel} has no owner yet. To become the owner, write /pairing here and run the command of the "
                "reply in the terminal."
            )
        if any(people.role_of(Sender.of(sender)) is Role.OWNER for sender in senders):
            return None
        if in_group or (spec is not None and spec.is_group(chat.chat_id)):
            return None
        return "No owner is in this chat: an owner has to ask for it in their own chat, or in the terminal."


def is_group(chat: Address) -> bool:
    """Whether the chat id belongs to a group."""
    from nanobot.channels.registry import find  # imported on first use

    spec = find(chat.channel)
    return spec is not None and spec.is_group(chat.chat_id)


def has_other_writers(config: Config, pairing: PairingStore, session_key: str) -> bool:
    """Whether a message of somebody not known as owner may come from somebody other than the owner: if an owner is
    known, or more than one person is allowed. A single allowed person is the owner.
    """
    from nanobot.channels.access import AccessPolicy  # not imported at a terminal's start
    from nanobot.channels.registry import find

    channels, channel = config.channels.enabled_by_name(), session_key.partition(":")[0]
    for name in channels if channel == "unified" else {channel}:
        spec, people = find(name), pairing.people(name)
        if people.owners:
            return True
        if name not in channels:
            continue
        allow_list = AccessPolicy.of(name, config.channels.section(name)).allow_from
        if allow_list.everybody or len({*allow_list.entries, *people.approved}) > 1:
            return True
        if spec is not None and any(map(spec.is_group, allow_list.entries)):
            return True
    return False
