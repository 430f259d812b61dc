"""What there is on Discord: people, chats, messages. Nothing here knows how a bot is told of it.

Shapes: https://discord.com/developers/docs/resources/message and /resources/channel
"""

import time
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

BOT, PERSON, STRANGER = "9000000000000001", "1000000000000001", "1000000000000002"
APPLICATION, TOKEN = BOT, "good-token"
GUILD, GROUP, THREAD, OWN_ROLE = "5000000000000001", "6000000000000001", "7000000000000001", "8000000000000001"
PRIVATE, STRANGE = "2000000000000001", "2000000000000002"
NAMES = {BOT: "nanobot", PERSON: "anna", STRANGER: "zoe"}
TEXT, DM, PUBLIC_THREAD = 0, 1, 11
DEFAULT, REPLY = 0, 19
_PEOPLE = PERSON[:-4]
"""How the numbers of people begin here; others are bots."""
_EPOCH_MS = 1_420_070_400_000


class Ids:
    """Snowflakes: the time, and a number."""

    def __init__(self) -> None:
        self._last = 0

    def next(self, ago_s: float = 0) -> str:
        """One that nobody has; `ago_s` for what was said long ago."""
        made = (int((time.time() - ago_s) * 1000) - _EPOCH_MS) << 22
        if not ago_s:
            made = self._last = max(made, self._last + 1)
        return str(made)


@dataclass(slots=True)
class Message:
    """A message as Discord keeps it."""

    id: str
    chat: str
    author: str
    content: str
    type: int = DEFAULT
    reply_to: str | None = None
    attachments: list[Json] = field(default_factory=list)
    components: list[Json] = field(default_factory=list)
    reactions: list[str] = field(default_factory=list)
    flags: int = 0
    nonce: str | None = None
    edits: int = 0
    more: Json = field(default_factory=dict)
    """Fields of the payload that only one test needs."""

    @property
    def buttons(self) -> list[Json]:
        """Those below it."""
        return [one for row in self.components for one in row["components"]]


@dataclass(slots=True)
class Chat:
    """A channel, a thread or a private chat."""

    id: str
    type: int
    parent: str | None = None
    person: str | None = None
    messages: dict[str, Message] = field(default_factory=dict)
    typed: int = 0
    name: str = ""
    asleep: bool = False
    """Whether a thread is archived: then the server is announced without it."""

    @property
    def guild(self) -> str | None:
        """The server it is in."""
        return None if self.type == DM else GUILD

    def payload(self) -> Json:
        """As Discord tells it."""
        last = max(self.messages, key=int, default=None)
        told: Json = {"id": self.id, "type": self.type, "last_message_id": last, "flags": 0}
        if self.type == DM:
            return told | {"recipients": [user(self.person or PERSON)]}
        told |= {
            "guild_id": GUILD,
            "name": self.name or f"chat-{self.id}",
            "position": 0,
            "permission_overwrites": [],
            "nsfw": False,
        }
        if self.type != PUBLIC_THREAD:
            return told
        metadata = {"archived": False, "auto_archive_duration": 60, "archive_timestamp": "2026-01-01T00:00:00+00:00"}
        counts = {"message_count": 1, "member_count": 1}
        return told | counts | {"parent_id": self.parent, "owner_id": PERSON, "thread_metadata": metadata}


def user(user_id: str) -> Json:
    """A user as Discord tells it."""
    name = NAMES.get(user_id, f"user{user_id}")
    return {
        "id": user_id, "username": name, "global_name": name, "discriminator": "0", "avatar": None,
        "bot": not user_id.startswith(_PEOPLE),
    }  # fmt: skip


class World:
    """All of it."""

    def __init__(self) -> None:
        self.ids = Ids()
        chats = (
            Chat(PRIVATE, DM, person=PERSON),
            Chat(STRANGE, DM, person=STRANGER),
            Chat(GROUP, TEXT),
            Chat(THREAD, PUBLIC_THREAD, parent=GROUP),
        )
        self.chats = {chat.id: chat for chat in chats}
        self.premium_tier = 0

    def payload(self, message: Message) -> Json:
        """A message as Discord tells it."""
        chat = self.chats[message.chat]
        mentioned = [one for one in NAMES if f"<@{one}>" in message.content]
        told: Json = {
            "id": message.id, "channel_id": message.chat, "author": user(message.author), "content": message.content,
            "timestamp": _moment(message.id), "edited_timestamp": None, "tts": False, "type": message.type,
            "mention_everyone": False, "mentions": [user(one) for one in mentioned],
            "mention_roles": [OWN_ROLE] if f"<@&{OWN_ROLE}>" in message.content else [],
            "attachments": message.attachments, "embeds": [], "pinned": False, "flags": message.flags,
            "components": message.components,
        }  # fmt: skip
        if message.nonce is not None:
            told["nonce"] = message.nonce
        if chat.guild is not None:
            told["guild_id"] = chat.guild
        if message.reply_to is not None:
            told["message_reference"] = {"type": 0, "message_id": message.reply_to, "channel_id": chat.id}
            answered = chat.messages.get(message.reply_to)
            told["referenced_message"] = self.payload(answered) if answered is not None else None
        return told | message.more

    def guild(self) -> Json:
        """The server, as GUILD_CREATE tells it."""
        everyone = {"id": GUILD, "name": "@everyone", "permissions": str(1 << 10 | 1 << 11 | 1 << 16)}
        own = {"id": OWN_ROLE, "name": "nanobot", "permissions": "0", "managed": True, "tags": {"bot_id": BOT}}
        usual = {"color": 0, "colors": {"primary_color": 0}, "hoist": False, "position": 0, "mentionable": False}
        roles = [usual | {"managed": False} | role for role in (everyone, own)]
        me = {"user": user(BOT), "roles": [OWN_ROLE], "joined_at": "2026-01-01T00:00:00+00:00", "flags": 0}
        return {
            "id": GUILD, "name": "home", "owner_id": PERSON, "roles": roles, "members": [me], "member_count": 3,
            "emojis": [], "stickers": [], "features": [], "presences": [], "voice_states": [], "unavailable": False,
            "channels": [one.payload() for one in self.chats.values() if one.type == TEXT],
            "premium_tier": self.premium_tier,
            "threads": [one.payload() for one in self.chats.values() if one.type == PUBLIC_THREAD and not one.asleep],
        }  # fmt: skip


def _moment(message_id: str) -> str:
    seconds = ((int(message_id) >> 22) + _EPOCH_MS) / 1000
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03}000+00:00"
