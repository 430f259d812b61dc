"""Reads what WeCom tells of messages and pressed buttons, and decrypts their files. Pure functions.

Source: developer.work.weixin.qq.com/document/path/100719 (messages), 101027 (events). All values are checked: a
callback that is not as documented must not end the connection.
"""

import base64
import re
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from nanobot.channels.incoming import Incoming
from nanobot.channels.media import Attachment
from nanobot.channels.media_kinds import MediaError, MediaKind

_FILES = {"image": MediaKind.IMAGE, "video": MediaKind.VIDEO, "file": MediaKind.FILE}
_MENTION = re.compile(r"@\S+\s*")
_LONGEST_QUOTE = 600
_BLOCK, _LONGEST_PADDING = 16, 32


def read_message(body: object) -> Incoming | None:
    """Read a message. None for one that does not say who wrote it where."""
    message = _dict(body)
    text, files = _read_content(message, _text(message.get("msgid")))
    quote = _dict(message.get("quote"))
    quoted, quoted_files = _read_content(quote, f"{_text(message.get('msgid'))}-quoted")
    if message.get("chattype") == "group":
        text = _MENTION.sub("", text, count=1) if text.startswith("@") else text
    if quoted:
        short = quoted if len(quoted) <= _LONGEST_QUOTE else f"{quoted[:_LONGEST_QUOTE]}…"
        text = "\n".join(["[in reply to a message]", *(f"> {line}" for line in short.splitlines()), text])
    return _incoming(message, text, (*files, *quoted_files), quotes_others=bool(quoted or quoted_files))


def read_press(body: object, said: str) -> Incoming | None:
    """Read a pressed button as a message that says this."""
    return _incoming(_dict(body), said)


def event_of(body: object) -> tuple[str, Mapping[str, Any]]:
    """The type of an event, and what is told of it."""
    event = _dict(_dict(body).get("event"))
    kind = _text(event.get("eventtype"))
    return kind, _dict(event.get(kind))


def _incoming(
    message: Mapping[str, Any], text: str, files: tuple[Attachment, ...] = (), *, quotes_others: bool = False
) -> Incoming | None:
    sender = _text(_dict(message.get("from")).get("userid"))
    is_group = message.get("chattype") == "group"
    chat = _text(message.get("chatid")) if is_group else sender
    message_id = _text(message.get("msgid"))
    if not (sender and chat and message_id):
        return None
    seconds = message.get("create_time")
    is_time = isinstance(seconds, int) and 0 < seconds < 1 << 34
    return Incoming(
        sender,
        chat,
        text,
        message_id,
        is_private=not is_group,
        is_mentioned=True,
        attachments=files,
        quotes_others=quotes_others,
        sent_at=datetime.fromtimestamp(seconds, UTC) if is_time else None,  # type: ignore[arg-type]
    )


def _read_content(message: Mapping[str, Any], message_id: str) -> tuple[str, tuple[Attachment, ...]]:
    """The text and files of a message, or of the message that it quotes."""
    items = _dict(message.get("mixed")).get("msg_item")
    words, files = [], []
    for number, part in enumerate(map(_dict, items) if isinstance(items, list) else [message]):
        kind = _text(part.get("msgtype"))
        content = _dict(part.get(kind))
        words.append(_text(content.get("content")).strip())  # of a text or, as WeCom heard it, of a voice message
        if kind in _FILES and (url := _text(content.get("url"))):
            name = _text(content.get("filename")) or None
            source = f"{_text(content.get('aeskey'))} {url}"
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


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
