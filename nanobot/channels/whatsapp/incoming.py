"""Reads the bridge's messages, and addresses of WhatsApp. Pure functions.

WhatsApp addresses a person by the phone number (`4915112345678@s.whatsapp.net`), by a LID that hides the number
(`272700845121588@lid`), or by both; a group by `...@g.us`. All values are checked: an odd message must not end the
connection.
"""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from nanobot.channels.incoming import Incoming, quoted_lines
from nanobot.channels.media import Attachment
from nanobot.channels.media_kinds import MediaKind
from nanobot.channels.payload import Payload
from nanobot.pairing.senders import Sender

_KINDS = {"image": MediaKind.IMAGE, "sticker": MediaKind.IMAGE, "video": MediaKind.VIDEO, "audio": MediaKind.AUDIO}
_GROUP, _LID = "@g.us", "@lid"


def address_of(person: str) -> str | None:
    """The address of a person, a LID or a group, however it is written; None if it is none."""
    sender = Sender.of(person.strip())
    kind, _, digits = sender.key.partition(":")
    if kind == "number":
        return f"{digits}@s.whatsapp.net"
    return sender.id if sender.id.endswith((_LID, _GROUP)) else None


def read_message(data: Mapping[str, object], me: AbstractSet[str], numbers: Mapping[str, str]) -> Incoming | None:
    """Read a message. None for one that does not say who wrote it where.

    `me` are the ids of the linked account, `numbers` phone numbers by LID.
    """
    message = Payload.of(data)
    author, message_id = message.text("sender"), message.text("id")
    chat = message.text("chat") or author
    lid = message.text("lid") or (author if author.endswith(_LID) else "")
    number = message.text("pn") or numbers.get(lid.removesuffix(_LID), "") or (author if author != lid else "")
    number = address_of(number) or ""
    ids = [Sender.of(one).id for one in (number, lid) if one]
    if not (chat and ids and message_id):
        return None
    is_group = message.get("isGroup") is True
    quote, quotes_others = _read_quote(message.part("quoted"), {*ids, *me}, me)
    text = message.text("content")
    for own in me:
        digits = re.escape(own.strip("+").removesuffix(_LID))
        text = re.sub(rf"^\s*@{digits}\b\s*|\s*@{digits}\s*$", "", text)
    return Incoming(
        ids[0],
        chat if is_group else number or chat,
        f"{quote}\n{text}".strip(),
        message_id,
        is_private=not is_group,
        is_mentioned=not is_group or message.get("wasMentioned") is True,
        alternate_ids=tuple(ids[1:]),
        sender_name=message.text("pushName"),
        attachments=_read_files(message.get("media"), message_id),
        quotes_others=quotes_others or message.get("forwarded") is True,
        sent_at=message.time("timestamp", ticks_per_s=1),
    )


def _read_quote(quoted: Payload, own: AbstractSet[str], me: AbstractSet[str]) -> tuple[str, bool]:
    """The quoted message for the model, and whether somebody else wrote it than the sender or the bot."""
    if not (text := quoted.text("text").strip()):
        return "", False
    author = Sender.of(quoted.text("sender")).id
    return quoted_lines(text, "you" if author in me else "a message"), author not in own


def _read_files(media: object, message_id: str) -> tuple[Attachment, ...]:
    files = []
    for number, entry in enumerate(media if isinstance(media, list) else []):
        # bridges of earlier releases send paths
        file = Payload.of(entry if isinstance(entry, Mapping) else {"path": entry})
        kind_name, content_type = file.text("kind"), file.text("mimetype")
        kind = _KINDS.get(kind_name) or (MediaKind.FILE if kind_name else MediaKind.of_type(content_type))
        kind = MediaKind.VOICE if file.get("ptt") is True else kind
        source, name = file.text("path"), file.text("name")
        files.append(Attachment(kind, f"{message_id}-{number}", name or None, content_type or None, source=source))
    return tuple(files)
