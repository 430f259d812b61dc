"""The Telegram channel: the user's own bot, by long polling (core.telegram.org/bots/api).

Telegram deletes confirmed updates and sends others again (core.telegram.org/bots/api#getupdates), so a poll confirms
updates only once they are journaled. The SDK's own Updater confirms them before.
"""

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import PurePath
from typing import Any, ClassVar, TypeVar

import telegram as tg
from telegram.error import ChatMigrated, TelegramError

from nanobot.bus.events import Address, Button
from nanobot.bus.queue import MessageBus
from nanobot.channels.base import LoginStep, ShowStep
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.errors import NotConnectedError, RateLimitedError, UndeliverableError
from nanobot.channels.inbox import until_saved
from nanobot.channels.incoming import Incoming, Payload
from nanobot.channels.media import Attachment
from nanobot.channels.outgoing import Outgoing, open_outgoing
from nanobot.channels.telegram.bot import (
    Raw,
    button_data,
    connection_error,
    download,
    error_of,
    get_updates,
    menu_name,
    merge_album,
    open_bot,
    read_message,
    read_press,
)
from nanobot.config.channels import TelegramConfig
from nanobot.markdown import Chunk
from nanobot.markdown.dialects import TELEGRAM

log = logging.getLogger(__name__)

T = TypeVar("T")

RENUMBERED_S = 6 * 86400.0
"""After a week without updates their numbers restart at random; an offset of that age would hide new ones."""
LARGEST_PHOTO = 10 * 1024 * 1024
"""A larger picture is sent as a document (core.telegram.org/bots/api#sendphoto)."""
UPLOAD_S = 60.0
"""How long Telegram may take to respond after a file was uploaded."""
_LONGEST_PAUSE_S = 30.0
_ALBUM_POLLS = 4
"""In a busy group something is always added; its messages do not wait longer for an album."""
_LONGEST_HINT = 256
_ROW_BUTTONS, _ROW_CHARS = 4, 30
"""What a phone shows in one row without cutting a label."""
_NO_PREVIEW = tg.LinkPreviewOptions(is_disabled=True)
"""Telegram would fetch the page of a URL in a message, which a prompt injection could use to leak data in the URL."""
_METHODS = {
    ".ogg": "voice", ".oga": "voice", ".opus": "voice", ".mp3": "audio", ".m4a": "audio", ".gif": "animation",
    ".mp4": "video", ".jpg": "photo", ".jpeg": "photo", ".png": "photo", ".webp": "photo",
}  # fmt: skip
"""How Telegram shows a file; all others are documents."""


@dataclass(slots=True)
class TelegramState:
    bot: str = ""
    offset: int | None = None
    """The first unconfirmed update."""
    heard_at: float = 0.0
    """When the last update arrived, in seconds since 1970."""
    moved: dict[str, str] = field(default_factory=dict)
    """Groups that became supergroups: new id by old id."""


class TelegramChannel(ChatChannel):
    name = "telegram"
    dialect = TELEGRAM
    largest_file = 50 * 1024 * 1024
    can_edit = True
    can_react = True
    poll_s: float = 30.0
    """How long Telegram holds a poll open without updates."""
    busy_s: float = 1.0
    """Shortest interval between polls that bring nothing."""
    album_s: float = 0.8
    """How long to wait for further parts of an album."""
    group_interval_s: ClassVar[float] = 3.0
    """A group accepts twenty messages a minute, including edits (core.telegram.org/bots/faq)."""
    config: TelegramConfig

    def __init__(self, config: TelegramConfig, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._current_bot: tg.Bot | None = None
        self._state = TelegramState()
        self._has_warned = False

    async def start(self) -> None:
        """Serve until the connection ends. Raises ChannelSetupError for a token or proxy that cannot be used."""
        async with open_bot(self.config) as bot:
            self._state = await self.load_state(TelegramState(str(bot.id)))
            self._check_privacy(bot)
            self._current_bot = bot
            menu = asyncio.create_task(self._show_menu(bot), name="telegram menu")
            try:
                await self._poll(bot)
            finally:
                self._current_bot = None
                menu.cancel()
                await asyncio.wait([menu])

    async def run_login(self, show: ShowStep, *, force: bool = False) -> bool:
        """Show which bot the token belongs to. Raises ChannelSetupError; SendError if Telegram is unreachable."""
        async with open_bot(self.config) as bot:
            show(LoginStep(f"The token works. Your bot is {bot.first_name}:", link=bot.link))
        return True

    # receiving

    async def _poll(self, bot: tg.Bot) -> None:
        """Receive updates until polling fails twice in a row: servers reject even a good token for a moment.

        After a cancellation, those that were not confirmed arrive again; the journal drops what it has.
        """
        wait_s, has_failed = 0.0, True  # the first poll returns at once and shows whether we are connected
        while True:
            polled_at = time.monotonic()
            try:
                is_old = time.time() - self._state.heard_at > RENUMBERED_S
                updates = await get_updates(bot, None if is_old else self._state.offset, wait_s)
                self.status.touch()
                self.mark_up()
                album = next((number for number, raw in enumerate(updates) if _album_of(raw)), len(updates))
                await self._take(updates[:album])
                if album < len(updates):
                    await self._take(await self._wait_for_album(bot, updates[album:]))
            except TelegramError as error:
                problem = connection_error(error, self.config)
                if has_failed:
                    raise problem from None
                has_failed, wait_s = True, 0.0
                pause_s = problem.retry_after_s if isinstance(problem, RateLimitedError) else 0.0
                await asyncio.sleep(min(max(pause_s, self.busy_s), _LONGEST_PAUSE_S))
                continue
            if wait_s and not updates and time.monotonic() - polled_at < self.busy_s:
                await asyncio.sleep(self.busy_s)
            wait_s, has_failed = self.poll_s, False

    async def _wait_for_album(self, bot: tg.Bot, updates: list[Raw]) -> list[Raw]:
        """Poll a few times, until nothing is added to these updates: the parts of an album arrive one by one."""
        for _ in range(_ALBUM_POLLS):
            count = len(updates)
            await asyncio.sleep(self.album_s)
            updates = await get_updates(bot, updates[0]["update_id"], 0)
            if len(updates) == count:
                break
        return updates

    async def _take(self, updates: Sequence[Raw]) -> None:
        """Journal updates, the parts of an album together; the next poll confirms them."""
        batches: dict[str, list[Raw]] = {}
        for raw in updates:
            batches.setdefault(_album_of(raw) or f"update {raw['update_id']}", []).append(raw)
        for batch in batches.values():
            await self._journal(batch)
        if updates:
            self._state.offset, self._state.heard_at = updates[-1]["update_id"] + 1, time.time()
            await self.state_file.save(self._state)

    async def _journal(self, batch: Sequence[Raw]) -> None:
        """Process an update, or an album, until it is journaled. If it cannot be read, its sender is told."""
        try:
            waiting = "telegram: a message waits at Telegram until it can be journaled"
            await until_saved(lambda: self._handle(batch), waiting)
        except Exception:  # one unreadable update must not stop the others
            log.exception("telegram: the update %s could not be read", batch[0]["update_id"])
            message = Payload.of(batch[0]).part("message")  # none of its fields can be relied on
            chat_id, sender_id = (int(message.number(part, "id")) for part in ("chat", "from"))
            if chat_id and sender_id:
                is_private = message.text("chat", "type") == "private"
                await self.report_unreadable(str(sender_id), Address(self.name, str(chat_id)), is_private=is_private)

    async def _handle(self, batch: Sequence[Raw]) -> None:
        """Process an update, or all parts of an album. Raises StorageError if it cannot be journaled."""
        updates = [tg.Update.de_json(raw, self._bot) for raw in batch]
        if (query := updates[0].callback_query) is not None:
            await self._take_press(query)
            return
        names = {menu_name(entry.name): entry.name for entry in self.services.commands}
        incoming: list[Incoming] = []
        for message in (update.message for update in updates if update.message is not None):
            if message.migrate_to_chat_id is not None:
                await self._record_move(str(message.chat.id), str(message.migrate_to_chat_id))
            elif (read := read_message(message, self._bot.bot, names)) is not None:
                incoming.append(read)
        if incoming:
            await self._receive(merge_album(incoming))

    async def _take_press(self, query: tg.CallbackQuery) -> None:
        """Process a button press, and remove accepted buttons."""
        pressed = read_press(query)
        is_allowed = pressed is not None and (
            not Button.is_for_owners(pressed.text) or self.services.access.is_owner(pressed.sender_id)
        )
        is_accepted = pressed is not None and is_allowed and await self._receive(pressed)
        try:
            await query.answer(None if is_accepted else "This button was used already, or is not for you.")
            if is_accepted and query.message is not None:
                await self._bot.edit_message_reply_markup(query.message.chat.id, query.message.message_id)
        except TelegramError as error:  # the press is journaled already
            log.debug("telegram: a button press could not be acknowledged: %s", error)

    async def _receive(self, incoming: Incoming) -> bool:
        """Process a message. A group that has migrated keeps its session and its entries in the owner's lists."""
        former_id = next((old for old, new in self._state.moved.items() if new == incoming.chat_id), None)
        if former_id is not None:
            session_key = ":".join(part for part in (self.name, former_id, incoming.thread_id) if part)
            incoming = replace(incoming, session_key=session_key, parent_ids=(former_id,))
        return await self.receive(incoming)

    async def _record_move(self, old: str, new: str) -> None:
        if self._state.moved.get(old) != new:
            self._state.moved[old] = new
            log.info("telegram: the group %s is %s from now on", old, new)
            await self.state_file.save(self._state)

    def download(self, attachment: Attachment) -> AsyncIterator[bytes]:
        return download(self._bot, attachment.source, self.config.proxy)

    # sending

    async def post(self, to: Address, chunk: Chunk, options: SendOptions) -> str:
        fields = self._fields(to, options)
        message = await self._send_text(to, chunk, partial(self._bot.send_message, **fields))
        return str(message.message_id)

    async def edit(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        """Replace the text of a message; no error if it has this text already."""
        try:
            await self._send_text(to, chunk, partial(self._bot.edit_message_text, message_id=int(platform_id)))
        except UndeliverableError as error:
            if "message is not modified" not in str(error).lower():
                raise

    async def post_file(self, to: Address, file: Outgoing, options: SendOptions) -> str:
        """Post a file as what its name says; as a document if Telegram rejects that. It fetches a URL itself."""
        fields = self._fields(to, options)

        async def send(method: str, chat_id: str) -> tg.Message:
            opened = nullcontext() if file.path is None else await asyncio.to_thread(open_outgoing, file.path)
            with opened as handle:
                media = file.url if handle is None else tg.InputFile(handle, filename=file.name, read_file_handle=False)
                post: Callable[..., Awaitable[tg.Message]] = getattr(self._bot, f"send_{method}")
                return await post(chat_id, media, read_timeout=UPLOAD_S, **fields)

        method = _METHODS.get(PurePath(file.name).suffix.lower(), "document")
        if method == "photo" and file.size > LARGEST_PHOTO:
            method = "document"
        try:
            message = await self._request(to, partial(send, method))
        except UndeliverableError:
            if method == "document":
                raise
            message = await self._request(to, partial(send, "document"))
        return str(message.message_id)

    post_url = post_file

    async def show_typing(self, to: Address) -> None:
        """Show the typing indicator, which expires after five seconds."""
        await self._request(to, partial(self._bot.send_chat_action, action="typing", message_thread_id=_thread(to)))

    async def react(self, to: Address, message_id: str, emoji: str) -> None:
        """Set the reaction on a message (core.telegram.org/bots/api#reactiontypeemoji has the allowed ones)."""
        number = _number_of(message_id)
        if number is None:
            raise UndeliverableError(f"{message_id!r} is not a Telegram message id")
        await self._request(to, partial(self._bot.set_message_reaction, message_id=number, reaction=emoji))

    def delta_pause_s(self, chat_id: str) -> float:
        """Longer in groups, whose ids are negative."""
        return self.group_interval_s if chat_id.startswith("-") else self.delta_interval_s

    @property
    def _bot(self) -> tg.Bot:
        if self._current_bot is None:
            raise NotConnectedError("Telegram is not connected")
        return self._current_bot

    def _fields(self, to: Address, options: SendOptions) -> dict[str, Any]:
        """The parameters that every message has."""
        quoted = _number_of(options.reply_to or "") if self.config.reply_to_message else None
        buttons = [
            tg.InlineKeyboardButton(button.label, callback_data=button_data(number, button))
            for number, button in enumerate(options.buttons)
        ]
        is_one_row = len(buttons) <= _ROW_BUTTONS and sum(len(button.text) for button in buttons) <= _ROW_CHARS
        rows = [buttons] if is_one_row else [[button] for button in buttons]
        return {
            "message_thread_id": _thread(to),
            "reply_parameters": tg.ReplyParameters(quoted, allow_sending_without_reply=True) if quoted else None,
            "reply_markup": tg.InlineKeyboardMarkup(rows) if buttons else None,
            "disable_notification": options.quiet,
        }

    async def _send_text(self, to: Address, chunk: Chunk, send: Callable[..., Awaitable[T]]) -> T:
        """Send text with entities, so that nothing in it is taken for markup; without them if Telegram rejects them."""
        entities = [
            tg.MessageEntity(entity.type, entity.offset, entity.length, url=entity.url, language=entity.language)
            for entity in chunk.entities
        ]
        send = partial(send, text=chunk.text, link_preview_options=_NO_PREVIEW)
        try:
            return await self._request(to, partial(send, entities=entities))
        except UndeliverableError as error:
            if "entit" not in str(error).lower():
                raise
            log.warning("telegram: sending a message without formatting: %s", error)
            return await self._request(to, send)

    async def _request(self, to: Address, request: Callable[..., Awaitable[T]]) -> T:
        """Send a request for a chat, under its current id. Raises SendError."""
        chat_id = self._state.moved.get(to.chat_id, to.chat_id)
        try:
            try:
                return await request(chat_id=chat_id)
            except ChatMigrated as moved:
                await self._record_move(chat_id, str(moved.new_chat_id))
                return await request(chat_id=str(moved.new_chat_id))
        except TelegramError as error:
            raise error_of(error) from error

    async def _show_menu(self, bot: tg.Bot) -> None:
        """Set the bot's command menu. Never raises: the commands work without it."""
        commands = [(menu_name(entry.name), entry.text[:_LONGEST_HINT]) for entry in self.services.commands]
        try:
            if commands:  # else keep the menu that is set
                await bot.set_my_commands(commands)
        except TelegramError as error:
            log.debug("telegram: the command menu was not set: %s", error)

    def _check_privacy(self, bot: tg.Bot) -> None:
        """Warn once if the bot's privacy mode hides group messages that the config wants it to receive."""
        policy = self.config.group_policy
        if policy != "mention" and not bot.can_read_all_group_messages and not self._has_warned:
            self._has_warned = True
            log.warning(
                "telegram: groupPolicy is %s, but Telegram gives this bot only what mentions it. Switch its privacy "
                "mode off at @BotFather (/setprivacy), then take it out of the group and in again.",
                policy,
            )


def _album_of(raw: Raw) -> str | None:
    return Payload.of(raw).text("message", "media_group_id") or None


def _number_of(message_id: str) -> int | None:
    """The Telegram message of an id of ours: the first of an album, the message with the buttons for a press."""
    match = re.match(r"\d+", message_id)
    return int(match.group()) if match else None


def _thread(to: Address) -> int | None:
    return int(to.thread_id) if to.thread_id and to.thread_id.isdigit() else None
