"""Converts QQ's events to `Incoming`. Pure functions.

Source: bot.q.qq.com/wiki/develop/api-v2/server-inter/message/send-receive/event.
"""

from nanobot.channels.incoming import Incoming, quoted_lines
from nanobot.channels.media import Attachment
from nanobot.channels.media_kinds import MediaKind
from nanobot.channels.payload import Payload

_KINDS = {"image": MediaKind.IMAGE, "video": MediaKind.VIDEO, "voice": MediaKind.VOICE, "audio": MediaKind.AUDIO}
_QUOTING = 103
"""`message_type` of a message that quotes the first of its `msg_elements`."""


def read_event(kind: object, data: object) -> Incoming | None:
    """Read a message. None for other events, and for one that does not say who wrote it where."""
    message = Payload.of(data)
    message_id, is_private = message.text("id"), kind == "C2C_MESSAGE_CREATE"
    if is_private:
        chat = sender = message.text("author", "user_openid")
    elif kind == "GROUP_AT_MESSAGE_CREATE":
        chat, sender = message.text("group_openid"), message.text("author", "member_openid")
    else:
        return None
    if not (chat and sender and message_id):
        return None
    text, files = _read_content(message, message_id)
    elements = message.parts("msg_elements") if message.get("message_type") == _QUOTING else []
    quoted, quoted_files = _read_content(elements[0] if elements else Payload(), f"{message_id}-quoted")
    return Incoming(
        sender,
        chat,
        f"{quoted_lines(quoted)}\n{text}" if quoted else text,
        message_id,
        is_private=is_private,
        is_mentioned=True,
        sender_name=message.line("author", "username"),
        attachments=files + quoted_files,
        quotes_others=bool(quoted or quoted_files),
        sent_at=message.iso_time("timestamp"),
    )


def _read_content(message: Payload, message_id: str) -> tuple[str, tuple[Attachment, ...]]:
    words, files = [message.text("content").strip()], []
    for number, part in enumerate(message.parts("attachments")):
        kind = _KINDS.get(part.text("content_type").partition("/")[0], MediaKind.FILE)
        url = part.text("url")
        if kind is MediaKind.VOICE:
            if spoken := part.text("asr_refer_text"):  # what QQ heard; the recording says no more
                words.append(spoken)
                continue
            url = part.text("voice_wav_url") or url  # the other one is in SILK
        if url:
            files.append(Attachment(kind, f"{message_id}-{number}", part.text("filename") or None, source=url))
    return "\n".join(filter(None, words)), tuple(files)
