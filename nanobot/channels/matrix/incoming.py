"""Reads messages of Matrix rooms. Pure functions over events as the homeserver sends them; all values are checked.

Source: spec.matrix.org/v1.16/client-server-api, "Instant messaging" and its sections on replies, threads, edits and
mentions.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from nanobot.channels.incoming import Incoming, Payload
from nanobot.channels.media import Attachment, MediaKind

_FILES = {
    "m.image": MediaKind.IMAGE, "m.video": MediaKind.VIDEO, "m.audio": MediaKind.AUDIO, "m.file": MediaKind.FILE,
}  # fmt: skip
_VOICE = "org.matrix.msc3245.voice"
_FALLBACK = re.compile(r"> <@[^\n]*\n(?:>[^\n]*\n)*\n?")
"""Before a reply of an old client: the message that it answers."""


@dataclass(frozen=True, slots=True)
class Bot:
    id: str
    names: Sequence[str] = ()
    """What people call it: display name and the local part of the id."""
    is_everybody: bool = False
    """Whether `@room` addresses it."""


def read_message(event: Payload, bot: Bot) -> Incoming | None:
    """Read a message of a group. None for what is no new message of a person: edits, and notices of other bots."""
    content, sender, event_id = event.part("content"), event.text("sender"), event.text("event_id")
    kind = "m.image" if event.text("type") == "m.sticker" else content.text("msgtype")
    relation = content.part("m.relates_to")
    if event.text("type") not in ("m.room.message", "m.sticker") or not (sender and event_id and kind):
        return None
    if sender == bot.id or kind == "m.notice" or relation.text("rel_type") == "m.replace":
        return None
    file = _describe_file(content, kind) if kind in _FILES else None
    text = text_of(event)
    if file is not None and content.text("filename") in ("", text):
        text = ""  # the body is the file's name, not a caption
    return Incoming(
        sender,
        event.text("room_id"),
        re.sub(rf"^\s*@?(?:{_names(bot)})(?!\w)[:,]?\s*", "", text, count=1, flags=re.IGNORECASE),
        event_id,
        thread_id=relation.text("event_id") or None if relation.text("rel_type") == "m.thread" else None,
        is_private=False,
        is_mentioned=_is_addressed_to(content, text, bot),
        attachments=(file,) if file is not None else (),
        sent_at=event.time("origin_server_ts"),
    )


def quoted_id(event: Payload) -> str:
    """The id of the message that this one answers; empty if it answers none."""
    relation = event.part("content", "m.relates_to")
    if relation.text("rel_type") == "m.thread" and relation.get("is_falling_back") is True:
        return ""  # for clients without threads
    return relation.text("m.in_reply_to", "event_id")


def text_of(event: Payload) -> str:
    """The text of a message, without what it answers."""
    content = event.part("content")
    text = content.text("body")
    return _FALLBACK.sub("", text, count=1) if content.part("m.relates_to", "m.in_reply_to") else text


def _is_addressed_to(content: Payload, text: str, bot: Bot) -> bool:
    if "m.mentions" in content:
        users = content.part("m.mentions").get("user_ids")
        everybody = bot.is_everybody and content.part("m.mentions").get("room") is True
        return everybody or (isinstance(users, list) and bot.id in users)
    if f"matrix.to/#/{bot.id}" in content.text("formatted_body"):
        return True
    return re.search(rf"(?<!\w)@?(?:{_names(bot)})(?!\w)", text, re.IGNORECASE) is not None


def _names(bot: Bot) -> str:
    return "|".join(map(re.escape, (bot.id, *bot.names)))


def _describe_file(content: Payload, kind: str) -> Attachment | None:
    """A file; its source is its address, or JSON with address and key if it is encrypted."""
    encrypted = content.part("file")
    address = encrypted.text("url") or content.text("url")
    if not address.startswith("mxc://"):
        return None
    return Attachment(
        MediaKind.VOICE if _VOICE in content else _FILES[kind],
        name=content.text("filename") or content.text("body") or None,
        content_type=content.text("info", "mimetype") or None,
        size=int(content.number("info", "size")) or None,
        source=json.dumps(encrypted) if encrypted else address,
    )
