"""Converts WeChat's messages to `Incoming`. Pure functions.

Source: github.com/Tencent/openclaw-weixin, src/api/types.ts. All values are checked: a message that is not as
documented must not end the connection.
"""

from collections.abc import Mapping

from nanobot.channels.incoming import Incoming, quoted_lines
from nanobot.channels.media import Attachment
from nanobot.channels.media_kinds import MediaKind
from nanobot.channels.payload import Payload
from nanobot.channels.weixin.cdn import download_url, read_key

_FROM_BOT = 2
_FILES = {2: ("image_item", MediaKind.IMAGE), 4: ("file_item", MediaKind.FILE), 5: ("video_item", MediaKind.VIDEO)}
"""By type of an item."""
_TEXT, _VOICE = 1, 3
FORGOTTEN = "(a message that nanobot no longer has)"


def read_message(data: object, texts: Mapping[str, str], cdn_base: str) -> Incoming | None:
    """Read a person's message. None for others, and for one that does not say who wrote it.

    `texts`: what earlier messages say, by id; newer apps quote by id alone.
    """
    message = Payload.of(data)
    sender, items = message.text("from_user_id"), message.parts("item_list")
    if not sender or message.get("message_type") == _FROM_BOT or message.get("group_id"):
        return None
    message_id = next(
        filter(None, map(id_of, (message.get("message_id"), *(item.get("msg_id") for item in items)))), ""
    )
    text, files = _read_items(items, message_id, cdn_base)
    reference = next(filter(None, (item.part("ref_msg") for item in items)), Payload())
    if reference:
        quoted_item = reference.part("message_item")
        quoted, quoted_files = _read_items([quoted_item], f"{message_id}-quoted", cdn_base)
        quoted_id = id_of(reference.get("svr_id")) or id_of(quoted_item.get("msg_id"))
        inline = " | ".join(filter(None, (reference.text("title").strip(), quoted)))
        quoted = inline or texts.get(quoted_id, "") or ("" if quoted_files else FORGOTTEN)
        text = f"{quoted_lines(quoted)}\n{text}"
        files += quoted_files
    return Incoming(
        sender,
        sender,
        text,
        message_id or None,
        attachments=files,
        quotes_others=bool(reference),
        sent_at=message.time("create_time_ms"),
    )


def _read_items(items: list[Payload], message_id: str, cdn_base: str) -> tuple[str, tuple[Attachment, ...]]:
    words, files = [], []
    for number, item in enumerate(items):
        kind = item.get("type")
        if kind == _TEXT:
            words.append(item.text("text_item", "text").strip())
            continue
        if kind == _VOICE:
            name, media_kind = "voice_item", MediaKind.VOICE
            if heard := item.text("voice_item", "text").strip():
                words.append(heard)  # what WeChat heard; the recording, in SILK, says no more
                continue
        elif kind in _FILES:
            name, media_kind = _FILES[kind]
        else:
            continue
        content = item.part(name)
        media = content.part("media")
        if url := download_url(media, cdn_base):
            key = read_key(content.text("aeskey") or media.text("aes_key"))
            file_name = content.text("file_name") or None
            files.append(Attachment(media_kind, f"{message_id}-{number}", file_name, source=f"{key} {url}"))
    return "\n".join(filter(None, words)), tuple(files)


def id_of(value: object) -> str:
    """A message's id, which is a number or a text; empty if there is none."""
    return str(value).strip() if isinstance(value, str | int) and value else ""
