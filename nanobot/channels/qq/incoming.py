"""Converts QQ's events to `Incoming`. Pure functions.

Source: bot.q.qq.com/wiki/develop/api-v2/server-inter/message/send-receive/event. All values are checked: an event that
is not as documented must not end the connection.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from nanobot.channels.incoming import Incoming
from nanobot.channels.media import Attachment
from nanobot.channels.media_kinds import MediaKind

_KINDS = {"image": MediaKind.IMAGE, "video": MediaKind.VIDEO, "voice": MediaKind.VOICE, "audio": MediaKind.AUDIO}
_QUOTING = 103
"""`message_type` of a message that quotes the first of its `msg_elements`."""
_LONGEST_QUOTE = 600


def read_event(kind: object, data: object) -> Incoming | None:
    """Read a message. None for other events, and for one that does not say who wrote it where."""
    message = _dict(data)
    author, message_id = _dict(message.get("author")), _text(message.get("id"))
    if kind == "C2C_MESSAGE_CREATE":
        chat = sender = _text(author.get("user_openid"))
    elif kind == "GROUP_AT_MESSAGE_CREATE":
        chat, sender = _text(message.get("group_openid")), _text(author.get("member_openid"))
    else:
        return None
    if not (chat and sender and message_id):
        return None
    text, files = _read_content(message, message_id)
    elements = _dicts(message.get("msg_elements")) if message.get("message_type") == _QUOTING else []
    quoted, quoted_files = _read_content(elements[0] if elements else {}, f"{message_id}-quoted")
    if quoted:
        short = quoted if len(quoted) <= _LONGEST_QUOTE else f"{quoted[:_LONGEST_QUOTE]}…"
        lines = "\n".join(f"> {line}" for line in short.splitlines())
        text = f"[in reply to a message]\n{lines}\n{text}"
    return Incoming(
        sender,
        chat,
        text,
        message_id,
        is_private=kind == "C2C_MESSAGE_CREATE",
        is_mentioned=True,
        sender_name=" ".join(_text(author.get("username")).split()),
        attachments=files + quoted_files,
        quotes_others=bool(quoted or quoted_files),
        sent_at=_read_time(message.get("timestamp")),
    )


def _read_content(message: Mapping[str, Any], message_id: str) -> tuple[str, tuple[Attachment, ...]]:
    words, files = [_text(message.get("content")).strip()], []
    for number, part in enumerate(_dicts(message.get("attachments"))):
        kind = _KINDS.get(_text(part.get("content_type")).partition("/")[0], MediaKind.FILE)
        url = _text(part.get("url"))
        if kind is MediaKind.VOICE:
            if spoken := _text(part.get("asr_refer_text")):  # what QQ heard; the recording says no more
                words.append(spoken)
                continue
            url = _text(part.get("voice_wav_url")) or url  # the other one is in SILK
        if url:
            name = _text(part.get("filename")) or None
            files.append(Attachment(kind, f"{message_id}-{number}", name, source=url))
    return "\n".join(filter(None, words)), tuple(files)


def _read_time(value: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(_text(value))
    except ValueError:
        return None
    return time if time.tzinfo is not None else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _dicts(value: object) -> list[Mapping[str, Any]]:
    return [_dict(part) for part in value] if isinstance(value, list) else []
