"""Reads messages, slash commands and button presses: sender, chat, addressee, text and files."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import discord

from nanobot.channels.incoming import Incoming
from nanobot.channels.media import Attachment, MediaKind

_EMOJI = re.compile(r"<a?(:\w+:)\d+>")
_USER_TYPES = frozenset({discord.MessageType.default, discord.MessageType.reply})


def is_from_a_person(message: discord.Message) -> bool:
    """Whether a person wrote it. Bots are not answered: two of them would never stop."""
    return message.type in _USER_TYPES and not message.author.bot and message.webhook_id is None


def guild_id_of(message: discord.Message) -> int | None:
    """The server of a message, also if the SDK does not know it; None in a private chat."""
    return message.guild.id if message.guild is not None else getattr(message.channel, "guild_id", None)


def read_message(message: discord.Message, channel: object, me: discord.ClientUser) -> Incoming:
    """Read a message of this channel. May raise anything."""
    files = [*message.attachments, *(file for snapshot in message.message_snapshots for file in snapshot.attachments)]
    return replace(
        _incoming_from(message.author, message.channel.id, channel, guild_id_of(message)),
        text=_text_of(message, me),
        message_id=str(message.id),
        is_mentioned=_is_addressed_to(message, me),
        attachments=tuple(map(_describe_file, files)),
        quotes_others=bool(message.message_snapshots),
        sent_at=message.created_at,
    )


def read_interaction(interaction: discord.Interaction) -> Incoming | None:
    """Read a slash command as its text, and a button press as the button's value; None for any other interaction."""
    data: Mapping[str, Any] = interaction.data or {}
    text = ""
    if interaction.type is discord.InteractionType.component:
        text = str(data.get("custom_id") or "")
    elif interaction.type is discord.InteractionType.application_command and data.get("type", 1) == 1:
        words = [str(option["value"]) for option in data.get("options", ()) if "value" in option]
        text = " ".join([f"/{data.get('name')}", *words])
    if not text or interaction.channel_id is None:
        return None
    incoming = _incoming_from(interaction.user, interaction.channel_id, interaction.channel, interaction.guild_id)
    return replace(incoming, text=text, message_id=str(interaction.id), is_mentioned=True)


def _incoming_from(sender: discord.abc.User, channel_id: int, channel: object, guild_id: int | None) -> Incoming:
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


def _is_addressed_to(message: discord.Message, me: discord.ClientUser) -> bool:
    """Whether it mentions the bot or its role, or replies to the bot. @everyone does not count."""
    own_role = message.guild.self_role if message.guild is not None else None
    replied_to = message.reference.resolved if message.reference is not None else None
    return (
        any(user.id == me.id for user in message.mentions)
        or (own_role is not None and own_role in message.role_mentions)
        or (isinstance(replied_to, discord.Message) and replied_to.author.id == me.id)
    )


def _text_of(message: discord.Message, me: discord.ClientUser) -> str:
    """The text as people see it: names instead of ids, without a mention of the bot at its start."""
    own_role = message.guild.self_role if message.guild is not None else None
    own = rf"<@!?{me.id}>" if own_role is None else rf"<@!?{me.id}>|{own_role.mention}"
    message.content = re.sub(rf"\A(?:\s*(?:{own})[ ,:]*)+", "", message.content)
    parts = [message.clean_content.strip()]
    parts += [f"[forwarded]\n{snapshot.content}" for snapshot in message.message_snapshots if snapshot.content]
    parts += [f"[sticker: {sticker.name}]" for sticker in message.stickers]
    if message.poll is not None:
        answers = "; ".join(answer.text for answer in message.poll.answers)
        parts.append(f"[poll: {message.poll.question}: {answers}]")
    return _EMOJI.sub(r"\1", "\n".join(part for part in parts if part))


def _describe_file(file: discord.Attachment) -> Attachment:
    kind = MediaKind.VOICE if file.is_voice_message() else MediaKind.of_type(file.content_type)
    return Attachment(kind, str(file.id), file.filename, file.content_type, file.size, source=file.url)
