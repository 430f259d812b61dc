"""Who may speak, who is owner and who else reads, chat by chat: what pairing, sessions and platforms know together."""

from collections.abc import Sequence

from nanobot.agent.scope import OWNERS, Scope
from nanobot.bus.events import Address, InboundMessage
from nanobot.config.schema import Config
from nanobot.errors import StorageError
from nanobot.messages.types import ChatMessage, Origin, Provenance
from nanobot.pairing.book import Role
from nanobot.pairing.senders import Sender
from nanobot.pairing.store import PairingStore
from nanobot.session.manager import SessionManager


def may_speak(config: Config, pairing: PairingStore, channel: str, sender_id: str, chat_id: str) -> bool:
    """Whether this sender is let in on that channel. Raises ConfigError, StorageError where nobody can say."""
    from nanobot.channels.access import AccessPolicy, may_still_speak  # nothing of channels at a terminal's start

    if channel not in config.channels.switched_on():  # the terminal: it is the owner's
        return True
    policy = AccessPolicy.of(channel, config.channels.section(channel))
    if may_still_speak(policy, pairing.people(channel), sender_id, chat_id):
        return True
    if pairing.problem:
        raise StorageError(pairing.problem)
    return False


def is_private(sessions: SessionManager, pairing: PairingStore, chat: Address) -> bool:
    """Whether nobody but an owner reads what is said there: at the terminal, and where nobody else has written."""
    from nanobot.channels.registry import find  # only who asks for mails waits for it

    if chat.channel == "cli":
        return True
    spec, people = find(chat.channel), pairing.people(chat.channel)
    if spec is not None and spec.is_group(chat.chat_id):
        return False
    if people.role_of(Sender.of(chat.chat_id)) is Role.OWNER:
        return True
    rows = _rows_of(sessions, chat)
    if any(row.get("in_group") for row in rows):
        return False
    return people.is_one_of_them(str(row["sender_id"]) for row in rows if row.get("sender_id"))


def is_owners_own(config: Config, pairing: PairingStore, sessions: SessionManager, chat: Address) -> bool:
    """The same, where somebody can say whose private chat it is: an owner is known, or only one person is let in."""
    if not pairing.people(chat.channel).owners and others_write(config, pairing, f"{chat.channel}:{chat.chat_id}"):
        return False
    return is_private(sessions, pairing, chat)


def scope_of(config: Config, pairing: PairingStore, sessions: SessionManager, message: InboundMessage) -> Scope:
    """Whose memory the turn of a message may be told of: the owner's where nobody else reads its answer, else that of
    the chat the answer goes to. Where nobody can say who reads there, it is the chat's.
    """
    chat = message.address
    if message.scope and message.origin in (Origin.SUBAGENT, Origin.GOAL):  # who reads there may not be known any more
        return Scope(message.scope)
    if chat.channel not in config.channels.switched_on():  # the terminal, a program of the owner's
        return OWNERS
    own = Scope(f"{chat.channel}:{chat.chat_id}")
    if message.in_group or is_group(chat) or (message.origin is not Origin.USER and _was_group(sessions, chat)):
        return own
    if not others_write(config, pairing, own.chat):
        return OWNERS
    by_owner = message.provenance is Provenance.OWNER and message.origin is Origin.USER
    return OWNERS if by_owner or is_owners_own(config, pairing, sessions, chat) else own


def _was_group(sessions: SessionManager, chat: Address) -> bool:
    """Whether somebody has spoken there as in a group: a job's message does not say it."""
    if any(row.get("in_group") for row in _rows_of(sessions, chat)):
        return True
    return any(b'"in_group"' in head for key in _keys_of(chat) for head in sessions.archived_heads(key))


def _keys_of(chat: Address) -> list[str]:
    key = f"{chat.channel}:{chat.chat_id}"
    return [key, f"{key}:{chat.thread_id}"] if chat.thread_id else [key]


def _rows_of(sessions: SessionManager, chat: Address) -> list[ChatMessage]:
    return [row for one in map(sessions.read, _keys_of(chat)) if one is not None for row in one.messages]


def scope_of_row(config: Config, pairing: PairingStore, session_key: str, row: ChatMessage) -> Scope:
    """In whose memory a stored message belongs: the scope of its turn. Of old rows, which do not say it: the chat's
    where it may not have been the owner's alone.
    """
    if "scope" in row:
        return Scope(row["scope"])
    channel, _, chat_id = session_key.partition(":")
    if channel not in config.channels.switched_on():
        return OWNERS
    own = Scope(session_key)
    if row.get("in_group") or is_group(Address(channel, chat_id)):
        return own
    by_owner = row.get("provenance") == Provenance.OWNER
    if by_owner or pairing.people(channel).role_of(Sender.of(chat_id)) is Role.OWNER:
        return OWNERS
    return own if others_write(config, pairing, session_key) else OWNERS


def others_write(config: Config, pairing: PairingStore, session_key: str) -> bool:
    """Whether what is said in a session by nobody known as owner may be somebody else's than theirs: where an owner is
    known, and where more than one person is let in. The one person who is let in alone is the owner.
    """
    from nanobot.channels.access import AccessPolicy  # nothing of channels at a terminal's start
    from nanobot.channels.registry import find

    switched_on, channel = config.channels.switched_on(), session_key.partition(":")[0]
    for name in switched_on if channel == "unified" else {channel}:
        spec, people = find(name), pairing.people(name)
        if people.owners:
            return True
        if name not in switched_on:
            continue
        let_in = AccessPolicy.of(name, config.channels.section(name)).allow_from
        if let_in.everybody or len({*let_in.entries, *people.approved}) > 1:
            return True
        if spec is not None and any(map(spec.is_group, let_in.entries)):
            return True
    return False


def is_group(chat: Address) -> bool:
    """Whether the id of a chat tells that several people write there."""
    from nanobot.channels.registry import find  # only who answers waits for it

    spec = find(chat.channel)
    return spec is not None and spec.is_group(chat.chat_id)


def no_owner_here(pairing: PairingStore, chat: Address, senders: Sequence[str], *, in_group: bool) -> str | None:
    """Why no owner can answer in a chat where these have written; None where one can."""
    from nanobot.channels.registry import find  # only who asks waits for it

    spec, people = find(chat.channel), pairing.people(chat.channel)
    if spec is not None and not spec.owners_are_known:
        return f"In {spec.title} nobody vouches for who writes, so no yes counts there; the terminal and a chat do."
    if not people.owners:
        return (
            f"Nobody is owner on {chat.channel} yet. The owner of this bot becomes that by writing /pairing here and "
            "running the command it answers with in the terminal."
        )
    if any(people.role_of(Sender.of(one)) is Role.OWNER for one in senders):
        return None
    if in_group or (spec is not None and spec.is_group(chat.chat_id)):
        return None
    return "No owner reads here: an owner has to ask for it in a chat of their own, or in the terminal."
