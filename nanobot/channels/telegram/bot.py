"""python-telegram-bot as we use it: the connection to the Bot API, our errors for its failures, messages as `Incoming`.

Source: core.telegram.org/bots/api.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import telegram as tg
from telegram import Bot
from telegram import error as errors
from telegram.constants import ChatType
from telegram.error import TelegramError
from telegram.request import HTTPXRequest

from nanobot.bus.events import Button
from nanobot.channels import rest
from nanobot.channels.errors import (
    ChannelSetupError,
    NotConnectedError,
    RateLimitedError,
    SendError,
    UndeliverableError,
    require_settings,
)
from nanobot.channels.incoming import Incoming, quoted_lines
from nanobot.channels.media import Attachment, MediaKind
from nanobot.config.channels import TelegramConfig
from nanobot.net.http import KEEP_ALIVE_S, connection_error_reason, proxy_for, ssl_context

log = logging.getLogger(__name__)

API = "https://api.telegram.org"
CONNECT_S = 10.0
ANSWER_S = 20.0
POLL_SLACK_S = 10.0
"""How much longer than the poll itself its response may take before the connection counts as dead."""
_TOKEN = re.compile(r"[A-Za-z0-9:_-]+")

Raw = dict[str, Any]
"""An unparsed update."""

# Its failures reach us as exceptions; and it would log URLs, which contain the token.
logging.getLogger("telegram").setLevel(logging.CRITICAL)
_LONGEST_DATA = 64
"""Bytes of a button's data (core.telegram.org/bots/api#inlinekeyboardbutton)."""
_NUMBER = "#"
"""Begins the data of a button that brings back its number."""
_COMMAND = re.compile(r"/([A-Za-z0-9_]+)(?:@([A-Za-z0-9_]+))?(?=\s|\Z)")
_KINDS = {
    tg.Voice: MediaKind.VOICE, tg.Audio: MediaKind.AUDIO, tg.Animation: MediaKind.VIDEO, tg.Video: MediaKind.VIDEO,
    tg.VideoNote: MediaKind.VIDEO, tg.Document: MediaKind.FILE,
}  # fmt: skip


@asynccontextmanager
async def open_bot(config: TelegramConfig) -> AsyncIterator[Bot]:
    """A bot whose token Telegram has accepted.

    Raises ChannelSetupError for a token or proxy that cannot be used, SendError if Telegram is unreachable.
    """
    (token,) = require_settings("telegram", token=config.token)
    if not _TOKEN.fullmatch(token):
        raise ChannelSetupError(
            "channels.telegram.token is not a token. A token looks like 123456:ABC-DEF; copy all of it from @BotFather."
        )
    base = (config.api_base or API).rstrip("/")
    tls = await ssl_context(base)
    try:
        request = HTTPXRequest(
            connect_timeout=CONNECT_S,
            read_timeout=ANSWER_S,
            write_timeout=ANSWER_S,
            media_write_timeout=ANSWER_S,
            proxy=proxy_for(base, config.proxy or None),
            httpx_kwargs={
                "verify": tls,
                "trust_env": False,  # `proxy_for` reads the environment
                "limits": httpx.Limits(keepalive_expiry=KEEP_ALIVE_S),
            },
        )
    except (RuntimeError, ValueError) as error:
        hint = "Run `pip install socksio`" if isinstance(error, RuntimeError) else "Write it as http://host:port"
        raise ChannelSetupError(f"channels.telegram.proxy cannot be used: {error}. {hint}, or remove it.") from error
    bot = Bot(token, f"{base}/bot", f"{base}/file/bot", request=request, get_updates_request=request)
    try:
        try:
            await bot.initialize()
        except TelegramError as error:
            raise connection_error(error, config) from None  # the SDK's text has the token
        yield bot
    finally:
        await bot.shutdown()


async def get_updates(bot: Bot, offset: int | None, wait_s: float) -> list[Raw]:
    """Poll; removes a webhook that prevents it. The updates are unparsed: a bad one must not hide the others.

    Raises TelegramError.
    """
    # Edits are not asked for: an edited message is not answered again.
    parameters = {"timeout": int(wait_s), "offset": offset, "allowed_updates": ["message", "callback_query"]}
    try:
        # In lower case, which Telegram accepts too: the SDK warns about a method that it wraps itself.
        updates = await bot.do_api_request("getupdates", parameters, read_timeout=wait_s + POLL_SLACK_S)
    except errors.Conflict as error:
        if "webhook" not in error.message.lower():
            raise
        log.warning("telegram: a webhook was set for this bot; removed it, since nanobot polls")
        await bot.delete_webhook()
        return []
    known = [raw for raw in updates if isinstance(raw, dict) and isinstance(raw.get("update_id"), int)]
    return [raw for raw in known if raw["update_id"] >= (offset or 0)]


async def download(bot: Bot, file_id: str, proxy: str | None) -> AsyncIterator[bytes]:
    """Download a file in chunks (core.telegram.org/bots/api#getfile). Raises SendError."""
    try:
        file = await bot.get_file(file_id)
    except TelegramError as error:
        raise error_of(error) from error
    location = file.file_path or ""
    if not location.startswith(("http://", "https://")):  # a path on this machine, from a local Bot API server
        yield await asyncio.to_thread(Path(location).read_bytes)
        return
    async for chunk in rest.download("Telegram", location, proxy=proxy):
        yield chunk


def error_of(error: TelegramError) -> SendError:
    text, cause = error.message, error.__cause__
    match error:
        case errors.RetryAfter(retry_after=pause):  # a number, or with PTB_TIMEDELTA in the environment a timedelta
            return RateLimitedError(text, pause.total_seconds() if isinstance(pause, timedelta) else pause)
        case errors.Conflict():
            return SendError(
                "another process polls with this token, and Telegram gives each message to one of them only. "
                "Stop it (a second gateway, another bot program), or give it a token of its own with @BotFather."
            )
        case errors.InvalidToken() | errors.EndPointNotFound():
            return NotConnectedError(f"Telegram rejects the token ({text})")  # polling reports it to the owner
        case errors.Forbidden() | errors.BadRequest() | errors.ChatMigrated():
            return UndeliverableError(f"Telegram refused it: {text}")
        case errors.NetworkError() if isinstance(cause, rest.NOT_SENT):
            return NotConnectedError(f"Telegram cannot be reached: {connection_error_reason(cause)}")
        case errors.NetworkError() if cause is not None and not isinstance(cause, TelegramError):
            reason = f"{type(cause).__name__}: {connection_error_reason(cause)}"
            return SendError(f"connection to Telegram lost: {reason}", may_have_arrived=True)
        case _:
            return SendError(f"Telegram server error: {text}")


def connection_error(error: TelegramError, config: TelegramConfig) -> Exception:
    """The error of the connection, as opposed to one message: for a rejected token it says what the owner has to do."""
    if not isinstance(error, errors.InvalidToken | errors.EndPointNotFound):
        return error_of(error)
    where = f" by {config.api_base} (channels.telegram.apiBase)" if config.api_base else ""
    return ChannelSetupError(
        f"The token is refused{where}. Ask @BotFather for the token of your bot (/mybots, API Token) and set "
        "channels.telegram.token."
    )


def menu_name(command: str) -> str:
    """A command in Telegram's spelling: letters, digits and _ (core.telegram.org/bots/api#botcommand)."""
    return command.replace("-", "_")[:32]


def read_message(message: tg.Message, me: tg.User, commands: Mapping[str, str]) -> Incoming | None:
    """Read a message. None for service messages, messages of bots, and commands for other bots.

    `commands` are our slash commands by their names in Telegram's menu.
    """
    user, sender = message.from_user, ""
    if message.sender_chat is not None:  # the group of an anonymous admin, or the channel in whose name it was posted
        user, sender = None, str(message.sender_chat.id)
    elif user is not None and not user.is_bot:
        sender = _sender_id(user)
    is_private = message.chat.type == ChatType.PRIVATE
    units = (message.text or message.caption or "").encode("utf-16-le", "surrogatepass")  # as Telegram counts
    for entity in reversed(message.entities or message.caption_entities):
        if entity.type == tg.MessageEntity.TEXT_LINK:  # its URL follows its words
            end = 2 * (entity.offset + entity.length)
            units = units[:end] + f" ({entity.url})".encode("utf-16-le") + units[end:]
    words = units.decode("utf-16-le", "surrogatepass")
    command = _COMMAND.match(words) if message.forward_origin is None else None  # a forwarded text is no command
    name, bot = (command[1].lower(), (command[2] or "").lower()) if command else ("", "")
    if not sender or message.is_automatic_forward or (bot and bot != (me.username or "").lower()):
        return None
    if name == "start" and is_private:
        words = "/start"  # sent by the Start button of a new chat, perhaps with a parameter from a link
    elif command and name in commands:
        words = f"/{commands[name]}{words[command.end(1) :]}"
    files = _files_of(message)
    own_name = rf"\A\s*{re.escape(f'@{me.username}')}\b[\s,:]*"  # without it `@bot /status` is a command
    words = re.sub(own_name, "", words, flags=re.IGNORECASE).strip()
    text = "\n".join(part for part in (words, _describe(message)) if part)
    parse = message.parse_entities if message.entities else message.parse_caption_entities
    mentions = parse([tg.MessageEntity.MENTION, tg.MessageEntity.TEXT_MENTION]).items()
    is_named = any(said.lower() == f"@{me.username}".lower() or entity.user == me for entity, said in mentions)
    if not (text or files or is_named):
        return None
    replied = _replied_to(message)
    is_reply_to_us = replied is not None and replied.from_user == me
    quote, quotes_others = ("", False) if command else _quote(message, me)  # a command needs no quoted message
    return Incoming(
        sender,
        str(message.chat.id),
        f"{quote}\n{text}".strip(),
        str(message.message_id),
        _thread_of(message),
        is_private,
        is_mentioned=is_private or is_named or is_reply_to_us or bool(bot) or name in commands,
        sender_name=user.full_name if user is not None else "",
        sender_handle=(user.username or "") if user is not None else "",
        attachments=files,
        quotes_others=quotes_others or message.via_bot is not None,
        sent_at=message.date,
    )


def button_data(number: int, button: Button) -> str:
    """What a press brings back: the button's value, or its number where the value is longer than Telegram takes."""
    size = len(button.value.encode("utf-8", "surrogatepass"))
    return button.value if 0 < size <= _LONGEST_DATA and not button.value.startswith(_NUMBER) else f"{_NUMBER}{number}"


def read_press(query: tg.CallbackQuery) -> Incoming | None:
    """Read a button press as a message with the button's value. The buttons of a message can be pressed once."""
    message, value = query.message, query.data or ""
    markup = message.reply_markup if isinstance(message, tg.Message) else None
    if value.startswith(_NUMBER):  # the message has the label, if it is not too old
        buttons = [button for row in markup.inline_keyboard for button in row] if markup is not None else []
        label = next((button.text for button in buttons if button.callback_data == value), "")
        value = Button(label, "").choice if label else ""
    if message is None or query.from_user.is_bot or not value:
        return None
    return Incoming(
        _sender_id(query.from_user),
        str(message.chat.id),
        value,
        f"{message.message_id}-press",
        _thread_of(message) if isinstance(message, tg.Message) else None,
        message.chat.type == ChatType.PRIVATE,
        is_mentioned=True,
    )


def merge_album(parts: Sequence[Incoming]) -> Incoming:
    """Merge the parts of an album. Its id names the first and last part, so a longer album is not a duplicate."""
    if len(parts) == 1:
        return parts[0]
    return replace(
        parts[0],
        text="\n".join(part.text for part in parts if part.text),
        message_id=f"{parts[0].message_id}-{parts[-1].message_id}",
        is_mentioned=any(part.is_mentioned for part in parts),
        attachments=tuple(file for part in parts for file in part.attachments),
        quotes_others=any(part.quotes_others for part in parts),
    )


def _sender_id(user: tg.User) -> str:
    return f"{user.id}|{user.username}" if user.username else str(user.id)


def _thread_of(message: tg.Message) -> str | None:
    """The topic. Elsewhere this number only names the message replied to."""
    return str(message.message_thread_id) if message.is_topic_message and message.message_thread_id else None


def _replied_to(message: tg.Message) -> tg.Message | None:
    """The message it replies to. In a topic every message replies to the topic's first, which does not count."""
    replied = message.reply_to_message
    return None if replied is None or replied.forum_topic_created is not None else replied


def _quote(message: tg.Message, me: tg.User) -> tuple[str, bool]:
    """A line about the message it replies to or was forwarded from, and whether that has words of somebody else."""
    if (origin := message.forward_origin) is not None:
        match origin:
            case tg.MessageOriginUser(sender_user=user):
                name = user.full_name
            case tg.MessageOriginChat(sender_chat=chat) | tg.MessageOriginChannel(chat=chat):
                name = chat.title or str(chat.id)
            case _:
                name = getattr(origin, "sender_user_name", "somebody")
        return f"[forwarded from {_one_line(name)}]", True
    replied = _replied_to(message)
    words = message.quote.text if message.quote else replied.text or replied.caption if replied else None
    if not words:
        return "", False
    author = replied.from_user if replied is not None else None
    is_forwarded = replied is not None and replied.forward_origin is not None
    name = "you" if author == me else author.full_name if author is not None else "somebody"
    return quoted_lines(words, _one_line(name)), is_forwarded or author is None or author not in (me, message.from_user)


def _one_line(name: str) -> str:
    """A user-chosen name in one line, without brackets, which would end ours."""
    return " ".join(re.sub(r"[\[\]]", "", name).split())[:80]


def _files_of(message: tg.Message) -> tuple[Attachment, ...]:
    file: Any = message.effective_attachment
    kind = _KINDS.get(type(file))
    if message.photo:
        kind, file = MediaKind.IMAGE, max(message.photo, key=lambda size: size.width * size.height)
    elif isinstance(file, tg.Sticker) and not (file.is_animated or file.is_video):
        kind = MediaKind.IMAGE
    if kind is None:
        return ()
    name, content_type = getattr(file, "file_name", None), getattr(file, "mime_type", None)
    return (Attachment(kind, file.file_unique_id, name, content_type, file.file_size, source=file.file_id),)


def _describe(message: tg.Message) -> str:
    """Content that is neither text nor file, in words; empty if there is none."""
    match message.venue or message.checklist or message.effective_attachment:
        case tg.Sticker(emoji=emoji):
            return f"[sticker {emoji}]" if emoji else "[sticker]"
        case tg.Venue(title=title, address=address, location=place):
            return f"[place: {title}, {address}; {place.latitude}, {place.longitude}]"
        case tg.Location(latitude=latitude, longitude=longitude):
            return f"[location: {latitude}, {longitude}]"
        case tg.Contact(first_name=first_name, last_name=last_name, phone_number=number):
            return f"[contact: {' '.join(part for part in (first_name, last_name, number) if part)}]"
        case tg.Poll(question=question, options=options):
            return f"[poll: {question} ({' / '.join(option.text for option in options)})]"
        case tg.Dice(emoji=emoji, value=value):
            return f"[{emoji} {value}]"
        case tg.Story() | tg.Game() | tg.Checklist() | tg.PaidMediaInfo():
            return "[a message of a kind that bots cannot read]"
    return ""
