"""Reads events: sender, chat, text, files. Never raises, whatever they contain.

Messages: open.feishu.cn/document, server-docs/im-v1/message/events/receive, and .../message-content for their content.
Buttons: uAjLw4CM/ukzMukzMukzM/feishu-cards/card-callback-communication.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from nanobot.channels.incoming import Incoming
from nanobot.channels.media import Attachment
from nanobot.channels.media_kinds import MediaKind

_MENTION = re.compile(r"@_user_\d+|@_all\b")
_FILES = {"image": MediaKind.IMAGE, "file": MediaKind.FILE, "audio": MediaKind.VOICE, "media": MediaKind.VIDEO}
_OWN_WORDS = ("text", "post", *_FILES)
_LONGEST_QUOTE = 1000
_MAX_FILES = 20

Payload = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeishuIncoming(Incoming):
    """A message or button press of a person."""

    message_id: str
    room: str = ""
    """The id of the chat at Feishu. Of a private chat ours is the person's."""
    parent_id: str = ""
    """The message it replies to, unless both are in a topic."""
    is_forward: bool = False
    """Whether it is a bundle of forwarded messages, which have to be fetched."""


def read_event(data: bytes, bot: str, *, topic_isolation: bool) -> FeishuIncoming | None:
    """Read an event of the long connection; None for those that are not for us. `bot`: the open_id of ours."""
    try:
        envelope = json.loads(data)
    except ValueError:
        return None
    envelope = envelope if isinstance(envelope, Mapping) else {}
    header, event = _dict(envelope, "header"), _dict(envelope, "event")
    match header.get("event_type"):
        case "im.message.receive_v1":
            return read_message(event, bot, topic_isolation=topic_isolation)
        case "card.action.trigger":
            return read_press(event, _text(header, "event_id"), topic_isolation=topic_isolation)
        case _:
            return None


def read_message(event: Payload, bot: str, *, topic_isolation: bool) -> FeishuIncoming | None:
    """Read an `im.message.receive_v1`; None for messages of bots."""
    message, sender = _dict(event, "message"), _dict(event, "sender")
    user, room, message_id = (
        _text(_dict(sender, "sender_id"), "open_id"),
        _text(message, "chat_id"),
        _text(message, "message_id"),
    )
    kind = _text(message, "message_type")
    if not (user and room and message_id) or _text(sender, "sender_type") not in ("user", "") or kind == "system":
        return None
    text, attachments = read_content(message, bot)
    is_private = _text(message, "chat_type") == "p2p"
    root, topic = _text(message, "root_id"), _text(message, "thread_id")
    thread = root or message_id if topic or (topic_isolation and not is_private) else None
    return FeishuIncoming(
        sender_id=user,
        chat_id=user if is_private else room,
        text=text,
        message_id=message_id,
        thread_id=thread,
        is_private=is_private,
        is_mentioned=bot in _mentioned(message).values(),
        attachments=tuple(attachments[:_MAX_FILES]),
        quotes_others=kind not in _OWN_WORDS,
        sent_at=_time_of(message),
        session_key=None if topic_isolation or is_private else f"feishu:{room}",
        room=room,
        parent_id="" if topic else _text(message, "parent_id"),
        is_forward=kind == "merge_forward",
    )


def read_press(event: Payload, event_id: str, *, topic_isolation: bool) -> FeishuIncoming | None:
    """Read a `card.action.trigger` as a message with the button's value, in the chat that the button names."""
    value, user = _dict(_dict(event, "action"), "value"), _text(_dict(event, "operator"), "open_id")
    chat = _text(value, "chat")
    if not (user and chat and _text(value, "say") and event_id):
        return None
    return FeishuIncoming(
        sender_id=user,
        chat_id=chat,
        text=_text(value, "say"),
        message_id=event_id,
        thread_id=_text(value, "thread") or None,
        is_private=not chat.startswith("oc_"),
        is_mentioned=True,
        session_key=None if topic_isolation or not chat.startswith("oc_") else f"feishu:{chat}",
    )


def event_of(item: Payload, *, is_private: bool) -> Payload:
    """A message of the history in the form of an event (server-docs/im-v1/message/list)."""
    sender = _dict(item, "sender")
    mentions = [{**mention, "id": {"open_id": _text(mention, "id")}} for mention in _list(item, "mentions")]
    message = {
        **item,
        "message_type": _text(item, "msg_type"),
        "content": _text(_dict(item, "body"), "content"),
        "chat_type": "p2p" if is_private else "group",
        "mentions": mentions,
    }
    return {
        "sender": {"sender_id": {"open_id": _text(sender, "id")}, "sender_type": _text(sender, "sender_type")},
        "message": message,
    }


def format_quote(items: Sequence[Payload], by: Incoming, bot: str, app_id: str) -> tuple[str, list[Attachment], bool]:
    """The lines about a message that is replied to, its files, and whether it has words of others than `by` and us."""
    item = items[0] if items else {}
    author, kind = _text(_dict(item, "sender"), "id"), _text(item, "msg_type")
    if not items or (author == app_id and kind == "interactive"):  # Feishu does not return the text of a card
        return "", [], False
    text, files = read_content(_dict(event_of(item, is_private=False), "message"), bot)
    short = text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}…"
    lines = "\n".join(f"> {line}" for line in short.splitlines())
    quote = f"[in reply to {'you' if author == app_id else author or 'somebody'}]\n{lines}".strip()
    is_own = author == app_id or (author == by.sender_id and kind in _OWN_WORDS)
    return quote, [] if author == app_id else files, not is_own


def format_forwarded(items: Sequence[Payload], bot: str) -> str:
    """The texts of a bundle of forwarded messages: the items after the first."""
    texts = [read_content(_dict(event_of(item, is_private=False), "message"), bot)[0] for item in items[1:]]
    return "\n".join(["[forwarded]", *(text for text in texts if text)])


def read_content(message: Payload, bot: str) -> tuple[str, list[Attachment]]:
    """The text, with names instead of ids, and the files of a message."""
    kind = _text(message, "message_type")
    try:
        content = json.loads(_text(message, "content"))
    except ValueError:
        content = {}
    content = content if isinstance(content, Mapping) else {}
    if kind == "text":
        return _with_names(_text(content, "text"), message, bot), []
    if kind == "post":
        content = next((page for page in content.values() if isinstance(page, Mapping)), content)
        text = "\n".join([_text(content, "title"), *map(_post_line, _lines(content))]).strip()
        files = [
            file for line in _lines(content) for part in line if (file := _file_of(_text(part, "tag"), part, message))
        ]
        return _with_names(text, message, bot), files
    if kind in _FILES:
        file = _file_of(kind, content, message)
        return "", [file] if file is not None else []
    words = " ".join(_words_in(content))
    return f"[{kind}: {words}]" if words else f"[{kind}]", []


def _post_line(line: Sequence[Payload]) -> str:
    def text_of(part: Payload) -> str:
        match _text(part, "tag"):
            case "a":
                return f"{_text(part, 'text')} ({_text(part, 'href')})"
            case "at":
                return _text(part, "user_id")
            case "emotion":
                return f":{_text(part, 'emoji_type')}:"
            case "code_block":
                return f"```{_text(part, 'language').lower()}\n{_text(part, 'text')}\n```"
            case _:
                return _text(part, "text")

    return "".join(map(text_of, line))


def _lines(page: Payload) -> list[list[Payload]]:
    lines = page.get("content")
    lines = [line for line in lines if isinstance(line, list)] if isinstance(lines, list) else []
    return [[part for part in line if isinstance(part, Mapping)] for line in lines]


def _file_of(kind: str, content: Payload, message: Payload) -> Attachment | None:
    """A file of this message (server-docs/im-v1/message/get-2)."""
    kind = "image" if kind == "img" else kind
    key = _text(content, "image_key" if kind == "image" else "file_key")
    if kind not in _FILES or not key:
        return None
    path = "/resources/".join(quote(part, safe="", errors="replace") for part in (_text(message, "message_id"), key))
    source = f"/im/v1/messages/{path}?type={'image' if kind == 'image' else 'file'}"
    return Attachment(_FILES[kind], key, _text(content, "file_name") or None, source=source)


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


def _mentioned(message: Payload) -> dict[str, str]:
    """The open_ids of the mentioned, by the key in the text."""
    return {_text(mention, "key"): _text(_dict(mention, "id"), "open_id") for mention in _list(message, "mentions")}


def _with_names(text: str, message: Payload, bot: str) -> str:
    """The text with names and ids for the keys of mentions, without a mention of the bot at its start."""
    ids = _mentioned(message)
    names = {_text(mention, "key"): _text(mention, "name") for mention in _list(message, "mentions")}
    text = text.strip()
    while (match := _MENTION.match(text)) is not None and ids.get(match[0]) == bot:
        text = text[match.end() :].lstrip(" \t\n,:")

    def with_name(match: "re.Match[str]") -> str:
        if match[0] == "@_all":
            return "@all"
        name, user = names.get(match[0]), ids.get(match[0])
        return f"@{name}" + (f" ({user})" if user and user != bot else "") if name else match[0]

    return _MENTION.sub(with_name, text)


def _time_of(message: Payload) -> datetime | None:
    try:
        return datetime.fromtimestamp(int(_text(message, "create_time")) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _text(payload: Payload, name: str) -> str:
    value = payload.get(name)
    return value if isinstance(value, str) else ""


def _dict(payload: Payload, name: str) -> Payload:
    value = payload.get(name)
    return value if isinstance(value, Mapping) else {}


def _list(payload: Payload, name: str) -> Sequence[Payload]:
    value = payload.get(name)
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []
