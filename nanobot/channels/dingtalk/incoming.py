"""Converts the messages of DingTalk to `Incoming`. Pure functions.

Source: open.dingtalk.com/document/orgapp/receive-message. All values are checked: a message that is not as documented
must not end the connection.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from nanobot.channels.incoming import Incoming
from nanobot.channels.media import Attachment
from nanobot.channels.media_kinds import MediaKind

GROUP = "group:"
"""Before the conversation's id in the id of a group chat."""
_KINDS = {"picture": MediaKind.IMAGE, "audio": MediaKind.VOICE, "video": MediaKind.VIDEO, "file": MediaKind.FILE}
_UNREADABLE = "[a message of a kind that bots cannot read]"
_LONGEST_QUOTE = 600


def read_message(data: Mapping[str, Any], *, isolate_users: bool) -> Incoming | None:
    """Read a message. None if it does not say who wrote it where.

    `isolate_users`: whether each member of a group has a session of their own.
    """
    staff, encrypted = _text(data.get("senderStaffId")), _text(data.get("senderId"))
    sender, conversation = staff or encrypted, _text(data.get("conversationId"))
    is_private = data.get("conversationType") == "1"
    if not sender or not conversation:
        return None
    chat = sender if is_private else f"{GROUP}{conversation}"
    message_id = _text(data.get("msgId"))
    text, files = _read_content(data, message_id)
    quote, quotes_others = _read_quote(data)
    return Incoming(
        sender,
        chat,
        f"{quote}\n{text.strip()}".strip(),
        message_id or None,
        is_private=is_private,
        is_mentioned=is_private or data.get("isInAtList") is not False,
        alternate_ids=(encrypted,) if staff and encrypted else (),
        sender_name=" ".join(_text(data.get("senderNick")).split()),
        attachments=files,
        quotes_others=quotes_others,
        sent_at=_read_time(data.get("createAt")),
        session_key=f"dingtalk:{chat}:{sender}" if isolate_users and not is_private else None,
    )


def _read_content(data: Mapping[str, Any], message_id: str) -> tuple[str, tuple[Attachment, ...]]:
    content, kind = _dict(data.get("content")), _text(data.get("msgtype"))
    if kind == "text":
        return _text(_dict(data.get("text")).get("content")), ()
    if kind == "richText":
        parts = _dicts(content.get("richText"))
    elif kind == "audio" and (words := _text(content.get("recognition"))):
        return words, ()  # what DingTalk heard; the recording says no more
    else:
        parts = [{**content, "type": kind}]
    files = [
        Attachment(attachment, f"{message_id}-{number}", _text(part.get("fileName")) or None, source=code)
        for number, part in enumerate(parts)
        if (attachment := _KINDS.get(_text(part.get("type")))) and (code := _text(part.get("downloadCode")))
    ]
    text = "\n".join(words for part in parts if (words := _text(part.get("text")).strip()))
    return text or ("" if files else _UNREADABLE), tuple(files)


def _read_quote(data: Mapping[str, Any]) -> tuple[str, bool]:
    """Lines about the message it replies to, and whether they have words of somebody else."""
    replied = _dict((_dict(data.get("text")) or _dict(data.get("content"))).get("repliedMsg"))
    content = _dict(replied.get("content"))
    words = _text(content.get("text")) or "\n".join(_text(part.get("text")) for part in _dicts(content.get("richText")))
    if not words.strip():
        return "", False
    author = _text(replied.get("senderId"))
    is_ours, is_own = (bool(author) and author == _text(data.get(key)) for key in ("chatbotUserId", "senderId"))
    short = words if len(words) <= _LONGEST_QUOTE else f"{words[:_LONGEST_QUOTE]}…"
    lines = "\n".join(f"> {line}" for line in short.strip().splitlines())
    return f"[in reply to {'you' if is_ours else 'a message'}]\n{lines}", not (is_ours or is_own)


def _read_time(milliseconds: object) -> datetime | None:
    try:
        return datetime.fromtimestamp(int(str(milliseconds)) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _dicts(value: object) -> list[Mapping[str, Any]]:
    return [_dict(part) for part in value] if isinstance(value, list) else []
