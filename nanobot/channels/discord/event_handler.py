"""Handles the events of one connection to Discord, each chat in order.

Once a message is journaled, the cursors of `history` move past it. When a connection begins, each chat with messages
after its cursor is caught up before new ones: the last 500 messages of at most seven days.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import aiohttp
import discord

from nanobot.bus.events import Address
from nanobot.channels.base import BaseChannel
from nanobot.channels.discord.chat_queues import ChatQueues
from nanobot.channels.discord.client import DiscordClient
from nanobot.channels.discord.history import DiscordHistory
from nanobot.channels.discord.inbound import (
    describe_file,
    files_of,
    guild_id_of,
    incoming_from,
    is_addressed_to,
    is_from_a_person,
    text_of,
)
from nanobot.channels.discord.menu import Menu, text_of_interaction
from nanobot.channels.discord.outbound import as_send_errors
from nanobot.channels.errors import NotConnectedError, RateLimitedError, SendError, UndeliverableError
from nanobot.channels.status import ChannelState
from nanobot.errors import StorageError
from nanobot.utils.aio import finish

log = logging.getLogger(__name__)

MOST_MISSED = 500
"""Most missed messages fetched in one chat, the latest ones."""
MOST_CHATS = 100
"""Most chats that are caught up, the most recently used ones."""
_AT_ONCE = 4
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
_ANSWER_S = 2.0
"""Discord gives three seconds to answer a command or a press."""
_MOST_FLAPS = 3
"""How often Discord may close the connection before its hello."""
_NOT_FOR_YOU = "This is a private bot."
_NOT_TAKEN = "I cannot take that right now. Please try again in a while."
_TEXT_CHANNELS = (discord.TextChannel, discord.VoiceChannel, discord.StageChannel, discord.Thread)


class DiscordEventHandler:
    """The event handlers of a channel, for one connection."""

    def __init__(self, channel: BaseChannel, history: DiscordHistory) -> None:
        self._channel = channel
        self._history = history
        self._client: DiscordClient | None = None
        self._queues = ChatQueues(history.settle)
        self._fetch_slots = asyncio.Semaphore(_AT_ONCE)
        self._flaps = 0
        self._too_many_flaps: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(self, client: DiscordClient, token: str) -> None:
        """Handle events until the connection ends. Raises what ended it; safe to cancel."""
        self._client = client
        serving = asyncio.create_task(client.serve(token), name="discord connection")
        try:
            done, _ = await asyncio.wait([serving, self._too_many_flaps], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._too_many_flaps.cancel()
            await self._queues.close()
            serving.cancel()
            await finish(asyncio.wait([serving]))

    def event_handlers(self) -> dict[str, Callable[..., None]]:
        """The handlers by the SDK's event names."""
        return {
            "socket_raw_receive": lambda _: self._channel.status.touch(),
            "connect": self._on_connect,
            "resumed": self._on_connect,
            "disconnect": self._on_disconnect,
            "ready": self._on_ready,
            "guild_available": self._on_guild,
            "message": self._on_message,
            "interaction": self._on_interaction,
        }

    def _on_connect(self) -> None:
        self._flaps = 0
        self._channel.mark_up()

    def _on_disconnect(self) -> None:
        """The SDK resumes at once, again and again. After some failures the supervisor takes over, with backoff."""
        self._channel.status.set_state(ChannelState.CONNECTING)
        self._flaps += 1
        if self._flaps > _MOST_FLAPS and not self._too_many_flaps.done():
            self._too_many_flaps.set_exception(ConnectionError("Discord closed the connection before its hello"))

    def _on_ready(self) -> None:
        client = self._connected_client()
        self._catch_up_missed(
            [*client.get_all_channels(), *(thread for guild in client.guilds for thread in guild.threads)]
        )
        for chat in [*self._history.private][-MOST_CHATS:]:
            self._queue_catch_up(chat, client.get_partial_messageable(chat))
        self._queues.ready.set()
        self._queues.start_now(partial(self._sync_menu, client))

    def _on_guild(self, guild: discord.Guild) -> None:
        """A server that was unavailable is back."""
        if self._queues.ready.is_set():
            self._catch_up_missed([*guild.channels, *guild.threads])

    def _catch_up_missed(self, chats: Iterable[object]) -> None:
        """Catch up on these chats where messages were missed."""
        missed = [
            (last, chat)
            for chat in chats
            if isinstance(chat, _TEXT_CHANNELS) and (last := chat.last_message_id or 0) > self._history.after(chat.id)
        ]
        missed.sort(key=lambda entry: entry[0], reverse=True)
        if len(missed) > MOST_CHATS:
            log.warning("discord: messages were missed in %d channels; fetching those of %d", len(missed), MOST_CHATS)
        for _, chat in missed[:MOST_CHATS]:
            self._queue_catch_up(chat.id, chat)

    def _queue_catch_up(self, chat: int, channel: discord.abc.Messageable) -> None:
        self._queues.add_first(chat, partial(self._catch_up, channel, self._history.after(chat)))

    def _on_message(self, message: discord.Message) -> None:
        chat = message.channel.id
        if guild_id_of(message) is None and self._history.add_private(chat):
            self._queues.add(chat, partial(self._catch_up, message.channel, self._history.after(chat)))
        self._queues.add(chat, partial(self._process, message))

    def _on_interaction(self, interaction: discord.Interaction) -> None:
        if (text := text_of_interaction(interaction)) is not None and interaction.channel_id is not None:
            self._queues.start_now(partial(self._process_interaction, interaction, interaction.channel_id, text))

    async def _catch_up(self, channel: discord.abc.Messageable, after: int) -> None:
        """Process the messages that were missed in a chat."""
        for message in await self._missed_messages(channel, after):
            await self._process(message)

    async def _missed_messages(self, channel: discord.abc.Messageable, after: int) -> list[discord.Message]:
        """The later messages, oldest first. Retries until Discord answers; only this chat waits."""
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                async with self._fetch_slots:
                    with as_send_errors():
                        messages = channel.history(limit=MOST_MISSED, after=discord.Object(after), oldest_first=False)
                        missed = [message async for message in messages]
                break
            except UndeliverableError:
                return []  # the bot may not read it
            except SendError as error:
                log.debug("discord: missed messages in %s cannot be fetched yet: %s", channel, error)
                await asyncio.sleep(error.retry_after_s if isinstance(error, RateLimitedError) else wait_s)
                wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
        if len(missed) >= MOST_MISSED:
            log.warning("discord: more messages were missed in %s than the last %d", channel, MOST_MISSED)
        return missed[::-1]

    async def _process(self, message: discord.Message) -> None:
        """Process one message, retrying until it is journaled; its chat waits.

        Reconnecting instead could use up the thousand sessions a day after which Discord resets the token.
        """
        wait_s = _FIRST_WAIT_S
        while is_from_a_person(message):
            try:
                await self._receive(message)
                break
            except StorageError as error:
                if wait_s == _FIRST_WAIT_S:
                    log.warning("discord: a message waits, it could not be journaled: %s", error)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
            except SendError:  # the connection ended: the next one catches up
                raise
            except Exception:  # one unreadable message must not stop the others
                log.exception("discord: the message %s could not be read", message.id)
                to = Address(self._channel.name, str(message.channel.id))
                is_private = guild_id_of(message) is None
                await self._channel.report_unreadable(str(message.author.id), to, is_private=is_private)
                break
        self._history.note(message.channel.id, message.id, is_private=guild_id_of(message) is None)

    async def _receive(self, message: discord.Message) -> None:
        me, channel_id = self._connected_client().me, message.channel.id
        channel = await self._channel_of(message)
        incoming = incoming_from(message.author, channel_id, channel, guild_id_of(message))
        await self._channel.receive(
            replace(
                incoming,
                text=text_of(message, me),
                message_id=str(message.id),
                is_mentioned=is_addressed_to(message, me),
                attachments=tuple(map(describe_file, files_of(message))),
                quotes_others=bool(message.message_snapshots),
                sent_at=message.created_at,
            )
        )

    async def _channel_of(self, message: discord.Message) -> object:
        """The message's channel; fetched if the SDK does not know it, such as an archived thread."""
        if not isinstance(message.channel, discord.PartialMessageable) or guild_id_of(message) is None:
            return message.channel
        try:
            return await self._connected_client().fetch_channel(message.channel.id)
        except (discord.DiscordException, SendError):
            return message.channel

    async def _process_interaction(self, interaction: discord.Interaction, channel_id: int, text: str) -> None:
        """Process a slash command or button press as a message, and answer it in time, visible to its user only."""
        incoming = incoming_from(interaction.user, channel_id, interaction.channel, interaction.guild_id)
        incoming = replace(incoming, text=text, message_id=str(interaction.id), is_mentioned=True)
        receiving = asyncio.create_task(self._channel.receive(incoming))
        try:
            await asyncio.wait([receiving], timeout=_ANSWER_S)
            is_command = interaction.type is discord.InteractionType.application_command
            answer = text if is_command else None
            if receiving.done():
                answer = _NOT_TAKEN if receiving.exception() else answer if receiving.result() else _NOT_FOR_YOU
            await _answer(interaction, answer)
        finally:
            await finish(asyncio.wait([receiving]))
            if (error := receiving.exception()) is not None:
                log.warning("discord: %s was not taken: %r", text.split()[0], error)

    async def _sync_menu(self, client: DiscordClient) -> None:
        """Send our commands to Discord if they have changed."""
        if not self._channel.services.commands:  # keep the menu that is set
            return
        menu = Menu(client, self._channel.services.commands)
        fingerprint = menu.fingerprint(client.application_id)
        if fingerprint == self._history.menu:
            return
        try:
            with as_send_errors():
                await menu.sync()
        except (SendError, discord.DiscordException) as error:
            log.warning(
                "discord: the slash commands could not be added to Discord's menu (%s); typing them works", error
            )
            return
        self._history.menu = fingerprint

    def _connected_client(self) -> DiscordClient:
        if self._client is None:
            raise NotConnectedError("Discord is not connected")
        return self._client


async def _answer(interaction: discord.Interaction, text: str | None) -> None:
    """Answer a command or press. A failure is only logged: the message is processed anyway."""
    try:
        if text is None:
            await interaction.response.defer()
        else:
            await interaction.response.send_message(text[:2000], ephemeral=True)
    except (discord.DiscordException, SendError, aiohttp.ClientError, OSError) as error:
        log.debug("discord: a command was not acknowledged: %s", error)
