"""Reads what arrives over the long connection: frames, and in them events, with sender, chat, text and files.

A frame is one small protobuf message (fields: 3 service, 4 method, 5 headers, 8 payload), decoded by hand: the SDK's
class is the only other copy of it, and importing that takes two seconds for the whole SDK. Encoding:
protobuf.dev/programming-guides/encoding. Fields that are not read here are sent back as they came.

Reading an event never raises, whatever it contains. Messages: open.feishu.cn/document, server-docs/im-v1/message/
events/receive, and .../message-content for their content. Buttons: uAjLw4CM/ukzMukzMukzM/feishu-cards/
card-callback-communication.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from nanobot.channels.incoming import Incoming, Payload, quoted_lines
from nanobot.channels.media import Attachment, MediaKind
from nanobot.utils.bounded_dict import put_bounded

_SEQUENCE, _LOG, _SERVICE, _METHOD, _HEADER, _PAYLOAD = 1, 2, 3, 4, 5, 8
_CONTROL = 0
_VARINT, _BYTES = 0, 2
_MOST_PARTS, _MOST_MESSAGES = 100, 50

Fields = list[tuple[int, int | bytes]]
_MENTION = re.compile(r"@_user_\d+|@_all\b")
_FILES = {"image": MediaKind.IMAGE, "file": MediaKind.FILE, "audio": MediaKind.VOICE, "media": MediaKind.VIDEO}
_OWN_WORDS = ("text", "post", *_FILES)
_MAX_FILES = 20


@dataclass(frozen=True, slots=True)
class Frame:
    fields: Fields
    """By number."""

    @classmethod
    def decode(cls, data: bytes) -> "Frame":
        """Raises ValueError."""
        return cls(_decode(data))

    @property
    def is_control(self) -> bool:
        """Whether it is a ping or pong."""
        return (_METHOD, _CONTROL) in self.fields

    @property
    def headers(self) -> dict[str, str]:
        headers = [value for number, value in self.fields if number == _HEADER and isinstance(value, bytes)]
        pairs = [dict(_decode(header)) for header in headers]
        return {_text(pair.get(1)): _text(pair.get(2)) for pair in pairs}

    @property
    def payload(self) -> bytes:
        return next((value for number, value in self.fields if number == _PAYLOAD and isinstance(value, bytes)), b"")

    def answer(self, code: int) -> bytes:
        """The acknowledgement: the same frame with 200 as its payload; with another code the event comes again."""
        others = [(number, value) for number, value in self.fields if number != _PAYLOAD]
        return _encode([*others, (_PAYLOAD, json.dumps({"code": code}).encode())])


def new_frame(service: int, method: int, headers: Mapping[str, str], payload: bytes = b"") -> bytes:
    pairs = [(_HEADER, _encode([(1, key.encode()), (2, value.encode())])) for key, value in headers.items()]
    return _encode([(_SEQUENCE, 0), (_LOG, 0), (_SERVICE, service), (_METHOD, method), *pairs, (_PAYLOAD, payload)])


def ping(service: int) -> bytes:
    return new_frame(service, _CONTROL, {"type": "ping"})


class Parts:
    """Events that arrive in several frames."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[int, bytes]] = {}

    def add(self, frame: Frame) -> bytes | None:
        """The whole event; None for a control frame, or while parts are missing. Raises ValueError."""
        headers = frame.headers
        count, number = int(headers.get("sum") or 1), int(headers.get("seq") or 0)
        if not 0 <= number < count <= _MOST_PARTS:
            raise ValueError(f"part {number} of {count}")
        if count == 1:
            return None if frame.is_control else frame.payload
        message = headers.get("message_id", "")
        parts = self._waiting.pop(message, {}) | {number: frame.payload}
        if len(parts) < count:
            put_bounded(self._waiting, message, parts, _MOST_MESSAGES)
            return None
        return b"".join(parts[index] for index in range(count))


def _decode(data: bytes) -> Fields:
    fields: Fields = []
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        value, at = _read_varint(data, at)
        if key & 7 == _VARINT:
            fields.append((key >> 3, value))
        elif key & 7 == _BYTES and at + value <= len(data):
            fields.append((key >> 3, data[at : at + value]))
            at += value
        else:
            raise ValueError("not a frame")
    return fields


def _encode(fields: Fields) -> bytes:
    encoded = bytearray()
    for number, value in fields:
        kind, size, content = (_VARINT, value, b"") if isinstance(value, int) else (_BYTES, len(value), value)
        encoded += _varint(number << 3 | kind) + _varint(size) + content
    return bytes(encoded)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    raise ValueError("not a frame")


def _varint(value: int) -> bytes:
    groups = [value >> shift & 0x7F | 0x80 for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([*groups[:-1], groups[-1] & 0x7F])


def _text(value: int | bytes | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeishuIncoming(Incoming):
    message_id: str
    room: str = ""
    """The id of the chat at Feishu. Of a private chat ours is the person's."""
    parent_id: str = ""
    """The message it replies to, unless both are in a topic."""
    is_forward: bool = False
    """Whether it is a bundle of forwarded messages, which have to be fetched."""


def read_event(data: bytes, bot: str, *, topic_isolation: bool) -> FeishuIncoming | None:
    """Read an event of the long connection; None for those that are not for us. `bot`: the open_id of ours."""
    envelope = Payload.parse(data)
    match envelope.text("header", "event_type"):
        case "im.message.receive_v1":
            return read_message(envelope.part("event"), bot, topic_isolation=topic_isolation)
        case "card.action.trigger":
            event_id = envelope.text("header", "event_id")
            return _read_press(envelope.part("event"), event_id, topic_isolation=topic_isolation)
        case _:
            return None


def read_message(event: Mapping[str, Any], bot: str, *, topic_isolation: bool) -> FeishuIncoming | None:
    """Read an `im.message.receive_v1`; None for messages of bots."""
    sender, message = Payload.of(event).part("sender"), Payload.of(event).part("message")
    user, room, message_id = _open_id(sender, "sender_id"), message.text("chat_id"), message.text("message_id")
    kind = _kind_of(message)
    if not (user and room and message_id) or sender.text("sender_type") not in ("user", "") or kind == "system":
        return None
    text, attachments = _read_content(message, bot)
    is_private = message.text("chat_type") == "p2p"
    topic = message.text("thread_id")
    has_thread = topic or (topic_isolation and not is_private)
    return FeishuIncoming(
        sender_id=user,
        chat_id=user if is_private else room,
        text=text,
        message_id=message_id,
        thread_id=message.text("root_id") or message_id if has_thread else None,
        is_private=is_private,
        is_mentioned=bot in (_open_id(mention) for mention in message.parts("mentions")),
        attachments=tuple(attachments[:_MAX_FILES]),
        quotes_others=kind not in _OWN_WORDS,
        sent_at=message.time("create_time"),
        session_key=None if topic_isolation or is_private else f"feishu:{room}",
        room=room,
        parent_id="" if topic else message.text("parent_id"),
        is_forward=kind == "merge_forward",
    )


def _read_press(event: Payload, event_id: str, *, topic_isolation: bool) -> FeishuIncoming | None:
    """Read a `card.action.trigger` as a message with the button's value, in the chat that the button names."""
    value, user = event.part("action", "value"), event.text("operator", "open_id")
    chat, text = value.text("chat"), value.text("say")
    if not (user and chat and text and event_id):
        return None
    is_private = not chat.startswith("oc_")
    return FeishuIncoming(
        sender_id=user,
        chat_id=chat,
        text=text,
        message_id=event_id,
        thread_id=value.text("thread") or None,
        is_private=is_private,
        is_mentioned=True,
        session_key=None if topic_isolation or is_private else f"feishu:{chat}",
    )


def event_of(item: Mapping[str, Any], *, is_private: bool) -> dict[str, Any]:
    """A message of the history in the form of an event."""
    return {"sender": item.get("sender"), "message": {**item, "chat_type": "p2p" if is_private else "group"}}


def format_quote(
    items: Sequence[Mapping[str, Any]], by: Incoming, bot: str, app_id: str
) -> tuple[str, list[Attachment], bool]:
    """The lines about a message that is replied to, its files, and whether it has words of others than `by` and us."""
    item = Payload.of(items[0] if items else None)
    author, kind = item.text("sender", "id"), _kind_of(item)
    is_ours = author == app_id
    if not items or (is_ours and kind == "interactive"):  # Feishu does not return the text of a card
        return "", [], False
    text, files = _read_content(item, bot)
    is_own = is_ours or (author == by.sender_id and kind in _OWN_WORDS)
    return quoted_lines(text, "you" if is_ours else author or "somebody"), [] if is_ours else files, not is_own


def format_forwarded(items: Sequence[Mapping[str, Any]], bot: str) -> str:
    """The texts of a bundle of forwarded messages: the items after the first."""
    texts = [_read_content(Payload.of(item), bot)[0] for item in items[1:]]
    return "\n".join(["[forwarded]", *filter(None, texts)])


def _kind_of(message: Payload) -> str:
    return message.text("message_type") or message.text("msg_type")


def _open_id(payload: Payload, name: str = "id") -> str:
    """The id of a person: an object in events, a text in the history (server-docs/im-v1/message/list)."""
    return payload.text(name, "open_id") or payload.text("id")


def _read_content(message: Payload, bot: str) -> tuple[str, list[Attachment]]:
    """The text, with names instead of ids, and the files of a message."""
    kind = _kind_of(message)
    content = Payload.parse(message.text("content") or message.text("body", "content"))
    if kind == "text":
        return _with_names(content.text("text"), message, bot), []
    if kind == "post":
        content = next((Payload.of(page) for page in content.values() if isinstance(page, Mapping)), content)
        listed = content.get("content")
        lines = [Payload({"line": line}).parts("line") for line in (listed if isinstance(listed, list) else ())]
        text = "\n".join([content.text("title"), *("".join(map(_post_part, line)) for line in lines)]).strip()
        files = [file for line in lines for part in line if (file := _file_of(part.text("tag"), part, message))]
        return _with_names(text, message, bot), files
    if kind in _FILES:
        file = _file_of(kind, content, message)
        return "", [file] if file is not None else []
    words = " ".join(_words_in(content))
    return f"[{kind}: {words}]" if words else f"[{kind}]", []


def _post_part(part: Payload) -> str:
    text = part.text("text")
    match part.text("tag"):
        case "a":
            return f"{text} ({part.text('href')})"
        case "at":
            return part.text("user_id")
        case "emotion":
            return f":{part.text('emoji_type')}:"
        case "code_block":
            return f"```{part.text('language').lower()}\n{text}\n```"
        case _:
            return text


def _file_of(kind: str, content: Payload, message: Payload) -> Attachment | None:
    """A file of this message (server-docs/im-v1/message/get-2)."""
    kind = "image" if kind == "img" else kind
    key = content.text("image_key" if kind == "image" else "file_key")
    if kind not in _FILES or not key:
        return None
    path = "/resources/".join(quote(part, safe="", errors="replace") for part in (message.text("message_id"), key))
    source = f"/im/v1/messages/{path}?type={'image' if kind == 'image' else 'file'}"
    return Attachment(_FILES[kind], key, content.text("file_name") or None, source=source)


def _words_in(value: object) -> Iterator[str]:
    """The texts of a card and of other content, in order."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if isinstance(inner, str) and key in ("text", "content", "title", "name", "summary", "topic"):
                yield inner
            else:
                yield from _words_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _words_in(inner)


def _with_names(text: str, message: Payload, bot: str) -> str:
    """The text with names and ids for the keys of mentions, without a mention of the bot at its start."""
    people = {mention.text("key"): (mention.text("name"), _open_id(mention)) for mention in message.parts("mentions")}
    text = text.strip()
    while (match := _MENTION.match(text)) is not None and people.get(match[0], ("", ""))[1] == bot:
        text = text[match.end() :].lstrip(" \t\n,:")

    def with_name(match: "re.Match[str]") -> str:
        name, user = people.get(match[0], ("", ""))
        if match[0] == "@_all" or not name:
            return "@all" if match[0] == "@_all" else match[0]
        return f"@{name} ({user})" if user not in ("", bot) else f"@{name}"

    return _MENTION.sub(with_name, text)
