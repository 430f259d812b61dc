"""The Telegram channel: a bot of one's own, by long polling (core.telegram.org/bots/api)."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from nanobot.bus.events import Address, Button
from nanobot.bus.queue import MessageBus
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.errors import NotConnectedError, UndeliverableError
from nanobot.channels.media import Attachment
from nanobot.channels.outgoing import Outgoing
from nanobot.channels.telegram.polling import Poller, PollTimeouts, Raw
from nanobot.config.channels import TelegramConfig
from nanobot.markdown.chunks import Chunk
from nanobot.markdown.dialects import TELEGRAM
from nanobot.net.clients import load_httpx
from nanobot.utils.clock import SystemClock

if TYPE_CHECKING:
    from nanobot.channels.telegram.client import TelegramClient
    from nanobot.channels.telegram.incoming import Incoming

log = logging.getLogger(__name__)


class TelegramChannel(ChatChannel):
    """Private chats, groups and topics of one bot."""

    name = "telegram"
    dialect = TELEGRAM
    largest_file = 50 * 1024 * 1024
    can_edit = True
    can_react = True
    group_interval_s: ClassVar[float] = 3.0
    """A group takes twenty messages a minute, edits included (core.telegram.org/bots/faq)."""

    def __init__(self, config: TelegramConfig, bus: MessageBus, *, pace: PollTimeouts | None = None) -> None:
        super().__init__(config, bus)
        self._section = config
        self._pace = pace or PollTimeouts()
        self._now: TelegramClient | None = None
        self._told = False

    async def start(self) -> None:
        """Serve until the connection ends. Raises ChannelSetupError for a token or a proxy that is no good."""
        await _load_sdk()
        from nanobot.channels.telegram.client import open_client

        folder = self.services.state
        async with open_client(self._section, folder / "bot.json" if folder else None, self.services.clock) as line:
            self._now = line
            self._look_at_privacy(line)
            menu = asyncio.create_task(line.show_menu(self.services.commands), name="telegram menu")
            try:
                await Poller(
                    line.updates, self._take, line.state, self.status, self.mark_up, self._pace, self._give_up
                ).run()
            finally:
                self._now = None
                menu.cancel()
                await asyncio.wait([menu])

    async def login(self, force: bool = False) -> bool:
        """Ask Telegram whose token it is, and say so. Raises ChannelSetupError, or SendError where it is away."""
        await _load_sdk()
        from nanobot.channels.telegram.client import open_client

        async with open_client(self._section, None, SystemClock()) as line:
            me = line.me
        print(f"The token is good. Your bot is {me.first_name}: https://t.me/{me.username}")  # noqa: T201 a person waits
        return True

    def delta_pause_s(self, chat_id: str) -> float:
        """Groups, whose ids are below zero, are shown a growing answer less often."""
        return self.group_interval_s if chat_id.startswith("-") else self.delta_interval_s

    async def post(self, to: Address, piece: Chunk, how: SendOptions) -> str:
        """Post one piece."""
        return await self._line.post(to, piece, how)

    async def edit(self, to: Address, platform_id: str, piece: Chunk) -> None:
        """Make a message say this."""
        await self._line.edit(to, int(platform_id), piece)

    async def post_file(self, to: Address, file: Outgoing, how: SendOptions) -> str:
        """Post a file as what it is: a picture, a voice, music, a film, or a document."""
        return await self._line.post_file(to, file, how)

    async def show_typing(self, to: Address) -> None:
        """Say that the bot is at work."""
        await self._line.show_typing(to)

    async def react(self, to: Address, message_id: str, emoji: str) -> None:
        """Put a sign on somebody's message."""
        line = self._line
        from nanobot.channels.telegram.incoming import number_of

        number = number_of(message_id)
        if number is None:
            raise UndeliverableError(f"{message_id!r} is not a Telegram message id")
        await line.react(to, number, emoji)

    def _look_at_privacy(self, line: "TelegramClient") -> None:
        """Say once where Telegram keeps from the bot what the config wants it to hear."""
        policy = self._section.group_policy
        if policy == "mention" or line.me.can_read_all_group_messages or self._told:
            return
        self._told = True
        log.warning(
            "telegram: groupPolicy is %s, but Telegram gives this bot only what mentions it. Switch its privacy mode "
            "off at @BotFather (/setprivacy), then take it out of the group and in again.",
            policy,
        )

    def download(self, attachment: Attachment) -> AsyncIterator[bytes]:
        """A file somebody sent."""
        return self._line.download(attachment.source)

    @property
    def _line(self) -> "TelegramClient":
        if self._now is None:
            raise NotConnectedError("Telegram is not connected")
        return self._now

    async def _take(self, together: Sequence[Raw]) -> None:
        """Take in an update, or the parts of an album. Raises StorageError where the disk refuses."""
        from telegram import Update

        from nanobot.channels.telegram.incoming import menu_name, merge_album, read_message, read_press

        line = self._line
        updates = [Update.de_json(raw, line.bot) for raw in together]
        if (query := updates[0].callback_query) is not None:
            value = line.state.value_of(query.data or "")
            pressed = read_press(query, value) if value else None
            if pressed is not None and Button.is_for_owners(pressed.text):
                pressed = pressed if self.services.access.is_owner(pressed.sender_id) else None
            await line.take_press(query, accepted=pressed is not None and await self._receive(pressed))
            return
        messages = [update.message for update in updates if update.message is not None]
        for message in messages:
            if message.migrate_to_chat_id is not None:
                await line.state.has_moved(str(message.chat.id), str(message.migrate_to_chat_id))
        names = {menu_name(entry.name): entry.name for entry in self.services.commands}
        read = [found for message in messages if (found := read_message(message, line.me, names)) is not None]
        if read:
            await self._receive(merge_album(read))

    async def _give_up(self, raw: Raw) -> None:
        """Tell whoever wrote it. Nothing of it can be relied on."""
        message = raw.get("message")
        told = message if isinstance(message, dict) else {}
        chat, sender = (one if isinstance(one := told.get(name), dict) else {} for name in ("chat", "from"))
        if isinstance(chat.get("id"), int) and isinstance(sender.get("id"), int):
            to = Address(self.name, str(chat["id"]))
            await self.report_unreadable(str(sender["id"]), to, is_private=chat.get("type") == "private")

    async def _receive(self, one: "Incoming") -> bool:
        old = self._line.state.was_at(one.chat_id)  # a group that moved keeps its session, and its place on lists
        kept = ":".join(part for part in (self.name, old, one.thread_id) if part) if old else None
        return await self.receive(
            one.sender_id,
            one.chat_id,
            one.text,
            message_id=one.message_id,
            thread_id=one.thread_id,
            is_private=one.is_private,
            is_mentioned=one.is_mentioned,
            parent_ids=(old,) if old else (),
            attachments=one.files,
            session_key=kept,
            timestamp=one.when.astimezone(self.services.clock.now().tzinfo) if one.when else None,
            quotes_others=one.quotes_others,
        )


async def _load_sdk() -> None:
    """In a thread: it takes 0.3 s, and other channels are starting too."""

    def load() -> None:
        load_httpx()  # before the SDK does, which would bring httpx's command line along
        import_module("nanobot.channels.telegram.client")

    await asyncio.to_thread(load)
