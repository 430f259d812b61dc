"""What a message or a press says, and whether it is meant for us: from the SDK's types to the words of `receive`.

core.telegram.org/bots/api#message. Pure: asks nobody, keeps nothing.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from telegram import CallbackQuery, Message, MessageEntity, MessageOrigin, User

from nanobot.channels.media import Attachment
from nanobot.channels.media_kinds import MediaKind

_LONGEST_QUOTE = 600
_COMMAND = re.compile(r"/([A-Za-z0-9_]+)(?:@([A-Za-z0-9_]+))?(?=\s|\Z)")
_PRESS = "press"


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message of a person."""

    sender_id: str
    chat_id: str
    text: str
    message_id: str
    thread_id: str | None
    is_private: bool
    is_mentioned: bool
    when: datetime | None
    files: tuple[Attachment, ...] = ()
    quotes_others: bool = False
    """Whether words of somebody else are in it."""


def number_of(message_id: str | None) -> int | None:
    """The message at Telegram that an id of ours names: of an album the first, of a press the one with the buttons."""
    found = re.match(r"\d+", message_id or "")
    return int(found.group()) if found else None


def menu_name(command: str) -> str:
    """A slash command as Telegram can name it: letters, digits and _ (core.telegram.org/bots/api#botcommand)."""
    return command.replace("-", "_")[:32]


def read_message(message: Message, me: User, commands: Mapping[str, str]) -> Incoming | None:
    """What it says; None where nobody says anything to us: members who come and go, other bots, their commands.

    `commands` are ours, by their names in Telegram's menu.
    """
    sender = _sender_of(message)
    is_private = message.chat.type == message.chat.PRIVATE
    if sender is None:
        return None
    said = _said(message)
    called = _COMMAND.match(said) if message.forward_origin is None else None  # a forwarded text commands nothing
    if called and called[2] and called[2].lower() != (me.username or "").lower():
        return None
    if called and called[1].lower() == "start" and is_private:
        said = "/help"  # what the button of an unused chat says; what comes behind it is of a link, not of the person
    elif called and (own := commands.get(called[1].lower())) is not None:
        said = f"/{own}{said[called.end(1) :]}"
    files = _files_of(message)
    parts = [_without_us(said, me), *(words for name, say in _TOLD if (words := _told(message, name, say)))]
    text = "\n".join(part for part in parts if part)
    is_ours = called is not None and (called[2] is not None or called[1].lower() in commands)
    is_mentioned = is_private or is_ours or _names_us(message, me) or _is_reply_to(message, me)
    if not text and not files and not _names_us(message, me):
        return None
    before, quotes_others = ("", False) if called else _quoted(message, me)  # a command leaves out what it replies to
    return Incoming(
        sender,
        str(message.chat.id),
        f"{before}\n{text}".strip(),
        str(message.message_id),
        _thread_of(message),
        is_private,
        is_mentioned,
        message.date,
        files,
        quotes_others or message.via_bot is not None,
    )


def read_press(query: CallbackQuery, value: str) -> Incoming | None:
    """A button that was pressed is a message with its value. A message's buttons can be pressed once."""
    message = query.message
    if message is None or query.from_user.is_bot:
        return None
    return Incoming(
        _named(query.from_user),
        str(message.chat.id),
        value,
        f"{message.message_id}-{_PRESS}",
        _thread_of(message) if isinstance(message, Message) else None,
        message.chat.type == message.chat.PRIVATE,
        is_mentioned=True,
        when=None,
    )


def merge_album(read: Sequence[Incoming]) -> Incoming:
    """An album is one message, named by its first and last part: one that grew since is not taken for a repeat."""
    if len(read) == 1:
        return read[0]
    return replace(
        read[0],
        text="\n".join(one.text for one in read if one.text),
        message_id=f"{read[0].message_id}-{read[-1].message_id}",
        is_mentioned=any(one.is_mentioned for one in read),
        files=tuple(file for one in read for file in one.files),
        quotes_others=any(one.quotes_others for one in read),
    )


def _said(message: Message) -> str:
    """The words, with the addresses that are behind some of them."""
    text = message.text or message.caption or ""
    linked = [one for one in message.entities or message.caption_entities if one.type == MessageEntity.TEXT_LINK]
    units = text.encode("utf-16-le", "surrogatepass")  # as Telegram counts
    for one in sorted(linked, key=lambda one: one.offset, reverse=True):
        end = 2 * (one.offset + one.length)
        units = units[:end] + f" ({one.url})".encode("utf-16-le") + units[end:]
    return units.decode("utf-16-le", "surrogatepass")


def _named(user: User) -> str:
    return f"{user.id}|{user.username}" if user.username else str(user.id)


def _sender_of(message: Message) -> str | None:
    """Who vouches for it: a person; for an anonymous admin the group, for one who posts as a channel that channel."""
    if message.is_automatic_forward:
        return None  # a channel's post, copied into its group
    if message.sender_chat is not None:
        return str(message.sender_chat.id)
    user = message.from_user
    return None if user is None or user.is_bot else _named(user)


def _thread_of(message: Message) -> str | None:
    """A topic. Elsewhere the number only says which message was replied to."""
    return str(message.message_thread_id) if message.is_topic_message and message.message_thread_id else None


def _names_us(message: Message, me: User) -> bool:
    """Whether it mentions us, by name or by a link to us."""
    read = message.parse_entities if message.entities else message.parse_caption_entities
    name = f"@{me.username}".lower()
    for entity, text in read([MessageEntity.MENTION, MessageEntity.TEXT_MENTION]).items():
        if text.lower() == name or (entity.user is not None and entity.user.id == me.id):
            return True
    return False


def _is_reply_to(message: Message, me: User) -> bool:
    answered = _replied_to(message)
    return answered is not None and answered.from_user is not None and answered.from_user.id == me.id


def _replied_to(message: Message) -> Message | None:
    """The message it replies to. In a topic all reply to its beginning, which means nothing."""
    answered = message.reply_to_message
    return None if answered is None or answered.forum_topic_created is not None else answered


def _without_us(text: str, me: User) -> str:
    """The words without our name before them, so that `@bot /status` is a command."""
    name = re.escape(f"@{me.username}")
    return re.sub(rf"\A\s*{name}\b[\s,:]*", "", text, flags=re.IGNORECASE).strip()


def _quoted(message: Message, me: User) -> tuple[str, bool]:
    """What it replies to, or who it was forwarded from; and whether those are words of somebody else."""
    origin = message.forward_origin
    if origin is not None:
        return f"[forwarded from {_origin_name(origin)}]", True
    answered = _replied_to(message)
    words = (message.quote.text if message.quote else "") or (
        (answered.text or answered.caption or "") if answered is not None else ""
    )
    if not words:
        return "", False
    author = answered.from_user if answered is not None else None
    is_ours = author is not None and author in (me, message.from_user) and answered is not None
    name = "you" if author == me else author.full_name if author is not None else "somebody"
    short = words if len(words) <= _LONGEST_QUOTE else f"{words[:_LONGEST_QUOTE]}…"
    lines = "\n".join(f"> {line}" for line in short.splitlines())
    forwarded = answered is not None and answered.forward_origin is not None
    return f"[in reply to {_one_line(name)}]\n{lines}", not is_ours or forwarded


def _origin_name(origin: MessageOrigin) -> str:
    user, chat = getattr(origin, "sender_user", None), getattr(origin, "chat", getattr(origin, "sender_chat", None))
    if user is not None:
        return _one_line(user.full_name)
    if chat is not None:
        return _one_line(chat.title or str(chat.id))
    return _one_line(getattr(origin, "sender_user_name", "") or "somebody")


def _one_line(name: str) -> str:
    """A name as people choose it, which must not end our brackets."""
    return " ".join(re.sub(r"[\[\]]", "", name).split())[:80]


_FILES = (
    ("voice", MediaKind.VOICE),
    ("audio", MediaKind.AUDIO),
    ("animation", MediaKind.VIDEO),
    ("video", MediaKind.VIDEO),
    ("video_note", MediaKind.VIDEO),
    ("document", MediaKind.FILE),
)
"""In this order: an animation comes as a document too."""


def _files_of(message: Message) -> tuple[Attachment, ...]:
    if message.photo:
        largest = max(message.photo, key=lambda size: size.width * size.height)
        return (_attachment(MediaKind.IMAGE, largest),)
    sticker = message.sticker
    if sticker is not None and not (sticker.is_animated or sticker.is_video):
        return (_attachment(MediaKind.IMAGE, sticker),)
    for name, kind in _FILES:
        if (file := getattr(message, name)) is not None:
            return (_attachment(kind, file),)
    return ()


def _attachment(kind: MediaKind, file: Any) -> Attachment:
    name, content_type = getattr(file, "file_name", None), getattr(file, "mime_type", None)
    return Attachment(kind, file.file_unique_id, name, content_type, file.file_size, source=file.file_id)


def _told(message: Message, name: str, say: Callable[[Message], str]) -> str:
    return say(message) if getattr(message, name, None) else ""


def _sticker(message: Message) -> str:
    return f"[sticker {message.sticker.emoji or ''}".rstrip() + "]" if message.sticker else ""


def _location(message: Message) -> str:
    if message.venue is not None:
        place = message.venue
        return f"[place: {place.title}, {place.address}; {place.location.latitude}, {place.location.longitude}]"
    return f"[location: {message.location.latitude}, {message.location.longitude}]" if message.location else ""


def _contact(message: Message) -> str:
    contact = message.contact
    names = (contact.first_name, contact.last_name or "", contact.phone_number) if contact else ()
    return f"[contact: {' '.join(name for name in names if name)}]"


def _poll(message: Message) -> str:
    poll = message.poll
    return f"[poll: {poll.question} ({' / '.join(option.text for option in poll.options)})]" if poll else ""


def _dice(message: Message) -> str:
    return f"[{message.dice.emoji} {message.dice.value}]" if message.dice else ""


def _unreadable(_: Message) -> str:
    return "[a message of a kind that bots cannot read]"


_TOLD: tuple[tuple[str, Callable[[Message], str]], ...] = (
    ("sticker", _sticker),
    ("location", _location),
    ("contact", _contact),
    ("poll", _poll),
    ("dice", _dice),
    ("story", _unreadable),
    ("game", _unreadable),
    ("checklist", _unreadable),
    ("paid_media", _unreadable),
)
"""What a person may send that is neither text nor file, in words."""
