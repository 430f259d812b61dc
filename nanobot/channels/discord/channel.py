"""The Discord channel: how it lives, and what goes out."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import discord

from nanobot.bus.events import Address
from nanobot.bus.queue import MessageBus
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.discord.client import GUILDS_S, DiscordClient, gateway_at
from nanobot.channels.discord.event_handler import DiscordEventHandler
from nanobot.channels.discord.history import remembered
from nanobot.channels.discord.inbound import chunks_of
from nanobot.channels.discord.outbound import as_send_errors, nonce_of, quoting, view_of
from nanobot.channels.errors import ChannelSetupError, MissingSettingsError, NotConnectedError, UndeliverableError
from nanobot.channels.media import Attachment
from nanobot.channels.outgoing import Outgoing, open_outgoing
from nanobot.config.channels import DiscordConfig
from nanobot.markdown.chunks import Chunk
from nanobot.markdown.dialects import DISCORD
from nanobot.net.http import HttpPools, proxy_for

_USUAL_GATEWAY = DiscordConfig().gateway_url
_PERMISSIONS = 274878024768
"""What it asks for in a server; docs/guides/discord.md names each."""


class DiscordChannel(ChatChannel):
    """A Discord bot."""

    name = "discord"
    dialect = DISCORD
    largest_file = 10 * 1024 * 1024
    can_edit = True
    can_react = True
    dedupe_s = 120.0
    """Discord drops a second message with a nonce it has seen "in the past few minutes", and does not say how many: two
    at least. https://discord.com/developers/docs/resources/message#create-message (enforce_nonce)
    """
    stall_s = 50.0  # Discord answers a heartbeat each 41 s, and a line that died unseen is to be noticed in a minute
    guilds_s: float = GUILDS_S

    def __init__(self, config: Any, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._settings = config if isinstance(config, DiscordConfig) else DiscordConfig.model_validate(config)
        self._link: DiscordClient | None = None
        self._pools: HttpPools | None = None
        self._salt = ""

    async def start(self) -> None:
        """Connect, and hear what is said until the connection ends."""
        settings = self._settings
        token, proxy = _way_in(settings)
        pools = self._pools = HttpPools(proxy=proxy)
        try:
            async with remembered(self.services.state, self.services.clock.now()) as past:
                hearing = DiscordEventHandler(self, past)
                self._salt = past.salt
                self._link = DiscordClient(settings.intents, hearing.ears(), proxy=proxy, guilds_s=self.guilds_s)
                with gateway_at(settings.gateway_url, _USUAL_GATEWAY):
                    await hearing.serve(self._link, token)
        finally:
            self._link = self._pools = None
            await pools.close()

    async def login(self, force: bool = False) -> bool:
        """Ask Discord whose token it is, and say so. Raises ChannelSetupError, or SendError where it is away."""
        token, proxy = _way_in(self._settings)
        bot = await DiscordClient(self._settings.intents, {}, proxy=proxy).look_in(token)
        bring = f"this brings it into a server of yours:\n{_invitation(bot.id)}"
        print(f"The token works. Your bot is {bot.name}; {bring}")  # noqa: T201 a person waits
        return True

    async def post(self, to: Address, piece: Chunk, how: SendOptions) -> str:
        """Post a piece. Discord takes one with the same nonce once, for a while: see `dedupe_s`.

        Pages that it names are not fetched for a preview: an address may carry out what the bot knows.
        """
        return await self._send(to, how, content=piece.text, suppress_embeds=True)

    async def edit(self, to: Address, platform_id: str, piece: Chunk) -> None:
        """Make a message say this. That it shows no previews stays with it."""
        with as_send_errors():
            await self._chat(to).get_partial_message(int(platform_id)).edit(content=piece.text)

    async def post_file(self, to: Address, file: Outgoing, how: SendOptions) -> str:
        """Post a file; of an address Discord makes a picture by itself."""
        if file.path is None:
            return await self._send(to, how, content=file.url or file.name)
        try:
            attached = await asyncio.to_thread(_attached, file.path, file.name)
        except OSError as error:
            raise UndeliverableError(f"{file.path} can no longer be read ({error.strerror})") from error
        try:
            return await self._send(to, how, file=attached)
        finally:
            attached.close()
            attached.fp.close()  # which it leaves to who has opened it

    async def show_typing(self, to: Address) -> None:
        """Ten seconds of it."""
        with as_send_errors():
            await self._chat(to).typing()

    async def react(self, to: Address, message_id: str, emoji: str) -> None:
        """Put a sign on a message; on a command or a press, which are none, there is nothing to put it on."""
        with as_send_errors(), suppress(discord.NotFound):
            await self._chat(to).get_partial_message(int(message_id)).add_reaction(emoji)

    def download(self, attachment: Attachment) -> AsyncIterator[bytes]:
        """A file somebody sent."""
        if self._pools is None:
            raise NotConnectedError("Discord is not connected")
        return chunks_of(attachment.source, self._pools)

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

    async def chat_with(self, sender_id: str) -> str | None:
        """Open the private chat: its id is not that of the person.

        Discord gives out the one there is (https://discord.com/developers/docs/resources/user#create-dm).
        """
        link = self._linked()
        if not sender_id.isdigit():
            return None
        with as_send_errors():
            return str((await link.create_dm(discord.Object(int(sender_id)))).id)

    async def _send(self, to: Address, how: SendOptions, **content: Any) -> str:
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
        link = self._linked()
        named = to.thread_id or to.chat_id
        if not named.isdigit():
            raise UndeliverableError(
                f"{named!r} is not the id of a Discord channel. Enable Developer Mode in Discord (Settings, Advanced), "
                "then right-click the channel and copy its ID."
            )
        return link.get_partial_messageable(int(named))

    def _linked(self) -> DiscordClient:
        if self._link is None or not self.is_running:
            raise NotConnectedError("Discord is not connected")
        return self._link


def _attached(path: Path, name: str) -> discord.File:
    return discord.File(open_outgoing(path), name)


def _way_in(settings: DiscordConfig) -> tuple[str, str | None]:
    """The token, and the proxy on the way. Raises ChannelSetupError for what cannot be right."""
    token = settings.token.strip().removeprefix("Bot ")
    if not token:
        raise MissingSettingsError("discord", "token")
    proxy = proxy_for("https://discord.com", settings.proxy)
    if proxy is not None and not proxy.startswith(("http://", "https://")):
        kind = proxy.partition("://")[0]  # what follows may hold a password
        raise ChannelSetupError(f"channels.discord.proxy must look like http://host:port, and is {kind}.")
    return token, proxy


def _invitation(application: int) -> str:
    return (
        f"https://discord.com/oauth2/authorize?client_id={application}&scope=bot+applications.commands"
        f"&permissions={_PERMISSIONS}"
    )
