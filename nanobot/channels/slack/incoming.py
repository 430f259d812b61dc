"""Reads the payloads of envelopes: sender, chat, text, files. Never raises, whatever they contain.

Messages: https://docs.slack.dev/reference/events/message and .../app_mention. Buttons: .../interaction-payloads/
block_actions-payload. Commands: https://docs.slack.dev/interactivity/implementing-slash-commands. Text: .../messaging/
formatting-message-text.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nanobot.channels.incoming import Incoming, Payload
from nanobot.channels.media import Attachment, MediaKind

COMMAND = "/nanobot"
"""The command whose argument is the message. Any other command is passed on by its name."""
_USER_SUBTYPES = frozenset({"", "file_share", "thread_broadcast", "me_message"})
"""Subtypes of messages by people. The others are edits, deletions, joins and messages of bots."""
_UNAVAILABLE_MODES = ("external", "tombstone", "hidden_by_limit")
"""Modes of files that cannot be downloaded."""
_MAX_FILES = 20
_MARK = re.compile(r"<([@#!]?)([^<>|]*)(?:\|([^<>]*))?>")


@dataclass(frozen=True, slots=True)
class BotIdentity:
    """The bot's user, from `auth.test`."""

    user: str
    name: str = "nanobot"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackIncoming(Incoming):
    """A message, slash command or button press of a person."""

    message_id: str
    is_group_chat: bool = False
    """Whether it is a private chat of several people."""
    is_mention_event: bool = False
    """Whether it is an `app_mention`, which usually arrives as a `message` event, too, perhaps with more."""


def read_event(data: Mapping[str, Any], me: BotIdentity, *, reply_in_thread: bool) -> SlackIncoming | None:
    """Read a message event; None for other events and for messages of bots, including our own."""
    event = Payload.of(data)
    is_mention = event.get("type") == "app_mention"
    if not is_mention and (event.get("type") != "message" or event.text("subtype") not in _USER_SUBTYPES):
        return None
    user, chat, ts = event.text("user"), event.text("channel"), event.text("ts")
    if not (user and chat and ts) or user in (me.user, "USLACKBOT") or event.get("bot_id") or event.get("hidden"):
        return None
    text = event.text("text")
    shares = [share for share in event.parts("attachments") if share.get("is_share") or share.get("is_msg_unfurl")]
    files = [file for payload in (event, *shares) for file in payload.parts("files")]
    away = [file for file in files if file.get("mode") in _UNAVAILABLE_MODES]
    lines = [to_plain_text(text, me.user, me.name)]
    lines += [_format_forwarded(share, me) for share in shares if share.text("text")]
    lines += map(_describe_unavailable, away)
    kind, thread = _kind(event, chat), event.text("thread_ts")
    is_named = _mention_of(me.user).search(text) is not None
    return SlackIncoming(
        user,
        chat,
        "\n".join(line for line in lines if line),
        message_id=ts,
        thread_id=thread or (ts if reply_in_thread and kind != "im" else None),
        is_private=kind == "im",
        is_group_chat=kind == "mpim",
        is_mentioned=is_mention or is_named or event.get("parent_user_id") == me.user,
        attachments=tuple(describe_file(file) for file in files if file not in away and file.text("id"))[:_MAX_FILES],
        quotes_others=bool(shares),
        sent_at=event.time("ts", ticks_per_s=1),
        is_mention_event=is_mention,
    )


def read_command(data: Mapping[str, Any]) -> SlackIncoming | None:
    """Read a slash command of the app: `/nanobot what is new` is "what is new", `/stop` is "/stop"."""
    payload = Payload.of(data)
    user, chat = payload.text("user_id"), payload.text("channel_id")
    command, trigger = payload.text("command"), payload.text("trigger_id")
    if not (user and chat and command and trigger):
        return None
    words = payload.text("text").strip()
    text = (words or "/help") if command == COMMAND else f"{command} {words}".strip()
    kind = "im" if payload.get("channel_name") == "directmessage" else _kind(payload, chat)
    is_private, is_group = kind == "im", kind == "mpim"
    return SlackIncoming(
        user, chat, text, message_id=trigger, is_private=is_private, is_group_chat=is_group, is_mentioned=True
    )


def read_press(data: Mapping[str, Any]) -> SlackIncoming | None:
    """Read a button press as a message with the button's value, in the chat of the button."""
    payload = Payload.of(data)
    action = next((action for action in payload.parts("actions") if action.get("type") == "button"), Payload())
    user, chat = payload.text("user", "id"), payload.text("channel", "id") or payload.text("container", "channel_id")
    value, pressed = action.text("value"), action.text("action_ts") or payload.text("trigger_id")
    if payload.get("type") != "block_actions" or not (user and chat and value and pressed):
        return None
    return SlackIncoming(
        user,
        chat,
        value,
        message_id=pressed,
        thread_id=payload.text("message", "thread_ts") or payload.text("container", "thread_ts") or None,
        is_private=_kind(Payload(), chat) == "im",
        is_mentioned=True,
        sent_at=Payload(ts=pressed).time("ts", ticks_per_s=1),
    )


def describe_file(file: Payload) -> Attachment:
    """An attachment as Slack describes it. Its source is empty if the event has only the id."""
    content_type = file.text("mimetype")
    kind = MediaKind.VOICE if file.text("subtype") == "slack_audio" else MediaKind.of_type(content_type)
    return Attachment(
        kind,
        file.text("id") or None,
        file.text("name") or None,
        content_type or None,
        int(file.number("size")) or None,
        source=file.text("url_private_download") or file.text("url_private"),
    )


def _describe_unavailable(file: Payload) -> str:
    """A text for a file that cannot be downloaded: a link if it is stored elsewhere, else a note."""
    name = file.text("name") or "a file"
    return f"[file: {name} {file.text('url_private') if file.get('mode') == 'external' else 'is not to be had'}]"


def _format_forwarded(share: Payload, me: BotIdentity) -> str:
    author = share.text("author_name") or share.text("author_id")
    return f"[forwarded{' from ' + author if author else ''}]\n{to_plain_text(share.text('text'), me.user, me.name)}"


def _kind(payload: Payload, chat: str) -> str:
    return payload.text("channel_type") or ("im" if chat.startswith("D") else "channel")


def _mention_of(user: str) -> "re.Pattern[str]":
    return re.compile(rf"<@{re.escape(user)}(?:\|[^<>]*)?>")


def to_plain_text(text: str, me: str, my_name: str) -> str:
    """The plain text, without a mention of the bot at its start."""
    own = re.compile(rf"\A(?:\s*{_mention_of(me).pattern}[ \t]*[,:]?)+\s*")
    plain = _MARK.sub(lambda match: _read(match, me, my_name), own.sub("", text))
    return plain.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").strip()


def _read(match: "re.Match[str]", me: str, my_name: str) -> str:
    sign, target, label = match[1], match[2], match[3]
    if sign == "@":
        return f"@{my_name if target == me else label or target}"
    if sign == "#":
        return f"#{label or target}"
    if sign == "!":  # <!here>, <!subteam^S1|@team>, <!date^1^{date}|1 May>
        return label or f"@{target.partition('^')[0]}"
    if not label or _bare(label) == _bare(target):
        return target.removeprefix("mailto:").removeprefix("tel:")
    return f"{label} ({target})"


def _bare(address: str) -> str:
    """An address as people write it, without scheme: Slack makes every address a link."""
    return re.sub(r"\A(?:mailto:|tel:)?(?:https?://)?|/\Z", "", address).lower()
