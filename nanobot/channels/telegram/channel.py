"""The Telegram channel: the user's own bot, by long polling (core.telegram.org/bots/api)."""

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
from nanobot.markdown import Chunk
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
    """A group accepts twenty messages a minute, including edits (core.telegram.org/bots/faq)."""

    def __init__(self, config: TelegramConfig, bus: MessageBus, *, timeouts: PollTimeouts | None = None) -> None:
        super().__init__(config, bus)
        self._section = config
        self._timeouts = timeouts or PollTimeouts()
        self._current_client: TelegramClient | None = None
        self._has_warned = False

    async def start(self) -> None:
        """Serve until the connection ends. Raises ChannelSetupError for a token or proxy that cannot be used."""
        await _load_sdk()
        from nanobot.channels.telegram.client import open_client

        folder = self.services.state
        async with open_client(self._section, folder / "bot.json" if folder else None, self.services.clock) as client:
            self._current_client = client
            self._check_privacy(client)
            menu = asyncio.create_task(client.show_menu(self.services.commands), name="telegram menu")
            try:
                await Poller(
                    client.updates, self._handle, client.state, self.status, self.mark_up, self._timeouts, self._give_up
                ).run()
            finally:
                self._current_client = None
                menu.cancel()
                await asyncio.wait([menu])

    async def login(self, force: bool = False) -> bool:
        """Print which bot the token belongs to. Raises ChannelSetupError; SendError if Telegram is unreachable."""
        await _load_sdk()
        from nanobot.channels.telegram.client import open_client

        async with open_client(self._section, None, SystemClock()) as client:
            bot_user = client.me
        print(f"The token works. Your bot is {bot_user.first_name}:\nhttps://t.me/{bot_user.username}")  # noqa: T201 a person waits
        return True

    def delta_pause_s(self, chat_id: str) -> float:
        """Longer in groups, whose ids are negative."""
        return self.group_interval_s if chat_id.startswith("-") else self.delta_interval_s

    async def post(self, to: Address, chunk: Chunk, options: SendOptions) -> str:
        """Post one chunk."""
        return await self._client.post(to, chunk, options)

    async def edit(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        """Replace the text of a message."""
        await self._client.edit(to, int(platform_id), chunk)

    async def post_file(self, to: Address, file: Outgoing, options: SendOptions) -> str:
        """Post a file as a photo, voice message, audio, video or document."""
        return await self._client.post_file(to, file, options)

    async def show_typing(self, to: Address) -> None:
        """Show the typing indicator."""
        await self._client.show_typing(to)

    async def react(self, to: Address, message_id: str, emoji: str) -> None:
        """Set the reaction on a message."""
        client = self._client
        from nanobot.channels.telegram.incoming import number_of

        number = number_of(message_id)
        if number is None:
            raise UndeliverableError(f"{message_id!r} is not a Telegram message id")
        await client.react(to, number, emoji)

    def _check_privacy(self, client: "TelegramClient") -> None:
        """Warn once if the bot's privacy mode hides group messages that the config wants it to receive."""
        policy = self._section.group_policy
        if policy == "mention" or client.me.can_read_all_group_messages or self._has_warned:
            return
        self._has_warned = True
        log.warning(
            "telegram: groupPolicy is %s, but Telegram gives this bot only what mentions it. Switch its privacy mode "
            "off at @BotFather (/setprivacy), then take it out of the group and in again.",
            policy,
        )

    def download(self, attachment: Attachment) -> AsyncIterator[bytes]:
        """Download a file."""
        return self._client.download(attachment.source)

    @property
    def _client(self) -> "TelegramClient":
        if self._current_client is None:
            raise NotConnectedError("Telegram is not connected")
        return self._current_client

    async def _handle(self, raws: Sequence[Raw]) -> None:
        """Process an update, or all parts of an album. Raises StorageError if it cannot be journaled."""
        from telegram import Update

        from nanobot.channels.telegram.incoming import menu_name, merge_album, read_message, read_press

        client = self._client
        updates = [Update.de_json(raw, client.bot) for raw in raws]
        if (query := updates[0].callback_query) is not None:
            value = client.state.value_of(query.data or "")
            pressed = read_press(query, value) if value else None
            if pressed is not None and Button.is_for_owners(pressed.text):
                pressed = pressed if self.services.access.is_owner(pressed.sender_id) else None
            await client.take_press(query, accepted=pressed is not None and await self._receive(pressed))
            return
        messages = [update.message for update in updates if update.message is not None]
        for message in messages:
            if message.migrate_to_chat_id is not None:
                await client.state.record_move(str(message.chat.id), str(message.migrate_to_chat_id))
        names = {menu_name(entry.name): entry.name for entry in self.services.commands}
        incoming = [read for message in messages if (read := read_message(message, client.me, names)) is not None]
        if incoming:
            await self._receive(merge_album(incoming))

    async def _give_up(self, raw: Raw) -> None:
        """Tell the sender that their update could not be read. None of its fields can be relied on."""
        message = raw.get("message")
        fields = message if isinstance(message, dict) else {}
        chat, sender = (part if isinstance(part := fields.get(name), dict) else {} for name in ("chat", "from"))
        if isinstance(chat.get("id"), int) and isinstance(sender.get("id"), int):
            to = Address(self.name, str(chat["id"]))
            await self.report_unreadable(str(sender["id"]), to, is_private=chat.get("type") == "private")

    async def _receive(self, incoming: "Incoming") -> bool:
        session_key = None
        former_id = self._client.state.former_id(incoming.chat_id)
        if former_id:  # a migrated group keeps its session and its entries in lists
            session_key = ":".join(part for part in (self.name, former_id, incoming.thread_id) if part)
        return await self.receive(
            incoming.sender_id,
            incoming.chat_id,
            incoming.text,
            message_id=incoming.message_id,
            thread_id=incoming.thread_id,
            is_private=incoming.is_private,
            is_mentioned=incoming.is_mentioned,
            parent_ids=(former_id,) if former_id else (),
            attachments=incoming.files,
            session_key=session_key,
            timestamp=incoming.when.astimezone(self.services.clock.now().tzinfo) if incoming.when else None,
            quotes_others=incoming.quotes_others,
            sender_name=incoming.sender_name,
            sender_handle=incoming.sender_handle,
        )


async def _load_sdk() -> None:
    """Import the SDK in a thread: it takes 0.3 s, and other channels are starting too."""

    def load() -> None:
        load_httpx()  # before the SDK does, which would load httpx's command line
        import_module("nanobot.channels.telegram.client")

    await asyncio.to_thread(load)
