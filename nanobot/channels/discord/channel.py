"""The Discord channel: the user's own bot, by the gateway (https://discord.com/developers/docs/events/gateway).

The SDK keeps the connection open: it sends heartbeats, and resumes the session after a cut. A new session gets no old
events, so once a message is journaled, its chat's cursor moves past it, and when a session begins, each chat with
messages after its cursor is caught up before new ones. Ids are timestamps, and servers say the last message of each
channel, so only those chats are fetched.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any

import aiohttp
import discord

from nanobot.bus.events import Address, Button
from nanobot.bus.queue import MessageBus
from nanobot.channels import rest
from nanobot.channels.base import LoginStep, ShowStep
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.cursors import MAX_AGE, CatchUp
from nanobot.channels.discord.client import (
    Client,
    as_send_errors,
    connection_error,
    guild_id_of,
    intents_error,
    is_from_a_person,
    log_in,
    menu_of,
    read_interaction,
    read_message,
)
from nanobot.channels.errors import NotConnectedError, SendError, UndeliverableError
from nanobot.channels.incoming import Incoming
from nanobot.channels.media import Attachment
from nanobot.channels.outgoing import Outgoing, open_outgoing
from nanobot.channels.status import ChannelState
from nanobot.config.channels import DiscordConfig
from nanobot.errors import StorageError
from nanobot.markdown import Chunk
from nanobot.markdown.dialects import DISCORD
from nanobot.utils.aio import task_group
from nanobot.utils.bounded_dict import put_bounded

_EPOCH_MS = 1_420_070_400_000
"""https://discord.com/developers/docs/reference#snowflakes"""
MOST_CHATS, MOST_PRIVATE = 700, 200
"""Most cursors kept."""
log = logging.getLogger(__name__)

_INVITATION = "scope=bot+applications.commands&permissions=274878024768"
"""docs/guides/discord.md lists these permissions."""
_MOST_MISSED = 500
"""Most missed messages fetched in one chat, the latest ones."""
_MOST_CHATS = 100
"""Most chats that are caught up, the most recently used ones."""
_PAUSE_S = 1.0
"""Pause before the history or the journal is tried again."""
_MOST_FAILURES = 3
"""How often the SDK may reconnect in vain: its pauses grow to a quarter of an hour, the supervisor's to 30 seconds."""
_LONGEST_VALUE, _LONGEST_LABEL, _LONGEST_NONCE, _MOST_BUTTONS = 100, 80, 25, 25
_NOT_FOR_YOU = "This is a private bot."
_NOT_TAKEN = "I cannot take that right now. Please try again in a while."
_TEXT_CHANNELS = (discord.TextChannel, discord.VoiceChannel, discord.StageChannel, discord.Thread)


def id_at(moment: datetime) -> int:
    return max(0, int(moment.timestamp() * 1000) - _EPOCH_MS) << 22


@dataclass(slots=True)
class DiscordHistory:
    """The cursors, and what else is kept across connections."""

    since: int = 0
    """Nothing before this id is read."""
    read: dict[int, int] = field(default_factory=dict)
    """The last message read in each chat."""
    private: dict[int, None] = field(default_factory=dict)
    """The private chats: a bot cannot list those it has."""
    menu: str = ""
    """Fingerprint of the slash commands that Discord has."""
    salt: str = field(default_factory=lambda: secrets.token_hex(8))

    def begin(self, now: datetime) -> None:
        """Start a connection: read from now on if it is the first, else from at most MAX_AGE ago."""
        self.since = max(self.since or id_at(now), id_at(now - MAX_AGE))

    def after(self, chat: int) -> int:
        """The message of this chat after which nothing was read."""
        return max(self.read.get(chat, 0), self.since)

    def note(self, chat: int, message_id: int) -> None:
        """Record that a message and all before it in its chat were read."""
        self.since = min(self.since, message_id)  # `begin` set a future id if the host's clock is ahead
        put_bounded(self.read, chat, max(message_id, self.read.get(chat, 0)), MOST_CHATS)

    def add_private(self, chat: int) -> bool:
        """Record that a private chat is in use. Return whether it is new."""
        is_new = chat not in self.private
        put_bounded(self.private, chat, None, MOST_PRIVATE)
        return is_new


class DiscordChannel(ChatChannel):
    name = "discord"
    dialect = DISCORD
    largest_file = 10 * 1024 * 1024
    can_edit = True
    can_react = True
    dedupe_s = 120.0
    """Discord drops a second message with a nonce seen "in the past few minutes", which are at least two.
    https://discord.com/developers/docs/resources/message#create-message (enforce_nonce)
    """
    stall_s = 50.0  # heartbeats are answered every 41 s; a dead connection is noticed within a minute
    guilds_s: float = 0.5

    config: DiscordConfig

    def __init__(self, config: DiscordConfig, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._current_client: Client | None = None
        self._history = DiscordHistory()
        self._work = asyncio.TaskGroup()
        self._knows_servers = asyncio.Event()
        self._catch_up = CatchUp(self.name)
        self._missed: dict[int, discord.abc.Messageable] = {}
        """Chats to catch up before new messages are processed there."""
        self._failures = 0

    async def start(self) -> None:
        """Connect, and receive messages until the SDK cannot reconnect."""
        self._history = await self.state_file.load(DiscordHistory())
        self._history.begin(self.services.clock.now())
        async with (
            self.state_file.keep_saved(self._history),
            Client(self.config, guilds_s=self.guilds_s) as client,
        ):
            for handler in (
                self.on_socket_raw_receive, self.on_connect, self.on_resumed, self.on_disconnect, self.on_ready,
                self.on_guild_available, self.on_message, self.on_interaction, self.on_error,
            ):  # fmt: skip
                client.event(handler)
            await log_in(client, self.config)
            self._current_client, self._missed, self._failures = client, {}, 0
            try:
                async with task_group() as self._work:
                    self._start(self._sync_menu, client)
                    await _serve(client)
            except Exception as error:
                raise connection_error(error, client) from None
            finally:
                self._current_client = None

    async def run_login(self, show: ShowStep, *, force: bool = False) -> bool:
        """Show which bot the token belongs to. Raises ChannelSetupError; SendError if Discord is unreachable."""
        async with Client(self.config) as client:
            await log_in(client, self.config)
            if (error := intents_error(client)) is not None:
                raise error
        invitation = f"https://discord.com/oauth2/authorize?client_id={client.application_id}&{_INVITATION}"
        show(
            LoginStep(
                f"The token works. Your bot is {client.user}; to add it to one of your servers, open", link=invitation
            )
        )
        return True

    # events of the SDK, by the names it has for them (https://discordpy.readthedocs.io/en/stable/api.html#event-reference)

    async def on_socket_raw_receive(self, _: str) -> None:
        """Something arrived, if only the answer to a heartbeat."""
        self.status.touch()

    async def on_connect(self) -> None:
        """A session begins; its servers are announced one by one."""
        self._knows_servers.clear()
        await self.on_resumed()

    async def on_resumed(self) -> None:
        self._failures = 0
        self.mark_up()

    async def on_disconnect(self) -> None:
        """The SDK resumes the session. If that is lost, or after some failures, the supervisor reconnects sooner."""
        self.status.set_state(ChannelState.CONNECTING)
        self._failures += 1
        is_lost = getattr(self._client.ws, "session_id", None) is None
        if is_lost or self._failures > _MOST_FAILURES:
            await self._client.close()

    async def on_ready(self) -> None:
        """All servers are known: catch up, and process the messages that arrived meanwhile."""
        client = self._client
        self._knows_servers.set()
        self._catch_up_missed(
            [*client.get_all_channels(), *(thread for guild in client.guilds for thread in guild.threads)]
        )
        for chat in [*self._history.private][-_MOST_CHATS:]:
            self._start_catch_up(chat, client.get_partial_messageable(chat))

    async def on_guild_available(self, guild: discord.Guild) -> None:
        """A server is announced, perhaps one that was unavailable."""
        if self._knows_servers.is_set():
            self._catch_up_missed([*guild.channels, *guild.threads])

    async def on_message(self, message: discord.Message) -> None:
        """Process a message. The first of a private chat may not be the first that was sent."""
        chat = message.channel.id
        if guild_id_of(message) is None and self._history.add_private(chat):
            self.state_file.urgent.set()
            self._missed[chat] = message.channel
        self._start(self._process_chat, chat, message)

    async def on_interaction(self, interaction: discord.Interaction) -> None:
        if (incoming := read_interaction(interaction)) is not None:
            self._start(self._process_interaction, interaction, incoming)

    async def on_error(self, event: str, *_: object) -> None:
        log.exception("discord: %s failed", event)  # noqa: LOG004 the SDK calls this in its exception handler

    # receiving

    def _start(self, process: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run this until it is done or the connection ends."""

        async def run() -> None:
            try:
                await process(*args)
            except Exception:  # an SDK may raise anything, and one event must not stop the others
                log.exception("discord: an event could not be processed")

        work = run()
        try:
            self._work.create_task(work)
        except RuntimeError:  # the connection ends already
            work.close()

    def _catch_up_missed(self, chats: Iterable[object]) -> None:
        """Catch up on these chats where messages were missed, the latest first."""
        missed = [
            (last, chat)
            for chat in chats
            if isinstance(chat, _TEXT_CHANNELS) and (last := chat.last_message_id or 0) > self._history.after(chat.id)
        ]
        if len(missed) > _MOST_CHATS:
            log.warning("discord: messages were missed in %d channels; fetching those of %d", len(missed), _MOST_CHATS)
        for _, chat in sorted(missed, key=lambda entry: entry[0], reverse=True)[:_MOST_CHATS]:
            self._start_catch_up(chat.id, chat)

    def _start_catch_up(self, chat: int, channel: discord.abc.Messageable) -> None:
        self._missed[chat] = channel
        self._start(self._process_chat, chat)

    async def _process_chat(self, chat: int, *new: discord.Message) -> None:
        """Process the messages that were missed in a chat, if any, then a new one."""
        async with self._catch_up.lock_of(chat):
            await self._knows_servers.wait()
            channel = self._missed.pop(chat, None)
            missed = await self._fetch_missed(channel, self._history.after(chat)) if channel is not None else ()
            for message in {message.id: message for message in (*missed, *new)}.values():
                await self._process(message)

    async def _fetch_missed(self, channel: discord.abc.Messageable, after: int) -> Sequence[discord.Message]:
        """The later messages, oldest first. Retries until Discord answers; only this chat waits."""
        while True:
            try:
                async with self._catch_up.slots:
                    with as_send_errors():
                        messages = channel.history(limit=_MOST_MISSED, after=discord.Object(after), oldest_first=False)
                        missed = [message async for message in messages]
            except UndeliverableError:
                return ()  # the bot may not read it
            except SendError as error:
                log.debug("discord: missed messages in %s cannot be fetched yet: %s", channel, error)
                await asyncio.sleep(_PAUSE_S)
                continue
            if len(missed) >= _MOST_MISSED:
                log.warning("discord: more messages were missed in %s than the last %d", channel, _MOST_MISSED)
            return missed[::-1]

    async def _process(self, message: discord.Message) -> None:
        """Process one message, retrying until it is journaled; its chat waits.

        Reconnecting instead could use up the thousand sessions a day after which Discord resets the token.
        """
        if is_from_a_person(message):
            try:
                me = self._client.user
                channel: object = message.channel
                assert me is not None  # noqa: S101 known since the session began
                if isinstance(channel, discord.PartialMessageable) and guild_id_of(message) is not None:
                    with suppress(discord.DiscordException, aiohttp.ClientError, OSError):  # as of an archived thread
                        channel = await self._client.fetch_channel(channel.id)
                await self.receive_until_journaled(read_message(message, channel, me))
            except Exception:  # one unreadable message must not stop the others
                log.exception("discord: the message %s could not be read", message.id)
                to, is_private = Address(self.name, str(message.channel.id)), guild_id_of(message) is None
                await self.report_unreadable(str(message.author.id), to, is_private=is_private)
        self._history.note(message.channel.id, message.id)

    async def _process_interaction(self, interaction: discord.Interaction, incoming: Incoming) -> None:
        """Process a slash command or button press as a message, and answer it, visible to its user only."""
        try:
            answer = incoming.text[:2000] if await self.receive(incoming) else _NOT_FOR_YOU
        except StorageError as error:
            log.warning("discord: %s was not taken: %s", incoming.text.split()[0], error)
            answer = _NOT_TAKEN
        is_press = interaction.type is discord.InteractionType.component
        try:
            if is_press and answer not in (_NOT_FOR_YOU, _NOT_TAKEN):
                await interaction.response.defer()
            else:
                await interaction.response.send_message(answer, ephemeral=True)
        except (discord.DiscordException, aiohttp.ClientError, OSError) as error:  # the message is processed anyway
            log.debug("discord: a command was not acknowledged: %s", error)

    async def _sync_menu(self, client: Client) -> None:
        """Send our commands to Discord if they have changed."""
        menu = menu_of(self.services.commands)
        fingerprint = sha256(json.dumps([client.application_id, menu]).encode()).hexdigest()[:16]
        if not menu or fingerprint == self._history.menu:  # without commands, keep the menu that is set
            return
        try:
            with as_send_errors():
                await client.http.bulk_upsert_global_commands(client.application_id or 0, menu)
        except SendError as error:
            log.warning(
                "discord: the slash commands could not be added to Discord's menu (%s); typing them works", error
            )
            return
        self._history.menu = fingerprint

    def download(self, attachment: Attachment) -> AsyncIterator[bytes]:
        """Download a file in chunks: the SDK would hold all of it in memory."""
        return rest.download("Discord", attachment.source, proxy=self.config.proxy)

    # sending

    async def post(self, to: Address, chunk: Chunk, options: SendOptions) -> str:
        """Post a chunk. Discord drops a second one with the same nonce for a while: see `dedupe_s`.

        Without link previews: fetching a URL could leak data that a prompt injection put into it.
        """
        return await self._send(to, options, content=chunk.text, suppress_embeds=True)

    async def edit(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        """Replace the text of a message. It stays without previews."""
        with as_send_errors():
            await self._chat(to).get_partial_message(int(platform_id)).edit(content=chunk.text)

    async def post_file(self, to: Address, file: Outgoing, options: SendOptions) -> str:
        """Post a file. For a URL Discord shows the picture itself."""
        if file.path is None:
            return await self._send(to, options, content=file.url or file.name)
        try:
            attached = await asyncio.to_thread(lambda path: discord.File(open_outgoing(path), file.name), file.path)
        except OSError as error:
            raise UndeliverableError(f"{file.path} can no longer be read ({error.strerror})") from error
        try:
            return await self._send(to, options, file=attached)
        finally:
            attached.close()
            attached.fp.close()  # the SDK leaves this to the caller

    post_url = post_file

    async def show_typing(self, to: Address) -> None:
        """Show the typing indicator, which expires after ten seconds."""
        with as_send_errors():
            await self._chat(to).typing()

    async def react(self, to: Address, message_id: str, emoji: str) -> str:
        """Add a reaction to a message. Ignored for slash commands and button presses, which are no messages."""
        with as_send_errors(), suppress(discord.NotFound):
            await self._chat(to).get_partial_message(int(message_id)).add_reaction(emoji)
        return emoji

    async def take_back(self, to: Address, message_id: str, reaction: str) -> None:
        client = self._current_client
        if client is not None and client.user is not None:
            with as_send_errors(), suppress(discord.NotFound):
                await self._chat(to).get_partial_message(int(message_id)).remove_reaction(reaction, client.user)

    def largest_to(self, to: Address) -> int:
        """The server's upload limit: higher on boosted servers."""
        client = self._current_client
        chat = client.get_channel(int(to.chat_id)) if client is not None and to.chat_id.isdigit() else None
        guild = getattr(chat, "guild", None)
        return guild.filesize_limit if isinstance(guild, discord.Guild) else self.largest_file

    async def find(self, name: str) -> str | None:
        """Find a server channel by `#general`, or `home #general` if several servers have one of that name."""
        server, _, channel = name.strip().removeprefix("<").removesuffix(">").casefold().rpartition("#")
        if channel.isdigit():
            return channel
        matches = [
            str(known.id)
            for known in (self._current_client.get_all_channels() if self._current_client is not None else ())
            if isinstance(known, discord.abc.Messageable)
            and known.name.casefold() == channel.strip()
            and server.strip() in ("", known.guild.name.casefold())
        ]
        return matches[0] if len(matches) == 1 else None

    async def chat_with(self, sender_id: str) -> str | None:
        """Open the private chat, whose id differs from the person's.

        Discord returns an existing one (https://discord.com/developers/docs/resources/user#create-dm).
        """
        if not sender_id.isdigit():
            return None
        with as_send_errors():
            return str((await self._client.create_dm(discord.Object(int(sender_id)))).id)

    async def _send(self, to: Address, options: SendOptions, **content: Any) -> str:
        chat = self._chat(to)
        if options.buttons:
            content["view"] = _view_of(options.buttons)
        if options.reply_to is not None and options.reply_to.isdigit():
            content["reference"] = discord.MessageReference(
                message_id=int(options.reply_to), channel_id=chat.id, fail_if_not_exists=False
            )
        if options.nonce is not None:  # Discord compares all of a bot for some minutes, whatever their chat and journal
            nonce = sha256(f"{self._history.salt}:{chat.id}:{options.nonce}".encode())
            content["nonce"] = nonce.hexdigest()[:_LONGEST_NONCE]
        with as_send_errors():
            return str((await chat.send(silent=options.quiet, **content)).id)

    def _chat(self, to: Address) -> discord.PartialMessageable:
        chat_id = to.thread_id or to.chat_id
        if not chat_id.isdigit():
            raise UndeliverableError(
                f"{chat_id!r} is no Discord channel id. Enable Developer Mode in Discord (Settings, Advanced). "
                "Then right-click the channel and copy its ID."
            )
        return self._client.get_partial_messageable(int(chat_id))

    @property
    def _client(self) -> Client:
        """The SDK's client, once it is logged in."""
        if self._current_client is None:
            raise NotConnectedError("Discord is not connected")
        return self._current_client


async def _serve(client: Client) -> None:
    """Keep the client connected. Raises what ended the connection; closes it first, so that nothing is left open."""
    serving = asyncio.create_task(client.connect(), name="discord connection")
    try:
        await asyncio.wait([serving])
    finally:
        await client.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    serving.result()
    raise ConnectionError("Discord ended the connection")


def _view_of(buttons: Sequence[Button]) -> discord.ui.View:
    """Buttons as components. Each contains its value, so that a press can be read after a restart.

    Its label, as a choice, replaces a value that is too long.
    """
    view = discord.ui.View(timeout=None)
    values: set[str] = set()
    for button in buttons[:_MOST_BUTTONS]:
        label = button.label[:_LONGEST_LABEL]
        value = button.value if 0 < len(button.value) <= _LONGEST_VALUE else Button(label, "").choice
        if value not in values:  # Discord refuses two with the same value
            values.add(value)
            view.add_item(discord.ui.Button(label=label, custom_id=value))
    view.stop()  # presses are handled as events; otherwise the SDK keeps every view
    return view
