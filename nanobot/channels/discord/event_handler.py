"""What one connection to Discord hears, each chat in its order.

A message counts as heard once the journal has it; from there on the marks of `past` go on. When a connection begins,
each chat in which something was said behind its mark is read up before anything new in it is heard: the last 500
messages of seven days.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
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
    is_for,
    is_from_a_person,
    message_place,
    words_of,
)
from nanobot.channels.discord.menu import Menu, said
from nanobot.channels.discord.outbound import as_send_errors
from nanobot.channels.errors import NotConnectedError, RateLimitedError, SendError, UndeliverableError
from nanobot.channels.status import ChannelState
from nanobot.errors import StorageError
from nanobot.utils.aio import finish

log = logging.getLogger(__name__)

MOST_MISSED = 500
"""Messages of one chat that are read up, the latest ones."""
MOST_CHATS = 100
"""Chats that are read up, those that were used last."""
_AT_ONCE = 4
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
_ANSWER_S = 2.0
"""Discord gives three seconds to answer a command or a press."""
_MOST_FLAPS = 3
"""How often Discord may hang up before it said anything."""
_NOT_FOR_YOU = "I only talk to people my owner has approved."
_NOT_TAKEN = "I cannot take that right now. Please try again in a while."
_WithTalk = (discord.TextChannel, discord.VoiceChannel, discord.StageChannel, discord.Thread)


class DiscordEventHandler:
    """The ears of a channel, for one connection."""

    def __init__(self, channel: BaseChannel, past: DiscordHistory) -> None:
        self._channel = channel
        self._past = past
        self._link: DiscordClient | None = None
        self._lanes = ChatQueues(past.settle)
        self._few = asyncio.Semaphore(_AT_ONCE)
        self._flaps = 0
        self._given_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(self, link: DiscordClient, token: str) -> None:
        """Hear until the connection ends. Raises what ended it; safe to cancel."""
        self._link = link
        serving = asyncio.create_task(link.serve(token), name="discord connection")
        try:
            done, _ = await asyncio.wait([serving, self._given_up], return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            self._given_up.cancel()
            await self._lanes.close()
            serving.cancel()
            await finish(asyncio.wait([serving]))

    def ears(self) -> dict[str, Callable[..., None]]:
        """By the SDK's names of events."""
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
        """The SDK resumes at once, and again: where that comes to nothing, it is left to who waits in between."""
        self._channel.status.set_state(ChannelState.CONNECTING)
        self._flaps += 1
        if self._flaps > _MOST_FLAPS and not self._given_up.done():
            self._given_up.set_exception(ConnectionError("Discord closed the connection before its hello"))

    def _on_ready(self) -> None:
        link = self._linked()
        self._miss([*link.get_all_channels(), *(one for guild in link.guilds for one in guild.threads)])
        for chat in [*self._past.private][-MOST_CHATS:]:
            self._read_first(chat, link.get_partial_messageable(chat))
        self._lanes.ready.set()
        self._lanes.aside(partial(self._tell_menu, link))

    def _on_guild(self, guild: discord.Guild) -> None:
        """A server is back that was out of reach, which is told as one that comes."""
        if self._lanes.ready.is_set():
            self._miss([*guild.channels, *guild.threads])

    def _miss(self, chats: Iterable[object]) -> None:
        """Read these up where something was said that nobody heard."""
        missed = [(last, one) for one in chats if isinstance(one, _WithTalk) and (last := one.last_message_id or 0)]
        missed = [(last, one) for last, one in missed if last > self._past.after(one.id)]
        missed.sort(key=lambda found: found[0], reverse=True)
        if len(missed) > MOST_CHATS:
            log.warning("discord: messages were missed in %d channels; fetching those of %d", len(missed), MOST_CHATS)
        for _, chat in missed[:MOST_CHATS]:
            self._read_first(chat.id, chat)

    def _read_first(self, chat: int, place: discord.abc.Messageable) -> None:
        self._lanes.first(chat, partial(self._read_up, place, self._past.after(chat)))

    def _on_message(self, message: discord.Message) -> None:
        chat = message.channel.id
        if guild_id_of(message) is None and self._past.meet(chat):
            self._lanes.add(chat, partial(self._read_up, message.channel, self._past.after(chat)))
        self._lanes.add(chat, partial(self._take, message))

    def _on_interaction(self, interaction: discord.Interaction) -> None:
        if (text := said(interaction)) is not None and interaction.channel_id is not None:
            self._lanes.aside(partial(self._take_said, interaction, interaction.channel_id, text))

    async def _read_up(self, place: discord.abc.Messageable, after: int) -> None:
        """Hear what was said there while nobody listened."""
        for message in await self._history(place, after):
            await self._take(message)

    async def _history(self, place: discord.abc.Messageable, after: int) -> list[discord.Message]:
        """What came later, oldest first; asked for until Discord says it, while this chat waits."""
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                async with self._few:
                    with as_send_errors():
                        found = place.history(limit=MOST_MISSED, after=discord.Object(after), oldest_first=False)
                        missed = [message async for message in found]
                break
            except UndeliverableError:
                return []  # not ours to read
            except SendError as error:
                log.debug("discord: missed messages in %s cannot be fetched yet: %s", place, error)
                await asyncio.sleep(error.retry_after_s if isinstance(error, RateLimitedError) else wait_s)
                wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
        if len(missed) >= MOST_MISSED:
            log.warning("discord: more messages were missed in %s than the last %d", place, MOST_MISSED)
        return missed[::-1]

    async def _take(self, message: discord.Message) -> None:
        """Hear one message, as soon as the disk has room for it; its chat waits. (Beginning anew each time would be one
        time too many: after a thousand sessions in a day Discord takes the token away.)
        """
        wait_s = _FIRST_WAIT_S
        while is_from_a_person(message):
            try:
                await self._hear(message)
                break
            except StorageError as error:
                if wait_s == _FIRST_WAIT_S:
                    log.warning("discord: a message waits, it could not be journaled: %s", error)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
            except SendError:  # the connection is over: it is read up in the next one
                raise
            except Exception:  # one odd message must not make the bot deaf
                log.exception("discord: the message %s could not be read", message.id)
                to = Address(self._channel.name, str(message.channel.id))
                is_private = guild_id_of(message) is None
                await self._channel.report_unreadable(str(message.author.id), to, is_private=is_private)
                break
        self._past.note(message.channel.id, message.id, is_private=guild_id_of(message) is None)

    async def _hear(self, message: discord.Message) -> None:
        me, channel_id = self._linked().me, message.channel.id
        place = message_place(channel_id, await self._known(message), guild_id_of(message))

        await self._channel.receive(
            str(message.author.id),
            place.chat_id,
            words_of(message, me),
            message_id=str(message.id),
            thread_id=place.thread_id,
            is_private=place.is_private,
            is_mentioned=is_for(message, me),
            parent_ids=place.within,
            attachments=[*map(describe_file, files_of(message))],
            timestamp=message.created_at.astimezone(self._channel.services.clock.now().tzinfo),
            quotes_others=bool(message.message_snapshots),
        )

    async def _known(self, message: discord.Message) -> object:
        """The channel it was said in; asked for where the SDK does not know it, as a thread that was asleep."""
        if not isinstance(message.channel, discord.PartialMessageable) or guild_id_of(message) is None:
            return message.channel
        try:
            return await self._linked().fetch_channel(message.channel.id)
        except (discord.DiscordException, SendError):
            return message.channel

    async def _take_said(self, interaction: discord.Interaction, channel_id: int, text: str) -> None:
        """A command was chosen or a button pressed: a message of who did, and an answer in time that they alone see."""
        place = message_place(channel_id, interaction.channel, interaction.guild_id)
        hearing = asyncio.create_task(
            self._channel.receive(
                str(interaction.user.id),
                place.chat_id,
                text,
                message_id=str(interaction.id),
                thread_id=place.thread_id,
                is_private=place.is_private,
                is_mentioned=True,
                parent_ids=place.within,
            )
        )
        try:
            await asyncio.wait([hearing], timeout=_ANSWER_S)
            is_command = interaction.type is discord.InteractionType.application_command
            answer = text if is_command else None
            if hearing.done():
                answer = _NOT_TAKEN if hearing.exception() else answer if hearing.result() else _NOT_FOR_YOU
            await _answer(interaction, answer)
        finally:
            await finish(asyncio.wait([hearing]))
            if (error := hearing.exception()) is not None:
                log.warning("discord: %s was not taken: %r", text.split()[0], error)

    async def _tell_menu(self, link: DiscordClient) -> None:
        """Discord is told our commands when they have changed; it keeps them."""
        if not self._channel.services.commands:  # whoever knows of none has no say in it
            return
        menu = Menu(link, self._channel.services.commands)
        fingerprint = menu.fingerprint(link.application_id)
        if fingerprint == self._past.menu:
            return
        try:
            with as_send_errors():
                await menu.sync()
        except (SendError, discord.DiscordException) as error:
            log.warning(
                "discord: the slash commands could not be added to Discord's menu (%s); typing them works", error
            )
            return
        self._past.menu, self._past.changed = fingerprint, True

    def _linked(self) -> DiscordClient:
        if self._link is None:
            raise NotConnectedError("Discord is not connected")
        return self._link


async def _answer(interaction: discord.Interaction, text: str | None) -> None:
    """Answer a command or a press. A late answer is no answer: what was said is on its way all the same."""
    try:
        if text is None:
            await interaction.response.defer()
        else:
            await interaction.response.send_message(text[:2000], ephemeral=True)
    except (discord.DiscordException, SendError, aiohttp.ClientError, OSError) as error:
        log.debug("discord: a command was not acknowledged: %s", error)
