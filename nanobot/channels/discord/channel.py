"""The Discord channel: how it lives, and what goes out."""

import asyncio
from contextlib import suppress
from typing import Any

import discord

from nanobot.bus.events import Address
from nanobot.bus.queue import MessageBus
from nanobot.channels.discord.hearing import Hearing
from nanobot.channels.discord.link import GUILDS_S, Link, gateway_at
from nanobot.channels.discord.outbound import as_send_errors, nonce_of, quoting, view_of
from nanobot.channels.discord.past import remembered
from nanobot.channels.errors import ChannelSetupError, NotConnectedError, UndeliverableError
from nanobot.channels.media import Outgoing
from nanobot.channels.posting import Posting, PostingChannel
from nanobot.channels.text.dialects import DISCORD
from nanobot.channels.text.pieces import Piece
from nanobot.config.channels import DiscordConfig
from nanobot.utils.http import HttpPools, proxy_for

_USUAL_GATEWAY = DiscordConfig().gateway_url


class DiscordChannel(PostingChannel):
    """A Discord bot."""

    name = "discord"
    dialect = DISCORD
    largest_file = 10 * 1024 * 1024
    can_edit = True
    can_react = True
    stall_s = 50.0  # Discord answers a heartbeat each 41 s, and a line that died unseen is to be noticed in a minute
    guilds_s: float = GUILDS_S

    def __init__(self, config: Any, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._settings = config if isinstance(config, DiscordConfig) else DiscordConfig.model_validate(config)
        self._link: Link | None = None
        self._salt = ""

    async def start(self) -> None:
        """Connect, and hear what is said until the connection ends."""
        settings = self._settings
        token = settings.token.strip().removeprefix("Bot ")
        if not token:
            raise ChannelSetupError(
                "channels.discord.token is empty. Make a bot at https://discord.com/developers/applications, "
                "and put its token there."
            )
        proxy = proxy_for("https://discord.com", settings.proxy)
        if proxy is not None and not proxy.startswith(("http://", "https://")):
            kind = proxy.partition("://")[0]  # what follows may hold a password
            raise ChannelSetupError(f"channels.discord.proxy has to be of the kind http://host:port, and is {kind}.")
        pools = HttpPools(proxy=proxy)
        try:
            async with remembered(self.services.state, self.services.clock.now()) as past:
                hearing = Hearing(self, past, pools)
                self._salt = past.salt
                self._link = Link(settings.intents, hearing.ears(), proxy=proxy, guilds_s=self.guilds_s)
                with gateway_at(settings.gateway_url, _USUAL_GATEWAY):
                    await hearing.serve(self._link, token)
        finally:
            self._link = None
            await pools.close()

    async def post(self, to: Address, piece: Piece, how: Posting) -> str:
        """Post a piece. Discord takes one with the same nonce once."""
        return await self._send(to, how, content=piece.text)

    async def edit(self, to: Address, platform_id: str, piece: Piece) -> None:
        """Make a message say this."""
        with as_send_errors():
            await self._chat(to).get_partial_message(int(platform_id)).edit(content=piece.text)

    async def post_file(self, to: Address, file: Outgoing, how: Posting) -> str:
        """Post a file; of an address Discord makes a picture by itself."""
        if file.path is None:
            return await self._send(to, how, content=file.url or file.name)
        try:
            attached = await asyncio.to_thread(discord.File, file.path, file.name)
        except OSError as error:
            raise UndeliverableError(f"{file.path} cannot be read any more ({error.strerror})") from error
        try:
            return await self._send(to, how, file=attached)
        finally:
            attached.close()

    async def show_typing(self, to: Address) -> None:
        """Ten seconds of it."""
        with as_send_errors():
            await self._chat(to).typing()

    async def react(self, to: Address, message_id: str, emoji: str) -> None:
        """Put a sign on a message; on a command or a press, which are none, there is nothing to put it on."""
        with as_send_errors(), suppress(discord.NotFound):
            await self._chat(to).get_partial_message(int(message_id)).add_reaction(emoji)

    def largest_to(self, to: Address) -> int:
        """What the server takes: boosted ones take more."""
        chat = self._link.get_channel(int(to.chat_id)) if self._link is not None and to.chat_id.isdigit() else None
        guild = getattr(chat, "guild", None)
        return guild.filesize_limit if isinstance(guild, discord.Guild) else self.largest_file

    async def find(self, name: str) -> str | None:
        """A channel of a server as people write it: `#general`, or `home #general` where several servers have one."""
        server, _, channel = name.strip().removeprefix("<").removesuffix(">").rpartition("#")
        if channel.isdigit():
            return channel
        known = self._link.get_all_channels() if self._link is not None else ()
        wanted = (channel.strip().casefold(), server.strip().casefold())
        found = [one for one in known if isinstance(one, discord.abc.Messageable) and one.name.casefold() == wanted[0]]
        found = [one for one in found if wanted[1] in ("", one.guild.name.casefold())]
        return str(found[0].id) if len(found) == 1 else None

    async def _send(self, to: Address, how: Posting, **content: Any) -> str:
        chat = self._chat(to)
        if (view := view_of(how.buttons)) is not None:
            content["view"] = view
        if (quoted := quoting(how.reply_to, chat.id)) is not None:
            content["reference"] = quoted
        if how.nonce is not None:
            content["nonce"] = nonce_of(self._salt, chat.id, how.nonce)
        with as_send_errors():
            sent = await chat.send(silent=how.quiet, **content)
        return str(sent.id)

    def _chat(self, to: Address) -> discord.PartialMessageable:
        if self._link is None or not self.is_running:
            raise NotConnectedError("Discord is not connected")
        named = to.thread_id or to.chat_id
        if not named.isdigit():
            raise UndeliverableError(
                f"{named!r} is no id of a Discord channel. Switch on Developer Mode in Discord (Settings, Advanced), "
                "then right-click the channel and copy its ID."
            )
        return self._link.get_partial_messageable(int(named))
