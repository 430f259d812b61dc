"""Reads a Discord message: chat, addressee, text and files."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING

import discord

from nanobot.channels.incoming import Incoming
from nanobot.channels.media import Attachment
from nanobot.channels.media_kinds import MediaError, MediaKind

if TYPE_CHECKING:
    from nanobot.net.http import HttpPools

_MENTION = re.compile(r"<(?:@!?(?P<user>\d+)|@&(?P<role>\d+)|#(?P<channel>\d+)|a?(?P<emoji>:\w+:)\d+)>")
_USER_TYPES = frozenset({discord.MessageType.default, discord.MessageType.reply})


def incoming_from(sender: discord.abc.User, channel_id: int, channel: object, guild_id: int | None) -> Incoming:
    """A message of this sender in this channel, still empty. A thread is one of its parent's, with its own session."""
    incoming = Incoming(
        str(sender.id),
        str(channel_id),
        is_private=guild_id is None,
        parent_ids=(str(guild_id),) if guild_id is not None else (),
        sender_name=sender.display_name,
        sender_handle=sender.name,
    )
    if isinstance(channel, discord.Thread):
        thread_id, parents = str(channel_id), (str(channel_id), str(channel.guild.id))
        return replace(
            incoming, chat_id=str(channel.parent_id), thread_id=thread_id, is_private=False, parent_ids=parents
        )
    return incoming


def guild_id_of(message: discord.Message) -> int | None:
    """The server of a message, also if the SDK does not know it; None in a private chat."""
    return message.guild.id if message.guild is not None else getattr(message.channel, "guild_id", None)


def is_from_a_person(message: discord.Message) -> bool:
    """Whether a person wrote it. Bots are not answered: two of them would never stop."""
    return message.type in _USER_TYPES and not message.author.bot and message.webhook_id is None


def is_addressed_to(message: discord.Message, me: discord.ClientUser) -> bool:
    """Whether it mentions the bot or its role, or replies to the bot. @everyone does not count."""
    if any(user.id == me.id for user in message.mentions):
        return True
    own_role = message.guild.self_role if message.guild is not None else None
    if own_role is not None and own_role in message.role_mentions:
        return True
    replied_to = message.reference.resolved if message.reference is not None else None
    return isinstance(replied_to, discord.Message) and replied_to.author.id == me.id


def text_of(message: discord.Message, me: discord.ClientUser) -> str:
    """The text as people see it: names instead of ids, without a mention of the bot at its start."""
    own_mentions = {f"<@{me.id}>", f"<@!{me.id}>"}
    if message.guild is not None and message.guild.self_role is not None:
        own_mentions.add(message.guild.self_role.mention)
    text = message.content.strip()
    while (mention := next((known for known in own_mentions if text.startswith(known)), None)) is not None:
        text = text[len(mention) :].lstrip(" ,:")
    users = {user.id: user.display_name for user in message.mentions} | {me.id: me.display_name}
    roles = {role.id: role.name for role in message.role_mentions}
    channels = {channel.id: channel.name for channel in message.channel_mentions}

    def with_name(match: re.Match[str]) -> str:
        if match["emoji"]:
            return match["emoji"]
        for sign, table, name in (
            ("@", users, match["user"]),
            ("@", roles, match["role"]),
            ("#", channels, match["channel"]),
        ):
            if name and int(name) in table:
                return f"{sign}{table[int(name)]}"
        return match.group()

    parts = [_MENTION.sub(with_name, text)]
    parts += [
        f"[forwarded]\n{_MENTION.sub(with_name, snapshot.content)}"
        for snapshot in message.message_snapshots
        if snapshot.content
    ]
    parts += [f"[sticker: {sticker.name}]" for sticker in message.stickers]
    if message.poll is not None:
        answers = "; ".join(answer.text for answer in message.poll.answers)
        parts.append(f"[poll: {message.poll.question}: {answers}]")
    return "\n".join(part for part in parts if part)


def files_of(message: discord.Message) -> list[discord.Attachment]:
    """The attachments, including those of forwarded messages."""
    return [*message.attachments, *(file for snapshot in message.message_snapshots for file in snapshot.attachments)]


def describe_file(file: discord.Attachment) -> Attachment:
    """An attachment as Discord describes it."""
    kind = MediaKind.VOICE if file.is_voice_message() else MediaKind.of_type(file.content_type)
    return Attachment(kind, str(file.id), file.filename, file.content_type, file.size, source=file.url)


async def download(url: str, pools: "HttpPools") -> AsyncIterator[bytes]:
    """Download a file in chunks: the SDK would hold all of it in memory."""
    async with pools.borrow_client(url) as client, client.stream("GET", url) as response:
        if response.status_code != 200:
            raise MediaError(f"Discord answered {response.status_code}")
        async for chunk in response.aiter_bytes():
            yield chunk
