"""Reads messages of Matrix rooms. Pure functions over events as the homeserver sends them; all values are checked.

Source: spec.matrix.org/v1.16/client-server-api, "Instant messaging" and its sections on replies, threads, edits and
mentions.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from nanobot.channels.incoming import Incoming
from nanobot.channels.media import Attachment
from nanobot.channels.media_kinds import MediaKind

Event = Mapping[str, Any]

_FILES = {
    "m.image": MediaKind.IMAGE, "m.video": MediaKind.VIDEO, "m.audio": MediaKind.AUDIO, "m.file": MediaKind.FILE,
}  # fmt: skip
_VOICE = "org.matrix.msc3245.voice"
_FALLBACK = re.compile(r"> <@[^\n]*\n(?:>[^\n]*\n)*\n?")
"""Before a reply of an old client: the message that it answers."""
_LONGEST_QUOTE = 600


@dataclass(frozen=True, slots=True)
class Bot:
    """The bot in a room."""

    id: str
    names: Sequence[str] = ()
    """What people call it: display name and the local part of the id."""
    is_everybody: bool = False
    """Whether `@room` addresses it."""


@dataclass(frozen=True, slots=True)
class Quote:
    """The message that another one answers."""

    text: str
    author: str
    """Its author's name; empty for the bot."""
    is_own: bool
    """Whether the bot, or the author of the reply, wrote it."""


def read_message(event: Event, bot: Bot) -> Incoming | None:
    """Read a message of a group. None for what is no new message of a person: edits, and notices of other bots."""
    content, sender, event_id = _dict(event.get("content")), _text(event.get("sender")), _text(event.get("event_id"))
    kind = "m.image" if event.get("type") == "m.sticker" else _text(content.get("msgtype"))
    relation = _dict(content.get("m.relates_to"))
    if event.get("type") not in ("m.room.message", "m.sticker") or not (sender and event_id and kind):
        return None
    if sender == bot.id or kind == "m.notice" or relation.get("rel_type") == "m.replace":
        return None
    file = _describe_file(content, kind, event_id) if kind in _FILES else None
    name = _text(content.get("filename"))
    text = _text(content.get("body"))
    if "m.in_reply_to" in relation:
        text = _FALLBACK.sub("", text, count=1) if text.startswith("> <@") else text
    if file is not None and name in ("", text):
        text = ""  # the body is the file's name, not a caption
    milliseconds = event.get("origin_server_ts")
    is_time = isinstance(milliseconds, int) and 0 < milliseconds < 1 << 44
    return Incoming(
        sender,
        _text(event.get("room_id")),
        _strip_mention(text, bot),
        event_id,
        thread_id=_text(relation.get("event_id")) or None if relation.get("rel_type") == "m.thread" else None,
        is_private=False,
        is_mentioned=_is_addressed_to(content, text, bot),
        attachments=(file,) if file is not None else (),
        sent_at=datetime.fromtimestamp(milliseconds / 1000, UTC) if is_time else None,  # type: ignore[operator]
    )


def quoted_id(event: Event) -> str:
    """The id of the message that this one answers; empty if it answers none."""
    relation = _dict(_dict(event.get("content")).get("m.relates_to"))
    if relation.get("rel_type") == "m.thread" and relation.get("is_falling_back") is True:
        return ""  # for clients without threads
    return _text(_dict(relation.get("m.in_reply_to")).get("event_id"))


def format_quote(quote: Quote, text: str) -> str:
    """A reply as the model reads it."""
    short = quote.text if len(quote.text) <= _LONGEST_QUOTE else f"{quote.text[:_LONGEST_QUOTE]}…"
    who = " ".join(quote.author.split()) or "you"
    return "\n".join([f"[in reply to {who}]", *(f"> {line}" for line in short.splitlines()), text])


def text_of(event: Event) -> str:
    """The text of a message, without what it answers."""
    content = _dict(event.get("content"))
    return _FALLBACK.sub("", _text(content.get("body")), count=1).strip()


def _is_addressed_to(content: Event, text: str, bot: Bot) -> bool:
    if "m.mentions" in content:
        mentions = _dict(content["m.mentions"])
        users = mentions.get("user_ids")
        everybody = bot.is_everybody and mentions.get("room") is True
        return everybody or (isinstance(users, list) and bot.id in users)
    if f"matrix.to/#/{bot.id}" in _text(content.get("formatted_body")):
        return True
    names = "|".join(map(re.escape, (bot.id, *bot.names)))
    return re.search(rf"(?<!\w)@?(?:{names})(?!\w)", text, re.IGNORECASE) is not None


def _strip_mention(text: str, bot: Bot) -> str:
    """Remove the bot's name from the start of a message."""
    names = "|".join(map(re.escape, (bot.id, *bot.names)))
    return re.sub(rf"^\s*@?(?:{names})(?!\w)[:,]?\s*", "", text, count=1, flags=re.IGNORECASE)


def _describe_file(content: Event, kind: str, event_id: str) -> Attachment | None:
    """A file; its source is its address, or JSON with address and key if it is encrypted."""
    encrypted = _dict(content.get("file"))
    address = _text(encrypted.get("url")) or _text(content.get("url"))
    if not address.startswith("mxc://"):
        return None
    info = _dict(content.get("info"))
    size = info.get("size")
    return Attachment(
        MediaKind.VOICE if _VOICE in content else _FILES[kind],
        f"{event_id} {address}",
        _text(content.get("filename")) or _text(content.get("body")) or None,
        _text(info.get("mimetype")) or None,
        size if isinstance(size, int) and size > 0 else None,
        json.dumps(dict(encrypted)) if encrypted else address,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _dict(value: object) -> Event:
    return value if isinstance(value, Mapping) else {}
