"""What an envelope says: who said what, where, with which files. Never raises, whatever is in it.

Messages: https://docs.slack.dev/reference/events/message and .../app_mention. Buttons: .../interaction-payloads/
block_actions-payload. Commands: https://docs.slack.dev/interactivity/implementing-slash-commands.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from nanobot.channels.media import Attachment
from nanobot.channels.media_kinds import MediaKind
from nanobot.channels.slack.mrkdwn import as_read, names, people

COMMAND = "/nanobot"
"""The command behind which anything may be said. Any other is passed on by its name."""
_HEARD = frozenset({"", "file_share", "thread_broadcast", "me_message"})
"""Subtypes that are words of a person. The rest tells of edits, deletions, people who come and go, and other bots."""
_NOT_HERE = ("external", "tombstone", "hidden_by_limit")
"""Modes of files that cannot be fetched."""
_MOST_FILES = 20

Payload = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BotIdentity:
    """Who the bot is, as `auth.test` says it."""

    user: str
    name: str = "nanobot"


@dataclass(frozen=True, slots=True)
class IncomingMessage:
    """Something a person said."""

    sender_id: str
    chat_id: str
    text: str
    message_id: str
    thread_id: str | None
    kind: str
    """im: a private chat; mpim: a private group; else a channel."""
    is_mentioned: bool
    files: tuple[Attachment, ...] = ()
    quotes_others: bool = False
    is_twin: bool = False
    """Whether the same message comes as another event, too, which may say more."""
    people: tuple[str, ...] = ()
    """The ids of others that stand in the text where their names could."""

    @property
    def is_private(self) -> bool:
        """Whether nobody but the sender and the bot reads along."""
        return self.kind == "im"

    @property
    def when(self) -> datetime | None:
        """When it was said: a timestamp is the name of a message, too."""
        try:
            return datetime.fromtimestamp(float(self.message_id), UTC)
        except (ValueError, OverflowError, OSError):
            return None


def read_event(event: Payload, me: BotIdentity, *, reply_in_thread: bool) -> IncomingMessage | None:
    """A message for somebody to hear; None for anything else, and for what bots say, this one first."""
    is_mention = event.get("type") == "app_mention"
    if not is_mention and (event.get("type") != "message" or _text(event, "subtype") not in _HEARD):
        return None
    user, chat, ts = _text(event, "user"), _text(event, "channel"), _text(event, "ts")
    if not (user and chat and ts) or user in (me.user, "USLACKBOT") or event.get("bot_id") or event.get("hidden"):
        return None
    text = _text(event, "text")
    shares = [one for one in _list(event, "attachments") if one.get("is_share") or one.get("is_msg_unfurl")]
    words = [as_read(text, me.user, me.name)]
    words += [_forwarded(one, me) for one in shares if _text(one, "text")]
    files = [file for told in (event, *shares) for file in _list(told, "files")]
    remote = [one for file in files if (one := _file(file)) is not None][:_MOST_FILES]
    words += [_elsewhere(file) for file in files if file.get("mode") in _NOT_HERE]
    called = [one for told in (event, *shares) for one in people(_text(told, "text"))]
    thread = _text(event, "thread_ts")
    kind = _kind(event, chat)
    if not thread and reply_in_thread and kind != "im":
        thread = ts
    return IncomingMessage(
        user,
        chat,
        "\n".join(word for word in words if word),
        ts,
        thread or None,
        kind,
        is_mention or names(text, me.user) or event.get("parent_user_id") == me.user,
        tuple(remote),
        bool(shares),
        is_mention,
        tuple(one for one in dict.fromkeys(called) if one != me.user),
    )


def read_command(payload: Payload) -> IncomingMessage | None:
    """A slash command of the app: `/nanobot what is new` says "what is new", `/stop` says "/stop"."""
    user, chat = _text(payload, "user_id"), _text(payload, "channel_id")
    command, trigger = _text(payload, "command"), _text(payload, "trigger_id")
    if not (user and chat and command and trigger):
        return None
    words = _text(payload, "text").strip()
    text = (words or "/help") if command == COMMAND else f"{command} {words}".strip()
    kind = "im" if payload.get("channel_name") == "directmessage" else _kind(payload, chat)
    return IncomingMessage(user, chat, text, trigger, None, kind, is_mentioned=True)


def read_press(payload: Payload) -> IncomingMessage | None:
    """A button below a message of ours: pressing it says its value, where the message is."""
    if payload.get("type") != "block_actions":
        return None
    actions = [one for one in _list(payload, "actions") if one.get("type") == "button"]
    user, place, message = (_dict(payload, name) for name in ("user", "container", "message"))
    chat = _text(_dict(payload, "channel"), "id") or _text(place, "channel_id")
    if not (actions and chat and _text(user, "id")):
        return None
    value, pressed = _text(actions[0], "value"), _text(actions[0], "action_ts") or _text(payload, "trigger_id")
    if not (value and pressed):
        return None
    thread = _text(message, "thread_ts") or _text(place, "thread_ts") or None
    return IncomingMessage(_text(user, "id"), chat, value, pressed, thread, _kind({}, chat), is_mentioned=True)


def describe_file(file: Payload) -> Attachment:
    """What Slack says of a file. Its source is empty where only the id is told yet."""
    content_type = _text(file, "mimetype")
    kind = MediaKind.VOICE if _text(file, "subtype") == "slack_audio" else MediaKind.of_type(content_type)
    size = file.get("size")
    return Attachment(
        kind,
        _text(file, "id") or None,
        _text(file, "name") or None,
        content_type or None,
        size if isinstance(size, int) and size >= 0 else None,
        source=_text(file, "url_private_download") or _text(file, "url_private"),
    )


def _file(file: Payload) -> Attachment | None:
    return describe_file(file) if file.get("mode") not in _NOT_HERE and _text(file, "id") else None


def _elsewhere(file: Payload) -> str:
    """A file that lies elsewhere is a link; one that Slack has deleted, or hides from who does not pay, is a word."""
    name = _text(file, "name") or "a file"
    return f"[file: {name} {_text(file, 'url_private') if file.get('mode') == 'external' else 'is not to be had'}]"


def _forwarded(share: Payload, me: BotIdentity) -> str:
    author = _text(share, "author_name") or _text(share, "author_id")
    return f"[forwarded{' from ' + author if author else ''}]\n{as_read(_text(share, 'text'), me.user, me.name)}"


def _kind(told: Payload, chat: str) -> str:
    return _text(told, "channel_type") or ("im" if chat.startswith("D") else "channel")


def _text(told: Payload, name: str) -> str:
    value = told.get(name)
    return value if isinstance(value, str) else ""


def _dict(told: Payload, name: str) -> Payload:
    value = told.get(name)
    return value if isinstance(value, Mapping) else {}


def _list(told: Payload, name: str) -> Sequence[Payload]:
    value = told.get(name)
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
