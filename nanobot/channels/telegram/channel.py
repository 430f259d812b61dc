"""The Telegram channel: the user's own bot, by long polling (core.telegram.org/bots/api).

Telegram deletes confirmed updates and sends others again (core.telegram.org/bots/api#getupdates), so a poll confirms
updates only once they are journaled. The SDK's own Updater confirms them before.
"""

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, TypeVar

from telegram import (
    Bot,
    CallbackQuery,
    InlineKeyboardButton,
    InlineKeyboardMarkup,
    InputFile,
    LinkPreviewOptions,
    Message,
    MessageEntity,
    ReplyParameters,
    Update,
)
from telegram.error import ChatMigrated, TelegramError

from nanobot.bus.events import Address, Button
from nanobot.bus.queue import MessageBus
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.errors import NotConnectedError, RateLimitedError, UndeliverableError
from nanobot.channels.inbox import until_saved
from nanobot.channels.incoming import Incoming
from nanobot.channels.login import LoginStep, ShowStep
from nanobot.channels.media import Attachment
from nanobot.channels.media_kinds import MediaKind
from nanobot.channels.outgoing import Outgoing, open_outgoing
from nanobot.channels.payload import Payload
from nanobot.channels.status import ChannelState
from nanobot.channels.telegram.bot import (
    ConflictError,
    Raw,
    connection_error,
    download,
    error_of,
    get_updates,
    open_bot,
)
from nanobot.channels.telegram.incoming import menu_name, merge_album, read_message, read_press
from nanobot.channels.telegram.state import TelegramState
from nanobot.config.channels import TelegramConfig
from nanobot.markdown import Chunk
from nanobot.markdown.dialects import TELEGRAM

log = logging.getLogger(__name__)

T = TypeVar("T")

LARGEST_PHOTO = 10 * 1024 * 1024
"""A larger picture is sent as a document (core.telegram.org/bots/api#sendphoto)."""
UPLOAD_S = 60.0
"""How long Telegram may take to respond after a file was uploaded."""
_LONGEST_PAUSE_S = 30.0
_LONGEST_HINT = 256
_ROW_BUTTONS, _ROW_CHARS = 4, 30
"""What a phone shows in one row without cutting a label."""
_NO_PREVIEW = LinkPreviewOptions(is_disabled=True)
"""Telegram would fetch the page of a URL in a message, which a prompt injection could use to leak data in the URL."""
_BY_KIND = {
    MediaKind.IMAGE: "photo", MediaKind.VOICE: "voice", MediaKind.AUDIO: "audio", MediaKind.VIDEO: "video",
    MediaKind.FILE: "document",
}  # fmt: skip
_BY_SUFFIX = {
    ".ogg": "voice", ".oga": "voice", ".opus": "voice", ".mp3": "audio", ".m4a": "audio", ".gif": "animation",
    ".mp4": "video", ".jpg": "photo", ".jpeg": "photo", ".png": "photo", ".webp": "photo",
}  # fmt: skip
"""How Telegram shows a file; all others are documents."""


class TelegramChannel(ChatChannel):
    """Private chats, groups and topics of one bot."""

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
    """How long to wait for the other parts of an album."""
    pause_s: float = 2.0
    """First pause while another program polls; it grows."""
    group_interval_s: ClassVar[float] = 3.0
    """A group accepts twenty messages a minute, including edits (core.telegram.org/bots/faq)."""

    def __init__(self, config: TelegramConfig, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._section = config
        self._current_bot: Bot | None = None
        self._state = TelegramState()
        self._conflicts = 0
        self._has_warned = False

    async def start(self) -> None:
        """Serve until the connection ends. Raises ChannelSetupError for a token or proxy that cannot be used."""
        async with open_bot(self._section) as bot:
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
        async with open_bot(self._section) as bot:
            show(LoginStep(f"The token works. Your bot is {bot.first_name}:", link=bot.link))
        return True

    # receiving

    async def _poll(self, bot: Bot) -> None:
        """Receive updates, and confirm them once they are journaled.

        After a cancellation, those that were not confirmed arrive again; the journal drops what it has.
        """
        wait_s, has_failed = 0.0, True  # the first poll returns at once and shows whether we are connected
        albums: set[str] = set()
        while True:
            started_at = time.monotonic()
            try:
                updates = await get_updates(bot, self._state.next_offset, wait_s)
            except TelegramError as error:
                problem = connection_error(error, self._section)
                if isinstance(problem, RateLimitedError):
                    self.status.touch()
                    await asyncio.sleep(min(max(problem.retry_after_s, self.busy_s), _LONGEST_PAUSE_S))
                elif isinstance(problem, ConflictError):
                    await self._wait_for_other_poller(problem)
                elif has_failed:  # once is tolerated: servers are known to reject a good token for a moment
                    raise problem from error
                else:
                    has_failed = True
                    await self._pause_after(started_at)
                wait_s = 0.0
                continue
            has_failed = False
            self._record_connected(after_waiting=wait_s > 0)
            count, batches, albums = split_batches(updates, albums)
            for batch in batches:
                await self._journal(batch)
            if count:
                self._state.offset, self._state.heard_at = updates[count - 1]["update_id"] + 1, time.time()
                await self.save_state(self._state)
            if albums:
                await asyncio.sleep(self.album_s)
            elif wait_s > 0 and not updates:
                await self._pause_after(started_at)
            wait_s = 0.0 if albums else self.poll_s

    def _record_connected(self, *, after_waiting: bool) -> None:
        self.status.touch()
        if not self._conflicts:
            self.mark_up()
            return
        self.status.set_state(ChannelState.UP)  # not logged: two programs taking turns would fill the log
        if after_waiting:
            self._conflicts = 0
            log.info("telegram: no other program polls this bot any more; receiving again")

    async def _wait_for_other_poller(self, error: ConflictError) -> None:
        if not self._conflicts:
            log.error("telegram: %s", error)
        self._conflicts += 1
        self.status.set_state(ChannelState.DOWN, str(error))
        await asyncio.sleep(min(self.pause_s * self._conflicts, _LONGEST_PAUSE_S))

    async def _pause_after(self, started_at: float) -> None:
        """Throttle polls that return at once."""
        if time.monotonic() - started_at < self.busy_s:
            await asyncio.sleep(self.busy_s)

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
        updates = [Update.de_json(raw, self._bot) for raw in batch]
        if (query := updates[0].callback_query) is not None:
            await self._take_press(query)
            return
        messages = [update.message for update in updates if update.message is not None]
        for message in messages:
            if message.migrate_to_chat_id is not None:
                await self._record_move(str(message.chat.id), str(message.migrate_to_chat_id))
        names = {menu_name(entry.name): entry.name for entry in self.services.commands}
        me = self._bot.bot
        incoming = [read for message in messages if (read := read_message(message, me, names)) is not None]
        if incoming:
            await self._receive(merge_album(incoming))

    async def _take_press(self, query: CallbackQuery) -> None:
        """Process a button press, and remove accepted buttons."""
        value = self._state.value_of(query.data or "")
        pressed = read_press(query, value) if value else None
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
        former_id = self._state.former_id(incoming.chat_id)
        if former_id:  # a migrated group keeps its session and its entries in lists
            session_key = ":".join(part for part in (self.name, former_id, incoming.thread_id) if part)
            incoming = replace(incoming, session_key=session_key, parent_ids=(former_id,))
        return await self.receive(incoming)

    async def _record_move(self, old: str, new: str) -> None:
        if self._state.moved.get(old) != new:
            self._state.moved[old] = new
            log.info("telegram: the group %s is %s from now on", old, new)
            await self.save_state(self._state)

    def download(self, attachment: Attachment) -> AsyncIterator[bytes]:
        return download(self._bot, attachment.source, self._section.proxy)

    # sending

    async def post(self, to: Address, chunk: Chunk, options: SendOptions) -> str:
        fields = await self._fields(to, options)
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
        """Post a file by its kind; as a document if Telegram rejects that kind."""
        fields = await self._fields(to, options)

        async def send(method: str, chat_id: str) -> Message:
            with ExitStack() as opened:
                media: InputFile | str = file.url or ""  # Telegram fetches a URL itself
                if file.path is not None:
                    handle = opened.enter_context(await asyncio.to_thread(open_outgoing, file.path))
                    media = InputFile(handle, filename=file.name, read_file_handle=False)
                sent: Message = await getattr(self._bot, f"send_{method}")(
                    chat_id, media, read_timeout=UPLOAD_S, **fields
                )
                return sent

        method = _method_of(file)
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
    def _bot(self) -> Bot:
        if self._current_bot is None:
            raise NotConnectedError("Telegram is not connected")
        return self._current_bot

    async def _fields(self, to: Address, options: SendOptions) -> dict[str, Any]:
        """The parameters that every message has."""
        number = _number_of(options.reply_to or "") if self._section.reply_to_message else None
        buttons = [
            InlineKeyboardButton(button.label, callback_data=self._state.data_of(button.value))
            for button in options.buttons
        ]
        if buttons:  # they may be pressed after a crash
            await self.save_state(self._state)
        is_one_row = len(buttons) <= _ROW_BUTTONS and sum(len(button.text) for button in buttons) <= _ROW_CHARS
        rows = [buttons] if is_one_row else [[button] for button in buttons]
        return {
            "message_thread_id": _thread(to),
            "reply_parameters": ReplyParameters(number, allow_sending_without_reply=True) if number else None,
            "reply_markup": InlineKeyboardMarkup(rows) if buttons else None,
            "disable_notification": options.quiet,
        }

    async def _send_text(self, to: Address, chunk: Chunk, send: Callable[..., Awaitable[T]]) -> T:
        """Send text with entities, so that nothing in it is taken for markup; without them if Telegram rejects them."""
        entities = [
            MessageEntity(entity.type, entity.offset, entity.length, url=entity.url, language=entity.language)
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

    async def _show_menu(self, bot: Bot) -> None:
        """Set the bot's command menu. Never raises: the commands work without it."""
        commands = [(menu_name(entry.name), entry.text[:_LONGEST_HINT]) for entry in self.services.commands]
        if not commands:  # keep the menu that is set
            return
        try:
            await bot.set_my_commands(commands)
        except TelegramError as error:
            log.debug("telegram: the command menu was not set: %s", error)

    def _check_privacy(self, bot: Bot) -> None:
        """Warn once if the bot's privacy mode hides group messages that the config wants it to receive."""
        policy = self._section.group_policy
        if policy == "mention" or bot.can_read_all_group_messages or self._has_warned:
            return
        self._has_warned = True
        log.warning(
            "telegram: groupPolicy is %s, but Telegram gives this bot only what mentions it. Switch its privacy mode "
            "off at @BotFather (/setprivacy), then take it out of the group and in again.",
            policy,
        )


def split_batches(updates: Sequence[Raw], known: set[str]) -> tuple[int, list[list[Raw]], set[str]]:
    """Split updates into those to process together: single ones, and the parts of an album, which arrive one by one.

    Stops before the first part of an album that is not in `known`: the other parts may be on their way, and as long as
    it is not confirmed, a later poll returns all of them. Returns how many updates are in the batches, the batches, and
    the albums behind them, which are complete at the next poll.
    """
    batches: dict[str, list[Raw]] = {}
    for count, raw in enumerate(updates):
        album = _album_of(raw)
        if album is not None and album not in known:
            rest = {album for raw in updates[count:] if (album := _album_of(raw)) is not None}
            return count, [*batches.values()], rest
        batches.setdefault(album or f"update {raw['update_id']}", []).append(raw)
    return len(updates), [*batches.values()], set()


def _album_of(raw: Raw) -> str | None:
    return Payload.of(raw).text("message", "media_group_id") or None


def _number_of(message_id: str) -> int | None:
    """The Telegram message of an id of ours: the first of an album, the message with the buttons for a press."""
    match = re.match(r"\d+", message_id)
    return int(match.group()) if match else None


def _thread(to: Address) -> int | None:
    return int(to.thread_id) if to.thread_id and to.thread_id.isdigit() else None


def _method_of(file: Outgoing) -> str:
    if file.path is None:
        return _BY_KIND[file.kind]
    method = _BY_SUFFIX.get(file.path.suffix.lower(), "document")
    return "document" if method == "photo" and file.size > LARGEST_PHOTO else method
