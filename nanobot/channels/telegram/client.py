"""Sends requests to Telegram, to the current ids of migrated chats, and converts its errors to ours.

Import it when a bot is started: it imports the SDK.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from telegram import (
    CallbackQuery,
    InlineKeyboardButton,
    InlineKeyboardMarkup,
    InputFile,
    LinkPreviewOptions,
    Message,
    MessageEntity,
    ReplyParameters,
    User,
)
from telegram.error import ChatMigrated, Conflict, InvalidToken, TelegramError

from nanobot.bus.events import Address, Button, MenuEntry
from nanobot.channels.chat_channel import SendOptions
from nanobot.channels.errors import (
    ChannelSetupError,
    MissingSettingsError,
    NotConnectedError,
    RateLimitedError,
    UndeliverableError,
)
from nanobot.channels.media_kinds import MediaKind
from nanobot.channels.outgoing import Outgoing, open_outgoing
from nanobot.channels.telegram import api
from nanobot.channels.telegram.incoming import menu_name, number_of
from nanobot.channels.telegram.polling import ConflictError, Raw
from nanobot.channels.telegram.state import TelegramState
from nanobot.config.channels import TelegramConfig
from nanobot.markdown import Chunk
from nanobot.net.http import HttpPools
from nanobot.utils.clock import Clock

log = logging.getLogger(__name__)

_NO_PREVIEW = LinkPreviewOptions(is_disabled=True)
"""Telegram would fetch the page of a URL in a message, which a prompt injection could use to leak data in the URL."""

T = TypeVar("T")
Request = Callable[[int | str], Awaitable[T]]

LARGEST_PHOTO = 10 * 1024 * 1024
"""A larger picture is sent as a document (core.telegram.org/bots/api#sendphoto)."""
UPLOAD_S = 60.0
"""How long Telegram may take to respond after a file was uploaded."""
_TOKEN = re.compile(r"[A-Za-z0-9:_-]+")
_LONGEST_HINT = 256
_BY_KIND = {
    MediaKind.IMAGE: "photo", MediaKind.VOICE: "voice", MediaKind.AUDIO: "audio", MediaKind.VIDEO: "video",
    MediaKind.FILE: "document",
}  # fmt: skip
_BY_SUFFIX = {
    ".ogg": "voice", ".oga": "voice", ".opus": "voice", ".mp3": "audio", ".m4a": "audio", ".gif": "animation",
    ".mp4": "video", ".jpg": "photo", ".jpeg": "photo", ".png": "photo", ".webp": "photo",
}  # fmt: skip
"""How Telegram shows a file; all others are documents."""


@asynccontextmanager
async def open_client(config: TelegramConfig, state_file: Path | None, clock: Clock) -> AsyncIterator["TelegramClient"]:
    """A client whose token Telegram has accepted.

    Raises ChannelSetupError for a token or proxy that cannot be used, SendError if Telegram is unreachable.
    """
    token = _check_token(config.token.strip())
    pools = HttpPools(proxy=config.proxy or None)
    try:
        bot = await api.make_bot(token, pools, config.api_base, config.proxy or None)
        try:
            me = await bot.get_me()
        except TelegramError as error:
            raise _connection_error(error, config) from error
        state = await asyncio.to_thread(TelegramState.load, state_file, me.id)
        yield TelegramClient(bot, me, pools, state, config, clock)
    finally:
        await pools.close()


class TelegramClient:
    """One bot at Telegram. Use it inside `open_client`."""

    def __init__(
        self,
        bot: api.TelegramBot,
        me: User,
        pools: HttpPools,
        state: TelegramState,
        config: TelegramConfig,
        clock: Clock,
    ) -> None:
        self.bot = bot
        self.me = me
        self.state = state
        self._pools = pools
        self._config = config
        self._clock = clock
        self._throttled_until: dict[str, float] = {}

    async def updates(self, offset: int | None, wait_s: float) -> list[Raw]:
        """Poll; removes a webhook that prevents it. Raises ConflictError; NotConnectedError for most other failures."""
        try:
            try:
                return await self.bot.updates(offset, wait_s)
            except Conflict as error:
                if "webhook" not in error.message.lower():
                    raise
                log.warning("telegram: a webhook was set for this bot; removed it, since nanobot polls")
                await self.bot.delete_webhook()
                return await self.bot.updates(offset, wait_s)
        except TelegramError as error:
            raise _connection_error(error, self._config) from error

    async def show_menu(self, commands: Sequence[MenuEntry]) -> None:
        """Set the bot's command menu. Never raises: the commands work without it."""
        if not commands:  # keep the menu that is set
            return
        try:
            await self.bot.set_my_commands([(menu_name(entry.name), entry.text[:_LONGEST_HINT]) for entry in commands])
        except TelegramError as error:
            log.debug("telegram: the command menu was not set: %s", error)

    async def post(self, to: Address, chunk: Chunk, options: SendOptions) -> str:
        """Post text with entities, so that nothing in it is taken for markup."""
        buttons, reply, thread = await self._keyboard(options.buttons), self._reply_parameters(options), _thread(to)

        async def send(chat: int | str, entities: Sequence[MessageEntity] = ()) -> Message:
            return await self.bot.send_message(
                chat, chunk.text, entities=entities, message_thread_id=thread, reply_parameters=reply,
                reply_markup=buttons, disable_notification=options.quiet, link_preview_options=_NO_PREVIEW,
            )  # fmt: skip

        return str((await self._send_formatted(to, chunk, send)).message_id)

    async def edit(self, to: Address, message_id: int, chunk: Chunk) -> None:
        """Replace the text of our message; no error if it has this text already."""

        async def change(chat: int | str, entities: Sequence[MessageEntity] = ()) -> object:
            return await self.bot.edit_message_text(
                chunk.text, chat, message_id, entities=entities, link_preview_options=_NO_PREVIEW
            )

        try:
            await self._send_formatted(to, chunk, change)
        except UndeliverableError as error:
            if "message is not modified" not in str(error).lower():
                raise

    async def post_file(self, to: Address, file: Outgoing, options: SendOptions) -> str:
        """Post a file by its kind; as a document if Telegram rejects that kind."""
        buttons, reply, thread = await self._keyboard(options.buttons), self._reply_parameters(options), _thread(to)

        async def send(method: str, chat: int | str) -> Message:
            with ExitStack() as opened:
                media: InputFile | str = file.url or ""  # Telegram fetches a URL itself
                if file.path is not None:
                    handle = opened.enter_context(await asyncio.to_thread(open_outgoing, file.path))
                    media = InputFile(handle, filename=file.name, read_file_handle=False)
                sent: Message = await getattr(self.bot, f"send_{method}")(
                    chat, media, message_thread_id=thread, reply_parameters=reply, reply_markup=buttons,
                    disable_notification=options.quiet, read_timeout=UPLOAD_S,
                )  # fmt: skip
                return sent

        method = _method_of(file)
        try:
            message = await self._request(to.chat_id, partial(send, method))
        except UndeliverableError:
            if method == "document":
                raise
            message = await self._request(to.chat_id, partial(send, "document"))
        return str(message.message_id)

    async def show_typing(self, to: Address) -> None:
        """Show the typing indicator, which expires after five seconds."""
        act = partial(self.bot.send_chat_action, action="typing", message_thread_id=_thread(to))
        await self._request(to.chat_id, act)

    async def react(self, to: Address, message_id: int, emoji: str) -> None:
        """Set the reaction on a message (core.telegram.org/bots/api#reactiontypeemoji has the allowed ones)."""
        await self._request(to.chat_id, lambda chat: self.bot.set_message_reaction(chat, message_id, emoji))

    async def take_press(self, query: CallbackQuery, *, accepted: bool) -> None:
        """Answer a button press, and remove accepted buttons. Never raises: the press is journaled already."""
        try:
            if accepted:
                await query.answer()
                if (message := query.message) is not None:
                    await self.bot.edit_message_reply_markup(message.chat.id, message.message_id)
            else:
                await query.answer("This button was used already, or is not for you.")
        except TelegramError as error:
            log.debug("telegram: a button press could not be acknowledged: %s", error)

    def download(self, file_id: str) -> AsyncIterator[bytes]:
        """Download a file in chunks. Raises SendError."""
        return api.download(self.bot, self._pools, file_id)

    async def _send_formatted(self, to: Address, chunk: Chunk, send: Callable[..., Awaitable[T]]) -> T:
        """Send with entities; without them if Telegram rejects them."""
        entities = [
            MessageEntity(entity.type, entity.offset, entity.length, url=entity.url, language=entity.language)
            for entity in chunk.entities
        ]
        try:
            return await self._request(to.chat_id, lambda chat: send(chat, entities))
        except UndeliverableError as error:
            if "entit" not in str(error).lower():
                raise
            log.warning("telegram: sending a message without formatting: %s", error)
            return await self._request(to.chat_id, send)

    async def _request(self, chat_id: str, request: Request[T]) -> T:
        """Send a request for a chat, under its current id. Raises SendError."""
        chat_id = self.state.current_id(chat_id)
        left_s = self._throttled_until.get(chat_id, 0.0) - self._clock.monotonic()
        if left_s > 0:
            raise RateLimitedError(f"Telegram asks for a pause of {left_s:.0f} s", left_s)
        self._throttled_until.pop(chat_id, None)
        try:
            try:
                return await request(_chat(chat_id))
            except ChatMigrated as moved:
                await self.state.record_move(chat_id, str(moved.new_chat_id))
                return await request(moved.new_chat_id)
        except TelegramError as error:
            send_error = api.error_of(error)
            if isinstance(send_error, RateLimitedError):
                self._throttled_until[chat_id] = self._clock.monotonic() + send_error.retry_after_s
            raise send_error from error

    async def _keyboard(self, buttons: Sequence[Button]) -> InlineKeyboardMarkup | None:
        rows = []
        for button in buttons:
            data = await self.state.data_of(button.value)
            rows.append([InlineKeyboardButton(button.label, callback_data=data)])
        return InlineKeyboardMarkup(rows) if rows else None

    def _reply_parameters(self, options: SendOptions) -> ReplyParameters | None:
        """The message to quote if `replyToMessage` is on."""
        number = number_of(options.reply_to) if self._config.reply_to_message else None
        return ReplyParameters(number, allow_sending_without_reply=True) if number is not None else None


def _check_token(token: str) -> str:
    if not token:
        raise MissingSettingsError("telegram", "token")
    if not _TOKEN.fullmatch(token):
        raise ChannelSetupError(
            "channels.telegram.token is not a token. A token looks like 123456:ABC-DEF; copy all of it from @BotFather."
        )
    return token


def _connection_error(error: TelegramError, config: TelegramConfig) -> Exception:
    """The error of the connection, as opposed to one message."""
    if isinstance(error, InvalidToken):
        return api.setup_error_of(error, config.api_base)
    send_error = api.error_of(error)
    is_known = isinstance(send_error, NotConnectedError | RateLimitedError | ConflictError)
    return send_error if is_known else NotConnectedError(str(send_error))


def _chat(chat_id: str) -> int | str:
    return int(chat_id) if re.fullmatch(r"-?\d+", chat_id) else chat_id


def _thread(to: Address) -> int | None:
    return int(to.thread_id) if to.thread_id and to.thread_id.isdigit() else None


def _method_of(file: Outgoing) -> str:
    if file.path is None:
        return _BY_KIND[file.kind]
    method = _BY_SUFFIX.get(file.path.suffix.lower(), "document")
    return "document" if method == "photo" and file.size > LARGEST_PHOTO else method
