"""Reads what WeCom tells of messages and pressed buttons, and decrypts their files. Pure functions.

Source: developer.work.weixin.qq.com/document/path/100719 (messages), 101027 (events).
"""

import base64
import re
from collections.abc import AsyncIterator

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from nanobot.channels.incoming import Incoming, quoted_lines
from nanobot.channels.media import Attachment
from nanobot.channels.media_kinds import MediaError, MediaKind
from nanobot.channels.payload import Payload

_FILES = {"image": MediaKind.IMAGE, "video": MediaKind.VIDEO, "file": MediaKind.FILE}
_MENTION = re.compile(r"@\S+\s*")
_BLOCK, _LONGEST_PADDING = 16, 32


def read_message(body: object) -> Incoming | None:
    """Read a message. None for one that does not say who wrote it where."""
    message = Payload.of(body)
    message_id = message.text("msgid")
    text, files = _read_content(message, message_id)
    quoted, quoted_files = _read_content(message.part("quote"), f"{message_id}-quoted")
    if message.get("chattype") == "group":
        text = _MENTION.sub("", text, count=1) if text.startswith("@") else text
    if quoted:
        text = f"{quoted_lines(quoted)}\n{text}"
    return _incoming(message, text, (*files, *quoted_files), quotes_others=bool(quoted or quoted_files))


def read_press(body: object, said: str) -> Incoming | None:
    """Read a pressed button as a message that says this."""
    return _incoming(Payload.of(body), said)


def event_of(body: object) -> tuple[str, Payload]:
    """The type of an event, and what is told of it."""
    event = Payload.of(body).part("event")
    return event.text("eventtype"), event.part(event.text("eventtype"))


def _incoming(
    message: Payload, text: str, files: tuple[Attachment, ...] = (), *, quotes_others: bool = False
) -> Incoming | None:
    sender, message_id = message.text("from", "userid"), message.text("msgid")
    is_group = message.get("chattype") == "group"
    chat = message.text("chatid") if is_group else sender
    if not (sender and chat and message_id):
        return None
    return Incoming(
        sender,
        chat,
        text,
        message_id,
        is_private=not is_group,
        is_mentioned=True,
        attachments=files,
        quotes_others=quotes_others,
        sent_at=message.time("create_time", ticks_per_s=1),
    )


def _read_content(message: Payload, message_id: str) -> tuple[str, tuple[Attachment, ...]]:
    """The text and files of a message, or of the message that it quotes."""
    words, files = [], []
    for number, part in enumerate(message.parts("mixed", "msg_item") or [message]):
        kind = part.text("msgtype")
        content = part.part(kind)
        words.append(content.text("content").strip())  # of a text or, as WeCom heard it, of a voice message
        if kind in _FILES and (url := content.text("url")):
            name, source = content.text("filename") or None, f"{content.text('aeskey')} {url}"
            files.append(Attachment(_FILES[kind], f"{message_id}-{number}", name, source=source))
    return "\n".join(filter(None, words)), tuple(files)


async def decrypt(chunks: AsyncIterator[bytes], key_text: str) -> AsyncIterator[bytes]:
    """Decrypt a file: AES-256-CBC, the initial vector is the start of the key, padded up to blocks of 32 bytes.

    Raises MediaError.
    """
    try:
        key = base64.b64decode(key_text + "=" * (-len(key_text) % 4))
        decryptor = Cipher(algorithms.AES256(key), modes.CBC(key[:_BLOCK])).decryptor()
    except ValueError as error:
        raise MediaError("WeCom sent a key that is none") from error
    held = b""
    async for chunk in chunks:
        held += decryptor.update(chunk)
        yield held[:-_LONGEST_PADDING]
        held = held[-_LONGEST_PADDING:]
    try:
        held += decryptor.finalize()
    except ValueError as error:
        raise MediaError("the file is not complete") from error
    padding = held[-1] if held else 0
    if not 0 < padding <= _LONGEST_PADDING or held[-padding:] != bytes([padding]) * padding:
        raise MediaError("the file cannot be decrypted with the key that WeCom sent")
    yield held[:-padding]
