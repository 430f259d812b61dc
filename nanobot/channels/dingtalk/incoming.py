"""Converts the messages of DingTalk to `Incoming`. Pure functions.

Source: open.dingtalk.com/document/orgapp/receive-message.
"""

from collections.abc import Mapping
from typing import Any

from nanobot.channels.incoming import Incoming, quoted_lines
from nanobot.channels.media import Attachment
from nanobot.channels.media_kinds import MediaKind
from nanobot.channels.payload import Payload

GROUP = "group:"
"""Before the conversation's id in the id of a group chat."""
_KINDS = {"picture": MediaKind.IMAGE, "audio": MediaKind.VOICE, "video": MediaKind.VIDEO, "file": MediaKind.FILE}
_UNREADABLE = "[a message of a kind that bots cannot read]"


def read_message(data: Mapping[str, Any], *, isolate_users: bool) -> Incoming | None:
    """Read a message. None if it does not say who wrote it where.

    `isolate_users`: whether each member of a group has a session of their own.
    """
    message = Payload.of(data)
    staff, encrypted = message.text("senderStaffId"), message.text("senderId")
    sender, conversation = staff or encrypted, message.text("conversationId")
    is_private = message.get("conversationType") == "1"
    if not sender or not conversation:
        return None
    chat = sender if is_private else f"{GROUP}{conversation}"
    text, files = _read_content(message)
    quote, quotes_others = _read_quote(message)
    return Incoming(
        sender,
        chat,
        f"{quote}\n{text.strip()}".strip(),
        message.text("msgId") or None,
        is_private=is_private,
        is_mentioned=is_private or message.get("isInAtList") is not False,
        alternate_ids=(encrypted,) if staff and encrypted else (),
        sender_name=message.line("senderNick"),
        attachments=files,
        quotes_others=quotes_others,
        sent_at=message.time("createAt"),
        session_key=f"dingtalk:{chat}:{sender}" if isolate_users and not is_private else None,
    )


def _read_content(message: Payload) -> tuple[str, tuple[Attachment, ...]]:
    kind = message.text("msgtype")
    if kind == "text":
        return message.text("text", "content"), ()
    if kind == "audio" and (words := message.text("content", "recognition")):
        return words, ()  # what DingTalk heard; the recording says no more
    content = message.part("content")
    parts = content.parts("richText") if kind == "richText" else [Payload({**content, "type": kind})]
    files = [
        Attachment(attachment, f"{message.text('msgId')}-{number}", part.text("fileName") or None, source=code)
        for number, part in enumerate(parts)
        if (attachment := _KINDS.get(part.text("type"))) and (code := part.text("downloadCode"))
    ]
    text = "\n".join(words for part in parts if (words := part.text("text").strip()))
    return text or ("" if files else _UNREADABLE), tuple(files)


def _read_quote(message: Payload) -> tuple[str, bool]:
    """Lines about the message it replies to, and whether they have words of somebody else."""
    replied = (message.part("text") or message.part("content")).part("repliedMsg")
    parts = replied.parts("content", "richText")
    words = replied.text("content", "text") or "\n".join(part.text("text") for part in parts)
    if not words.strip():
        return "", False
    author = replied.text("senderId")
    is_ours, is_own = (bool(author) and author == message.text(key) for key in ("chatbotUserId", "senderId"))
    return quoted_lines(words, "you" if is_ours else "a message"), not (is_ours or is_own)
