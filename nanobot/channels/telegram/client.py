"""The line to Telegram: all that is asked of it, for the chats where they are today, with its errors as ours.

To be imported when a bot is started: it brings the SDK.
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
from nanobot.channels.errors import ChannelSetupError, NotConnectedError, RateLimitedError, UndeliverableError
from nanobot.channels.media_kinds import MediaKind
from nanobot.channels.outgoing import Outgoing, open_outgoing
from nanobot.channels.telegram import api
from nanobot.channels.telegram.incoming import menu_name, number_of
from nanobot.channels.telegram.polling import ConflictError, Raw
from nanobot.channels.telegram.state import TelegramState
from nanobot.config.channels import TelegramConfig
from nanobot.markdown.chunks import Chunk
from nanobot.net.http import HttpPools
from nanobot.utils.clock import Clock

log = logging.getLogger(__name__)

_NO_PREVIEW = LinkPreviewOptions(is_disabled=True)
"""Telegram would fetch a page that is named: a way out for what somebody talked the bot into writing in its address."""

T = TypeVar("T")
Ask = Callable[[int | str], Awaitable[T]]

LARGEST_PHOTO = 10 * 1024 * 1024
"""A larger picture goes as a file (core.telegram.org/bots/api#sendphoto)."""
UPLOAD_S = 60.0
"""How long Telegram may think about a file it has."""
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
"""As what Telegram shows a file; all else is a document."""


@asynccontextmanager
async def open_client(config: TelegramConfig, state_file: Path | None, clock: Clock) -> AsyncIterator["TelegramClient"]:
    """A line on which Telegram has told who we are.

    Raises ChannelSetupError for a token or a proxy that is no good, SendError where Telegram cannot be asked.
    """
    token = _checked(config.token.strip())
    pools = HttpPools(proxy=config.proxy or None)
    try:
        bot = await api.make_bot(token, pools, config.api_base, config.proxy or None)
        try:
            me = await bot.get_me()
        except TelegramError as error:
            raise _refusal(error, config) from error
        state = await asyncio.to_thread(TelegramState.load, state_file, me.id)
        yield TelegramClient(bot, me, pools, state, config, clock)
    finally:
        await pools.close()


class TelegramClient:
    """A bot that Telegram knows. To be used inside `open_client`."""

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
        self._quiet_until: dict[str, float] = {}

    async def updates(self, offset: int | None, wait_s: float) -> list[Raw]:
        """Poll; a webhook in the way is taken down. Raises ConflictError, and the rest as NotConnectedError."""
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
            raise _refusal(error, self._config) from error

    async def show_menu(self, commands: Sequence[MenuEntry]) -> None:
        """Tell Telegram what to show behind the slash. Never raises: the commands work without it."""
        if not commands:  # whoever knows of none has no say in it
            return
        try:
            await self.bot.set_my_commands([(menu_name(one.name), one.text[:_LONGEST_HINT]) for one in commands])
        except TelegramError as error:
            log.debug("telegram: the command menu was not set: %s", error)

    async def post(self, to: Address, piece: Chunk, how: SendOptions) -> str:
        """Post text and entities: nothing in it can be misread as a mark."""
        buttons, answered, thread = await self._keyboard(how.buttons), self._answered(how), _thread(to)

        async def send(chat: int | str, entities: Sequence[MessageEntity] = ()) -> Message:
            return await self.bot.send_message(
                chat, piece.text, entities=entities, message_thread_id=thread, reply_parameters=answered,
                reply_markup=buttons, disable_notification=how.quiet, link_preview_options=_NO_PREVIEW,
            )  # fmt: skip

        return str((await self._with_looks(to, piece, send)).message_id)

    async def edit(self, to: Address, message_id: int, piece: Chunk) -> None:
        """Make a message of ours say this; one that says it already is fine."""

        async def change(chat: int | str, entities: Sequence[MessageEntity] = ()) -> object:
            return await self.bot.edit_message_text(
                piece.text, chat, message_id, entities=entities, link_preview_options=_NO_PREVIEW
            )

        try:
            await self._with_looks(to, piece, change)
        except UndeliverableError as error:
            if "message is not modified" not in str(error).lower():
                raise

    async def post_file(self, to: Address, file: Outgoing, how: SendOptions) -> str:
        """Post a file as what it is; what Telegram cannot show so goes as a document."""
        buttons, answered, thread = await self._keyboard(how.buttons), self._answered(how), _thread(to)

        async def send(method: str, chat: int | str) -> Message:
            with ExitStack() as opened:
                what: InputFile | str = file.url or ""  # an address is Telegram's to fetch
                if file.path is not None:
                    handle = opened.enter_context(await asyncio.to_thread(open_outgoing, file.path))
                    what = InputFile(handle, filename=file.name, read_file_handle=False)
                sent: Message = await getattr(self.bot, f"send_{method}")(
                    chat, what, message_thread_id=thread, reply_parameters=answered, reply_markup=buttons,
                    disable_notification=how.quiet, read_timeout=UPLOAD_S,
                )  # fmt: skip
                return sent

        method = _method_of(file)
        try:
            message = await self._ask(to.chat_id, partial(send, method))
        except UndeliverableError:
            if method == "document":
                raise
            message = await self._ask(to.chat_id, partial(send, "document"))
        return str(message.message_id)

    async def show_typing(self, to: Address) -> None:
        """Say that the bot is at work; that wears off after five seconds."""
        thread = _thread(to)
        await self._ask(to.chat_id, lambda chat: self.bot.send_chat_action(chat, "typing", message_thread_id=thread))

    async def react(self, to: Address, message_id: int, emoji: str) -> None:
        """Put a sign on somebody's message (core.telegram.org/bots/api#reactiontypeemoji has those that may be)."""
        await self._ask(to.chat_id, lambda chat: self.bot.set_message_reaction(chat, message_id, emoji))

    async def take_press(self, query: CallbackQuery, *, accepted: bool) -> None:
        """Tell who pressed; take away buttons that were pressed. Never raises: the press itself is safe."""
        try:
            if accepted:
                await query.answer()
                if (message := query.message) is not None:
                    await self.bot.edit_message_reply_markup(message.chat.id, message.message_id)
            else:
                await query.answer("This was answered already, or is not yours to press.")
        except TelegramError as error:
            log.debug("telegram: a button press could not be acknowledged: %s", error)

    def download(self, file_id: str) -> AsyncIterator[bytes]:
        """A file somebody sent, chunk by chunk. Raises SendError."""
        return api.download(self.bot, self._pools, file_id)

    async def _with_looks(self, to: Address, piece: Chunk, send: Callable[..., Awaitable[T]]) -> T:
        """With its entities; where Telegram does not like those, the words alone."""
        entities = [
            MessageEntity(one.type, one.offset, one.length, url=one.url, language=one.language)
            for one in piece.entities
        ]
        try:
            return await self._ask(to.chat_id, lambda chat: send(chat, entities))
        except UndeliverableError as error:
            if "entit" not in str(error).lower():
                raise
            log.warning("telegram: sending a message without formatting: %s", error)
            return await self._ask(to.chat_id, send)

    async def _ask(self, chat_id: str, ask: Ask[T]) -> T:
        """Ask something for a chat, wherever it is today. Raises SendError."""
        chat_id = self.state.now_at(chat_id)
        left_s = self._quiet_until.get(chat_id, 0.0) - self._clock.monotonic()
        if left_s > 0:
            raise RateLimitedError(f"Telegram asks for a pause of {left_s:.0f} s", left_s)
        self._quiet_until.pop(chat_id, None)
        try:
            try:
                return await ask(_chat(chat_id))
            except ChatMigrated as moved:
                await self.state.has_moved(chat_id, str(moved.new_chat_id))
                return await ask(moved.new_chat_id)
        except TelegramError as error:
            ours = api.error_of(error)
            if isinstance(ours, RateLimitedError):
                self._quiet_until[chat_id] = self._clock.monotonic() + ours.retry_after_s
            raise ours from error

    async def _keyboard(self, buttons: Sequence[Button]) -> InlineKeyboardMarkup | None:
        rows = []
        for button in buttons:
            data = await self.state.data_of(button.value)
            rows.append([InlineKeyboardButton(button.label, callback_data=data)])
        return InlineKeyboardMarkup(rows) if rows else None

    def _answered(self, how: SendOptions) -> ReplyParameters | None:
        """The message to quote, where the owner wants quotes."""
        number = number_of(how.reply_to) if self._config.reply_to_message else None
        return ReplyParameters(number, allow_sending_without_reply=True) if number is not None else None


def _checked(token: str) -> str:
    if not token:
        raise ChannelSetupError(
            "channels.telegram.token is empty. Create a bot with @BotFather, and set its token here."
        )
    if not _TOKEN.fullmatch(token):
        raise ChannelSetupError(
            "channels.telegram.token is not a token: tokens look like 123456:ABC-DEF. Copy it again."
        )
    return token


def _refusal(error: TelegramError, config: TelegramConfig) -> Exception:
    """What it means for the connection, not for one message."""
    if isinstance(error, InvalidToken):
        return api.setup_error_of(error, config.api_base)
    ours = api.error_of(error)
    known = isinstance(ours, NotConnectedError | RateLimitedError | ConflictError)
    return ours if known else NotConnectedError(str(ours))


def _chat(chat_id: str) -> int | str:
    return int(chat_id) if re.fullmatch(r"-?\d+", chat_id) else chat_id


def _thread(to: Address) -> int | None:
    return int(to.thread_id) if to.thread_id and to.thread_id.isdigit() else None


def _method_of(file: Outgoing) -> str:
    if file.path is None:
        return _BY_KIND[file.kind]
    method = _BY_SUFFIX.get(file.path.suffix.lower(), "document")
    return "document" if method == "photo" and file.size > LARGEST_PHOTO else method
