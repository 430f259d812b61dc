"""What a message of Discord says: where it was said, to whom, in which words, with which files."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import discord

from nanobot.channels.media import Attachment
from nanobot.channels.media_kinds import MediaError, MediaKind

if TYPE_CHECKING:
    from nanobot.net.http import HttpPools

_NAMED = re.compile(r"<(?:@!?(?P<user>\d+)|@&(?P<role>\d+)|#(?P<channel>\d+)|a?(?P<emoji>:\w+:)\d+)>")
_HEARD = frozenset({discord.MessageType.default, discord.MessageType.reply})


@dataclass(frozen=True, slots=True)
class MessagePlace:
    """Where something was said."""

    chat_id: str
    thread_id: str | None
    is_private: bool
    within: tuple[str, ...]
    """The thread and the server, for lists that name them."""


def message_place(channel_id: int, channel: object, guild_id: int | None) -> MessagePlace:
    """A thread belongs to the channel it hangs on, and is a conversation of its own."""
    if isinstance(channel, discord.Thread):
        return MessagePlace(str(channel.parent_id), str(channel_id), False, (str(channel_id), str(channel.guild.id)))
    return MessagePlace(str(channel_id), None, guild_id is None, (str(guild_id),) if guild_id is not None else ())


def guild_id_of(message: discord.Message) -> int | None:
    """The server it was said in, also one that the SDK was told nothing of; None in a private chat."""
    return message.guild.id if message.guild is not None else getattr(message.channel, "guild_id", None)


def is_from_a_person(message: discord.Message) -> bool:
    """Bots, also this one, and Discord itself are not answered: two bots would never stop."""
    return message.type in _HEARD and not message.author.bot and message.webhook_id is None


def is_for(message: discord.Message, me: discord.ClientUser) -> bool:
    """Whether it names the bot or its role, or answers something the bot said. @everyone is nobody."""
    if any(user.id == me.id for user in message.mentions):
        return True
    own_role = message.guild.self_role if message.guild is not None else None
    if own_role is not None and own_role in message.role_mentions:
        return True
    answered = message.reference.resolved if message.reference is not None else None
    return isinstance(answered, discord.Message) and answered.author.id == me.id


def words_of(message: discord.Message, me: discord.ClientUser) -> str:
    """The text as people read it: names instead of numbers, without the call to the bot it begins with."""
    own = {f"<@{me.id}>", f"<@!{me.id}>"}
    if message.guild is not None and message.guild.self_role is not None:
        own.add(message.guild.self_role.mention)
    text = message.content.strip()
    while (call := next((one for one in own if text.startswith(one)), None)) is not None:
        text = text[len(call) :].lstrip(" ,:")
    users = {user.id: user.display_name for user in message.mentions} | {me.id: me.display_name}
    roles = {role.id: role.name for role in message.role_mentions}
    channels = {channel.id: channel.name for channel in message.channel_mentions}

    def named(found: re.Match[str]) -> str:
        if found["emoji"]:
            return found["emoji"]
        for sign, table, name in (
            ("@", users, found["user"]),
            ("@", roles, found["role"]),
            ("#", channels, found["channel"]),
        ):
            if name and int(name) in table:
                return f"{sign}{table[int(name)]}"
        return found.group()

    parts = [_NAMED.sub(named, text)]
    parts += [f"[forwarded]\n{_NAMED.sub(named, one.content)}" for one in message.message_snapshots if one.content]
    parts += [f"[sticker: {one.name}]" for one in message.stickers]
    if message.poll is not None:
        answers = "; ".join(answer.text for answer in message.poll.answers)
        parts.append(f"[poll: {message.poll.question}: {answers}]")
    return "\n".join(part for part in parts if part)


def files_of(message: discord.Message) -> list[discord.Attachment]:
    """What is attached, also to what was forwarded."""
    return [*message.attachments, *(file for one in message.message_snapshots for file in one.attachments)]


def describe_file(file: discord.Attachment) -> Attachment:
    """What Discord says of a file."""
    kind = MediaKind.VOICE if file.is_voice_message() else MediaKind.of_type(file.content_type)
    return Attachment(kind, str(file.id), file.filename, file.content_type, file.size, source=file.url)


async def chunks_of(url: str, pools: "HttpPools") -> AsyncIterator[bytes]:
    """A download, bit by bit: the SDK would hold all of it in memory."""
    async with pools.borrow_client(url) as client, client.stream("GET", url) as response:
        if response.status_code != 200:
            raise MediaError(f"Discord answered {response.status_code}")
        async for chunk in response.aiter_bytes():
            yield chunk
